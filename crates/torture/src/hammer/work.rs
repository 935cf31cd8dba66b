//! The work during the blows: one thread captures machines, pushes captures to the hub and lets another node run them;
//! another forks machines; a third looks after a parked machine and a substrate ([`kept`](super::kept)), and one runs
//! commands ([`beside`](super::beside)). Every copy verifies its memory and disk. What fails because something was hit is
//! repeated; what fails although nothing was hit is reported.
use super::console::{Shared, Verified, verify_copy};
use super::model::Progress;
use super::promised::Promised;
use super::schedule::Moment;
use anyhow::{Context as _, bail};
use floe_api::client::Client;
use floe_api::{
    CaptureRequest, CloneState, ForkRequest, KillRequest, PullRequest, RemoveImageRequest,
    RunRequest,
};
use floe_node::transfer::{Cancel, HubClient};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time limit for a short call to the hub.
const HUB_MAX: Duration = Duration::from_secs(10);
/// Pause between two jobs of a thread.
pub(super) const REST: Duration = Duration::from_millis(400);
/// One of this many captures is pushed to the hub and run from there.
const PUSH_EVERY: u64 = 3;
/// Prefix of the names of captures, before a number.
const IMAGE: &str = "storm";
/// The name of the machine that runs a pulled image.
const COPY: &str = "copy";

/// The results of the work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Captures that succeeded.
    pub captures: u64,
    /// Forks that succeeded.
    pub forks: u64,
    /// Images pushed to the hub.
    pub pushes: u64,
    /// Images pulled from the hub and run.
    pub pulls: u64,
    /// Copies that verified everything and found no error.
    pub verified: u64,
    /// Jobs that failed because something was hit.
    pub disturbed: u64,
    /// Errors that copies found.
    pub wrong: Vec<String>,
    /// Clones that ran and were lost.
    pub lost_clones: Vec<String>,
    /// Jobs that failed although nothing was hit.
    pub errors: Vec<String>,
    /// Commands that ended well beside node and hub.
    pub commands: u64,
    /// Pushes that the hub has acknowledged and not kept.
    pub lost_pushes: Vec<String>,
    /// Tokens, the same.
    pub lost_tokens: Vec<String>,
    /// How far the machine that is parked had come when it was.
    pub kept: Progress,
    /// How far the one had come that became a substrate.
    pub docked: Progress,
}

impl Done {
    /// Adds the results of a later storm.
    pub fn add(&mut self, later: Done) {
        for (count, more) in [
            (&mut self.captures, later.captures),
            (&mut self.forks, later.forks),
            (&mut self.pushes, later.pushes),
            (&mut self.pulls, later.pulls),
            (&mut self.verified, later.verified),
            (&mut self.disturbed, later.disturbed),
            (&mut self.commands, later.commands),
        ] {
            *count += more;
        }
        for (list, more) in [
            (&mut self.wrong, later.wrong),
            (&mut self.lost_clones, later.lost_clones),
            (&mut self.errors, later.errors),
            (&mut self.lost_pushes, later.lost_pushes),
            (&mut self.lost_tokens, later.lost_tokens),
        ] {
            list.extend(more);
        }
        (self.kept, self.docked) = (later.kept, later.docked);
    }
}

/// The addresses that the work needs.
#[derive(Clone)]
pub struct Places {
    /// Socket of the node.
    pub node: PathBuf,
    /// Socket of the node that reads from the hub.
    pub far: PathBuf,
    /// The hub's address.
    pub hub: String,
    /// The hub's folder.
    pub hub_dir: PathBuf,
    /// The floe command.
    pub floe: PathBuf,
    /// Token for the hub.
    pub token: String,
    /// The two machines.
    pub machines: Vec<String>,
    /// Longest time for a copy to verify everything.
    pub verify_max: Duration,
}

/// One of the threads.
pub struct Worker {
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// The addresses.
    pub places: Places,
    /// The results.
    pub done: Arc<Mutex<Done>>,
    /// What must be on the hub.
    pub promised: Arc<Mutex<Promised>>,
}

impl Worker {
    pub(super) fn node(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.places.node)?)
    }

    fn far(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.places.far)?)
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.shared.over.load(Relaxed)
    }

    /// Returns how often a machine's QEMU was ended.
    fn lives(&self, machine: usize) -> u64 {
        self.shared.guests.lock()[machine].lives
    }

    /// Waits until a machine is not booting. Returns how often its QEMU was ended by then.
    fn wait_up(&self, machine: usize) -> u64 {
        loop {
            let (up, lives) = {
                let guest = &self.shared.guests.lock()[machine];
                (guest.is_up(), guest.lives)
            };
            if up || !self.goes_on() {
                return lives;
            }
            std::thread::sleep(REST);
        }
    }

    /// Returns what a machine has acknowledged, and the errors that it has found, so far.
    pub(super) fn known(&self, machine: usize) -> (u64, Progress) {
        let guest = &self.shared.guests.lock()[machine];
        (guest.acked, guest.now)
    }

    /// Does one job and records its result.
    pub(super) fn job(&self, what: &str, job: impl FnOnce() -> anyhow::Result<()>) {
        let calm = self.shared.calm();
        let Err(error) = job() else { return };
        let mut done = self.done.lock();
        if calm.held() && self.goes_on() {
            done.errors.push(format!("{what}: {error:#}"));
        } else {
            done.disturbed += 1;
        }
    }

    /// Does every kind of work once.
    pub fn once(&self) -> anyhow::Result<()> {
        let (at_least, found) = self.known(0);
        let image = format!("{IMAGE}-0");
        let id = self.capture(0, &image)?;
        self.push(&image, &id)?;
        self.pull(&image, at_least, &found)?;
        self.fork(1)?;
        self.keep()?;
        self.look_at_kept()?;
        self.commands(0)?;
        self.tidy()
    }

    /// Captures, pushes, pulls and runs until the run is over.
    pub fn capture_without_end(&self) {
        let mut number = 0u64;
        while self.goes_on() {
            number += 1;
            let machine = number as usize % self.places.machines.len();
            let lives = self.wait_up(machine);
            let (at_least, found) = self.known(machine);
            let image = format!("{IMAGE}-{number}");
            let mut captured = None;
            self.job(&format!("capture {number}"), || {
                captured = Some(self.capture(machine, &image)?);
                Ok(())
            });
            // if the machine was killed before its capture, the image is of a machine that boots
            let captured = captured.filter(|_| lives == self.lives(machine));
            if let Some(id) = captured
                && number.is_multiple_of(PUSH_EVERY)
            {
                self.job(&format!("push {number}"), || self.push(&image, &id));
                self.job(&format!("pull {number}"), || {
                    self.pull(&image, at_least, &found)
                });
            }
            self.job(&format!("tidy after capture {number}"), || self.tidy());
            std::thread::sleep(REST);
        }
    }

    pub(super) fn capture(&self, machine: usize, image: &str) -> anyhow::Result<String> {
        let node = self.node()?;
        let request = CaptureRequest {
            name: Some(image.into()),
            rehearse_s: Some(0),
            ..CaptureRequest::default()
        };
        let _busy = self.shared.busy[machine].lock();
        self.shared.began(Moment::Capture);
        let captured = node
            .capture(&self.places.machines[machine], &request)?
            .finish(|_| {})?;
        self.done.lock().captures += 1;
        let image = captured.image.context("a capture tells its image")?;
        Ok(image.id)
    }

    /// Pushes an image, by a command as a user does.
    fn push(&self, image: &str, id: &str) -> anyhow::Result<()> {
        let (hub, token) = (self.places.hub.as_str(), self.places.token.as_str());
        self.shared.began(Moment::Push);
        self.floe(&[
            "push",
            image,
            hub,
            "--public",
            "--insecure-token",
            "--token",
            token,
        ])?;
        self.promised.lock().pushed(id, image);
        self.done.lock().pushes += 1;
        Ok(())
    }

    /// Pulls a whole image on the other node, checks it, runs it and lets it verify everything.
    fn pull(&self, image: &str, at_least: u64, found: &Progress) -> anyhow::Result<()> {
        let far = self.far()?;
        self.shared.began(Moment::Pull);
        let problems = self.fetch(&far, image)?;
        self.done.lock().wrong.extend(
            problems
                .iter()
                .map(|problem| format!("pulled {image}: {problem}")),
        );
        let run = RunRequest {
            image: image.into(),
            name: Some(COPY.into()),
            ..RunRequest::default()
        };
        far.run(&run)?.finish(|_| {})?;
        let verified = self.verify(&far, COPY, at_least, found);
        let removed = far.remove_machine(COPY, true);
        self.judge(&format!("the pulled {image}"), verified?.wrong);
        self.done.lock().pulls += 1;
        Ok(removed?)
    }

    /// Pulls an image to the other node. Returns what is wrong with it.
    fn fetch(&self, far: &Client, image: &str) -> anyhow::Result<Vec<String>> {
        let request = PullRequest {
            from: format!("{}/{image}", self.places.hub),
            name: None,
            token: Some(self.places.token.clone()),
            ca: None,
            trust: false,
        };
        far.pull(&request)?.finish(|_| {})?;
        let verified = far.verify_image(image)?.finish(|_| {})?.verify;
        Ok(verified.context("it is verified")?.problems)
    }

    /// Waits until a machine that runs has verified everything.
    pub(super) fn verify(
        &self,
        node: &Client,
        machine: &str,
        at_least: u64,
        found: &Progress,
    ) -> anyhow::Result<Verified> {
        let console = self.console_of(node, machine)?;
        verify_copy(&console, at_least, found, self.places.verify_max, || {
            self.goes_on()
        })
    }

    /// Asks a node for the socket of a machine's console. A node that is down says nothing about its machines, nor does one that
    /// was started with an error: only an answer beside which nothing was hit or down counts.
    fn console_of(&self, node: &Client, machine: &str) -> anyhow::Result<PathBuf> {
        let until = Instant::now() + self.places.verify_max;
        loop {
            let calm = self.shared.calm();
            let error = match node.console(machine) {
                Ok(console) => return Ok(console.socket.into()),
                Err(error) => error,
            };
            if calm.held() || !self.goes_on() || Instant::now() > until {
                return Err(error.into());
            }
            std::thread::sleep(REST);
        }
    }

    /// Records that a machine that ran did not get on, unless the run is over.
    pub(super) fn lost(&self, machine: &str, error: &anyhow::Error) {
        if !self.goes_on() {
            return;
        }
        let said = self.node().and_then(|node| Ok(node.machine(machine)?));
        let said = match said {
            Ok(info) => format!("{:?}, {}", info.status, info.detail),
            Err(error) => format!("{error:#}"),
        };
        let lost = format!("{machine}: {error:#}; {said}");
        self.done.lock().lost_clones.push(lost);
    }

    pub(super) fn judge(&self, who: &str, wrong: Vec<String>) {
        let mut done = self.done.lock();
        match wrong.is_empty() {
            true => done.verified += 1,
            false => done
                .wrong
                .extend(wrong.into_iter().map(|what| format!("{who}: {what}"))),
        }
    }

    /// Removes images that are not needed: all captures except those on which the machines' disks are based, and on the hub
    /// all but the last pushes.
    pub fn tidy(&self) -> anyhow::Result<()> {
        let far = self.far()?;
        let _ = far.remove_machine(COPY, true);
        remove_images(&far, true)?;
        remove_images(&self.node()?, false)?;
        for id in self.look_at_hub()? {
            if !self.promised.lock().stays(&id) {
                self.remove_pushed(&id)?;
            }
        }
        Ok(())
    }

    /// Removes everything from the hub.
    pub fn clear_hub(&self) -> anyhow::Result<()> {
        let pushed = self.look_at_hub()?;
        pushed.iter().try_for_each(|id| self.remove_pushed(id))
    }

    fn hub(&self) -> anyhow::Result<HubClient> {
        let (hub, token) = (&self.places.hub, Some(self.places.token.as_str()));
        let client = HubClient::impatient(hub, token, None, &Cancel::default(), HUB_MAX)?;
        Ok(client)
    }

    fn remove_pushed(&self, id: &str) -> anyhow::Result<()> {
        let hub = self.hub()?;
        self.promised.lock().gone(id);
        hub.remove(&id.parse().context("the hub tells ids")?)?;
        Ok(())
    }

    /// Looks whether the hub has everything that was pushed. Returns the ids of its images.
    pub fn look_at_hub(&self) -> anyhow::Result<Vec<String>> {
        let before = self.promised.lock().clone();
        let images = self.hub()?.images()?;
        let listed: Vec<String> = images.into_iter().map(|image| image.id).collect();
        let lost = self.promised.lock().lost_pushes(&before, &listed);
        self.done.lock().lost_pushes.extend(lost);
        Ok(listed)
    }

    /// Pulls everything that must be on the hub to the other node, and checks each byte.
    pub fn verify_pushed(&self) -> anyhow::Result<()> {
        let far = self.far()?;
        remove_images(&far, true)?;
        far.cache_gc()?;
        self.look_at_hub()?;
        let pushed = self.promised.lock().images();
        for (_, image) in pushed {
            let wrong = match self.fetch(&far, &image) {
                Ok(problems) => problems,
                Err(error) => vec![format!("{error:#}")],
            };
            let wrong = wrong.into_iter().map(|what| format!("{image}: {what}"));
            self.done.lock().lost_pushes.extend(wrong);
        }
        Ok(())
    }

    /// Forks until the run is over.
    pub fn fork_without_end(&self) {
        let mut number = 0usize;
        while self.goes_on() {
            number += 1;
            let machine = (number + 1) % self.places.machines.len();
            self.job(&format!("fork {number}"), || self.fork(machine));
            std::thread::sleep(REST);
        }
    }

    fn fork(&self, machine: usize) -> anyhow::Result<()> {
        let node = self.node()?;
        let parent = &self.places.machines[machine];
        // end what an earlier job could not end
        node.kill(parent, &KillRequest { all: true })?;
        let lives = self.wait_up(machine);
        let (at_least, found) = self.known(machine);
        let request = ForkRequest {
            clones: 1,
            ..ForkRequest::default()
        };
        let busy = self.shared.busy[machine].lock();
        self.shared.began(Moment::Fork);
        let fork = node.fork(parent, &request)?.finish(|_| {})?.fork;
        drop(busy);
        let fork = fork.context("a fork tells its clones")?;
        self.done.lock().forks += 1;
        // the answer tells of all clones that were asked for: only those that ran can be lost
        let (ran, failed): (Vec<_>, Vec<_>) = fork
            .clones
            .iter()
            .partition(|clone| clone.state == CloneState::Running);
        for clone in ran {
            let who = format!("clone {} of {parent}", clone.name);
            match self.verify(&node, &clone.name, at_least, &found) {
                Ok(verified) => self.judge(&who, verified.wrong),
                Err(error) if lives == self.lives(machine) => self.lost(&clone.name, &error),
                Err(_) => {}
            }
        }
        self.node()?.kill(parent, &KillRequest { all: true })?;
        match failed.first() {
            Some(clone) => bail!("clone {}: {:?}, {}", clone.name, clone.state, clone.detail),
            None => Ok(()),
        }
    }
}

/// Removes all captures and images without a name, or with `all` every image; those in use stay.
pub fn remove_images(node: &Client, all: bool) -> anyhow::Result<()> {
    for image in node.images()?.images {
        let capture = image.names.iter().any(|name| name.starts_with(IMAGE));
        if all || capture || image.names.is_empty() {
            let request = RemoveImageRequest {
                image: image.id,
                force: true,
            };
            let _ = node.remove_image(&request);
        }
    }
    Ok(())
}
