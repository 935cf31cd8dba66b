//! A rehearsal: learns what a resume touches first, before anybody waits for it.
//!
//! Over a slow link a resumed guest doesn't lack bandwidth but knowledge: each page that nobody expected costs a round trip,
//! and a guest touches some thousand pages before it answers. So a capture runs an isolated copy of the machine for some
//! seconds on this host, where its pages are. The mount's trace of that run (VMTorrent 2.2.3: the profile of one run) becomes
//! the region `trace` of the image, under its manifest's hash like everything else. A run that finds it has those chunks
//! fetched in that order, in the background, before they are touched.
//!
//! The copy has no network, its disks are thrown away, and nobody can reach it. Its console gets one Enter, as if a user
//! pressed the first key.

use super::{Captures, greet::greet};
use crate::machines::standby::Waiting;
use floe_ground::{error::NodeError, report::Report};
use floe_image::Hash;
use floe_inventory::inventory::AGENT_LABEL;
use floe_library::{images::sources::Found, traces::rehearsed::TRACE_REGION};
use floe_machine::Socket;
use floe_store::Ingest;
use std::{
    io::Write,
    time::{Duration, Instant},
};

/// What a user who looks at a console usually types first.
const FIRST_KEY: &[u8] = b"\r";
/// How long QEMU's agent in the guest is tried.
const AGENT_WAIT: Duration = Duration::from_millis(500);

impl Captures {
    /// Runs a copy of a captured image and publishes the image again with a trace of what it touched. The first image is
    /// removed.
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
        // the clock is set by the agent that would set it in a run
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

/// Lets the copy run; returns its trace. `by_agent`: floe's agent in the guest sets the clock, otherwise QEMU's, if there is
/// one.
fn perform(
    copy: &Waiting,
    by_agent: bool,
    long: Duration,
    report: &mut Report,
) -> Result<Vec<u8>, NodeError> {
    let began = Instant::now();
    let wait_until = |moment: Duration, report: &Report| {
        report.cancel().wait(Some(began + moment));
        report.check()
    };
    let machine = copy.machine();
    copy.disks().set_pid(machine.pid());
    // demand of guests that users wait for comes first
    copy.disks().set_class(floe_source::Class::Bulk);
    machine.cont()?;
    // without an agent or a console the trace only lacks what they would have touched
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
    let console = machine.connect(Socket::Console);
    if let Err(error) = console.and_then(|mut line| line.write_all(FIRST_KEY)) {
        tracing::debug!(%error, "the rehearsal's console took no key");
    }
    wait_until(long, report)?;
    machine.stop()?;
    let path = copy.disks().trace_path()?;
    let trace = std::fs::read(&path).map_err(floe_ground::error::at(format!(
        "cannot read the rehearsal's trace {}",
        path.display()
    )))?;
    Ok(trace)
}
