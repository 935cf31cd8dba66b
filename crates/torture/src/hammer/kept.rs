//! What stands still during the blows: a parked machine and a substrate. Now and then the machine is woken and the substrate
//! activated, both verify everything, and both stand still again.
use super::model::Progress;
use super::work::Worker;
use anyhow::Context as _;
use floe_api::client::Client;
use floe_api::{ActivateRequest, DockRequest, MachineStatus, RunRequest, StartRequest};
use std::time::Duration;

/// The machine that is parked.
pub const PARKED: &str = "kept";
/// The substrate.
pub const SUBSTRATE: &str = "docked";
/// The machine that is activated of it.
const ACTIVATED: &str = "activated";
/// The image that both are made from.
const IMAGE: &str = "storm-kept";
/// How long both stand still.
const STAND: Duration = Duration::from_secs(20);
/// How often a thread that waits looks whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Worker {
    /// Makes both of copies of the first machine.
    pub fn keep(&self) -> anyhow::Result<()> {
        let (at_least, found) = self.known(0);
        self.capture(0, IMAGE)?;
        let node = self.node()?;
        let run = |name: &str| -> anyhow::Result<Progress> {
            let request = RunRequest {
                image: IMAGE.into(),
                name: Some(name.into()),
                ..RunRequest::default()
            };
            node.run(&request)?.finish(|_| {})?;
            let verified = self.verify(&node, name, at_least, &found)?;
            self.judge(name, verified.wrong);
            Ok(verified.now)
        };
        self.done.lock().kept = run(PARKED)?;
        node.park(PARKED, &Default::default())?.finish(|_| {})?;
        self.done.lock().docked = run(SUBSTRATE)?;
        let request = DockRequest {
            name: SUBSTRATE.into(),
            ..DockRequest::default()
        };
        node.dock(SUBSTRATE, &request)?.finish(|_| {})?;
        node.remove_machine(SUBSTRATE, true)?;
        Ok(())
    }

    /// Looks at both until the run is over.
    pub fn look_at_kept_without_end(&self) {
        loop {
            for _ in 0..STAND.as_millis() / LOOK_EVERY.as_millis() {
                if !self.goes_on() {
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            self.job("look at what is kept", || self.look_at_kept());
        }
    }

    /// Wakes and activates, has both verify everything, and lets both stand still again.
    pub fn look_at_kept(&self) -> anyhow::Result<()> {
        let node = self.node()?;
        // what an earlier look could not end
        let _ = node.remove_machine(ACTIVATED, true);
        if node.machine(PARKED)?.status == MachineStatus::Parked {
            let request = StartRequest::default();
            node.wake(PARKED, &request)?.finish(|_| {})?;
        }
        let kept = self.done.lock().kept;
        if let Some(now) = self.verify_kept(&node, PARKED, &kept) {
            self.done.lock().kept = now;
        }
        node.park(PARKED, &Default::default())?
            .finish(|_| {})
            .context("it is parked again")?;
        let request = ActivateRequest {
            name: Some(ACTIVATED.into()),
            answer_s: Some(0),
            ..ActivateRequest::default()
        };
        node.activate(SUBSTRATE, &request)?.finish(|_| {})?;
        let docked = self.done.lock().docked;
        self.verify_kept(&node, ACTIVATED, &docked);
        node.remove_machine(ACTIVATED, true)?;
        Ok(())
    }

    /// Has a machine verify everything that it had when it stood still. Returns how far it has come.
    fn verify_kept(&self, node: &Client, machine: &str, stood: &Progress) -> Option<Progress> {
        match self.verify(node, machine, stood.acked, stood) {
            Ok(verified) => {
                self.judge(machine, verified.wrong);
                Some(verified.now)
            }
            Err(error) => {
                self.lost(machine, &error);
                None
            }
        }
    }
}
