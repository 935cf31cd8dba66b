//! The two machines of a run: boots, checks, kills and restarts them, and waits for them.
use super::{Driver, LOOK_EVERY, MACHINES, START_MAX, STEP_MAX};
use crate::hammer::console::follow;
use crate::hammer::world::{IMAGE, import_guest, kill};
use anyhow::{Context as _, ensure};
use floe_api::client::Client;
use floe_api::{MachineInfo, MachineStatus, RunRequest, StartRequest};
use floe_testbed::guest::Guest as Files;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

impl Driver {
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        self.world.client()
    }

    pub(super) fn machine(&self, name: &str) -> anyhow::Result<MachineInfo> {
        Ok(self.client()?.machine(name)?)
    }

    pub(super) fn start_machine(&self, name: &str) -> anyhow::Result<()> {
        self.client()?
            .start(name, &StartRequest::default())?
            .finish(|_| {})?;
        Ok(())
    }

    /// Kills a machine's QEMU. The guest loses what was not flushed; its stall time counts again only after it makes
    /// progress. Returns whether there was one.
    pub(super) fn kill_qemu(&mut self, index: usize) -> bool {
        self.shared.guests.lock()[index].ends();
        self.pids[index].take().is_some_and(kill)
    }

    pub(super) fn find_pids(&mut self) {
        for (pid, name) in self.pids.iter_mut().zip(MACHINES) {
            if let Ok(info) = self
                .world
                .client()
                .and_then(|client| Ok(client.machine(name)?))
            {
                *pid = info.pid;
            }
        }
    }

    /// Starts a machine whose QEMU was killed. A capture or fork of it may still be running.
    pub(super) fn start_from_disk(&mut self, index: usize) -> anyhow::Result<()> {
        let name = MACHINES[index];
        let until = Instant::now() + START_MAX;
        loop {
            let error = match self.start_machine(name) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // an earlier call, whose answer was lost, has started it
            if self
                .machine(name)
                .is_ok_and(|info| info.status == MachineStatus::Running && info.pid.is_some())
            {
                let pid = self.machine(name)?.pid;
                if pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
                    return Ok(());
                }
            }
            if Instant::now() > until {
                return Err(error.context(format!("{name} cannot be started from its disk")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn import(&self, guest: &Files, initrd: &Path) -> anyhow::Result<()> {
        import_guest(&self.client()?, guest, initrd)
    }

    /// Boots both machines, follows their consoles, and waits until both make progress.
    pub(super) fn boot_all(&mut self) -> anyhow::Result<()> {
        for (index, name) in MACHINES.into_iter().enumerate() {
            let client = self.client()?;
            let request = RunRequest {
                image: IMAGE.into(),
                name: Some(name.into()),
                cold: true,
                ..RunRequest::default()
            };
            client.run(&request)?.finish(|_| {})?;
            if self.threads.len() < MACHINES.len() {
                let (shared, socket) = (self.shared.clone(), client.console(name)?.socket);
                let read = move || follow(shared, index, socket.into());
                self.threads.push(std::thread::spawn(read));
            }
        }
        let steps = vec![0; MACHINES.len()];
        self.wait_steps(&steps, 3).context("after booting")?;
        self.find_pids();
        Ok(())
    }

    pub(super) fn steps(&self) -> Vec<u64> {
        self.shared
            .guests
            .lock()
            .iter()
            .map(|guest| guest.steps)
            .collect()
    }

    /// Waits until each guest is this many steps further than `from`.
    pub(super) fn wait_steps(&mut self, from: &[u64], steps: u64) -> anyhow::Result<()> {
        let until = Instant::now() + STEP_MAX;
        while self
            .steps()
            .iter()
            .zip(from)
            .any(|(now, from)| *now < from + steps)
        {
            self.hear_bad();
            ensure!(
                Instant::now() < until,
                "the guests got to step {:?} from {from:?} within {STEP_MAX:?}",
                self.steps()
            );
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// After the last blow, lets each guest read everything once; then kills both and lets them verify their disks again.
    pub(super) fn last_look(&mut self) -> anyhow::Result<()> {
        const STEPS_FOR_ALL: u64 = 17;
        // read the consoles again, because their threads ended with the run
        self.shared.over.store(false, Relaxed);
        for (index, name) in MACHINES.into_iter().enumerate() {
            let (shared, socket) = (self.shared.clone(), self.client()?.console(name)?.socket);
            let read = move || follow(shared, index, socket.into());
            self.threads.push(std::thread::spawn(read));
        }
        let steps = self.steps();
        self.wait_steps(&steps, STEPS_FOR_ALL)
            .context("after the last blow")?;
        self.find_pids();
        for index in 0..MACHINES.len() {
            self.kill_qemu(index);
            self.start_from_disk(index)?;
        }
        let steps = self.steps();
        self.wait_steps(&steps, STEPS_FOR_ALL)
            .context("after both QEMUs were killed")?;
        self.hear_bad();
        let worker = self.worker()?;
        self.world.near.run(|| {
            worker.look_at_kept().context("what was kept")?;
            worker.look_at_tokens()?;
            worker.verify_pushed().context("what was pushed")
        })?
    }
}
