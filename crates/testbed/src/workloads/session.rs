//! One running guest, as a workload uses it: a shell on the serial line, a keyboard, a mouse.
use super::input::Input;
use crate::live::Node;
use anyhow::{Context, bail};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one read of the console waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit for one search for a window, behind a slow link.
const LOOK_MAX: Duration = Duration::from_secs(20);
/// How often the guest looks for the window of a program that was started, under emulation.
const START_LOOKS: u32 = 60;
/// Longest time for a program to end.
const END_MAX: Duration = Duration::from_secs(200);
/// Most bytes of the console's output that are remembered.
const SEEN_MAX: usize = 64 << 10;

/// A guest that is being used.
pub struct Session {
    /// Its keyboard and mouse.
    pub input: Input,
    /// The random numbers for all decisions of a workload.
    pub random: StdRng,
    console: UnixStream,
    seen: String,
    asked: u32,
}

impl Session {
    /// Connects to a machine's console and input. The same `seed` yields the same behaviour.
    pub fn attach(node: &Node, machine: &str, seed: u64) -> anyhow::Result<Session> {
        let socket = node.client.console(machine)?.socket;
        let socket = Path::new(&socket);
        let run = socket
            .parent()
            .context("a console is in the machine's directory")?;
        Session::over(socket, &run.join("qmp-spare.sock"), seed)
    }

    /// Connects to the console and the monitor of a QEMU, by their sockets.
    pub fn over(console: &Path, monitor: &Path, seed: u64) -> anyhow::Result<Session> {
        let stream = UnixStream::connect(console)
            .with_context(|| format!("cannot open the console {}", console.display()))?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
        Ok(Session {
            input: Input::connect(monitor)?,
            random: StdRng::seed_from_u64(seed),
            console: stream,
            seen: String::new(),
            asked: 0,
        })
    }

    /// Waits until the console prints `word`, after the last word that was awaited. Returns what it printed before.
    pub fn expect(&mut self, word: &str, patience: Duration) -> anyhow::Result<String> {
        let until = Instant::now() + patience;
        let mut buffer = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(word) {
                let mut before: String = self.seen.drain(..at + word.len()).collect();
                before.truncate(at);
                return Ok(before);
            }
            if Instant::now() >= until {
                let tail: Vec<char> = self.seen.chars().rev().take(400).collect();
                let tail: String = tail.into_iter().rev().collect();
                bail!("the guest did not say {word:?} within {patience:?}, but {tail:?}");
            }
            match self.console.read(&mut buffer) {
                Ok(0) => bail!("the guest's console was closed"),
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&buffer[..bytes]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            if self.seen.len() > SEEN_MAX {
                let half = self.seen.len() - SEEN_MAX / 2;
                let cut = (half..).find(|&at| self.seen.is_char_boundary(at));
                self.seen.drain(..cut.unwrap_or_default());
            }
        }
    }

    /// Types a line into the shell.
    pub fn type_line(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.console, "{line}")?)
    }

    /// Types a line into the shell and waits until it was executed. Returns its exit status.
    pub fn try_shell(&mut self, line: &str, patience: Duration) -> anyhow::Result<String> {
        self.asked += 1;
        // The shell calculates the answer, so the terminal's echo of the line does not contain it.
        let number = self.asked;
        self.type_line(&format!("{line}; echo floe-$((1000 + {number}))=$?."))?;
        self.expect(&format!("floe-{}=", 1000 + number), patience)?;
        self.expect(".", patience)
    }

    /// The same for a line that must succeed, whose output is returned: less than half of what is remembered of the console.
    pub fn output(&mut self, line: &str, patience: Duration) -> anyhow::Result<String> {
        self.asked += 1;
        let number = self.asked;
        let tells = |mark: &str| format!("echo floe-$((1000 + {number})){mark}");
        self.type_line(&format!("{}; {line}; {}$?.", tells("-"), tells("=")))?;
        self.expect(&format!("floe-{}-", 1000 + number), patience)?;
        let output = self.expect(&format!("floe-{}=", 1000 + number), patience)?;
        match &*self.expect(".", patience)? {
            "0" => Ok(output),
            status => bail!("{line:?} ended with status {status}"),
        }
    }

    /// Types a line that must succeed into the shell and waits until it was executed.
    pub fn shell(&mut self, line: &str, patience: Duration) -> anyhow::Result<()> {
        match &*self.try_shell(line, patience)? {
            "0" => Ok(()),
            status => bail!("{line:?} ended with status {status}"),
        }
    }

    /// Waits until a program's window exists and has the keyboard; `class` is a part of the window's class. The guest
    /// looks `looks` times, once a second. Returns false if there is no such window then.
    pub fn window(&mut self, class: &str, looks: u32) -> anyhow::Result<bool> {
        let active = "xprop -id $(xprop -root _NET_ACTIVE_WINDOW | sed 's/.*# //') WM_CLASS";
        let seen = format!(
            "for n in $(seq {looks}); do {active} 2>&1 | grep -qi '\"[^,]*{class}' && break; sleep 1; done; [ $n -lt {looks} ]"
        );
        Ok(self.try_shell(&seen, LOOK_MAX * looks)? == "0")
    }

    /// Starts a program from the shell and waits until its window has the keyboard; `class` is a part of the window's class.
    pub fn start(&mut self, command: &str, class: &str) -> anyhow::Result<()> {
        self.type_line(&format!("{command} >/dev/null 2>&1 &"))?;
        anyhow::ensure!(self.window(class, START_LOOKS)?, "{class} has no window");
        Ok(())
    }

    /// Ends the program that was started last, through the shell that started it.
    pub fn end_started(&mut self) -> anyhow::Result<()> {
        self.try_shell("kill $!; wait", END_MAX).map(drop)
    }

    /// Lets the guest run for this long.
    pub fn wait(&mut self, long: Duration) -> anyhow::Result<()> {
        std::thread::sleep(long);
        match self.input.closed() {
            Some(reason) => bail!("the machine has ended: {reason}"),
            None => Ok(()),
        }
    }

    /// Stops the guest's CPUs.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.input.execute("stop", json!({}))
    }
}
