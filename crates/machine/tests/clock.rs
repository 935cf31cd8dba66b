//! A restored guest's clocks, with and without an agent in it.

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::*;
use floe_machine::{CaptureOptions, ClockSync, Machine};

/// How far the guest may be behind: its shell needs a moment under translation, and clocks show whole seconds.
const SLACK_S: u64 = 3;
/// How long the state is kept before the restore; much longer than the slack.
const AT_REST: Duration = Duration::from_secs(7);

/// The three commands of the guest agent that floe uses, as a shell script. Reading the port returns end-of-file while
/// nobody is connected.
const AGENT: &str = r#"
exec 3<>$(ls /dev/vport*p1)
while sleep 0.1; do while read -r line <&3; do
  case "$line" in
  *guest-sync-delimited*)
    id=$(echo "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    printf '\377{"return": %s}\n' "$id" >&3 ;;
  *guest-set-time*)
    ns=$(echo "$line" | sed 's/.*"time":\([0-9]*\).*/\1/')
    date -s "@${ns%?????????}" >/dev/null
    printf '{"return": {}}\n' >&3 ;;
  *guest-ping*) printf '{"return": {}}\n' >&3 ;;
  esac
done; done
"#;

fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn guest_number(console: &mut Console, command: &str) -> u64 {
    let said = console.run(command);
    said.trim()
        .lines()
        .last()
        .and_then(|l| l.trim().parse().ok())
        .unwrap_or_else(|| panic!("{command}: {said}"))
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn the_clock_is_right_after_a_restore_or_told_to_be_stale() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "parent", 30);
    let (parent, mut console) = boot(original.clone());
    let _parent = Guard(&parent);
    let bare = parent
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .unwrap();
    for line in AGENT.trim().lines() {
        console.send(&format!("echo '{}' >> /agent", line.replace('\'', r"'\''")));
    }
    console.run("(sh /agent </dev/null >/dev/null 2>&1 &)");
    parent.agent_ping(PATIENCE).unwrap();
    let with_agent = parent
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .unwrap();
    let captured_s = now_s();
    drop(console);
    parent.quit(PATIENCE).unwrap();
    std::thread::sleep(AT_REST);

    let spec = clone_spec(&original, &with_agent, dir.path(), "agent", 31);
    let state = snapshot(&with_agent, None, &dir.path().join("agent.ram"), spec.user);
    let clone = Machine::restore(spec, &state).unwrap().machine;
    let clock = clone.set_clock();
    let _clone = Guard(&clone);
    let set = clock
        .wait(PATIENCE)
        .expect("the agent answers or is given up on");
    assert!(matches!(set, ClockSync::Set { .. }), "{set:?}");
    let mut console = Console::open(&clone);
    let (before, shown, after) = (now_s(), guest_number(&mut console, "date +%s"), now_s());
    assert!(
        shown + SLACK_S >= before && shown <= after + 1,
        "the guest shows {shown}, it is {before} to {after}"
    );
    clone.quit(PATIENCE).unwrap();

    let spec = clone_spec(&original, &bare, dir.path(), "bare", 32);
    let state = snapshot(&bare, None, &dir.path().join("bare.ram"), spec.user);
    let clone = Machine::restore(spec, &state).unwrap().machine;
    let clock = clone.set_clock();
    let _clone = Guard(&clone);
    assert_eq!(
        clock.wait(Duration::from_millis(100)),
        None,
        "it is still being waited for"
    );
    let mut console = Console::open(&clone);
    let started = now_s();
    let shown = guest_number(&mut console, "date +%s");
    assert!(
        shown < captured_s + (now_s() - started) + SLACK_S,
        "nobody set it: the guest shows {shown}"
    );
    let (before, rtc) = (
        now_s(),
        guest_number(&mut console, "cat /sys/class/rtc/rtc0/since_epoch"),
    );
    assert!(
        rtc + SLACK_S >= before && rtc <= now_s() + 1,
        "the mainboard's clock shows {rtc}, it is {before}"
    );
    clone.quit(PATIENCE).unwrap();
    let stale = clock
        .wait(PATIENCE)
        .expect("an ended machine is not waited for");
    assert!(
        matches!(&stale, ClockSync::Stale { reason } if reason.contains("hwclock")),
        "{stale:?}"
    );
}
