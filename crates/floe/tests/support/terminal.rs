//! A terminal on this host, for commands that have one.

use super::command::floe_by;
use super::node::{TestNode, eventually};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

/// A terminal on this host.
pub struct Terminal {
    /// What is typed is written here.
    pub keys: File,
    line: OwnedFd,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    pub fn open(columns: u16, rows: u16) -> Terminal {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let line = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        let terminal = Terminal {
            keys: keys.into(),
            line,
            seen: Arc::default(),
        };
        terminal.resize(columns, rows);
        let (mut screen, seen) = (terminal.keys.try_clone().unwrap(), terminal.seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count) = screen.read(&mut bytes) {
                seen.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        terminal
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    pub fn stream(&self) -> Stdio {
        self.line.try_clone().unwrap().into()
    }

    /// Starts a command that this terminal controls, so that the kernel tells it of a new size.
    pub fn run(&self, node: &TestNode, args: &[&str]) -> Child {
        floe_by(node, &["setsid", "-c"], args)
            .stdin(self.stream())
            .stdout(self.stream())
            .stderr(self.stream())
            .spawn()
            .unwrap()
    }

    pub fn mode(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }

    pub fn wait(&self, wanted: &str) {
        eventually(&format!("{wanted:?}"), || {
            self.seen.lock().unwrap().contains(wanted)
        });
    }
}
