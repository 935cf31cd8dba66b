//! A person's inputs, by every way to a real machine: after one of them, what its guest reads next goes first.

use crate::support::command::{floe, ok, run};
use crate::support::node::{PATIENCE, Signal, TestNode, eventually, forget};
use crate::support::sockets::web_socket;
use crate::support::terminal::Terminal;
use floe_api::{IoMachine, RunRequest, Wait};
use std::any::Any;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Output, Stdio};
use std::time::Duration;

/// Between a person's inputs: longer than reads are taken for answers to an input.
const PAUSE: Duration = Duration::from_secs(5);
/// A disk that no file system explains, so that nothing but inputs tells of reads.
const DISK_BYTES: usize = 8 << 20;
/// The shift key, which goes down and up again.
pub const SHIFT: [&[u8]; 2] = [b"\x04\x01\0\0\0\0\xff\xe1", b"\x04\x00\0\0\0\0\xff\xe1"];
/// The pointer, which moves, and its first button, which goes down and up.
const MOVE: &[u8] = b"\x05\x00\0\x10\0\x10";
pub const CLICK: [&[u8]; 2] = [b"\x05\x01\0\x10\0\x10", MOVE];

/// What keeps a way open until the node has counted.
type Open = Box<dyn Any>;

fn known(node: &TestNode, name: &str) -> Option<IoMachine> {
    let report = node.client().io().unwrap();
    report.machines.into_iter().find(|m| m.name == name)
}

/// Has a guest read what the host has on its own disk only. What is typed for that is no person's: the test is at QEMU's own socket.
fn read(node: &TestNode, name: &str, mark: u32) {
    forget(node.home());
    let line = format!(
        "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=64k skip=16 count=16; echo read-$(({mark}+1))"
    );
    node.type_and_wait(name, &line, &format!("read-{}", mark + 1));
}

/// Runs a `floe` command to its end, with this as its input, in one piece.
fn with_input(node: &TestNode, args: &[&str], input: &[u8]) -> Output {
    let mut command = floe(node, args);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// A node with an image that has a disk, of which all is on this host.
fn desk() -> TestNode {
    let node = TestNode::start();
    let disk = node.home().join("disk.raw");
    let number = |n: usize| (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut bytes: Vec<u8> = (0..DISK_BYTES / 8)
        .flat_map(|n| number(n).to_le_bytes())
        .collect();
    bytes[..1 << 20].fill(0); // as an empty disk begins
    std::fs::write(&disk, bytes).unwrap();
    node.import_tiny("desk", Some(&disk));
    node
}

/// Runs a machine, and sends it one input after the other by a way until what it then reads is served as waited for: on a busy host a guest
/// may begin too late for an answer.
fn goes_first(node: &TestNode, way: &str, send: &dyn Fn(&TestNode, &str) -> Open) {
    node.run(&RunRequest {
        image: "desk".into(),
        name: Some(way.into()),
        wait: Wait::Console,
        ..Default::default()
    });
    read(node, way, 10);
    let before = known(node, way).unwrap_or_else(|| panic!("{way}: {}", node.log()));
    assert_eq!((before.inputs, before.interactive.served), (0, 0), "{way}");
    let mut mark = 10;
    eventually(
        &format!("what is read after an input by {way} goes first"),
        || {
            // who does something without a pause can't be told from who waits for nothing
            std::thread::sleep(PAUSE);
            let before = known(node, way).unwrap();
            let open = send(node, way);
            eventually(&format!("an input by {way} is counted"), || {
                known(node, way).unwrap().inputs > before.inputs
            });
            drop(open);
            mark += 1;
            read(node, way, mark);
            known(node, way).unwrap().interactive.served > before.interactive.served
        },
    );
    ok(node, &["rm", "--force", way]);
}

/// The client's side of a VNC connection to QEMU, up to where the screen is known.
fn shakes_hands(screen: &mut (impl Read + Write)) -> io::Result<()> {
    let mut version = [0; 12];
    screen.read_exact(&mut version)?;
    assert_eq!(&version, b"RFB 003.008\n");
    screen.write_all(&version)?;
    let mut ways = [0; 2];
    screen.read_exact(&mut ways)?;
    assert_eq!(ways, [1, 1], "no password");
    screen.write_all(&[1])?;
    let mut result = [0; 4];
    screen.read_exact(&mut result)?;
    assert_eq!(result, [0; 4]);
    screen.write_all(&[1])?;
    let mut about = [0; 24];
    screen.read_exact(&mut about)?;
    let mut name = vec![0; u32::from_be_bytes(about[20..].try_into().unwrap()) as usize];
    screen.read_exact(&mut name)
}

/// Connects to a machine's screen as a VNC client does.
pub fn viewer(node: &TestNode, name: &str) -> io::Result<UnixStream> {
    let screen = node.client().console(name).unwrap().vnc.unwrap();
    let mut viewer = UnixStream::connect(screen)?;
    viewer.set_read_timeout(Some(PATIENCE))?;
    shakes_hands(&mut viewer)?;
    Ok(viewer)
}

/// A browser's WebSocket to the node.
pub struct Browser {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Browser {
    pub fn open(node: &TestNode, path: &str) -> Browser {
        Browser {
            stream: web_socket(node, path),
            unread: Vec::new(),
        }
    }
}

impl Read for Browser {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head)?;
            let length = match head[1] {
                126 => {
                    let mut length = [0; 2];
                    self.stream.read_exact(&mut length)?;
                    u16::from_be_bytes(length).into()
                }
                127 => {
                    let mut length = [0; 8];
                    self.stream.read_exact(&mut length)?;
                    u64::from_be_bytes(length)
                }
                length => length.into(),
            };
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload)?;
            // the rest are pings
            if head[0] & 0xf == 2 {
                self.unread = payload;
            }
        }
        let count = self.unread.len().min(out.len());
        out[..count].copy_from_slice(&self.unread[..count]);
        self.unread.drain(..count);
        Ok(count)
    }
}

impl Write for Browser {
    /// Sends a binary message, masked with zeroes.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        assert!(message.len() < 126);
        let mut frame = vec![0x82, 0x80 | message.len() as u8, 0, 0, 0, 0];
        frame.extend(message);
        self.stream.write_all(&frame)?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_read_after_a_key_or_a_button_on_the_screen_goes_first() {
    let node = desk();
    goes_first(&node, "vnc-key", &|node, name| {
        let mut viewer = viewer(node, name).unwrap();
        viewer.write_all(&SHIFT.concat()).unwrap();
        Box::new(viewer)
    });
    goes_first(&node, "vnc-button", &|node, name| {
        let mut viewer = viewer(node, name).unwrap();
        viewer.write_all(&CLICK.concat()).unwrap();
        Box::new(viewer)
    });
    goes_first(&node, "page-screen", &|node, name| {
        let mut browser = Browser::open(node, &format!("/v1/machines/{name}/vnc"));
        shakes_hands(&mut browser).unwrap();
        for message in SHIFT {
            browser.write_all(message).unwrap();
        }
        Box::new(browser)
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_read_after_something_was_typed_goes_first() {
    let node = desk();
    goes_first(&node, "page-console", &|node, name| {
        let mut browser = Browser::open(node, &format!("/v1/machines/{name}/terminal"));
        browser.write_all(b"\n").unwrap();
        Box::new(browser)
    });
    goes_first(&node, "console", &|node, name| {
        let terminal = Terminal::open(100, 40);
        let mut child = terminal.run(node, &["console", name]);
        terminal.wait("leaves --");
        // Enter, and the key that leaves
        (&terminal.keys).write_all(b"\r").unwrap();
        eventually("it is counted", || known(node, name).unwrap().inputs > 0);
        (&terminal.keys).write_all(b"\x1d").unwrap();
        child.wait().unwrap();
        Box::new(())
    });
    goes_first(&node, "exec", &|node, name| {
        let terminal = Terminal::open(100, 40);
        let args = [
            "exec",
            "-it",
            name,
            "--",
            "sh",
            "-c",
            "read line; echo got-$line",
        ];
        let mut child = terminal.run(node, &args);
        (&terminal.keys).write_all(b"it\r").unwrap();
        terminal.wait("got-it");
        child.wait().unwrap();
        Box::new(())
    });
    // what floe ssh goes through: a message that is as short as a key
    goes_first(&node, "ssh", &|node, name| {
        let request = b"GET / HTTP/1.0\r\n\r\n";
        let done = with_input(node, &["dial", name, "80"], request);
        assert!(!done.stdout.is_empty(), "{done:?}");
        Box::new(())
    });
    // what nobody types is no input
    node.run(&RunRequest {
        image: "desk".into(),
        name: Some("nobody".into()),
        wait: Wait::Console,
        ..Default::default()
    });
    let piped = run(&node, &["exec", "nobody", "--", "true"]);
    assert!(piped.status.success(), "{piped:?}");
    // nor what is piped into a command, however short it is, nor a message that is longer than any key: a file that ssh carries
    let piped = with_input(&node, &["exec", "-i", "nobody", "--", "cat"], b"k\n");
    assert_eq!(piped.stdout, b"k\n", "{piped:?}");
    let long = format!("GET / HTTP/1.0\r\nX-File: {}\r\n\r\n", "x".repeat(128));
    let carried = with_input(&node, &["dial", "nobody", "80"], long.as_bytes());
    assert!(!carried.stdout.is_empty(), "{carried:?}");
    read(&node, "nobody", 10);
    let nobody = known(&node, "nobody").unwrap();
    assert_eq!((nobody.inputs, nobody.interactive.served), (0, 0));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_screens_socket_answers_again_after_the_node_was_killed_and_bears_any_client() {
    let mut node = desk();
    let request = RunRequest {
        image: "desk".into(),
        name: Some("web".into()),
        wait: Wait::Console,
        ..Default::default()
    };
    node.run(&request);
    read(&node, "web", 10);
    let inputs = |node: &TestNode| known(node, "web").map_or(0, |web| web.inputs);

    // who speaks no VNC, or says what nobody knows, is QEMU's to refuse, and counts nothing
    let screen = node.client().console("web").unwrap().vnc.unwrap();
    let mut strange = UnixStream::connect(&screen).unwrap();
    let _ = strange.write_all(&[0xff; 64 << 10]); // QEMU may end it before
    strange.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut shown = Vec::new();
    let _ = strange.read_to_end(&mut shown); // what wasn't read resets the connection
    let mut other = viewer(&node, "web").unwrap();
    other.write_all(MOVE).unwrap();
    let _ = other.write_all(&[0x70; 100]); // as above
    let _ = other.read_to_end(&mut shown);
    assert_eq!(inputs(&node), 0);

    // many are served at a time, and one who is too many is let go without harm to the others
    let mut all = Vec::new();
    let refused = loop {
        match viewer(&node, "web") {
            Ok(viewer) => all.push(viewer),
            Err(error) => break error,
        }
        assert!(all.len() < 100, "no bound");
    };
    let kind = refused.kind();
    let is_end = matches!(
        kind,
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    assert!(is_end && all.len() >= 8, "{refused}, {}", all.len());
    let mut first = all.swap_remove(0);
    first.write_all(&SHIFT.concat()).unwrap();
    eventually("the first one's key is counted", || inputs(&node) == 1);
    drop(all);

    // the next node answers at the same place, where the socket of the killed one still lies
    node.end(Signal::KILL);
    let _ = first.read_to_end(&mut shown);
    UnixStream::connect(&screen).unwrap_err();
    node.start_again();
    eventually("its screen is shown again", || {
        node.client()
            .console("web")
            .is_ok_and(|console| console.vnc.as_ref() == Some(&screen))
    });
    let mut again = viewer(&node, "web").unwrap();
    again.write_all(&SHIFT.concat()).unwrap();
    eventually("a key is counted by the next node", || {
        // a machine is known once it has asked for something
        read(&node, "web", 20 + inputs(&node) as u32);
        inputs(&node) > 0
    });

    // and nobody answers for a machine that is gone
    ok(&node, &["rm", "--force", "web"]);
    UnixStream::connect(&screen).unwrap_err();
}
