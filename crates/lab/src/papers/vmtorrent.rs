//! VMTorrent: one image starts on many hosts at once, and they give each other its pieces.

use super::Ours::{NotHere, Picture, Told, Value};
use super::{Paper, Part, row};

const SIM: &str = "swarm-sim";
const REAL: &str = "swarm-real";

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "VMTorrent",
    title: "VMTorrent: Scalable P2P Virtual Machine Streaming (CoNEXT 2012)",
    parts: &[
        Part {
            number: "figure 1",
            title: "when an image is accessed",
            rows: &[row(
                "how much of it by when, a boot (theirs: also where in it)",
                "",
                Picture(SIM, "swarm-playback-boot"),
            )],
        },
        Part {
            number: "figure 2",
            title: "architecture",
            rows: &[row(
                "file system, peers and seed",
                "",
                Told("docs/swarm.md"),
            )],
        },
        Part {
            number: "figure 3",
            title: "prototype",
            rows: &[row("its parts", "", Told("docs/swarm.md"))],
        },
        Part {
            number: "table 1",
            title: "workloads",
            rows: &[row(
                "boot, document, desktop",
                "",
                Told("docs/benchmarks.md, workloads"),
            )],
        },
        Part {
            number: "table 2",
            title: "images, and how much of them is accessed",
            rows: &[row(
                "share of the image",
                "6 to 10 % (235 to 400 MB)",
                Told("lab/traces/*/meta.json"),
            )],
        },
        Part {
            number: "figure 4",
            title: "delay over time, one host",
            rows: &[row(
                "document (LaTeX, as theirs)",
                "by demand some 5 s beyond the model, in a run of 66 s",
                Picture(SIM, "swarm-delay-document"),
            )],
        },
        Part {
            number: "figure 5",
            title: "playback, one host, 100 Mbit/s and 1 Gbit/s (Fedora)",
            rows: &[
                row("boot (a Debian)", "", Picture(SIM, "swarm-playback-boot")),
                row(
                    "a boot of Fedora",
                    "",
                    NotHere(
                        "guests are built of Debian's packages alone; a boot of Debian is in",
                        "floe-lab swarm-sim",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 6",
            title: "playback, one host, 100 Mbit/s and 1 Gbit/s (Ubuntu)",
            rows: &[
                row(
                    "document (a Debian; theirs: a boot again)",
                    "",
                    Picture(SIM, "swarm-playback-document"),
                ),
                row(
                    "a boot of Ubuntu",
                    "",
                    NotHere(
                        "guests are built of Debian's packages alone; a boot of Debian is in",
                        "floe-lab swarm-sim",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 7",
            title: "playback, one host, 100 Mbit/s and 1 Gbit/s (Windows)",
            rows: &[
                row(
                    "desktop (a Debian; theirs: a boot again; no Windows is at hand)",
                    "",
                    Picture(SIM, "swarm-playback-desktop"),
                ),
                row(
                    "a boot of Windows",
                    "",
                    NotHere(
                        "no Windows is at hand; a boot of Debian is in",
                        "floe-lab swarm-sim",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 8",
            title: "run time over that in memory, by hosts, 100 Mbit/s",
            rows: &[
                row("by hosts", "", Picture(SIM, "swarm-slowdown")),
                row(
                    "a file server, 100 hosts",
                    "40 to 70",
                    Value(SIM, "n100.cs_d"),
                ),
                row("peers, 100 hosts", "", Value(SIM, "n100.p2p_d")),
                row("VMTorrent, 100 hosts", "2 to 3", Value(SIM, "n100.p2p_p")),
                row("ours, 100 hosts", "", Value(SIM, "n100.ours")),
                row(
                    "a file server over the policy, 100 hosts (theirs; ours)",
                    "16 to 30",
                    Value(SIM, "cs_d_over_ours_n100"),
                ),
                row(
                    "peers over the policy, 100 hosts (theirs; ours)",
                    "4 to 11",
                    Value(SIM, "p2p_d_over_ours_n100"),
                ),
                row(
                    "a profile of one run, ours, 100 hosts",
                    "as with 1000 runs",
                    Value(SIM, "run1.n100.ours"),
                ),
                row(
                    "for real, 20 Mbit/s: a file server over ours, 16 hosts",
                    "",
                    Value(REAL, "cs_d_over_ours_n16"),
                ),
                row(
                    "for real: ours over a local image, 16 hosts",
                    "near 1",
                    Value(REAL, "ours_over_local_n16"),
                ),
                row(
                    "for real, 100 hosts",
                    "2 to 3",
                    NotHere(
                        "a host of two cores runs 16 of them, and the command starts no more",
                        "floe-lab swarm-real",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 9",
            title: "the same, 1 Gbit/s, to 1024 hosts",
            rows: &[
                row("by hosts", "", Picture(SIM, "swarm-slowdown-1g")),
                row(
                    "VMTorrent, 1024 hosts",
                    "8 (extrapolated)",
                    Value(SIM, "p2p_p_n1024_1g"),
                ),
                row("ours, 1024 hosts", "", Value(SIM, "ours_n1024_1g")),
            ],
        },
        Part {
            number: "figure 10",
            title: "rate at which pieces come",
            rows: &[row(
                "16 and 100 hosts",
                "80 and 60 Mbit/s",
                Picture(SIM, "swarm-rate"),
            )],
        },
    ],
};
