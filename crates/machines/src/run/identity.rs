//! The identity of a machine that is run from a captured one.
//!
//! It keeps the identity of the captured machine, since people capture a machine so that it goes on as itself. A second run of an image
//! beside the first therefore has the same host name, machine id, host keys and network address, and `run` says so. It gets an identity of
//! its own if its user asks for that, and never by itself: which of two runs is the second would depend on which was faster, no node knows
//! what runs elsewhere, and it has a price (no network until an agent has done all of it, new host keys, and no QEMU that waits, because
//! those have the image's card).

use super::Runs;
use floe_api::RunRequest;
use floe_ground::{
    error::{NodeError, refused, usage},
    plan::Kind,
    report::Report,
};
use floe_image::MachineConfig;
use floe_inventory::inventory::{AGENT_LABEL, Entry};

/// How many machines a message names.
const NAMED_MAX: usize = 3;

/// Refuses an identity of its own for a machine that nobody could give one.
pub(super) fn check(
    request: &RunRequest,
    kind: Kind,
    image: &MachineConfig,
) -> Result<(), NodeError> {
    if !request.own_identity {
        return Ok(());
    }
    if kind == Kind::Boot {
        return Err(usage(
            "an identity of its own is for a captured machine that goes on, and this one boots from its disks",
            "leave out --own-identity: what a disk says of its system is changed in it, by cloud-init for example (--hostname)",
        ));
    }
    if !image.labels.contains_key(AGENT_LABEL) {
        return Err(refused(
            format!(
                "no agent of floe's ran in {:?} when it was captured, so nobody in its guest could give it an identity of its own",
                request.image
            ),
            "run it without --own-identity, put the agent into it (floe agent install), and capture that",
        ));
    }
    Ok(())
}

/// Says what machines have in common that go on from one captured moment. `address`: that of their network cards.
fn told(machine: &str, others: &[String], address: &str, has_agent: bool) -> Option<String> {
    let more = match others.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<&str> = others.iter().map(String::as_str).take(NAMED_MAX).collect();
    if named.is_empty() {
        return None;
    }
    let way = match has_agent {
        true => "floe run --own-identity gives a machine its own",
        false => "floe's agent would have to be in it at its capture to give a machine its own",
    };
    Some(format!(
        "{machine} goes on as the same machine as {}{more}: they have one host name, machine id, host keys and hardware address \
         ({address}); {way}",
        named.join(", ")
    ))
}

impl Runs {
    /// Says what may surprise the user of a machine that was just restored: what it shares with others, what it waits for, and its clock.
    /// `image`: the configuration that it was captured with.
    pub(super) fn tell_who_it_is(&self, entry: &Entry, image: &MachineConfig, report: &Report) {
        if entry.record().fresh.is_some() {
            report.note(
                "it has no network until floe's agent in its guest has made it a machine of its own",
            );
        } else if let Some(told) = self.shared_identity(entry, image) {
            report.note(told);
        }
        if let Some(told) = entry.clock_detail() {
            report.note(told);
        }
    }

    /// Says which machines that run or are parked are the same one. It is told by the address of its card, which is new for everything that
    /// has an identity of its own: clones, machines of a shared substrate, and those that boot from disks.
    fn shared_identity(&self, entry: &Entry, image: &MachineConfig) -> Option<String> {
        let address = image.nic_mac.as_deref()?;
        let name = entry.name.to_string();
        let others: Vec<String> = self
            .inventory
            .all()
            .iter()
            .filter(|other| other.vm().is_ok() || other.is_parked())
            .filter(|other| other.state().record.config.nic_mac.as_deref() == Some(address))
            .map(|other| other.name.to_string())
            .filter(|other| *other != name)
            .collect();
        let has_agent = image.labels.contains_key(AGENT_LABEL);
        told(&name, &others, address, has_agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::ErrorCode;

    #[test]
    fn an_identity_of_its_own_is_for_captured_machines_with_an_agent() {
        let own = RunRequest {
            image: "web".into(),
            own_identity: true,
            ..Default::default()
        };
        let bare = MachineConfig::default();
        let mut with_agent = MachineConfig::default();
        with_agent.labels.insert(AGENT_LABEL.into(), "1".into());
        check(&own, Kind::Restore, &with_agent).unwrap();
        let error = check(&own, Kind::Restore, &bare).unwrap_err().to_api();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.fix.contains("floe agent install"), "{error}");
        let error = check(&own, Kind::Boot, &with_agent).unwrap_err().to_api();
        assert_eq!(error.code, ErrorCode::Usage);
        for kind in [Kind::Restore, Kind::Boot] {
            check(&RunRequest::default(), kind, &bare).unwrap();
        }
    }

    #[test]
    fn what_machines_of_one_moment_share_is_told_with_their_names() {
        let names = |count: usize| (1..=count).map(|n| format!("web-{n}")).collect::<Vec<_>>();
        let mac = "52:54:00:00:00:01";
        assert_eq!(told("web", &names(0), mac, true), None);
        let one = told("web", &names(1), mac, true).unwrap();
        assert!(one.contains("as web-1: they") && one.contains(mac), "{one}");
        assert!(one.contains("--own-identity"), "{one}");
        let many = told("web", &names(5), mac, false).unwrap();
        assert!(
            many.contains("as web-1, web-2, web-3 and 2 more: they"),
            "{many}"
        );
        assert!(!many.contains("--own-identity"), "{many}");
    }
}
