//! A part of `mcast`: real clones on several hosts read what their parent has written just before, by multicast and by unicast in turn, also
//! while each host loses packets. Counted are the time until the last of them answers a web request, and until the last has read all; and what
//! leaves the parent's host until then. The hosts are network namespaces behind gigabit links, and share this machine's processors.
use super::fork_hosts::{answers, fork_away, nodes_of};
use super::forking::{end, start};
use anyhow::{Context as _, ensure};
use floe_api::{MulticastUse, SwarmWay};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Segment;
use floe_testbed::live::{Node, at_once, write_distinct};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many other hosts at once, one clone on each. For one alone there is no group.
const HOSTS: [usize; 3] = [2, 4, 8];
/// Memory of the guest, bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// Percentage of the packets that each clone's host loses, where they lose some.
const LOSS_PERCENT: u32 = 1;
/// Longest time for an emulated guest to write or to read that much on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time between two forks: the hosts are quiet again.
const BETWEEN: Duration = Duration::from_secs(2);
/// What the parent writes, in its memory.
const FILE: &str = "/dev/shm/written";

/// How a fork to other hosts is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    /// How many hosts.
    hosts: usize,
    /// Whether each of them loses packets.
    loses: bool,
    /// Whether clones may read by multicast.
    multicast: bool,
}

/// What was measured with one setting.
#[derive(Default)]
struct Measured {
    /// Until the last clone had answered a web request, seconds.
    answered: Samples,
    /// Until the last one had read what its parent had written, seconds.
    read: Samples,
    /// What the parent's host had sent until then, MB.
    sent: Samples,
    /// Hosts that did not read by multicast at the end.
    alone: Samples,
}

/// What one clone's host tells.
struct Told {
    answered_s: f64,
    read_s: f64,
    by_multicast: bool,
}

/// The hosts and what is done on them.
struct Site<'a> {
    segment: &'a Segment,
    nodes: &'a [Node],
    /// What the parent does before each fork.
    write: String,
}

/// Adds the figures to those of `mcast`. A quick run has two other hosts.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let numbers = context.pick(&HOSTS[..], &HOSTS[..1]);
    let hosts = 1 + numbers[numbers.len() - 1];
    let segment = Segment::new(hosts).context("hosts of our own need root")?;
    for number in 0..hosts {
        segment.as_gigabit(number)?;
    }
    let nodes = nodes_of(context, &segment, "mcast-host", hosts)?;
    let first = &nodes[0];
    first.import_with(&Guest::tiny()?, "guest", MEMORY_BYTES, 1)?;
    first.boot("guest", "origin")?;
    first.capture("origin", "ready", true, 0)?;
    first.remove("origin").ok();
    start(first, "ready", "web")?;
    let megabytes = context.pick(32, 16);
    let site = Site {
        segment: &segment,
        nodes: &nodes,
        write: format!(
            "{}; md5sum < {FILE} > {FILE}.sum",
            write_distinct(megabytes, FILE)
        ),
    };
    // what is created only once is created by the first two
    for setting in &order(0, numbers)[..2] {
        site.fork(*setting, &mut Measured::default())?;
    }
    let mut measured: BTreeMap<Setting, Measured> = BTreeMap::new();
    for round in 0..context.pick(5, 1) {
        for setting in order(round, numbers) {
            site.fork(setting, measured.entry(setting).or_default())?;
        }
    }
    for (setting, ours) in measured.iter().filter(|(setting, _)| setting.multicast) {
        let unicast = Setting {
            multicast: false,
            ..*setting
        };
        tell(report, *setting, ours, &measured[&unicast]);
    }
    report.note(format!(
        "clones_*: one clone of a guest of busybox on each of so many other hosts, behind gigabit links that share the processors; before each \
         fork the parent writes {megabytes} x 2^20 new bytes to its memory, and the hosts forget what earlier clones have fetched; each clone answers a web request, \
         then reads those bytes and compares their checksum with its parent's; sent: all bytes that left the parent's host until the last \
         had done so, headers included; loss{LOSS_PERCENT}_: each clone's host drops that percentage of what comes, at random"
    ));
    Ok(())
}

/// All settings in the order of a round. The two ways of a setting follow each other; which is first changes from round to round.
fn order(round: usize, numbers: &[usize]) -> Vec<Setting> {
    let most = numbers.iter().max();
    let hosts = numbers.iter().map(|hosts| (*hosts, false));
    let both = |(hosts, loses)| {
        [true, false].map(|multicast| Setting {
            hosts,
            loses,
            multicast,
        })
    };
    let mut all: Vec<Setting> = hosts
        .chain(most.map(|hosts| (*hosts, true)))
        .flat_map(both)
        .collect();
    if round % 2 == 1 {
        all.reverse();
    }
    all
}

/// Adds the figures of a setting, with the same by unicast beside them.
fn tell(report: &mut Report, setting: Setting, ours: &Measured, theirs: &Measured) {
    let n = setting.hosts;
    let key = |name: &str| match setting.loses {
        true => format!("loss{LOSS_PERCENT}_clones_{name}_n{n}"),
        false => format!("clones_{name}_n{n}"),
    };
    let each =
        |sent: &Samples| -> Samples { sent.values().iter().map(|mb| mb / n as f64).collect() };
    let (our_each, their_each) = (each(&ours.sent), each(&theirs.sent));
    for (name, unit, ours, theirs) in [
        ("answer_s", "s", &ours.answered, &theirs.answered),
        ("read_s", "s", &ours.read, &theirs.read),
        ("sent_mb", "MB", &ours.sent, &theirs.sent),
        ("each_mb", "MB", &our_each, &their_each),
    ] {
        report
            .add(&key(name), unit, ours)
            .against("the same by unicast", unit, theirs.median());
    }
    for (name, ours, theirs) in [
        ("answer_over", &ours.answered, &theirs.answered),
        ("read_over", &ours.read, &theirs.read),
        ("sent_over", &ours.sent, &theirs.sent),
    ] {
        report.add(&key(name), "x", &ours.over(theirs));
    }
    report.add(&key("alone"), "hosts", &ours.alone);
}

impl Site<'_> {
    /// Forks the machine `web` of the first host once, lets the clones read, and ends them.
    fn fork(&self, setting: Setting, measured: &mut Measured) -> anyhow::Result<()> {
        let (segment, n) = (self.segment, setting.hosts);
        self.nodes[0].tell("web", &self.write, PATIENCE)?;
        for node in &self.nodes[1..] {
            node.client.cache_gc()?;
        }
        if setting.loses {
            for host in 1..=n {
                segment.lose(host, LOSS_PERCENT)?;
            }
        }
        std::thread::sleep(BETWEEN);
        let wanted = match setting.multicast {
            true => MulticastUse::Auto,
            false => MulticastUse::Off,
        };
        let before = segment.sent_bytes(0)?;
        let began = Instant::now();
        let fork = fork_away(self.nodes, n, wanted)?;
        ensure!(
            fork.multicast.is_some() == setting.multicast,
            "{setting:?}, and the fork has the group {:?}",
            fork.multicast
        );
        let clones = at_once(n, |number| self.read(&fork.clones[number].name, n, began))?;
        let sent = segment.sent_bytes(0)? - before;
        let last = |of: fn(&Told) -> f64| clones.iter().map(of).fold(0.0, f64::max);
        measured.answered.push(last(|told| told.answered_s));
        measured.read.push(last(|told| told.read_s));
        measured.sent.push(sent as f64 / 1e6);
        let alone = clones.iter().filter(|told| !told.by_multicast);
        measured.alone.push(alone.count() as f64);
        if setting.loses {
            for host in 1..=n {
                segment.lose_nothing(host)?;
            }
        }
        end(&self.nodes[0], "web")
    }

    /// Waits until a clone answers, and lets it read what its parent has written.
    fn read(&self, clone: &str, n: usize, began: Instant) -> anyhow::Result<Told> {
        let host = answers(self.segment, self.nodes, n, clone)?;
        let answered_s = began.elapsed().as_secs_f64();
        let node = &self.nodes[host];
        let same = format!("[ \"$(md5sum < {FILE})\" = \"$(cat {FILE}.sum)\" ]");
        node.tell(clone, &same, PATIENCE)?;
        let read_s = began.elapsed().as_secs_f64();
        let ways = node.client.swarm()?.swarms;
        let by_multicast = ways.iter().any(|read| {
            read.way == SwarmWay::Multicast && read.machines.iter().any(|name| name == clone)
        });
        Ok(Told {
            answered_s,
            read_s,
            by_multicast,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_measured_in_both_ways_one_after_the_other_and_who_is_first_changes() {
        let first = order(0, &HOSTS);
        assert_eq!(first.len(), 2 * (HOSTS.len() + 1));
        for pair in first.chunks(2) {
            assert!(pair[0].multicast && !pair[1].multicast);
            let same = Setting {
                multicast: false,
                ..pair[0]
            };
            assert_eq!(same, pair[1]);
        }
        let losing: Vec<usize> = first
            .iter()
            .filter(|setting| setting.loses)
            .map(|setting| setting.hosts)
            .collect();
        assert_eq!(losing, [8, 8]);
        let mut second = order(1, &HOSTS);
        assert!(!second[0].multicast);
        second.reverse();
        assert_eq!(second, first);
    }

    #[test]
    fn figures_are_held_against_unicast_round_by_round() {
        let of = |values: [f64; 3]| -> Samples { values.into_iter().collect() };
        let measured = |sent: [f64; 3]| Measured {
            answered: of([1.0, 2.0, 4.0]),
            read: of([10.0, 20.0, 40.0]),
            sent: of(sent),
            alone: of([0.0, 0.0, 1.0]),
        };
        let setting = Setting {
            hosts: 4,
            loses: true,
            multicast: true,
        };
        let mut report = Report::new("mcast", true);
        let (ours, theirs) = (measured([40.0, 44.0, 60.0]), measured([160.0, 88.0, 600.0]));
        tell(&mut report, setting, &ours, &theirs);
        let value = |key: &str| report.figures[key].value;
        assert_eq!(value("loss1_clones_sent_mb_n4"), 44.0);
        assert_eq!(value("loss1_clones_each_mb_n4"), 11.0);
        // the ratios of the rounds are 0.25, 0.5 and 0.1
        assert_eq!(value("loss1_clones_sent_over_n4"), 0.25);
        assert_eq!(value("loss1_clones_read_over_n4"), 1.0);
        assert_eq!(value("loss1_clones_alone_n4"), 0.0);
        let against = report.figures["loss1_clones_sent_mb_n4"].against.as_ref();
        assert_eq!(against.unwrap().value, 160.0);
    }
}
