//! Plug-ins written by the operator: programs in `placement/` of the state directory (docs/placement.md).
//!
//! ```text
//! placement/NAME request          < {"version":1, "parent":.., "clones":.., "cpus":.., "memory_bytes":.., "hosts":[..]}
//!                                 > {"version":1, "ticket":"..", "hosts":[{"name":..,"clones":..}]}
//! placement/NAME holds TICKET     exit code 0: yes, 1: no, others: nobody knows
//! placement/NAME release TICKET   exit code 0: done
//! ```
//! They run with the node's rights, so only programs in that directory, which belongs to the node's user, can be named.

use super::{Ask, Grant, Offer, Placement, command::run};
use floe_api::Room;
use floe_api::paths::Home;
use floe_ground::error::{NodeError, failed};
use floe_ground::files::may_be_there;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, process::Command, time::Duration};

/// Version of question and answer.
const VERSION: u32 = 1;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the other calls may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest ticket in bytes: it is kept in a file, and passed as an argument.
const TICKET_BYTES_MAX: usize = 1024;

pub(super) struct Program {
    name: String,
    path: PathBuf,
}

#[derive(Serialize)]
struct Question<'a> {
    version: u32,
    parent: &'a str,
    clones: u32,
    cpus: u32,
    memory_bytes: u64,
    hosts: Vec<Asked<'a>>,
}

#[derive(Serialize)]
struct Asked<'a> {
    name: &'a str,
    room: Option<Room>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    version: u32,
    #[serde(default)]
    ticket: Option<String>,
    hosts: Vec<Granted>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Granted {
    name: String,
    clones: u32,
}

impl Told {
    fn decode(bytes: &[u8]) -> Result<Told, String> {
        let told: Told = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if told.version != VERSION {
            return Err(format!("it has version {}, not {VERSION}", told.version));
        }
        let odd = |ticket: &String| {
            ticket.is_empty()
                || ticket.len() > TICKET_BYTES_MAX
                || ticket.starts_with('-')
                || ticket.bytes().any(|b| b.is_ascii_control())
        };
        match &told.ticket {
            Some(ticket) if odd(ticket) => Err(format!("{ticket:?} is no ticket")),
            _ => Ok(told),
        }
    }
}

impl Program {
    /// Returns the program of this name, if there is one.
    pub fn find(name: &str, home: &Home) -> Option<Program> {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if name.is_empty() || !name.bytes().all(good) {
            return None;
        }
        let path = home.placement().join(name);
        may_be_there(&path).then(|| Program {
            name: name.to_owned(),
            path,
        })
    }

    fn call(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args);
        command
    }
}

impl Placement for Program {
    fn request(&self, ask: &Ask, offers: &[Offer]) -> Result<Grant, NodeError> {
        let name = &self.name;
        let wrong = |why: String| {
            let fix = format!("run it by hand: {} request", self.path.display());
            failed(format!("placement {name}: {why}"), fix)
        };
        let asked = |offer: &'_ Offer| -> Option<Room> { offer.room.as_ref().ok().copied() };
        let question = Question {
            version: VERSION,
            parent: &ask.parent,
            clones: ask.clones,
            cpus: ask.cpus,
            memory_bytes: ask.memory_bytes,
            hosts: offers
                .iter()
                .map(|offer| Asked {
                    name: &offer.name,
                    room: asked(offer),
                })
                .collect(),
        };
        let question = serde_json::to_vec(&question).map_err(|error| wrong(error.to_string()))?;
        let answer = run(self.call(&["request"]), &question, REQUEST_TIMEOUT).map_err(wrong)?;
        if answer.code != Some(0) {
            let why = format!("{name}: {}", answer.why());
            return Ok(Grant {
                ticket: None,
                clones: vec![Err(why); offers.len()],
            });
        }
        let told = Told::decode(answer.out.as_bytes())
            .map_err(|why| wrong(format!("its answer makes no sense: {why}")))?;
        let clones = |offer: &Offer| {
            let room = offer.room.as_ref().map_err(Clone::clone)?.clones;
            let granted = told.hosts.iter().find(|host| host.name == offer.name);
            match granted.map_or(0, |host| host.clones.min(room)) {
                0 => Err(format!("{name} grants nothing on {}", offer.name)),
                clones => Ok(clones),
            }
        };
        Ok(Grant {
            clones: offers.iter().map(clones).collect(),
            ticket: told.ticket,
        })
    }

    fn holds(&self, ticket: &str) -> Result<bool, String> {
        let answer = run(self.call(&["holds", ticket]), b"", CALL_TIMEOUT)?;
        match answer.code {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(answer.why()),
        }
    }

    fn release(&self, ticket: &str) -> Result<(), String> {
        let answer = run(self.call(&["release", ticket]), b"", CALL_TIMEOUT)?;
        match answer.code {
            Some(0) => Ok(()),
            _ => Err(answer.why()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn offer(name: &str, clones: u32) -> Offer {
        Offer {
            name: name.into(),
            room: Ok(Room {
                clones,
                ..Default::default()
            }),
        }
    }

    #[test]
    fn a_program_of_the_operators_is_asked_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::create_dir(home.placement()).unwrap();
        let script = r#"#!/bin/sh
case $1 in
request) grep -q '"clones":5' || { echo "five, please" >&2; exit 1; }
    echo '{"version":1,"ticket":"t 7","hosts":[{"name":"a","clones":3},{"name":"b","clones":3}]}' ;;
holds) [ "$2" = "t 7" ] ;;
release) echo "too late" >&2; exit 4 ;;
esac
"#;
        let path = home.placement().join("ours");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program::find("ours", &home).unwrap();
        let mut ask = Ask {
            parent: "web".into(),
            clones: 5,
            cpus: 1,
            memory_bytes: 1 << 30,
        };
        let offers = [offer("a", 9), offer("b", 1), offer("c", 9)];
        let grant = program.request(&ask, &offers).unwrap();
        assert_eq!(grant.ticket.as_deref(), Some("t 7"));
        assert_eq!(grant.clones[..2], [Ok(3), Ok(1)]);
        assert!(grant.clones[2].is_err());
        assert_eq!(program.holds("t 7"), Ok(true));
        assert_eq!(program.holds("another"), Ok(false));
        assert_eq!(program.release("t 7"), Err("too late".into()));
        ask.clones = 4;
        let none = program.request(&ask, &offers).unwrap();
        assert_eq!(none.clones[0], Err("ours: five, please".into()));
        for name in ["../ours", "", "OURS", "theirs"] {
            assert!(Program::find(name, &home).is_none(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_understood_or_refused(text in r#"(\{|\}|"version":1|"ticket":|"-x"|"hosts":|\[|\]|,|"a"|[0-9]){0,20}"#) {
            if let Ok(told) = Told::decode(text.as_bytes()) {
                prop_assert_eq!(told.version, VERSION);
            }
        }
    }
}
