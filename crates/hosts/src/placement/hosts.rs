//! The hosts that are known by name, and which of them join and leave.

use super::listed::{Known, decode};
use floe_api::paths::Home;
use floe_ground::{
    error::{NodeError, at, usage},
    files::read_bounded,
};
use std::collections::BTreeMap;

/// Largest such file in bytes: some ten thousand hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the hosts in the file; there are none if there is no file.
pub fn known_hosts(home: &Home) -> Result<Vec<Known>, NodeError> {
    let path = home.hosts();
    let bytes = match read_bounded(&path, FILE_BYTES_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.map_err(at(format!("cannot read {}", path.display())))?,
    };
    decode(&bytes).map_err(|why| {
        usage(
            format!("{}: {why}", path.display()),
            "write one host a line: NAME ADDRESS, such as beta https://10.0.0.2:7071, or NAME here",
        )
    })
}

/// Which hosts answered at the last look.
#[derive(Default)]
pub struct Roll(BTreeMap<String, bool>);

/// What changed about a host.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// This host answers now.
    Joined(String),
    /// This host does not answer any more, and why.
    Left(String, String),
}

impl Roll {
    /// Notes which hosts answer now; returns who has joined or left. A newly listed host that does not answer has not left.
    pub fn learn(&mut self, now: &[(String, Result<(), String>)]) -> Vec<Change> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
