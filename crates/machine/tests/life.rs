//! The life of one machine: boot, capture, restore twice, capture again.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::*;
use floe_machine::{Capture, CaptureOptions, Machine, Rest, Status};

/// Returns the numbers that the guest's counter printed.
fn counts(text: &str) -> Vec<u64> {
    text.split("count=")
        .skip(1)
        .filter_map(|rest| rest.split(['\r', '\n']).next()?.parse().ok())
        .collect()
}

/// Returns the bytes of a generation id as they are in the guest's memory.
fn guid_bytes(text: &str) -> Vec<u8> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let mut bytes: Vec<u8> = (0..16)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    for field in [0..4, 4..6, 6..8] {
        bytes[field].reverse();
    }
    bytes
}

fn holds<F>(capture: &Capture<F>, bytes: &[u8]) -> bool {
    capture
        .ram
        .iter()
        .any(|(_, page)| page.windows(bytes.len()).any(|w| w == bytes))
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn two_clones_go_on_where_their_parent_was_captured() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "parent", 0);
    let (parent, mut console) = boot(original.clone());
    let _parent = Guard(&parent);
    assert_eq!(parent.status().unwrap(), Status::Running);
    let threads = parent.vcpu_threads().unwrap();
    assert_eq!(threads.len() as u32, parent.config().cpus.unwrap());
    for thread in threads {
        let task = format!("/proc/{}/task/{thread}", parent.pid());
        assert!(std::path::Path::new(&task).exists(), "{task}");
    }
    // Hide the cursor, because it blinks.
    console.run(r"printf '\033[?25l\033[2J\033[31;44mfloe was here\n' > /dev/tty1");
    // A shell without a terminal counts in the background; a file in memory is the state that must survive.
    console.send(
        "(i=0; while :; do i=$((i+1)); echo count=$i; echo $i > /dev/shm/i; sleep 0.1; done) &",
    );
    console.expect("count=5");
    let generation = parent.generation_id().unwrap().unwrap();

    let capture = parent
        .capture(CaptureOptions::default(), || {
            // In the pause: the last number that the guest printed before it.
            let said = parent.console_history(1 << 20)?;
            Ok::<_, std::io::Error>(*counts(&String::from_utf8_lossy(&said)).last().unwrap())
        })
        .unwrap();
    let at = capture.frozen;
    assert_eq!(
        (capture.ram.size(), capture.ram.rest()),
        (MEMORY_BYTES, Rest::Zero)
    );
    assert!(
        capture
            .ram
            .iter()
            .all(|(_, page)| !floe_image::is_zero(page)),
        "zero pages are not carried"
    );
    assert!(capture.ram.iter().map(|(chunk, _)| chunk).is_sorted());
    eprintln!(
        "pause {:?} total {:?}, prepare {:?}, {} pages, {} of vram, {} bytes of devices",
        capture.pause,
        capture.pause.total(),
        capture.prepare,
        capture.ram.len(),
        capture.vram.len(),
        capture.device.len()
    );
    console.expect(&format!("count={}", at + 2));

    let mut generations = vec![generation];
    let picture = |machine: &Machine, name: &str| {
        machine.stop().unwrap();
        let path = dir.path().join(name);
        machine.screenshot(&path).unwrap();
        machine.cont().unwrap();
        std::fs::read(path).unwrap()
    };
    let screen = picture(&parent, "parent.png");
    for (number, name) in [(1, "one"), (2, "two")] {
        let spec = clone_spec(&original, &capture, dir.path(), name, number);
        let snapshot = snapshot(
            &capture,
            None,
            &dir.path().join(format!("{name}.ram")),
            spec.user,
        );
        let restored = Machine::restore(spec, &snapshot).unwrap();
        let clone = restored.machine;
        let _clone = Guard(&clone);
        eprintln!("{name}: {:?}", restored.stages);
        let modes = open_modes(clone.pid(), &dir.path().join(format!("{name}.ram")));
        assert_eq!(
            modes,
            [libc::O_RDONLY],
            "memory that others share is opened for reading"
        );
        let mut console = Console::open(&clone);
        console.expect_with(|s| counts(s).len() > 2, "the clone counts on");
        // What it printed before somebody listened is in its history, whose first line may be incomplete.
        let history = counts(&String::from_utf8_lossy(
            &clone.console_history(1 << 20).unwrap(),
        ));
        assert!(
            history[0] == at + 1 || history[0] == at + 2,
            "clone {name} went on at {history:?}, its parent was at {at}"
        );
        assert!(history.windows(2).all(|w| w[1] == w[0] + 1), "{history:?}");
        let generation = clone.generation_id().unwrap().unwrap();
        assert!(
            !generations.contains(&generation),
            "each clone is a generation of its own"
        );
        generations.push(generation);
        let shown = picture(&clone, "clone.png");
        assert!(shown == screen, "the clone's screen is its parent's");

        // QEMU takes memory that the guest gives back without a message.
        let log = std::fs::read_to_string(clone.dir().join("qemu.log")).unwrap();
        assert!(!log.contains("fallocate"), "{log}");

        // What a clone wrote is in its next capture, on top of the image.
        console.run("echo changed > /dev/shm/mine; dd if=/dev/zero of=/dev/shm/zeros bs=4096 count=64 2>/dev/null");
        let second = clone
            .capture(CaptureOptions::default(), || Ok::<_, std::io::Error>(()))
            .unwrap();
        eprintln!(
            "second pause {:?} total {:?}, {} pages, {} zeroed",
            second.pause,
            second.pause.total(),
            second.ram.len(),
            second.ram.zeroed()
        );
        assert_eq!(second.ram.rest(), Rest::Base);
        assert!(
            second.ram.len() < capture.ram.len(),
            "only what the clone wrote"
        );
        let new = guid_bytes(generations.last().unwrap());
        assert!(
            holds(&second, &new) && !holds(&second, &guid_bytes(&generations[0])),
            "the guest sees its new generation"
        );
        clone.quit(PATIENCE).unwrap();

        let spec = clone_spec(&original, &second, dir.path(), "child", number + 2);
        let ram = dir.path().join("child.ram");
        let snapshot = common::snapshot(&second, Some(&snapshot.ram), &ram, spec.user);
        let grandchild = Machine::restore(spec, &snapshot).unwrap().machine;
        let _grandchild = Guard(&grandchild);
        let mut console = Console::open(&grandchild);
        let said = console.run("cat /dev/shm/mine; kill %1");
        assert!(said.contains("changed"), "{said}");
        grandchild.quit(PATIENCE).unwrap();
    }
}

/// Pages of the file that a guest writes over and over: 24 MB, more than a capture leaves to its pause.
const PAGES: usize = 6144;

/// Returns whether this kernel lets programs without privileges learn what is written to memory.
fn kernel_notes_writes() -> bool {
    let mut api = [0xaa_u64, 1 << 15, 0];
    // SAFETY: a descriptor of this function's own, and a structure of that length.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as i32;
        let call = 0xC018_AA3F_u32 as libc::Ioctl;
        let knows = fd >= 0 && libc::ioctl(fd, call, api.as_mut_ptr()) == 0;
        libc::close(fd);
        knows
    }
}

/// Checks that the pages of a guest's file are as they were at one moment: it writes them in order, with the number of the generation.
fn is_of_one_moment<F>(capture: &Capture<F>) {
    let mut generations = vec![None; PAGES];
    for (_, page) in capture.ram.iter() {
        let Some(rest) = page.strip_prefix(b"floe-page ") else {
            continue;
        };
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<usize>().ok();
        let (Some(at), Some(generation)) = (number(&rest[..6]), number(&rest[7..15])) else {
            continue; // the text of the program
        };
        let earlier = generations[at].replace(generation);
        assert_eq!(earlier, None, "each page is there once");
    }
    let missing = generations.iter().position(Option::is_none);
    assert_eq!(missing, None);
    let generations: Vec<usize> = generations.into_iter().flatten().collect();
    let ends = (generations[0], generations[PAGES - 1]);
    eprintln!(
        "generations {ends:?}, {:?}, pause {:?} total {:?}",
        capture.ahead,
        capture.pause,
        capture.pause.total()
    );
    assert!(generations.is_sorted_by(|a, b| a >= b), "{generations:?}");
    assert!(ends.0 - ends.1 <= 1, "{ends:?}");
    assert_eq!(capture.ahead.rounds > 0, kernel_notes_writes());
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_guest_that_never_stops_writing_is_captured_as_it_is_at_one_moment() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "parent", 0);
    let (parent, mut console) = boot(original.clone());
    let _parent = Guard(&parent);
    let page = r#"printf "floe-page %06d %08d %4069s\n", p, g, """#;
    let pass =
        format!("awk -v g=$g 'BEGIN {{ for (p = 0; p < {PAGES}; p++) {page} }}' 1<>/dev/shm/pages");
    console.send(&format!(
        "(g=0; while :; do g=$((g+1)); {pass}; echo written=$g; done) &"
    ));
    console.expect("written=2");
    let take = |machine: &Machine| {
        machine
            .capture(CaptureOptions::default(), || Ok::<_, std::io::Error>(()))
            .unwrap()
    };
    let capture = take(&parent);
    assert_eq!(capture.ram.rest(), Rest::Zero);
    is_of_one_moment(&capture);
    parent.quit(PATIENCE).unwrap();

    // its memory is a private mapping of a file now
    let spec = clone_spec(&original, &capture, dir.path(), "clone", 1);
    let snapshot = snapshot(&capture, None, &dir.path().join("clone.ram"), spec.user);
    let clone = Machine::restore(spec, &snapshot).unwrap().machine;
    let _clone = Guard(&clone);
    let mut console = Console::open(&clone);
    for _ in 0..2 {
        let passes = |said: &str| said.matches("written=").count();
        console.expect_with(|said| passes(said) > 2, "all pages are written again");
        let capture = take(&clone);
        assert_eq!(capture.ram.rest(), Rest::Base);
        is_of_one_moment(&capture);
    }
    clone.quit(PATIENCE).unwrap();
}
