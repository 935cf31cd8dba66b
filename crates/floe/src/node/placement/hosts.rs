//! The hosts that are known by name: a file of the operator's, read at each fork, and a thread that tells who joins and
//! who leaves.
//!
//! ```text
//! # NAME   ADDRESS
//! alpha    here
//! beta     http://10.0.0.2:7070
//! ```

use crate::{
    api::{HERE, HostInfo, HostList},
    node::{
        Node,
        error::{NodeError, at, usage},
    },
    paths::Home,
};
use std::{
    collections::BTreeMap,
    io::Read,
    sync::{Arc, Weak},
    time::Duration,
};

/// Largest such file, bytes: some ten thousand hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest name: that of a host in DNS.
const NAME_BYTES_MAX: usize = 255;
/// How often hosts are asked whether they are there.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A host that is known by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// As plug-ins know it: the name of a node of Slurm, say.
    pub name: String,
    /// Address of its page, without a slash at the end; [`HERE`] for this node.
    pub address: String,
}

/// The hosts in the file; none if there is no file.
pub(crate) fn known_hosts(home: &Home) -> Result<Vec<Known>, NodeError> {
    let path = home.hosts();
    let file = match std::fs::File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(at(format!("cannot open {}", path.display())))?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(at(format!("cannot read {}", path.display())))?;
    parse(&text).map_err(|why| {
        usage(
            format!("{}: {why}", path.display()),
            "write one host a line: NAME ADDRESS, such as beta http://10.0.0.2:7070, or NAME here",
        )
    })
}

fn parse(text: &str) -> Result<Vec<Known>, String> {
    let mut hosts: Vec<Known> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let bad = |why: &str| Err(format!("line {}: {why}", number + 1));
        let (name, address) = match (words.next(), words.next(), words.next()) {
            (None, _, _) => continue,
            (Some(name), Some(address), None) => (name, address.trim_end_matches('/')),
            _ => return bad("not a name and an address"),
        };
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.len() > NAME_BYTES_MAX || name == HERE || !name.bytes().all(good) {
            return bad(&format!("{name:?} is no host's name"));
        }
        if address != HERE && !address.starts_with("http://") {
            return bad(&format!("{address:?} is no address"));
        }
        if hosts.iter().any(|host| host.name == name) {
            return bad(&format!("{name} is there twice"));
        }
        hosts.push(Known {
            name: name.into(),
            address: address.into(),
        });
    }
    Ok(hosts)
}

/// Who was there at the last look.
#[derive(Default)]
struct Roll(BTreeMap<String, bool>);

/// What changed about a host.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Joined(String),
    Left(String, String),
}

impl Roll {
    /// Learns who answers now, and why not. A host that is listed for the first time and does not answer has not left.
    fn learn(&mut self, now: &[(String, Result<(), String>)]) -> Vec<Change> {
        let mut changes = Vec::new();
        let before = std::mem::take(&mut self.0);
        for (name, answer) in now {
            let was = before.get(name).copied().unwrap_or(false);
            match answer {
                Ok(()) if !was => changes.push(Change::Joined(name.clone())),
                Err(why) if was => changes.push(Change::Left(name.clone(), why.clone())),
                _ => {}
            }
            self.0.insert(name.clone(), answer.is_ok());
        }
        for (name, was) in before {
            if was && !self.0.contains_key(&name) {
                changes.push(Change::Left(name, "it is no longer listed".into()));
            }
        }
        changes
    }
}

impl Node {
    /// The known hosts, and what they say of themselves.
    pub fn hosts_info(&self) -> Result<HostList, NodeError> {
        let known = known_hosts(&self.home)?;
        let rooms = self.rooms_of(&known);
        let hosts = known.into_iter().zip(rooms).map(|(host, room)| {
            let (room, detail) = match room {
                Ok(room) => (Some(room), String::new()),
                Err(why) => (None, why),
            };
            HostInfo {
                name: host.name,
                address: host.address,
                room,
                detail,
            }
        });
        Ok(HostList {
            hosts: hosts.collect(),
        })
    }

    /// Starts the thread that tells who joins and leaves.
    pub(crate) fn start_watching_hosts(self: &Arc<Self>) -> Result<(), NodeError> {
        let node = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("host-watch".into())
            .spawn(move || watch(&node))
            .map_err(at("cannot start the thread that looks after hosts"))?;
        Ok(())
    }
}

fn watch(node: &Weak<Node>) {
    let mut roll = Roll::default();
    while let Some(here) = node.upgrade() {
        // a file that makes no sense is told to whoever forks
        let mut known = known_hosts(&here.home).unwrap_or_default();
        known.retain(|host| host.address != HERE);
        let answers = here.rooms_of(&known);
        let now: Vec<_> = known
            .into_iter()
            .zip(answers)
            .map(|(host, answer)| (host.name, answer.map(drop)))
            .collect();
        for change in roll.learn(&now) {
            match change {
                Change::Joined(name) => here.tell("host.joined", &name, ""),
                Change::Left(name, why) => here.tell("host.left", &name, why),
            }
        }
        drop(here);
        std::thread::sleep(ASK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_are_names_with_addresses() {
        let text = "# ours\nalpha here\n\n beta\thttp://10.0.0.2:7070/ # the second\n";
        let host = |name: &str, address: &str| Known {
            name: name.into(),
            address: address.into(),
        };
        assert_eq!(
            parse(text).unwrap(),
            [host("alpha", "here"), host("beta", "http://10.0.0.2:7070")]
        );
        for (bad, why) in [
            ("alpha", "line 1"),
            ("\nalpha here there", "line 2"),
            ("al/pha here", "no host's name"),
            ("here here", "no host's name"),
            ("alpha ftp://x", "no address"),
            ("a here\na http://x:1", "twice"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn who_joins_and_who_leaves_is_told_once() {
        let mut roll = Roll::default();
        let here = |name: &str| (name.to_owned(), Ok(()));
        let away = |name: &str| (name.to_owned(), Err("refused".to_owned()));
        assert_eq!(
            roll.learn(&[here("a"), away("b")]),
            [Change::Joined("a".into())]
        );
        assert_eq!(roll.learn(&[here("a"), away("b")]), []);
        assert_eq!(
            roll.learn(&[away("a"), here("b")]),
            [
                Change::Left("a".into(), "refused".into()),
                Change::Joined("b".into())
            ]
        );
        assert_eq!(
            roll.learn(&[away("a")]),
            [Change::Left("b".into(), "it is no longer listed".into())]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "[a-c#: \\n./th]{0,80}") {
            let _ = parse(&text);
        }
    }
}
