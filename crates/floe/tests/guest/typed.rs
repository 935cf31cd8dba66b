//! What is typed at a machine while it stands still, is parked, and its node is killed: by `floe type`, and on its screen and consoles.

use crate::inputs::{Browser, CLICK, SHIFT, viewer};
use crate::support::command::{code, ok};
use crate::support::node::{Setup, Signal, TestNode, eventually};
use crate::support::terminal::Terminal;
use floe_api::{TypeRequest, TypedInput, UserInput};
use rustix::termios::LocalModes;
use std::io::Write;
use std::process::Child;

/// The end of what a program reads.
const END: &str = "\u{4}";

fn got(node: &TestNode) -> String {
    ok(node, &["exec", "web", "--", "cat", "/www/got"])
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_typed_while_a_machine_stands_still_comes_once_and_in_order_when_it_goes_on() {
    let mut node = TestNode::with(Setup {
        args: vec!["--guest-moves".into()],
        ..Default::default()
    });
    node.boot_tiny("web");
    // alone, it can't move, and says so
    let alone = "floe-guest offload 2>&1 | grep -q 'in no cluster' && echo alone-$((3+4))";
    node.type_and_wait("web", alone, "alone-7");
    let cat = "stty -echo; echo reads-$((6*7)); cat > /www/got; stty echo";
    ok(&node, &["type", "web", cat]);
    node.wait_console("web", "reads-42");
    let mut all = String::new();
    let mut types = |node: &TestNode, line: &str| {
        ok(node, &["type", "web", line]);
        all += line;
        all += "\n";
    };
    types(&node, "it runs");
    ok(&node, &["pause", "web"]);
    types(&node, "it is paused");
    node.end(Signal::KILL);
    node.start_again();
    types(&node, "its node was killed");
    eventually("it goes on", || {
        node.client().resume("web").is_ok() // it may not be taken over yet
    });
    types(&node, "it goes on");
    ok(&node, &["park", "web"]);
    types(&node, "it is parked");
    node.end(Signal::KILL);
    node.start_again();
    types(&node, "its node was killed again");
    ok(&node, &["wake", "web"]);
    types(&node, "it was woken");
    eventually("all that was typed is there", || {
        got(&node).len() >= all.len()
    });
    assert_eq!(got(&node), all);

    // what has no answer is sent again, and comes once
    let text = |text: &str| TypedInput {
        gap_ms: 0,
        input: UserInput::Text { text: text.into() },
    };
    let request = TypeRequest {
        from: "00000000000000ab".into(),
        first: 1,
        inputs: vec![text("one\n"), text("two\n")],
    };
    let client = node.client();
    for _ in 0..3 {
        assert_eq!(client.type_on("web", &request).unwrap().kept, 2);
    }
    let gap = TypeRequest {
        first: 4,
        inputs: vec![text("four\n")],
        ..request.clone()
    };
    let error = client.type_on("web", &gap).unwrap_err().to_api();
    assert!(error.message.contains("number 2"), "{error}");
    let more = TypeRequest {
        first: 2,
        inputs: vec![text("two\n"), text("three\n")],
        ..request
    };
    assert_eq!(client.type_on("web", &more).unwrap().kept, 3);
    all += "one\ntwo\nthree\n";
    eventually("the rest is there", || got(&node).len() >= all.len());
    ok(&node, &["type", "-n", "web", END]);
    ok(&node, &["type", "web", "echo shell-$((5+6))"]);
    node.wait_console("web", "shell-11");
    assert_eq!(got(&node), all, "nothing came twice");
    let empty = node.home().join("inputs");
    eventually("nothing of it stays on the disk", || {
        std::fs::read_dir(&empty).unwrap().next().is_none()
    });

    // without an agent it comes by the console's line
    let kill =
        "kill $(pidof floe-guest); while pidof floe-guest; do sleep 1; done; echo gone-$((1+1))";
    node.type_and_wait("web", kill, "gone-2");
    ok(&node, &["type", "web", "echo plain-$((2+3))"]);
    node.wait_console("web", "plain-5");
    // and for no machine at all nothing is kept
    ok(&node, &["rm", "--force", "web"]);
    code(&node, 3, &["type", "web", "nobody"]);
}

/// What the node keeps on the disk for the machine.
fn kept(node: &TestNode) -> String {
    std::fs::read_to_string(node.home().join("inputs/web.inputs")).unwrap_or_default()
}

/// Waits until text that was typed is on the disk.
fn is_kept(node: &TestNode, text: &str) {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    eventually(&format!("{text:?} is kept"), || {
        let kept = kept(node);
        let texts = kept.lines().filter_map(|line| line.rsplit_once(" x"));
        texts
            .map(|(_, text)| text)
            .collect::<String>()
            .contains(&hex)
    });
}

/// Opens a machine's console in a terminal.
fn console(node: &TestNode, terminal: &Terminal) -> Child {
    let console = terminal.run(node, &["console", "web"]);
    terminal.wait("leaves --");
    eventually("each key is passed on", || {
        !terminal.mode().local_modes.contains(LocalModes::ICANON)
    });
    console
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_done_on_the_screen_and_consoles_of_a_machine_that_stands_still_is_kept_for_it() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let cat = "stty -echo; echo reads-$((6*7)); cat > /www/got; stty echo";
    ok(&node, &["type", "web", cat]);
    node.wait_console("web", "reads-42");
    let mut page = Browser::open(&node, "/v1/machines/web/terminal");
    let mut screen = viewer(&node, "web").unwrap();
    page.write_all(b"it runs\n").unwrap();
    eventually("it is there at once", || got(&node) == "it runs\n");
    eventually("nothing waits", || kept(&node).is_empty());

    ok(&node, &["pause", "web"]);
    page.write_all(b"on the page\n").unwrap();
    is_kept(&node, "on the page\n");
    screen.write_all(&SHIFT.concat()).unwrap();
    eventually("a key goes down and up", || {
        let kept = kept(&node);
        kept.contains(" k42+\n") && kept.contains(" k42-\n")
    });
    screen.write_all(&CLICK.concat()).unwrap();
    eventually("a button goes down and up", || {
        let kept = kept(&node);
        let buttons = kept.lines().filter_map(|line| line.rsplit_once(" p"));
        buttons
            .map(|(_, place)| place.ends_with(":1"))
            .eq([true, false])
    });
    let terminal = Terminal::open(100, 40);
    let mut child = console(&node, &terminal);
    (&terminal.keys).write_all(b"in a terminal\r").unwrap();
    is_kept(&node, "in a terminal\r");
    (&terminal.keys).write_all(b"\x1d").unwrap();
    assert!(child.wait().unwrap().success());

    node.end(Signal::KILL);
    node.start_again();
    eventually("it goes on", || {
        node.client().resume("web").is_ok() // it may not be taken over yet
    });
    let all = "it runs\non the page\nin a terminal\n";
    eventually("all of it is there", || got(&node).len() >= all.len());
    assert_eq!(got(&node), all);
    eventually("nothing waits any more", || kept(&node).is_empty());

    // a terminal follows its machine while that is parked
    let terminal = Terminal::open(100, 40);
    let mut child = console(&node, &terminal);
    ok(&node, &["park", "web"]);
    terminal.wait("it stands still");
    (&terminal.keys).write_all(b"while it is parked\r").unwrap();
    is_kept(&node, "while it is parked\r");
    ok(&node, &["wake", "web"]);
    let all = format!("{all}while it is parked\n");
    eventually("the rest is there", || got(&node).len() >= all.len());
    assert_eq!(got(&node), all);
    terminal.wait("it runs here");
    (&terminal.keys).write_all(b"\x1d").unwrap();
    assert!(child.wait().unwrap().success());
}
