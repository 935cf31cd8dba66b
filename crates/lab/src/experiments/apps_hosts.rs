//! `apps-hosts`: the jobs of `apps` on clones that are spread over two hosts, compared with machines that already run on both and have
//! everything in memory (SnowFlock's figure 5). The hosts are network namespaces with a gigabit link between them, over which a clone reads what it
//! touches of its parent's memory; they share this machine's processors.
use super::apps::{
    JOB_MAX, JOBS, Job, PARENT, ROUNDS, Still, Took, add_took, capture_warm, on_one, only, quiet,
    run_image, run_warm, same,
};
use super::exec::Floe;
use anyhow::{Context as _, ensure};
use floe_api::paths::Home;
use floe_testbed::cluster::{host_name, join};
use floe_testbed::harness::{Context, Report, Samples, interleave};
use floe_testbed::link::Segment;
use floe_testbed::live::{Node, at_once};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a part should take on machines that already run: clones lose the same seconds whatever the job is, so that a shorter one shows
/// more of them.
const PART: Duration = Duration::from_secs(30);
/// How many hosts.
const HOSTS: usize = 2;
/// Where a part's line is in the guest that has done it, or all of them in the parent of clones.
const SUMS: &str = "/run/sums";
/// What the parent's guest runs: `JOB OF UNITS`. Clones send their lines to it over the family's network, since those on another host reach
/// none of the hosts.
const AWAY: &str = r#"set -eu
set -- "$1" "$2" "$3" $(floe-guest ticket "$2")
[ "$5" = "$2" ] || { echo "room for $5 of $2 clones" >&2; exit 1; }
id=$(floe-guest clone "$4")
if [ "$id" = 0 ]; then
  python3 -c '
import socket, sys
server = socket.create_server(("", 9000))
for _ in range(int(sys.argv[1])):
    with server.accept()[0] as part, part.makefile() as text:
        print(text.read().strip(), flush=True)
' "$2" > /run/sums
  floe-guest join "$4"
else
  apps part "$1" $((id - 1)) "$2" "$3" | apps send 10.0.2.15 9000
  floe-guest exit
fi
"#;

/// The hosts and their machines.
struct Site {
    nodes: Vec<Node>,
    segment: Segment,
    /// One for each part of a job, in turn on one host and on the other.
    standing: Vec<String>,
}

/// Runs the experiment. A quick run does a little of the first job.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("apps-hosts", context.quick);
    let jobs = context.pick(&JOBS[..], &JOBS[..1]);
    let site = Site::new(context, jobs)?;
    for job in jobs {
        let units = match context.quick {
            true => site.standing.len(),
            false => site.units(job)?,
        };
        let (took, sent) = site.job(job.name, units, context.pick(ROUNDS, 1))?;
        let prefix = format!("{}.", job.name);
        add_took(&mut report, &prefix, &took);
        report.add(&format!("{prefix}sent_mb"), "MB", &sent);
        report.note(format!("{}: {units} units, each {}", job.name, job.unit));
    }
    report.note(format!(
        "{} clones of one CPU and 1 GB, spread evenly over {HOSTS} hosts, network namespaces with a gigabit link between them, which share the \
         processors; they are made by the program's own call; from the command in the parent until all of them have ended; before each round the other host \
         forgets what its clones have fetched. The alternative: as many machines of the same image, which run on both hosts and have done the \
         same work before; speedup: over one such machine that does all of it, once. Results are compared by checksum. sent: all bytes that \
         left the parent's host in a round of clones, headers included",
        site.standing.len()
    ));
    Ok(report)
}

/// Returns the host of a part of a job on machines that already run.
fn host_of(part: usize) -> usize {
    part % HOSTS
}

impl Site {
    /// Starts the hosts, and on them a parent and the machines that run all the time, which have done a unit of each job.
    fn new(context: &Context, jobs: &[Job]) -> anyhow::Result<Site> {
        let count = std::thread::available_parallelism()?.get();
        let segment = Segment::new(HOSTS).context("hosts of our own need root")?;
        let everywhere = format!("{},here", host_name(1));
        let flags = ["--guest-hosts", &everywhere];
        let mut nodes = Vec::new();
        for number in 0..HOSTS {
            segment.as_gigabit(number)?;
            let home = context.scratch.join(format!("host{number}"));
            let flags = if number == 0 { &flags[..] } else { &[] };
            nodes.push(Node::start_with(Some(segment.host(number)), &home, flags)?);
        }
        join(&segment, &nodes)?;
        let works: Vec<String> = jobs
            .iter()
            .map(|job| format!("apps part {} 0 1 1", job.name))
            .collect();
        capture_warm(&nodes[0], &works)?;
        let standing: Vec<String> = (0..count).map(|n| format!("standing{n}")).collect();
        let image = Home::at(&nodes[0].home).repo().join("warm");
        for (part, name) in standing.iter().enumerate() {
            match host_of(part) {
                0 => run_warm(&nodes[0], name, false, count)?,
                host => run_image(&nodes[host], &image.display().to_string(), name)?,
            }
        }
        run_warm(&nodes[0], PARENT, true, count)?;
        for work in &works {
            nodes[0].tell(PARENT, work, JOB_MAX)?;
        }
        let site = Site {
            nodes,
            segment,
            standing,
        };
        let script = format!("cat > /tmp/away <<'END'\n{AWAY}END\n");
        site.line(0, PARENT, &script)?;
        Ok(site)
    }

    /// Has a machine's guest run a line of a shell that must succeed. Returns what it said.
    fn line(&self, host: usize, machine: &str, line: &str) -> anyhow::Result<String> {
        let (code, said) = Floe::new(&self.nodes[host])?.line(&[], machine, line)?;
        ensure!(code == Some(0), "{line:?} in {machine} ended with {code:?}");
        Ok(said)
    }

    /// Returns the names of the machines that run on a host all the time.
    fn standing_on(&self, host: usize) -> Vec<String> {
        let all = self.standing.iter().enumerate();
        let here = all.filter(|(part, _)| host_of(*part) == host);
        here.map(|(_, name)| name.clone()).collect()
    }

    /// Returns how many units of a job make parts of the intended length.
    fn units(&self, job: &Job) -> anyhow::Result<usize> {
        let machines = self.standing.len();
        let probe = job.probe * machines;
        // the first time, machines have to translate all code and copy pages on write
        self.on_standing(job.name, probe)?;
        let (seconds, _) = self.on_standing(job.name, probe)?;
        Ok(job.units(machines, seconds, PART))
    }

    /// Measures a job on machines that already run, on clones, and on one machine that does all of it. Also returns how many MB left the
    /// parent's host for the clones, round by round.
    fn job(&self, job: &str, units: usize, rounds: usize) -> anyhow::Result<(Took, Samples)> {
        let expected = OnceCell::new();
        let sent = RefCell::new(Samples::default());
        let mut on_standing = || {
            let (seconds, sums) = self.on_standing(job, units)?;
            same(job, &expected, sums)?;
            Ok(seconds)
        };
        let mut on_clones = || {
            let before = self.segment.sent_bytes(0)?;
            let (seconds, sums) = self.on_clones(job, units)?;
            let bytes = self.segment.sent_bytes(0)? - before;
            sent.borrow_mut().push(bytes as f64 / 1e6);
            same(job, &expected, sums)?;
            Ok(seconds)
        };
        // do everything once: afterwards nothing has to be fetched, and no page copied on write
        on_standing()?;
        let both = interleave(rounds, &mut [&mut on_standing, &mut on_clones])?;
        let all = format!("apps part {job} 0 1 {units}");
        let took = Took {
            zero_cost: both[0].clone(),
            clones: both[1].clone(),
            alone: on_one(&self.nodes[0], &self.standing[0], &all)?,
        };
        Ok((took, sent.into_inner()))
    }

    /// Runs all parts at once on machines that already run. Returns the seconds that it took, and the results.
    fn on_standing(&self, job: &str, units: usize) -> anyhow::Result<(f64, BTreeSet<String>)> {
        let mut still = Vec::new();
        for (host, node) in self.nodes.iter().enumerate() {
            still.push(Still::but(node, &self.standing_on(host))?);
        }
        let of = self.standing.len();
        let start = Instant::now();
        at_once(of, |part| {
            let command = format!("apps part {job} {part} {of} {units} > {SUMS}");
            self.nodes[host_of(part)].tell(&self.standing[part], &command, JOB_MAX)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        drop(still);
        let mut sums = BTreeSet::new();
        for (part, name) in self.standing.iter().enumerate() {
            let said = self.line(host_of(part), name, &format!("cat {SUMS}"))?;
            sums.extend(said.lines().map(str::to_owned));
        }
        Ok((seconds, sums))
    }

    /// The same on clones that the parent makes for the job, until it has joined them.
    fn on_clones(&self, job: &str, units: usize) -> anyhow::Result<(f64, BTreeSet<String>)> {
        let (parents, other) = (&self.nodes[0], &self.nodes[1]);
        other.client.cache_gc()?;
        let still = [
            Still::but(parents, &[PARENT.to_owned()])?,
            Still::but(other, &[])?,
        ];
        let command = format!("sh /tmp/away {job} {} {units}", self.standing.len());
        let start = Instant::now();
        parents.tell(PARENT, &command, JOB_MAX)?;
        let seconds = start.elapsed().as_secs_f64();
        drop(still);
        only(other, self.standing_on(1).len())?;
        quiet(parents, PARENT, self.standing_on(0).len() + 1)?;
        let said = self.line(0, PARENT, &format!("cat {SUMS}"))?;
        Ok((seconds, said.lines().map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hosts_have_as_many_parts_as_clones_are_spread() {
        for count in 1..8 {
            let on = |host| (0..count).filter(|part| host_of(*part) == host).count();
            assert_eq!(on(0) + on(1), count);
            assert!(on(0).abs_diff(on(1)) <= 1);
        }
    }

    #[test]
    fn the_parents_script_is_sound_and_a_line_can_carry_it() {
        // the line that writes it ends at this word, and a tab would complete names
        assert!(!AWAY.lines().any(|line| line == "END") && !AWAY.contains('\t'));
        assert!(AWAY.contains(SUMS));
        let checked = std::process::Command::new("sh")
            .args(["-n", "-c", AWAY])
            .status();
        assert!(checked.unwrap().success());
    }
}
