//! Starts node and hub with an error in one of their accesses, as often as the faults of the run say, and looks whether
//! anything is missing afterwards.
use super::{Driver, LOOK_EVERY, MACHINES};
use crate::hammer::kept::{PARKED, SUBSTRATE};
use crate::hammer::schedule::{Blow, Victim};
use crate::hammer::watch::Met;
use crate::hammer::world::{IMAGE, Program};
use floe_api::MachineStatus;
use floe_node::transfer::TransferError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time until a machine whose files could be read is a node's again: others start and fork beside it.
const TAKEN_OVER_MAX: Duration = Duration::from_secs(60);
/// Longest time until the hub's address is found again after its link was cut: the kernel asks for it three times, a second apart, and all
/// that is sent there meanwhile fails ("no route to host").
const REACHED_MAX: Duration = Duration::from_secs(10);
/// The beginning of what is said of a machine that a node leaves alone.
const LEFT_ALONE: &str = "it is left alone";

/// What stands beside a start with an error.
#[derive(Clone, Copy)]
struct Beside {
    /// The machine whose QEMU the same blow has killed, and which nobody has started since.
    killed: Option<usize>,
}

impl Beside {
    /// Whether a machine that is listed as failed is rightly so: it is left alone, and that is told, or its QEMU was killed.
    fn explains(self, name: &str, detail: &str) -> bool {
        let killed = self.killed.map(|index| MACHINES[index]);
        detail.starts_with(LEFT_ALONE) || killed == Some(name)
    }
}

impl Driver {
    /// Starts what was killed several times with an error, and kills it again. Returns whether there was such a start. A full
    /// disk is not joined by other errors; a cut link not by those of the hub, which is asked over it what it has. `killed` is the
    /// machine whose QEMU the blow has killed: it is not started yet.
    pub(super) fn start_with_errors(
        &mut self,
        blow: &Blow,
        killed: Option<usize>,
    ) -> anyhow::Result<bool> {
        let hit = |victim| blow.victims.contains(&victim);
        let mut tried = false;
        for at in 0..self.faults.len() {
            let (program, faults) = &mut self.faults[at];
            let program = *program;
            let victim = match program {
                Program::Node => Victim::Node,
                Program::Hub => Victim::Hub,
            };
            let unseen = program == Program::Hub && hit(Victim::Network);
            if !hit(victim) || hit(Victim::Disk) || unseen {
                continue;
            }
            for _ in 0..faults.how_many() {
                self.start_with_error(blow, at, killed)?;
                tried = true;
            }
        }
        Ok(tried)
    }

    fn start_with_error(
        &mut self,
        blow: &Blow,
        at: usize,
        killed: Option<usize>,
    ) -> anyhow::Result<()> {
        let (program, faults) = &mut self.faults[at];
        let program = *program;
        let tried = self.world.try_start(program, faults.next_fault())?;
        faults.saw(&tried.counts);
        let Some(met) = tried.met else {
            // a start differs a little from the next one, and the first is only watched
            if let Some(said) = tried.refused {
                let text = format!(
                    "blow {}: the {program}, in which nothing failed: {said}",
                    blow.number
                );
                self.record.bad_starts.push(text);
            }
            self.world.kill(program);
            return Ok(());
        };
        self.record.injected += 1;
        let text = format!(
            "blow {}: the {program}, with {} of {} {}",
            blow.number,
            met.error,
            met.call,
            met.path.display()
        );
        let wrong = match &tried.refused {
            Some(said) => {
                self.record.refused += 1;
                (!names(said, &met)).then(|| format!("it ended without naming that: {said}"))
            }
            None => self
                .missing(program, Some(Beside { killed }))
                .err()
                .map(|error| format!("{error:#}")),
        };
        self.world.kill(program);
        eprintln!(
            "        {text}: {}",
            match (&tried.refused, &wrong) {
                (_, Some(wrong)) => wrong.as_str(),
                (Some(_), None) => "it ended, and said so",
                (None, None) => "it works",
            }
        );
        self.record
            .bad_starts
            .extend(wrong.map(|wrong| format!("{text}: {wrong}")));
        Ok(())
    }

    /// Returns the guests whose QEMUs have ended though nobody killed them; they are to be started from their disks.
    pub(super) fn ended_guests(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        for (index, name) in MACHINES.into_iter().enumerate() {
            let gone =
                |pid: u32| matches!(Path::new(&format!("/proc/{pid}")).try_exists(), Ok(false));
            if self.pids[index].is_some_and(gone) {
                let blow = self.record.blows.len();
                let text = format!("blow {blow}: the QEMU of {name} has ended");
                eprintln!("        {text}");
                self.record.bad_starts.push(text);
                self.pids[index] = None;
                self.kill_qemu(index);
                ended.push(index);
            }
        }
        ended
    }

    /// After the errors, when both programs were started without one: everything must be there.
    pub(super) fn look_for_all(&mut self, blow: &Blow) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        for program in [Program::Node, Program::Hub] {
            if let Err(error) = self.missing(program, None) {
                wrong.push(format!(
                    "blow {}, after it: the {program}: {error:#}",
                    blow.number
                ));
            }
        }
        self.record.bad_starts.extend(wrong);
        Ok(())
    }

    /// Returns an error that says what of all that it must have a program does not have.
    fn missing(&self, program: Program, beside: Option<Beside>) -> anyhow::Result<()> {
        match program {
            Program::Node => self.missing_in_node(beside),
            Program::Hub => {
                let worker = self.worker()?;
                let until = Instant::now() + REACHED_MAX;
                loop {
                    // what is lost is counted there
                    match self.world.near.run(|| worker.look_at_hub())? {
                        Err(error) if is_unreachable(&error) && Instant::now() < until => {
                            std::thread::sleep(LOOK_EVERY);
                        }
                        looked => return looked.map(drop),
                    }
                }
            }
        }
    }

    fn missing_in_node(&self, beside: Option<Beside>) -> anyhow::Result<()> {
        let client = self.client()?;
        let until = Instant::now() + TAKEN_OVER_MAX;
        let mut missing: Vec<String>;
        loop {
            let machines = client.machines()?.machines;
            missing = Vec::new();
            for name in MACHINES.into_iter().chain([PARKED]) {
                match machines.iter().find(|machine| machine.name == name) {
                    None => missing.push(format!("{name} is not listed")),
                    Some(info) if info.status == MachineStatus::Failed => {
                        if !beside.is_some_and(|beside| beside.explains(name, &info.detail)) {
                            missing.push(format!("{name}: {}", info.detail));
                        }
                    }
                    Some(_) => {}
                }
            }
            if missing.is_empty() || Instant::now() > until {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if !client
            .substrates()?
            .substrates
            .iter()
            .any(|one| one.name == SUBSTRATE)
        {
            missing.push(format!("the substrate {SUBSTRATE}"));
        }
        let named = |name: &String| name.split(':').next() == Some(IMAGE);
        if !client
            .images()?
            .images
            .iter()
            .any(|image| image.names.iter().any(named))
        {
            missing.push(format!("the image {IMAGE}"));
        }
        anyhow::ensure!(missing.is_empty(), "missing: {}", missing.join("; "));
        Ok(())
    }
}

/// Whether an error says that there is no connection.
fn is_unreachable(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<TransferError>(),
        Some(TransferError::Unreachable { reached: false, .. })
    )
}

/// Whether an error names what failed: the path, or the directory that it is in. Of a socket from which nothing was received
/// only its two ends know a name.
fn names(said: &str, met: &Met) -> bool {
    let path = |path: &PathBuf| said.contains(&path.display().to_string());
    !met.path.is_absolute()
        || path(&met.path)
        || met.path.parent().is_some_and(|dir| path(&dir.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machine_whose_qemu_was_killed_may_have_failed_without_being_left_alone() {
        let ended = "its QEMU, process 7, has ended; start it again";
        let two = Beside { killed: Some(1) };
        assert!(two.explains("two", ended));
        assert!(!two.explains("one", ended) && !two.explains(PARKED, ended));
        let nobody = Beside { killed: None };
        assert!(!nobody.explains("two", ended));
        assert!(nobody.explains("two", "it is left alone: its record can't be read"));
    }
}
