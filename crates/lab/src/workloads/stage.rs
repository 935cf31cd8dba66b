//! The moments of a guest's life at which workloads start, each an image that is captured from a machine of the one before.
use super::session::Session;
use crate::experiments::live::Node;
use crate::guest::{Guest, READY};
use floe_api::{RunRequest, Wait};
use std::time::Duration;

/// The machine that images are captured from.
const MAKER: &str = "maker";
/// Memory of the guest, bytes.
const MEMORY: u64 = 512 << 20;
/// How long a guest may take to its shell or screen under emulation, on a machine that does other things too.
const START_MAX: Duration = Duration::from_secs(400);
/// What a guest that has just started still does by itself is over after this.
const SETTLE: Duration = Duration::from_secs(10);

/// Where a workload starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The disk, as it was built.
    Disk,
    /// Booted, with a shell on the serial line.
    Shell,
    /// The window manager is there, no window is open.
    Screen,
}

impl Stage {
    /// The image's name on the node.
    pub fn image(self) -> &'static str {
        match self {
            Stage::Disk => "lab-disk",
            Stage::Shell => "lab-shell",
            Stage::Screen => "lab-screen",
        }
    }

    /// The stage that it is made from.
    fn before(self) -> Option<Stage> {
        match self {
            Stage::Disk => None,
            Stage::Shell => Some(Stage::Disk),
            Stage::Screen => Some(Stage::Shell),
        }
    }

    /// What is asked of a node to start a machine here.
    pub fn request(self, machine: &str) -> RunRequest {
        RunRequest {
            image: self.image().into(),
            name: Some(machine.into()),
            cold: self == Stage::Disk,
            wait: Wait::None,
            ..RunRequest::default()
        }
    }

    /// Makes the image unless the node has it, and those before it.
    pub fn prepare(self, node: &Node, guest: &Guest) -> anyhow::Result<()> {
        if node.client.image(self.image()).is_ok() {
            return Ok(());
        }
        let Some(before) = self.before() else {
            node.import_with(guest, self.image(), MEMORY, 1)?;
            return Ok(());
        };
        before.prepare(node, guest)?;
        eprintln!("making the image {} ...", self.image());
        node.run(&before.request(MAKER), |_| {})?;
        let mut session = Session::attach(node, MAKER, 0)?;
        self.reach(&mut session)?;
        session.wait(SETTLE)?;
        node.capture(MAKER, self.image(), true, 0)?;
        node.remove(MAKER)
    }

    /// From the stage before to this one.
    fn reach(self, session: &mut Session) -> anyhow::Result<()> {
        match self {
            Stage::Disk => Ok(()),
            Stage::Shell => {
                session.expect(READY, START_MAX)?;
                // A guest without systemd has nothing to wait for; one with a failed unit is as good.
                session.try_shell("systemctl is-system-running --wait", START_MAX)?;
                Ok(())
            }
            Stage::Screen => {
                session.type_line("floe-screen &")?;
                session.expect("floe-screen ready", START_MAX)?;
                Ok(())
            }
        }
    }
}
