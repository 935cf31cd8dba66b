//! The stages of a guest at which workloads start. Each is an image that is captured from a machine of the previous one.
use super::session::Session;
use crate::guest::{Guest, READY};
use crate::live::Node;
use floe_api::{RunRequest, Wait};
use std::time::Duration;

/// The name of the machine from which images are captured.
const MAKER: &str = "maker";
/// Memory of the guest, bytes.
const MEMORY: u64 = 512 << 20;
/// Longest time for a guest to reach its shell or screen under emulation, on a machine that does other things too.
const START_MAX: Duration = Duration::from_secs(400);
/// Time for a guest that has just started to finish what it does by itself.
const SETTLE: Duration = Duration::from_secs(10);

/// The point at which a workload starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The disk, as it was built.
    Disk,
    /// The booted guest, with a shell on the serial line.
    Shell,
    /// The window manager runs, and no window is open.
    Screen,
}

impl Stage {
    /// Returns the image's name on the node.
    pub fn image(self) -> &'static str {
        match self {
            Stage::Disk => "lab-disk",
            Stage::Shell => "lab-shell",
            Stage::Screen => "lab-screen",
        }
    }

    /// Returns the stage from which this one is made.
    fn before(self) -> Option<Stage> {
        match self {
            Stage::Disk => None,
            Stage::Shell => Some(Stage::Disk),
            Stage::Screen => Some(Stage::Shell),
        }
    }

    /// Returns the request that starts a machine at this stage.
    pub fn request(self, machine: &str) -> RunRequest {
        RunRequest {
            image: self.image().into(),
            name: Some(machine.into()),
            cold: self == Stage::Disk,
            wait: Wait::None,
            ..RunRequest::default()
        }
    }

    /// Makes the image, and those before it, unless the node has it.
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

    /// Leads a guest from the previous stage to this one.
    fn reach(self, session: &mut Session) -> anyhow::Result<()> {
        match self {
            Stage::Disk => Ok(()),
            Stage::Shell => {
                session.expect(READY, START_MAX)?;
                // A guest without systemd need not be waited for; a failed unit does not matter.
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
