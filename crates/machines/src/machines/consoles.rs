//! Consoles and screens of machines: where they are, what the guest wrote, and where it shows itself.

use super::{
    Machines,
    launch::{CONSOLE_LOG, CONSOLE_SOCKET, SCREEN_SOCKET, VNC_SOCKET},
};
use crate::screens::Users;
use floe_api::{ConsoleInfo, Face};
use floe_ground::{
    error::{NodeError, at, failed},
    keyboard::Keyboard,
};
use floe_machine::{Shown, Socket, console::ConsoleLog};
use std::{future::Future, os::unix::net::UnixStream};

impl Machines {
    /// Returns where a machine's console and screen are, and on which of both its guest shows itself.
    pub fn console(&self, name: &str) -> Result<ConsoleInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let record = entry.record();
        let vm = self.vm_dir(&record);
        // a QEMU that does not answer shows nothing
        let vm_now = entry.vm().ok();
        let vram = vm_now.as_ref().and_then(|vm| vm.video_memory().ok());
        let drawn_by_firmware = |vram: &[u8]| {
            let pid = vm_now.as_ref().map_or(0, |vm| vm.pid());
            self.is_on_console(&entry, pid, vram)
        };
        let shown = vram.map(|vram| match floe_machine::shown(&vram) {
            Shown::Guest if drawn_by_firmware(&vram) => Shown::Early,
            shown => shown,
        });
        // as long as the node answers for it, so that a person's inputs are known
        let screen = vm.join(SCREEN_SOCKET);
        let lent = entry.turn().is_some_and(|turn| turn.borrower().is_some());
        if lent
            && !self.screens.is_open(&screen)
            && let Err(error) = self.screens.open(&screen, &entry)
        {
            tracing::warn!(machine = name, %error, "its screen is not shown to VNC clients here");
        }
        let screen = match self.screens.is_open(&screen) {
            true => screen,
            false => vm.join(VNC_SOCKET),
        };
        let has_spoken = ConsoleLog::position(&self.console_dir(&record)) != (0, 0);
        Ok(ConsoleInfo {
            socket: vm.join(CONSOLE_SOCKET).display().to_string(),
            log: vm.join(CONSOLE_LOG).display().to_string(),
            vnc: Some(screen.display().to_string()),
            // also of one that has not answered this node yet
            pid: self
                .qemu_of(&entry)
                .ok()
                .flatten()
                .map(|qemu| qemu.id().pid),
            // a restored guest is long past its firmware, and its console's log begins with the restore
            face: shown.and_then(|shown| face(shown, has_spoken || record.restored)),
        })
    }

    /// Returns what a machine's guest wrote on its console: all that is kept, or the last `tail_bytes`.
    pub fn console_history(
        &self,
        name: &str,
        tail_bytes: Option<u64>,
    ) -> Result<ConsoleLog, NodeError> {
        let record = self.inventory.get(name)?.record();
        Ok(ConsoleLog::open(&self.console_dir(&record), tail_bytes))
    }

    /// Returns the end of what a running machine's guest wrote on its console, a keyboard for it, and the work that a new keyboard
    /// needs done.
    pub fn terminal(
        &self,
        name: &str,
        tail_bytes: u64,
    ) -> Result<
        (
            ConsoleLog,
            Keyboard,
            Option<impl Future<Output = ()> + Send + use<>>,
        ),
        NodeError,
    > {
        let entry = self.inventory.get(name)?;
        entry.vm()?;
        let log = ConsoleLog::open(&self.console_dir(&entry.record()), Some(tail_bytes));
        let machine = entry.clone();
        let connect = move || {
            let line = machine.vm().and_then(|vm| Ok(vm.console_line()?));
            line.unwrap_or_else(|error| {
                tracing::debug!(machine = %machine.name, %error, "nobody can type on its console");
                None
            })
        };
        let (keyboard, work) = self
            .keyboards
            .of(name, connect, move || entry.stands_still());
        Ok((log, keyboard, work))
    }

    /// Says who the users of machines' screens are.
    pub fn screens_have(&self, users: Box<Users>) {
        self.screens.have(users);
    }

    /// Connects to the screen of a running machine, for a VNC client.
    pub fn vnc(&self, name: &str) -> Result<UnixStream, NodeError> {
        let screen = self.inventory.get(name)?.vm()?.connect(Socket::Screen);
        screen.map_err(at(format!("the screen of {name} does not answer")))
    }

    /// Returns width and height of the screen.
    pub fn screen_size(&self, name: &str) -> Result<(u32, u32), NodeError> {
        let png = self.screenshot(name)?;
        png_size(&png).ok_or_else(|| failed(format!("the screen of {name} has no size"), ""))
    }

    /// Returns the screen as PNG.
    pub fn screenshot(&self, name: &str) -> Result<Vec<u8>, NodeError> {
        let entry = self.inventory.get(name)?;
        entry.answers()?;
        let vm = entry.vm()?;
        let file = self.images.scratch("screen")?;
        vm.screenshot(file.path())?;
        std::fs::read(file.path()).map_err(at("cannot read the screenshot"))
    }
}

/// Returns width and height of a picture: the first chunk of a PNG, behind its signature, begins with both.
fn png_size(png: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| {
        let bytes = png.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    Some((number(16)?, number(20)?)).filter(|(width, height)| *width > 0 && *height > 0)
}

/// Decides where a guest shows itself, by what its screen shows and whether it has used its console.
fn face(shown: Shown, console_used: bool) -> Option<Face> {
    match shown {
        Shown::Guest => Some(Face::Screen),
        Shown::Nothing | Shown::Early => console_used.then_some(Face::Console),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_says_how_large_it_is() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x04\0\0\0\x03\0\x08\x02\0\0\0";
        assert_eq!(png_size(png), Some((1024, 768)));
        assert_eq!(png_size(&png[..23]), None);
        assert_eq!(png_size(&[0; 24]), None);
    }

    #[test]
    fn the_console_is_where_a_guest_shows_itself_only_if_its_screen_shows_no_more_than_firmware() {
        assert_eq!(face(Shown::Guest, true), Some(Face::Screen));
        assert_eq!(face(Shown::Guest, false), Some(Face::Screen));
        for nothing in [Shown::Nothing, Shown::Early] {
            assert_eq!(face(nothing, true), Some(Face::Console));
            assert_eq!(face(nothing, false), None, "it may still be booting");
        }
    }
}
