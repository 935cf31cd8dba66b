//! A rehearsal: what a resume touches first, learned before anybody waits for it.
//!
//! Over a slow link a resumed guest doesn't lack bandwidth, it lacks knowledge: each page that nobody expected costs a round
//! trip, and a guest touches some thousand pages before it answers. So a capture runs an isolated copy of the machine for
//! some seconds on this host, where its pages are. The mount's trace of that run (VMTorrent 2.2.3: the profile of one run)
//! becomes the region `trace` of the image, under its manifest's hash like everything else, and a run that finds it has its
//! chunks fetched in that order, in the background, before they are touched.
//!
//! The copy has no network, its disks are thrown away, and nobody can reach it. It is given one Enter on its console,
//! as a user's first key would be.

use super::{Captures, greet::greet};
use crate::{
    error::NodeError,
    images::sources::Found,
    inventory::AGENT_LABEL,
    machines::{launch::CONSOLE_SOCKET, standby::Waiting},
    report::Report,
    traces::rehearsed::TRACE_REGION,
};
use floe_image::Hash;
use floe_store::Ingest;
use std::{
    io::Write,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// What a user who looks at a console types first.
const FIRST_KEY: &[u8] = b"\r";
/// QEMU's agent in the guest is tried for this long.
const AGENT_WAIT: Duration = Duration::from_millis(500);
/// How often a rehearsal looks whether its client is still there.
const POLL: Duration = Duration::from_millis(50);

impl Captures {
    /// Runs a copy of a captured image and publishes the image again with what it touched. The first one is removed.
    pub(crate) fn rehearse(
        &self,
        id: Hash,
        seconds: u32,
        report: &mut Report,
    ) -> Result<Hash, NodeError> {
        let manifest = self.images.repo.manifest(&id)?;
        let found = Found {
            id,
            manifest: manifest.clone(),
            origin: Default::default(),
            fetcher: self.images.sources.fetcher(&Default::default())?,
            loads: Default::default(),
        };
        let waiting = self.machines.prepare_standby(&found, true)?;
        // a run sets the clock in the same way
        let by_agent = manifest.config.labels.contains_key(AGENT_LABEL);
        let long = Duration::from_secs(seconds.into());
        let traced = perform(&waiting, by_agent, long, report);
        self.machines.end_waiting(waiting);
        let mut ingest = Ingest::sibling(&self.images.repo, &id)?;
        ingest.region_bytes(TRACE_REGION, &traced?)?;
        let sibling = ingest.finish(manifest.config)?;
        self.images.repo.remove(&id)?;
        Ok(sibling)
    }
}

/// Lets the copy run; returns its trace. `by_agent`: floe's own agent in the guest sets the clock, else QEMU's, if there is one.
fn perform(
    copy: &Waiting,
    by_agent: bool,
    long: Duration,
    report: &mut Report,
) -> Result<Vec<u8>, NodeError> {
    let began = Instant::now();
    let wait_until = |moment: Duration, report: &Report| {
        while began.elapsed() < moment {
            report.check()?;
            std::thread::sleep(POLL.min(moment.saturating_sub(began.elapsed())));
        }
        Ok::<_, NodeError>(())
    };
    let machine = copy.machine();
    copy.disks().set_pid(machine.pid());
    // Nobody waits for a rehearsal.
    copy.disks().set_class(floe_source::Class::Bulk);
    machine.cont()?;
    // No agent and no console has to be there: then the trace lacks what they would have touched.
    let greeted = match by_agent {
        true => greet(machine, long / 4)
            .map(Some)
            .map_err(|e| e.to_string()),
        false => {
            let set = machine.set_guest_time(AGENT_WAIT.min(long / 4));
            set.map(|()| None).map_err(|e| e.to_string())
        }
    };
    if let Err(error) = &greeted {
        tracing::debug!(error, "the rehearsal's guest did not set its clock");
    }
    wait_until(long / 2, report)?;
    let console = machine.dir().join(CONSOLE_SOCKET);
    if let Err(error) = UnixStream::connect(&console).and_then(|mut c| c.write_all(FIRST_KEY)) {
        tracing::debug!(%error, "the rehearsal's console took no key");
    }
    wait_until(long, report)?;
    machine.stop()?;
    let path = copy.disks().trace_path()?;
    let trace = std::fs::read(&path).map_err(crate::error::at(format!(
        "cannot read the rehearsal's trace {}",
        path.display()
    )))?;
    Ok(trace)
}
