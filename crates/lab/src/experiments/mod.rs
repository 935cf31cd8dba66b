//! The list of all experiments, and those that are in no crate of their own, one file each. Each one uses the real crates and measures
//! its alternative in the same run.
//!
//! Several of them share what floe-testbed has: `local` (a mount with everything local), `live` (nodes and hubs as processes), `wan` (two
//! hosts and a slow link) and `plain` (QEMU without floe).
pub mod activate;
mod activate_ways;
mod activation;
pub mod advise;
pub mod apps;
pub mod apps_hosts;
pub mod avoid;
pub mod build;
pub mod capture;
mod cluster_ready;
pub mod dedup;
pub mod disk;
pub mod distcc;
pub mod dock;
pub mod emulator;
pub mod exec;
mod foreign;
pub mod fork;
mod fork_answers;
mod fork_hosts;
mod forking;
pub mod hardware;
pub mod import;
pub mod input;
pub mod mcast;
mod mcast_clones;
pub mod offload;
pub mod page;
pub mod park;
pub mod pool;
pub mod restore;
pub mod template;
pub mod test;

use floe_contention::{cpu_scx, cpu_sim, density, io_cost, io_sim, io_who, isolation, switch};
use floe_delivery::{
    fault, independent, optimize, resume_wan, stream_real, stream_sim, swarm_cost, swarm_storm,
    touch, train, two_streams,
};
use floe_testbed::harness::{Context, Report};
use floe_torture::{churn, hub_hostile, odd_sources};

/// An experiment.
pub struct Experiment {
    /// Its name on the command line and in its report.
    pub name: &'static str,
    /// Its description in one line.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Context) -> anyhow::Result<Report>,
}

/// All experiments, those of other crates included, except those that have options of their own (`hammer`, `fuzz`, `io` ...); the cheap
/// ones first.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "emulator",
        about: "does the emulated link keep its promised rate and delay?",
        run: emulator::run,
    },
    Experiment {
        name: "import",
        about: "import, hash, compress and store a sparse disk, against zstd -3 -T0",
        run: import::run,
    },
    Experiment {
        name: "dedup",
        about: "one disk in seven formats, ten guests in one repository: what is stored, against each alone",
        run: dedup::run,
    },
    Experiment {
        name: "template",
        about: "a new machine of a template of 2 to 20 GB, against a copy of its disk",
        run: template::run,
    },
    Experiment {
        name: "disk",
        about: "fio on a copy-on-write disk, against the raw file",
        run: disk::run,
    },
    Experiment {
        name: "touch",
        about: "first touch of a page of RAM, against userfaultfd and mmap",
        run: touch::run,
    },
    Experiment {
        name: "page",
        about: "first paint of a catalogue of 200 images in a browser, and the page's size",
        run: page::run,
    },
    Experiment {
        name: "fault",
        about: "a page fault served from another host, against userfaultfd over the same hub",
        run: fault::run,
    },
    Experiment {
        name: "capture",
        about: "the pause of a capture and the size of the next, against QEMU's migration file",
        run: capture::run,
    },
    Experiment {
        name: "avoid",
        about: "filling memory that was free at a fork, against a guest that tells nobody what is free",
        run: avoid::run,
    },
    Experiment {
        name: "fork",
        about: "the pause of a fork and the time until n clones execute, against QEMU's migration file",
        run: fork::run,
    },
    Experiment {
        name: "mcast",
        about: "bytes that leave a parent's node when 1 to 16 hosts read the same 64 MB, by multicast, by unicast and by a swarm; the same of real clones, and their time",
        run: mcast::run,
    },
    Experiment {
        name: "apps",
        about: "BLAST, ClustalW, POV-Ray and a sort on clones, against machines that already run",
        run: apps::run,
    },
    Experiment {
        name: "apps-hosts",
        about: "the same jobs on clones on two hosts, against machines that already run there",
        run: apps_hosts::run,
    },
    Experiment {
        name: "distcc",
        about: "a compilation on clones, here and on another host, against clones that are there all the time",
        run: distcc::run,
    },
    Experiment {
        name: "odd-sources",
        about: "pulls and starts from servers that answer oddly for a minute: wrong bytes, and what the minute has ended",
        run: odd_sources::run,
    },
    Experiment {
        name: "churn",
        about: "four parents fork and join at once, round after round: errors, leaks, and a round's time",
        run: churn::run,
    },
    Experiment {
        name: "cpu-scx",
        about: "floe's scheduler for sched_ext, in a guest: programs that spin, under the kernel's own and under floe's",
        run: cpu_scx::run,
    },
    Experiment {
        name: "restore",
        about: "a running guest from the local store, against QEMU's migration file",
        run: restore::run,
    },
    Experiment {
        name: "exec",
        about: "commands, copies and keystrokes in a guest, over the port of its agent",
        run: exec::run,
    },
    Experiment {
        name: "park",
        about: "what a parked machine takes, and how long a connection that wakes it waits, against a start from its disks",
        run: park::run,
    },
    Experiment {
        name: "input",
        about: "what a user types while the machine is parked, paused and moved, and nodes are killed: what is lost, twice or out of order",
        run: input::run,
    },
    Experiment {
        name: "hardware",
        about: "what room to grow costs: device state, start time and memory, against machines that can't grow",
        run: hardware::run,
    },
    Experiment {
        name: "independent",
        about: "a guest's disk while all of its image is brought to its host, and what is then still needed from elsewhere",
        run: independent::run,
    },
    Experiment {
        name: "dock",
        about: "what a substrate takes in the pool's memory, and its machine's pause, against the memory of its guest",
        run: dock::run,
    },
    Experiment {
        name: "pool",
        about: "memory of 130 substrates of ten guests after different work, and how many fit 8 GB",
        run: pool::run,
    },
    Experiment {
        name: "activate",
        about: "from the call to a machine of the pool that runs, and that answers, against a cold boot",
        run: activate::run,
    },
    Experiment {
        name: "density",
        about: "memory of each further clone, against QEMU's migration file",
        run: density::run,
    },
    Experiment {
        name: "resume-wan",
        about: "a guest goes on behind 7.2 Mbit/s and 120 ms, against copying the image",
        run: resume_wan::run,
    },
    Experiment {
        name: "offload",
        about: "jobs of a weak device on a strong host behind a slow link and back, against the device",
        run: offload::run,
    },
    Experiment {
        name: "advise",
        about: "whether the advice to lend a machine to a strong host is right, against doing each job on both",
        run: advise::run,
    },
    Experiment {
        name: "isolation",
        about: "forks, programs, TCP and OpenSSL in a guest on a weak device, beside a second, idle machine, against alone",
        run: isolation::run,
    },
    Experiment {
        name: "stream-sim",
        about: "recorded workloads replayed over slow links in virtual time, with every prefetching policy",
        run: stream_sim::run,
    },
    Experiment {
        name: "stream-real",
        about: "a desktop from a hub behind 7.2 Mbit/s and 120 ms: when is it usable, and does the simulator tell the truth?",
        run: stream_real::run,
    },
    Experiment {
        name: "two-streams",
        about: "two machines started together over one slow link, and over two links: does each get its part?",
        run: two_streams::run,
    },
    Experiment {
        name: "io-sim",
        about: "the same launches in virtual time: does the simulator tell the truth, and what would mClock do?",
        run: io_sim::run,
    },
    Experiment {
        name: "cpu-sim",
        about: "locks, barriers and pipelines of machines that share cores, in virtual time: SBCO and others over the kernel's scheduler",
        run: cpu_sim::run,
    },
    Experiment {
        name: "switch",
        about: "what a switch between processes and a system call cost in a guest, against the host",
        run: switch::run,
    },
    Experiment {
        name: "io-who",
        about: "of which requests is it known rightly that a person waits for them, by the guest's agent and by files?",
        run: io_who::run,
    },
    Experiment {
        name: "swarm-cost",
        about: "processor time and memory of a node in a swarm, against a node that gets the same from the hub",
        run: swarm_cost::run,
    },
    Experiment {
        name: "swarm-storm",
        about: "100 hosts want one image of one hub within a second, and 24 of them copy all of it: how many fail?",
        run: swarm_storm::run,
    },
    Experiment {
        name: "hub-hostile",
        about: "honest reads and uploads at a hub beside 200 slow and 200 greedy strangers, and a member at a cluster's port beside 300 silent ones, against the same alone",
        run: hub_hostile::run,
    },
    Experiment {
        name: "optimize",
        about: "clusters of a run fetched from a web server, before and after the packs were laid out by other runs",
        run: optimize::run,
    },
    Experiment {
        name: "train",
        about: "time and memory to learn from 16 runs of 100,000 accesses",
        run: train::run,
    },
    Experiment {
        name: "io-cost",
        about: "what scheduling disk requests costs: random reads with and without it, and processor time",
        run: io_cost::run,
    },
];
