//! The file that says which machines there are. It is a stranger's text: bounded, and refused with the line that is wrong. No I/O.

use core::net::Ipv4Addr;
use floe_api::{
    Allow, ENSEMBLE_FILE_BYTES_MAX, ENSEMBLE_MACHINES_MAX, ENSEMBLE_MEMBERS_MAX, PortForward,
    Protocol,
};
use floe_ground::names::{MachineName, similar};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use toml::Spanned;

/// Longest name of a member, in bytes: it is a host name.
const MEMBER_NAME_MAX: usize = 32;
/// Most forwarded ports of a member.
const PORTS_MAX: usize = 16;
/// Most destinations outside of the network.
const ALLOW_MAX: usize = 64;
/// Most words of a command, and the longest of them in bytes.
const WORDS_MAX: (usize, usize) = (32, 1024);

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
    /// What to do about it; may be empty.
    pub fix: String,
}

/// When a machine counts as ready, after its guest has answered and its hooks have run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// At once.
    Answer,
    /// When a TCP port of it can be connected to.
    Port(u16),
    /// When a command in its guest ends with 0.
    Command(Vec<String>),
}

/// A member: one machine, or several that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The line where it begins.
    pub line: usize,
    /// The substrate.
    pub substrate: String,
    /// The line that names it.
    pub substrate_line: usize,
    /// How many machines.
    pub count: u32,
    /// How many CPUs each gets.
    pub cpus: Option<u32>,
    /// How much memory each gets, in bytes.
    pub memory_bytes: Option<u64>,
    /// The line that names one of both, or that of the member.
    pub size_line: usize,
    /// Its address, if that is fixed.
    pub address: Option<Ipv4Addr>,
    /// The line that names the address, or that of the member.
    pub address_line: usize,
    /// Forwarded ports.
    pub ports: Vec<PortForward>,
    /// The members, as indices, that are ready before its hooks run.
    pub after: Vec<usize>,
    /// When it is ready.
    pub ready: Sign,
}

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The ensemble's name.
    pub name: MachineName,
    /// Destinations outside of the network.
    pub allow: Vec<Allow>,
    /// Most bytes a second out of the network.
    pub bytes_per_s: Option<u64>,
    /// The members, in the order of the file.
    pub members: Vec<Member>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Spanned<String>,
    #[serde(default)]
    network: WrittenNetwork,
    member: BTreeMap<Spanned<String>, WrittenMember>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNetwork {
    #[serde(default)]
    allow: Vec<Spanned<String>>,
    bytes_per_s: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMember {
    substrate: Spanned<String>,
    count: Option<Spanned<u32>>,
    cpus: Option<Spanned<u32>>,
    memory: Option<Spanned<String>>,
    address: Option<Spanned<String>>,
    #[serde(default)]
    ports: Vec<Spanned<String>>,
    #[serde(default)]
    after: Vec<Spanned<String>>,
    ready: Option<Spanned<WrittenReady>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenReady {
    Sign(String),
    Command(Vec<String>),
}

/// The text, in which places are looked up.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn line(&self, at: usize) -> usize {
        let before = &self.0.as_bytes()[..at.min(self.0.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn wrong(&self, span: Range<usize>, what: impl Into<String>, fix: impl Into<String>) -> Wrong {
        Wrong {
            line: self.line(span.start),
            what: what.into(),
            fix: fix.into(),
        }
    }
}

/// Reads a file.
pub fn read(text: &str) -> Result<Described, Wrong> {
    let at = Text(text);
    if text.len() > ENSEMBLE_FILE_BYTES_MAX {
        let what = format!("the file has {} bytes", text.len());
        let fix = format!("{ENSEMBLE_FILE_BYTES_MAX} are the most");
        return Err(at.wrong(0..0, what, fix));
    }
    let written: Written = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        at.wrong(span, error.message().trim().replace('\n', ", "), "")
    })?;
    let name = written.name.get_ref().parse::<MachineName>();
    let name = name.ok().filter(|name| !name.as_str().contains('.'));
    let Some(name) = name else {
        let what = format!("{:?} can't be the ensemble's name", written.name.get_ref());
        let fix = "write small letters, digits and -";
        return Err(at.wrong(written.name.span(), what, fix));
    };
    let allow = allowed(&at, &written.network)?;
    let mut in_order: Vec<_> = written.member.into_iter().collect();
    in_order.sort_by_key(|(name, _)| name.span().start);
    if in_order.is_empty() || in_order.len() > ENSEMBLE_MEMBERS_MAX {
        let what = format!("{} members", in_order.len());
        let fix = format!("write 1 to {ENSEMBLE_MEMBERS_MAX} tables [member.NAME]");
        return Err(at.wrong(0..0, what, fix));
    }
    let names: Vec<String> = in_order
        .iter()
        .map(|(name, _)| name.get_ref().clone())
        .collect();
    let mut members = Vec::new();
    let mut machines = 0;
    for (name, written) in in_order {
        let member = member(&at, &name, written, &names)?;
        machines += member.count;
        if machines > ENSEMBLE_MACHINES_MAX {
            let what = format!("{machines} machines up to here");
            let fix = format!("{ENSEMBLE_MACHINES_MAX} are the most in all");
            return Err(at.wrong(name.span(), what, fix));
        }
        members.push(member);
    }
    no_cycle(&members)?;
    no_name_twice(&members)?;
    Ok(Described {
        name,
        allow,
        bytes_per_s: written.network.bytes_per_s.map(Spanned::into_inner),
        members,
    })
}

fn allowed(at: &Text, network: &WrittenNetwork) -> Result<Vec<Allow>, Wrong> {
    if let Some(more) = network.allow.get(ALLOW_MAX) {
        let what = format!("{} destinations", network.allow.len());
        return Err(at.wrong(more.span(), what, format!("{ALLOW_MAX} are the most")));
    }
    let parse = |text: &Spanned<String>| {
        let parsed = text.get_ref().parse::<Allow>();
        parsed.map_err(|error| at.wrong(text.span(), error.to_string(), ""))
    };
    network.allow.iter().map(parse).collect()
}

// Long: one step for each key of a member.
fn member(
    at: &Text,
    name: &Spanned<String>,
    written: WrittenMember,
    names: &[String],
) -> Result<Member, Wrong> {
    let text = name.get_ref();
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    let bytes = text.as_bytes();
    if !ends(bytes.first())
        || !ends(bytes.last())
        || !bytes.iter().copied().all(plain)
        || bytes.len() > MEMBER_NAME_MAX
        || text == "localhost"
    {
        let what = format!("{text:?} can't be a member's name: the others reach it by that name");
        let fix = format!("write small letters, digits and -, at most {MEMBER_NAME_MAX}");
        return Err(at.wrong(name.span(), what, fix));
    }
    let line = at.line(name.span().start);
    let count = match &written.count {
        None => 1,
        Some(count) if (1..=ENSEMBLE_MACHINES_MAX).contains(count.get_ref()) => *count.get_ref(),
        Some(count) => {
            let what = format!("{} machines", count.get_ref());
            let fix = format!("write 1 to {ENSEMBLE_MACHINES_MAX}");
            return Err(at.wrong(count.span(), what, fix));
        }
    };
    let memory = written.memory.as_ref().map(|memory| {
        let parsed = size(memory.get_ref());
        parsed.ok_or_else(|| {
            let what = format!("{:?} is no size", memory.get_ref());
            at.wrong(
                memory.span(),
                what,
                "write a whole number and a unit, such as 512M or 2G",
            )
        })
    });
    if let Some(cpus) = written.cpus.as_ref().filter(|cpus| *cpus.get_ref() == 0) {
        return Err(at.wrong(cpus.span(), "no CPU", "write 1 or more"));
    }
    let several = |span: Range<usize>, what: &str| {
        let what = format!("{what} can't be that of {count} machines");
        at.wrong(span, what, "make a member of each of them")
    };
    let address = written.address.as_ref().map(|address| {
        if count > 1 {
            return Err(several(address.span(), "one address"));
        }
        address.get_ref().parse().map_err(|_| {
            let what = format!("{:?} is no IPv4 address", address.get_ref());
            at.wrong(
                address.span(),
                what,
                "write one such as 10.0.2.20, or leave it out",
            )
        })
    });
    if let Some(first) = written.ports.first().filter(|_| count > 1) {
        return Err(several(first.span(), "a port of this host"));
    }
    let size_line = written.cpus.as_ref().map(Spanned::span);
    let size_line = size_line.or(written.memory.as_ref().map(Spanned::span));
    let address_line = written.address.as_ref().map(Spanned::span);
    Ok(Member {
        name: text.clone(),
        line,
        substrate_line: at.line(written.substrate.span().start),
        size_line: size_line.map_or(line, |span| at.line(span.start)),
        address_line: address_line.map_or(line, |span| at.line(span.start)),
        count,
        cpus: written.cpus.map(Spanned::into_inner),
        memory_bytes: memory.transpose()?,
        address: address.transpose()?,
        ports: ports(at, &written.ports)?,
        after: after(at, text, &written.after, names)?,
        ready: written
            .ready
            .map_or(Ok(Sign::Answer), |ready| sign(at, ready))?,
        substrate: written.substrate.into_inner(),
    })
}

fn ports(at: &Text, written: &[Spanned<String>]) -> Result<Vec<PortForward>, Wrong> {
    if let Some(more) = written.get(PORTS_MAX) {
        let what = format!("{} ports", written.len());
        return Err(at.wrong(more.span(), what, format!("{PORTS_MAX} are the most")));
    }
    let parse = |text: &Spanned<String>| {
        let parsed = text.get_ref().parse::<PortForward>();
        let parsed = parsed.map_err(|error| at.wrong(text.span(), error.to_string(), ""))?;
        match parsed.protocol {
            Protocol::Tcp => Ok(parsed),
            Protocol::Udp => {
                let what = format!("{parsed}: only TCP leads into the network of an ensemble");
                Err(at.wrong(text.span(), what, "forward a TCP port"))
            }
        }
    };
    written.iter().map(parse).collect()
}

/// Returns the indices of members that come first.
fn after(
    at: &Text,
    own: &str,
    written: &[Spanned<String>],
    names: &[String],
) -> Result<Vec<usize>, Wrong> {
    let mut found = BTreeSet::new();
    for before in written {
        let wanted = before.get_ref();
        let index = names.iter().position(|name| name == wanted);
        let index = index.filter(|_| wanted != own).ok_or_else(|| {
            let what = match wanted == own {
                true => format!("{own} can't come after itself"),
                false => format!("there is no member {wanted:?}"),
            };
            let near = similar(wanted, names.iter().map(String::as_str));
            let near = near.filter(|near| *near != own);
            let fix = near.map(|near| format!("did you mean {near}?"));
            at.wrong(before.span(), what, fix.unwrap_or_default())
        })?;
        found.insert(index);
    }
    Ok(found.into_iter().collect())
}

fn sign(at: &Text, written: Spanned<WrittenReady>) -> Result<Sign, Wrong> {
    const FIX: &str =
        "write \"answer\", \"port 3306\", or a command as a list: [\"mariadb-admin\", \"ping\"]";
    let span = written.span();
    match written.into_inner() {
        WrittenReady::Sign(text) if text == "answer" => Ok(Sign::Answer),
        WrittenReady::Sign(text) => {
            let port = text
                .strip_prefix("port ")
                .and_then(|port| port.parse().ok());
            let port = port.filter(|port| *port > 0).map(Sign::Port);
            port.ok_or_else(|| at.wrong(span, format!("{text:?} is no sign of being ready"), FIX))
        }
        WrittenReady::Command(words) => {
            let (most, longest) = WORDS_MAX;
            let good = |word: &String| word.len() <= longest && !word.contains('\0');
            match (1..=most).contains(&words.len()) && words.iter().all(good) {
                true => Ok(Sign::Command(words)),
                false => Err(at.wrong(span, "this is no command", FIX)),
            }
        }
    }
}

/// Parses a size such as `512M`.
fn size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Refuses members that wait for each other for ever.
fn no_cycle(members: &[Member]) -> Result<(), Wrong> {
    let mut done = vec![false; members.len()];
    loop {
        let mut any = false;
        for (index, member) in members.iter().enumerate() {
            if !done[index] && member.after.iter().all(|before| done[*before]) {
                done[index] = true;
                any = true;
            }
        }
        if !any {
            break;
        }
    }
    let Some(mut at) = done.iter().position(|done| !done) else {
        return Ok(());
    };
    // whoever is not done waits for another that is not: following that leads into the circle, and then once around
    let next = |at: usize| {
        members[at]
            .after
            .iter()
            .copied()
            .find(|before| !done[*before])
    };
    for _ in 0..members.len() {
        at = next(at).unwrap_or(at);
    }
    let (first, mut way) = (at, vec![members[at].name.as_str()]);
    while let Some(before) = next(at) {
        way.push(&members[before].name);
        at = before;
        if at == first || way.len() > members.len() {
            break;
        }
    }
    Err(Wrong {
        line: members[first].line,
        what: format!("each of these comes after the next: {}", way.join(", ")),
        fix: "leave one `after` out".into(),
    })
}

/// By which names the machines of a member are reached: `db`, or `app-1` and `app-2`.
pub fn hosts(member: &Member) -> Vec<String> {
    match member.count {
        1 => vec![member.name.clone()],
        count => (1..=count)
            .map(|n| format!("{}-{n}", member.name))
            .collect(),
    }
}

/// Refuses machines of the same name: `app-1` is the first of two `app` too.
fn no_name_twice(members: &[Member]) -> Result<(), Wrong> {
    let mut known = BTreeMap::new();
    for member in members {
        let names = hosts(member).into_iter().chain([member.name.clone()]);
        for name in names.collect::<BTreeSet<_>>() {
            if let Some(other) = known.insert(name.clone(), &member.name) {
                return Err(Wrong {
                    line: member.line,
                    what: format!(
                        "two machines would be called {name}: of {other} and {}",
                        member.name
                    ),
                    fix: "give one of both another name".into(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHOP: &str = include_str!("../../../../docs/examples/shop/shop.toml");

    fn wrong(text: &str) -> Wrong {
        read(text).expect_err(text)
    }

    #[test]
    fn the_example_is_what_it_says() {
        let shop = read(SHOP).unwrap();
        assert_eq!(shop.name.as_str(), "shop");
        let names: Vec<&str> = shop.members.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["db", "php", "web"]);
        let [db, php, web] = &shop.members[..] else {
            panic!()
        };
        assert_eq!((db.after.len(), &db.ready), (0, &Sign::Port(3306)));
        assert_eq!((&php.after[..], &web.after[..]), (&[0][..], &[1][..]));
        assert_eq!(web.ports.len(), 1);
        assert_eq!(db.memory_bytes, Some(1 << 30));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let of = |rest: &str| {
            wrong(&format!(
                "name = \"shop\"\n[member.db]\nsubstrate = \"d\"\n{rest}"
            ))
        };
        for (rest, line, what, fix) in [
            ("memroy = \"1G\"", 4, "memroy", ""),
            ("memory = \"much\"", 4, "no size", "512M"),
            ("memory = \"99999999999G\"", 4, "no size", "512M"),
            ("count = 0", 4, "0 machines", "1 to"),
            ("count = 4000000000000", 4, "", ""),
            ("count = 65", 4, "65 machines", "1 to"),
            ("cpus = 0", 4, "no CPU", "1 or more"),
            ("\nports = [\"x\"]", 5, "x", ""),
            ("ports = [\"8080:80/udp\"]", 4, "only TCP", "TCP"),
            (
                "count = 2\nports = [\"8080:80\"]",
                5,
                "of 2 machines",
                "a member of each",
            ),
            ("address = \"10.0.2\"", 4, "no IPv4 address", "10.0.2.20"),
            ("after = [\"db\"]", 4, "itself", ""),
            (
                "after = [\"we\"]\n[member.web]\nsubstrate = \"w\"",
                4,
                "no member \"we\"",
                "web?",
            ),
            ("ready = \"port 0\"", 4, "no sign", "port 3306"),
            ("ready = []", 4, "no command", "port 3306"),
            ("ready = 7", 4, "", ""),
            ("[member.db]\nsubstrate = \"e\"", 4, "duplicate", ""),
            ("[member.-x]\nsubstrate = \"e\"", 4, "-x", "small letters"),
            ("[member.web]", 4, "missing field `substrate`", ""),
            (
                "count = 2\n[member.db-2]\nsubstrate = \"e\"",
                5,
                "two machines would be called db-2",
                "another name",
            ),
        ] {
            let wrong = of(rest);
            assert_eq!(wrong.line, line, "{rest}: {wrong:?}");
            assert!(
                wrong.what.contains(what) && wrong.fix.contains(fix),
                "{rest}: {wrong:?}"
            );
        }
        assert!(wrong("").what.contains("name"));
        assert!(
            wrong("name = \"a.b\"\n[member.x]\nsubstrate=\"x\"")
                .what
                .contains("a.b")
        );
        assert!(wrong("name = \"a\"\n[member]").what.contains("0 members"));
        assert!(
            wrong(&"#".repeat(ENSEMBLE_FILE_BYTES_MAX + 1))
                .what
                .contains("bytes")
        );
        let many: String = (0..=ENSEMBLE_MEMBERS_MAX)
            .map(|n| format!("[member.m{n}]\nsubstrate=\"x\"\n"))
            .collect();
        assert!(
            wrong(&format!("name = \"a\"\n{many}"))
                .what
                .contains("members")
        );
        let heavy =
            "name=\"a\"\n[member.a]\nsubstrate=\"x\"\ncount=64\n[member.b]\nsubstrate=\"x\"";
        assert!(wrong(heavy).what.contains("65 machines"));
    }

    #[test]
    fn members_that_wait_for_each_other_are_named() {
        let text = |after: &[(&str, &str)]| {
            let members = after.iter().map(|(name, after)| {
                format!("[member.{name}]\nsubstrate = \"s\"\nafter = [{after}]\n")
            });
            format!("name = \"shop\"\n{}", members.collect::<String>())
        };
        let circle = [
            ("a", "\"b\""),
            ("b", "\"c\""),
            ("c", "\"d\""),
            ("d", "\"b\""),
        ];
        let found = wrong(&text(&circle));
        assert!(
            found
                .what
                .starts_with("each of these comes after the next: "),
            "{found:?}"
        );
        assert!(
            found.what.ends_with("b, c, d, b") || !found.what.contains(" a"),
            "{found:?}"
        );
        let straight = [("a", "\"b\", \"c\""), ("b", "\"c\""), ("c", "")];
        assert!(read(&text(&straight)).is_ok());
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_refused_or_understood_and_never_a_panic(
            at in 0usize..4000, byte in proptest::char::any(), cut in 0usize..4000,
        ) {
            let mut chars: Vec<char> = SHOP.chars().collect();
            let at = at % chars.len();
            chars[at] = byte;
            chars.truncate(cut.max(1));
            let text: String = chars.into_iter().collect();
            match read(&text) {
                Ok(described) => prop_assert!(!described.members.is_empty()),
                Err(wrong) => prop_assert!(wrong.line <= 1 + text.matches('\n').count()),
            }
        }
    }
}
