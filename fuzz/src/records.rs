//! What a node keeps in files of its own or is told by users, hosts and other programs.

use crate::node::{self, inventory};
use crate::*;

/// What a node keeps of its cluster, and is told of it.
pub fn cluster_record(data: &[u8]) {
    use node::cluster::record::{Authority, Membership};
    use node::cluster::roster::{Member, Roster};
    let plain = |member: &Member| member.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(roster) = same_again(data, Roster::parse) {
        assert!(roster.members.iter().all(plain));
    }
    if let Some(mut authority) = same_again(data, Authority::parse) {
        let before = authority.roster.clone();
        for id in before.members.iter().map(|member| &member.id) {
            authority.roster.remove(id);
        }
        assert!(authority.roster.members.len() <= before.members.len());
        let _ = authority.invites_until();
    }
    if let Some(membership) = same_again(data, Membership::parse) {
        let _ = membership.is_due(1);
    }
}

/// An invitation is a word with one form.
pub fn invitation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(invitation) = text.parse::<node::cluster::invitation::Invitation>() {
        assert_eq!(invitation.to_string(), text);
    }
}

/// A machine's record names a machine, and a place inside of the state directory.
pub fn machine_record(data: &[u8]) {
    if let Some(record) = same_again(data, inventory::record::Record::parse) {
        assert!(record.name.parse::<node::MachineName>().is_ok());
        assert!(
            !record.place.starts_with('/') && !record.place.split('/').any(|part| part == "..")
        );
    }
}

/// A fork's record names files and clones that stay where they are.
pub fn fork_record(data: &[u8]) {
    if let Some(record) = same_again(data, node::fork::ForkRecord::parse) {
        assert!(record.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(
            record
                .clones
                .iter()
                .all(|clone| clone.name.parse::<node::MachineName>().is_ok())
        );
    }
}

/// A substrate's record names what could be named, and users only where they mean something; so does the label of its image.
pub fn substrate_record(data: &[u8]) {
    if let Ok(label) = std::str::from_utf8(data)
        && let Ok((visibility, users)) = visibility_of_label(label)
    {
        assert_eq!(label_of_visibility(visibility, &users), label);
    }
    if let Some(record) = same_again(data, node::pool::SubstrateRecord::parse) {
        assert!(record.name.parse::<node::MachineName>().is_ok());
        assert_eq!(
            record.visibility == Visibility::Restricted,
            !record.users.is_empty()
        );
    }
}

/// What a user's file describes is within bounds, and can come to an end; what is wrong with it stands in one of its lines.
pub fn ensemble_file(data: &[u8]) {
    use node::ensemble::{hosts, read};
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let described = match read(text) {
        Ok(described) => described,
        Err(wrong) => {
            let lines = 1 + data.iter().filter(|byte| **byte == b'\n').count();
            assert!((1..=lines).contains(&wrong.line), "{wrong:?}");
            return;
        }
    };
    let members = &described.members;
    assert!((1..=ENSEMBLE_MEMBERS_MAX).contains(&members.len()));
    let machines: Vec<String> = members.iter().flat_map(hosts).collect();
    assert!(machines.len() <= ENSEMBLE_MACHINES_MAX as usize);
    assert_eq!(
        machines
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        machines.len()
    );
    let mut ready = vec![false; members.len()];
    for _ in members {
        for (index, member) in members.iter().enumerate() {
            ready[index] |= member.after.iter().all(|before| ready[*before]);
        }
    }
    assert!(ready.iter().all(|ready| *ready), "{members:?}");
}

/// What becomes of a family's network are the lines of `ip` and `nft` that are meant, whatever it says.
pub fn network_record(data: &[u8]) {
    use node::network::{MEMBERS_MAX, Network};
    let Some(network) = same_again(data, Network::parse) else {
        return;
    };
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b':')
    };
    assert!(plain(&network.id) && plain(&network.parent_mac) && network.vni() > 0);
    assert!((0..=MEMBERS_MAX).all(|number| network.mac(number).split(':').count() == 6));
    let with = network.rules().lines().count();
    let destinations: usize = network
        .allow
        .iter()
        .map(|to| if to.port.is_some() { 2 } else { 1 })
        .sum();
    let without = Network {
        allow: Vec::new(),
        ..network
    };
    assert_eq!(without.rules().lines().count() + destinations, with);
}

/// A ticket's file says whose ticket it is.
pub fn ticket_record(data: &[u8]) {
    same_again(data, node::ticket::Ticket::parse);
}

/// What is read of a file of inputs is written and read again as the same.
pub fn inputs_file(data: &[u8]) {
    use node::inputs::file::{self, Found};
    let Ok(found) = file::parse(data) else {
        return;
    };
    let text = file::text(
        found.machine,
        found.node.as_ref(),
        found.said,
        found.waiting.iter(),
    );
    let whole = Found {
        damaged: false,
        taken: Default::default(), // what is written anew says that no more
        ..found
    };
    assert_eq!(file::parse(text.as_bytes()), Ok(whole));
}

/// Hosts have names that differ, and addresses.
pub fn hosts_file(data: &[u8]) {
    let Ok(hosts) = node::listed::decode(data) else {
        return;
    };
    let mut text = String::new();
    for host in &hosts {
        assert!(!host.name.is_empty() && !host.name.contains(char::is_whitespace));
        text += &format!("{} {}\n", host.name, host.address);
    }
    assert_eq!(node::listed::decode(text.as_bytes()), Ok(hosts));
}

/// What Slurm's tools print becomes nodes, tasks and jobs within bounds, or nothing.
pub fn slurm_output(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    assert!(node::slurm::parse_nodes(&text).len() <= text.lines().count());
    if let Ok(tasks) = node::slurm::parse_layout(&text, 2, 100) {
        assert!(tasks.len() <= 1 << 16);
    }
    if let Some(names) = node::slurm::expand(text.trim()) {
        assert!(names.len() <= 1 << 16 && names.iter().all(|name| name.len() <= 255));
    }
    if let Some(job) = node::slurm::job_of(&text) {
        assert!(!job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit()));
    }
}

/// What is read of a file of a node's, written again, is read as the same.
fn same_again<T: serde::Serialize + PartialEq + std::fmt::Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Option<T> {
    let read = parse(data).ok()?;
    let again = serde_json::to_vec_pretty(&read).expect("strings, numbers and lists");
    assert_eq!(parse(&again).as_ref(), Ok(&read));
    Some(read)
}
