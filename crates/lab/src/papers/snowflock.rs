//! SnowFlock: a running machine is forked to other hosts.

use super::Ours::{Against, NotHere, Told, Value};
use super::{Paper, Part, row};

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "SnowFlock",
    title: "SnowFlock: Rapid Virtual Machine Cloning for Cloud Computing (EuroSys 2009)",
    parts: &[
        Part {
            number: "figure 1",
            title: "patterns of programs that fork",
            rows: &[row(
                "sandboxing, parallel work, load, opportunistic jobs",
                "",
                Told("docs/guest.md, docs/examples"),
            )],
        },
        Part {
            number: "figure 2",
            title: "forking by suspending and copying the image",
            rows: &[
                row(
                    "32 times from one file on one host, 128 MB",
                    "",
                    Against("fork", "all_running_ms_n32"),
                ),
                row(
                    "sent to four hosts by unicast and loaded there, 1 GB",
                    "",
                    Against("fork", "hosts_answer_ms_n4"),
                ),
                row(
                    "clones on four hosts instead, until they answer",
                    "",
                    Value("fork", "hosts_answer_ms_n4"),
                ),
                row(
                    "to 32 hosts, by NFS and by multicast, 1 GB",
                    "hundreds of seconds, minutes",
                    NotHere(
                        "32 hosts with links and disks of their own are needed; one to four namespaces are in",
                        "floe-lab fork",
                    ),
                ),
            ],
        },
        Part {
            number: "table 1",
            title: "the interface of a fork",
            rows: &[row(
                "ticket, clone, exit, join, kill",
                "",
                Told("docs/guest.md"),
            )],
        },
        Part {
            number: "figure 3",
            title: "creating clones",
            rows: &[
                row(
                    "32 clones (theirs on 32 hosts, ours on one of two cores)",
                    "600 to 800 ms",
                    Value("fork", "all_running_ms_n32"),
                ),
                row(
                    "the same from QEMUs that wait",
                    "",
                    Value("fork", "all_running_ms_n32_blank"),
                ),
                row(
                    "one clone",
                    "600 to 800 ms",
                    Value("fork", "all_running_ms_n1"),
                ),
                row("descriptor", "1051 KB", Value("fork", "descriptor_kb")),
                row(
                    "pause of the parent, 64 MB written",
                    "",
                    Value("fork", "pause_ms_p50_64mb"),
                ),
            ],
        },
        Part {
            number: "figure 4",
            title: "the principles: fetching, avoiding, multicast",
            rows: &[
                row(
                    "(a) a page from another host",
                    "275 us",
                    Value("fault", "fault_us_p50"),
                ),
                row(
                    "(b) fetched by a clone that fills its memory",
                    "40 MB of 1124 (3.5 %)",
                    Value("avoid", "fetched_mb"),
                ),
                row(
                    "(b) without avoiding / with",
                    "two orders of magnitude",
                    Value("avoid", "avoidance_gain"),
                ),
                row(
                    "(b) by unicast / by multicast, 16 hosts",
                    "",
                    Value("mcast", "unicast_over_multicast_n16"),
                ),
                row(
                    "(c) until 16 hosts have read all, by multicast",
                    "",
                    Value("mcast", "seconds_n16"),
                ),
                row(
                    "(c) until 16 hosts have read all, by unicast",
                    "",
                    Against("mcast", "seconds_n16"),
                ),
                row(
                    "(c) until eight clones have read 32 MB of their parent's, by multicast",
                    "",
                    Value("mcast", "clones_read_s_n8"),
                ),
                row(
                    "(c) the same of clones, by unicast",
                    "",
                    Against("mcast", "clones_read_s_n8"),
                ),
                row(
                    "(c) BLAST's speedup by clones, 256 MB that all read",
                    "linear to 32 by multicast, to 16 by unicast",
                    NotHere(
                        "32 hosts with processors of their own are needed; what multicast spares is in",
                        "floe-lab mcast",
                    ),
                ),
            ],
        },
        Part {
            number: "table 2",
            title: "a job on clones, and by suspending and copying",
            rows: &[
                row(
                    "state sent to clones (theirs: 32 until a job is done; ours: one until it answers)",
                    "41.79 MB",
                    Value("fork", "hosts_sent_mb_n1"),
                ),
                row(
                    "the same if the machine is suspended and copied",
                    "1124 MB",
                    Against("fork", "hosts_sent_mb_n1"),
                ),
                row(
                    "time of SHRiMP on 128 threads",
                    "70.63 s; 157.29 s by multicast, 412.29 s by NFS",
                    NotHere(
                        "SHRiMP is no package of Debian, and 32 hosts of four cores are needed; suspended copies, and jobs on clones, are in",
                        "floe-lab fork, floe-lab apps",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 5",
            title: "jobs on clones over machines that already run",
            rows: &[
                row("BLAST", "<= 1.07", Value("apps", "blast.over_zero_cost")),
                row(
                    "ClustalW",
                    "<= 1.07 (2 s of 25 s)",
                    Value("apps", "clustalw.over_zero_cost"),
                ),
                row(
                    "rendering",
                    "<= 1.07",
                    Value("apps", "povray.over_zero_cost"),
                ),
                row("distcc", "<= 1.07", Value("distcc", "over_zero_cost")),
                row(
                    "sort (no job of the paper)",
                    "",
                    Value("apps", "sort.over_zero_cost"),
                ),
                row(
                    "speedup over one machine here, BLAST",
                    "",
                    Value("apps", "blast.speedup"),
                ),
                row("ClustalW", "", Value("apps", "clustalw.speedup")),
                row("rendering", "", Value("apps", "povray.speedup")),
                row("distcc", "", Value("distcc", "speedup")),
                row(
                    "speedup of machines that already run, BLAST",
                    "",
                    Against("apps", "blast.speedup"),
                ),
                row("ClustalW", "", Against("apps", "clustalw.speedup")),
                row("rendering", "", Against("apps", "povray.speedup")),
                row("distcc", "", Against("distcc", "speedup")),
                row(
                    "BLAST on clones on two hosts / machines that run there",
                    "<= 1.07",
                    Value("apps-hosts", "blast.over_zero_cost"),
                ),
                row(
                    "ClustalW",
                    "<= 1.07 (2 s of 25 s)",
                    Value("apps-hosts", "clustalw.over_zero_cost"),
                ),
                row(
                    "rendering",
                    "<= 1.07",
                    Value("apps-hosts", "povray.over_zero_cost"),
                ),
                row(
                    "speedup of clones on two hosts, BLAST",
                    "",
                    Value("apps-hosts", "blast.speedup"),
                ),
                row(
                    "of machines that run there, BLAST",
                    "",
                    Against("apps-hosts", "blast.speedup"),
                ),
                row(
                    "speedup on 128 threads",
                    "",
                    NotHere(
                        "32 hosts of four cores are needed; the command says how much faster it is on these",
                        "floe-lab apps",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 6",
            title: "several parents fork again and again",
            rows: &[
                row(
                    "a round",
                    "20 to 35 s, 5 s of them overhead",
                    Value("churn", "round_s"),
                ),
                row(
                    "slowest minus fastest round, over the median",
                    "",
                    Value("churn", "round_spread"),
                ),
                row("forks that failed", "0", Value("churn", "errors")),
                row(
                    "32 clones of each of the four",
                    "20 to 35 s",
                    NotHere(
                        "128 emulated guests on two processors measure those; four clones of each are in",
                        "floe-lab churn",
                    ),
                ),
            ],
        },
    ],
};
