//! A keyboard and a mouse, with QEMU's `input-send-event` over the machine's spare QMP socket.
use anyhow::Context;
use floe_machine::qmp::Qmp;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a key or a button is held down.
const PRESS: Duration = Duration::from_millis(40);
/// QEMU's error for input to a paused machine.
const PAUSED: &str = "VM not running";
/// Longest pause of a machine for which a user waits.
const PAUSE_MAX: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time until a resumed guest has its keyboard again.
const WAKE: Duration = Duration::from_secs(2);
/// Largest step of the pointer, in the units of a PS/2 mouse.
const STEP: i64 = 100;
/// More than the width of any screen.
const CORNER: i64 = 2000;

/// A guest's keyboard and mouse.
pub struct Input {
    qmp: Qmp,
}

impl Input {
    /// Connects to a machine's second QMP socket.
    pub fn connect(socket: &Path) -> anyhow::Result<Input> {
        let cannot = || format!("cannot use {}", socket.display());
        let stream = UnixStream::connect(socket).with_context(cannot)?;
        let qmp = Qmp::over(stream, |_| {}).with_context(cannot)?;
        Ok(Input { qmp })
    }

    /// Runs a QMP command whose answer is not needed.
    pub fn execute(&self, command: &str, arguments: Value) -> anyhow::Result<()> {
        self.qmp.execute(command, arguments)?;
        Ok(())
    }

    /// Returns why the machine is gone; `None` if it is there.
    pub fn closed(&self) -> Option<String> {
        self.qmp.closed()
    }

    /// Sends input events. A machine that is paused for buffering accepts no input, so this waits like a user.
    fn send(&self, events: Vec<Value>) -> anyhow::Result<()> {
        let until = Instant::now() + PAUSE_MAX;
        loop {
            let sent = self.execute("input-send-event", json!({ "events": events }));
            match sent {
                Err(error) if error.to_string().contains(PAUSED) && Instant::now() < until => {
                    std::thread::sleep(LOOK_EVERY);
                }
                sent => return sent,
            }
        }
    }

    /// Presses (or releases) a key, by QEMU's name for it (`a`, `ret`, `ctrl` ...).
    pub fn key(&self, name: &str, down: bool) -> anyhow::Result<()> {
        let key = json!({"type": "qcode", "data": name});
        self.send(vec![
            json!({"type": "key", "data": {"down": down, "key": key}}),
        ])
    }

    /// Presses these keys together, for this long.
    pub fn hold(&self, names: &[&str], long: Duration) -> anyhow::Result<()> {
        for name in names {
            self.key(name, true)?;
        }
        std::thread::sleep(long);
        for name in names.iter().rev() {
            self.key(name, false)?;
        }
        Ok(())
    }

    /// Presses these keys together for a short time.
    pub fn press(&self, names: &[&str]) -> anyhow::Result<()> {
        self.hold(names, PRESS)
    }

    /// Presses a key without effect and waits, because the first key after a resume may be lost.
    pub fn wake(&self) -> anyhow::Result<()> {
        self.press(&["shift"])?;
        std::thread::sleep(WAKE);
        Ok(())
    }

    /// Types a text of lower-case letters, digits and `:/._-` on an American keyboard.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        for letter in text.chars() {
            let mut buffer = [0; 4];
            let key = match letter {
                'a'..='z' | '0'..='9' => &*letter.encode_utf8(&mut buffer),
                '/' => "slash",
                '.' => "dot",
                '-' => "minus",
                ' ' => "spc",
                ':' => {
                    self.press(&["shift", "semicolon"])?;
                    continue;
                }
                '_' => {
                    self.press(&["shift", "minus"])?;
                    continue;
                }
                other => anyhow::bail!("no key for {other:?}"),
            };
            self.press(&[key])?;
        }
        Ok(())
    }

    /// Moves the pointer to a point of the screen: into the corner first, and from there.
    pub fn point(&self, x: i64, y: i64) -> anyhow::Result<()> {
        self.slide(-CORNER, -CORNER)?;
        self.slide(x, y)
    }

    fn slide(&self, mut dx: i64, mut dy: i64) -> anyhow::Result<()> {
        while (dx, dy) != (0, 0) {
            let (x, y) = (dx.clamp(-STEP, STEP), dy.clamp(-STEP, STEP));
            (dx, dy) = (dx - x, dy - y);
            let axis = |axis: &str, value: i64| json!({"type": "rel", "data": {"axis": axis, "value": value}});
            self.send(vec![axis("x", x), axis("y", y)])?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Clicks with a button (`left`, `right`, `wheel-up`, `wheel-down`) where the pointer is.
    pub fn click(&self, button: &str) -> anyhow::Result<()> {
        for down in [true, false] {
            self.send(vec![
                json!({"type": "btn", "data": {"down": down, "button": button}}),
            ])?;
            std::thread::sleep(PRESS);
        }
        Ok(())
    }
}
