//! vTube: a virtual machine is streamed over a slow link like a film.

use super::Ours::{Against, NotHere, Picture, Told, Value};
use super::{Paper, Part, row};

const SIM: &str = "stream-sim";

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "vTube",
    title: "vTube: Efficient Streaming of Virtual Appliances Over Last-Mile Networks (SoCC 2013)",
    parts: &[
        Part {
            number: "figure 1",
            title: "architecture",
            rows: &[row(
                "server and client",
                "",
                Told("ARCHITECTURE.md, docs/architecture.svg"),
            )],
        },
        Part {
            number: "figure 2",
            title: "state that two runs touch over time",
            rows: &[row(
                "the most variable workload",
                "",
                Picture(SIM, "state-accessed"),
            )],
        },
        Part {
            number: "figure 3",
            title: "clusters of two runs",
            rows: &[row(
                "the most variable workload",
                "",
                Picture(SIM, "clusters"),
            )],
        },
        Part {
            number: "figure 4",
            title: "clusters of one run",
            rows: &[row(
                "how they are made",
                "",
                Told("crates/planner/src/model/partition.rs"),
            )],
        },
        Part {
            number: "figure 5",
            title: "clusters of two runs are split",
            rows: &[row(
                "how they are made",
                "",
                Told("crates/planner/src/model/partition.rs"),
            )],
        },
        Part {
            number: "figure 6",
            title: "which clusters are selected",
            rows: &[row(
                "the rule",
                "",
                Told("crates/planner/src/stream/vtube.rs"),
            )],
        },
        Part {
            number: "figure 7",
            title: "sizes of clusters",
            rows: &[row("all workloads", "", Picture(SIM, "cluster-sizes"))],
        },
        Part {
            number: "figure 8",
            title: "buffer or stream",
            rows: &[row(
                "the decision",
                "",
                Told("crates/planner/src/stream/plan.rs"),
            )],
        },
        Part {
            number: "figure 9",
            title: "the whole algorithm",
            rows: &[row(
                "its order",
                "",
                Told("crates/planner/src/stream/mod.rs"),
            )],
        },
        Part {
            number: "figure 10",
            title: "networks and appliances",
            rows: &[
                row(
                    "download of an image, 7.2 Mbit/s",
                    "83 to 152 min (4.4 to 8.0 GB)",
                    Against("stream-real", "usable_s"),
                ),
                row(
                    "bytes of the image",
                    "4.4 to 8.0 GB",
                    Against("stream-real", "first_mb"),
                ),
            ],
        },
        Part {
            number: "figure 11",
            title: "sample runs over real networks",
            rows: &[
                row("runs, with their pauses", "", Picture(SIM, "runs")),
                row(
                    "first buffering, vTube's rule",
                    "25 to 175 s",
                    Value(SIM, "mean.vtube.launch_s"),
                ),
                row(
                    "first buffering, ours",
                    "",
                    Value(SIM, "mean.floe.launch_s"),
                ),
                row(
                    "a real desktop, until it is usable",
                    "",
                    Value("stream-real", "usable_s"),
                ),
                row(
                    "over public wireless and 4G",
                    "",
                    NotHere(
                        "no such network is at hand; recorded links are in",
                        "make lab FLOE_LINK_TRACES=DIRECTORY",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 12",
            title: "launch and progress of applications",
            rows: &[
                row(
                    "film, launch at 7.2 Mbit/s, vTube's rule",
                    "183.3 s",
                    Value(SIM, "playback.7.2.vtube.launch_s"),
                ),
                row(
                    "film, launch at 7.2 Mbit/s, ours",
                    "",
                    Value(SIM, "playback.7.2.floe.launch_s"),
                ),
                row(
                    "film, launch at 14.4 Mbit/s, vTube's rule",
                    "92.5 s",
                    Value(SIM, "playback.14.4.vtube.launch_s"),
                ),
                row(
                    "film, launch at 14.4 Mbit/s, ours",
                    "",
                    Value(SIM, "playback.14.4.floe.launch_s"),
                ),
                row(
                    "compilation, launch at 7.2 Mbit/s, ours",
                    "tens of seconds",
                    Value(SIM, "compile.7.2.floe.launch_s"),
                ),
                row(
                    "compilation, all waiting at 7.2 Mbit/s, ours",
                    "",
                    Value(SIM, "compile.7.2.floe.wait_s"),
                ),
                row("progress of runs", "", Picture(SIM, "progress")),
                row(
                    "time beyond a local run",
                    "0.4 % (make), 40 % (video)",
                    Picture(SIM, "overhead"),
                ),
                row(
                    "Avidemux, which converts films",
                    "below 40 % beyond a local run",
                    NotHere(
                        "it is no package of Debian, and no workload converts films; compilation is in",
                        "floe-lab stream-sim",
                    ),
                ),
                row(
                    "frames of a film in a second",
                    "25.0",
                    NotHere(
                        "an emulated guest draws no 25 frames in a second even from a local disk; what a player reads in time is in",
                        "floe-lab io --full",
                    ),
                ),
                row(
                    "browser with Python's manual, launch at 7.2 Mbit/s, vTube's rule",
                    "114.6 s",
                    Value(SIM, "desktop.7.2.vtube.launch_s"),
                ),
                row(
                    "browser with Python's manual, launch at 7.2 Mbit/s, ours",
                    "",
                    Value(SIM, "desktop.7.2.floe.launch_s"),
                ),
                row(
                    "browser with Python's manual, launch at 14.4 Mbit/s, vTube's rule",
                    "60.2 s",
                    Value(SIM, "desktop.14.4.vtube.launch_s"),
                ),
                row(
                    "browser with Python's manual, launch at 14.4 Mbit/s, ours",
                    "",
                    Value(SIM, "desktop.14.4.floe.launch_s"),
                ),
                row(
                    "pages of the browser over time",
                    "near those of a local machine",
                    NotHere(
                        "the runs of `desktop` tell what a machine touches, not when a page is drawn; how long they wait is in",
                        "floe-lab stream-sim",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 13",
            title: "accuracy, 7.2 Mbit/s and 120 ms (theirs / vTube's rule here, then ours)",
            rows: &[
                row(
                    "film: fetch ratio, vTube's rule",
                    "1.03",
                    Value(SIM, "playback.7.2.vtube.fetch_ratio"),
                ),
                row(
                    "film: fetch ratio, ours",
                    "",
                    Value(SIM, "playback.7.2.floe.fetch_ratio"),
                ),
                row(
                    "film: buffering ratio, vTube's rule",
                    "0.33",
                    Value(SIM, "playback.7.2.vtube.buffering_ratio"),
                ),
                row(
                    "film: buffering ratio, ours",
                    "",
                    Value(SIM, "playback.7.2.floe.buffering_ratio"),
                ),
                row(
                    "film: pauses a minute, vTube's rule",
                    "0.24",
                    Value(SIM, "playback.7.2.vtube.buffering_per_min"),
                ),
                row(
                    "film: pauses a minute, ours",
                    "",
                    Value(SIM, "playback.7.2.floe.buffering_per_min"),
                ),
                row(
                    "film: miss rate, vTube's rule",
                    "0.20 %",
                    Value(SIM, "playback.7.2.vtube.miss_rate"),
                ),
                row(
                    "film: miss rate, ours",
                    "",
                    Value(SIM, "playback.7.2.floe.miss_rate"),
                ),
                row(
                    "game: fetch ratio, vTube's rule",
                    "1.41 to 1.51",
                    Value(SIM, "game.7.2.vtube.fetch_ratio"),
                ),
                row(
                    "game: fetch ratio, ours",
                    "",
                    Value(SIM, "game.7.2.floe.fetch_ratio"),
                ),
                row(
                    "game: buffering ratio, vTube's rule",
                    "0.04 to 0.21",
                    Value(SIM, "game.7.2.vtube.buffering_ratio"),
                ),
                row(
                    "game: buffering ratio, ours",
                    "",
                    Value(SIM, "game.7.2.floe.buffering_ratio"),
                ),
                row(
                    "game: pauses a minute, vTube's rule",
                    "0.37 to 0.46",
                    Value(SIM, "game.7.2.vtube.buffering_per_min"),
                ),
                row(
                    "game: pauses a minute, ours",
                    "",
                    Value(SIM, "game.7.2.floe.buffering_per_min"),
                ),
                row(
                    "game: miss rate, vTube's rule",
                    "0.40 to 1.96 %",
                    Value(SIM, "game.7.2.vtube.miss_rate"),
                ),
                row(
                    "game: miss rate, ours",
                    "",
                    Value(SIM, "game.7.2.floe.miss_rate"),
                ),
                row(
                    "compilation: fetch ratio, vTube's rule",
                    "1.01",
                    Value(SIM, "compile.7.2.vtube.fetch_ratio"),
                ),
                row(
                    "compilation: fetch ratio, ours",
                    "",
                    Value(SIM, "compile.7.2.floe.fetch_ratio"),
                ),
                row(
                    "compilation: buffering ratio, vTube's rule",
                    "0.06",
                    Value(SIM, "compile.7.2.vtube.buffering_ratio"),
                ),
                row(
                    "compilation: buffering ratio, ours",
                    "",
                    Value(SIM, "compile.7.2.floe.buffering_ratio"),
                ),
                row(
                    "compilation: pauses a minute, vTube's rule",
                    "0.35",
                    Value(SIM, "compile.7.2.vtube.buffering_per_min"),
                ),
                row(
                    "compilation: pauses a minute, ours",
                    "",
                    Value(SIM, "compile.7.2.floe.buffering_per_min"),
                ),
                row(
                    "compilation: miss rate, vTube's rule",
                    "0.66 %",
                    Value(SIM, "compile.7.2.vtube.miss_rate"),
                ),
                row(
                    "compilation: miss rate, ours",
                    "",
                    Value(SIM, "compile.7.2.floe.miss_rate"),
                ),
                row("misses by the number of traces", "", Picture(SIM, "misses")),
            ],
        },
        Part {
            number: "figure 14",
            title: "against VMTorrent's static plan, 7.2 Mbit/s and 120 ms",
            rows: &[
                row(
                    "bytes of the plan over vTube's, most variable workload",
                    "3.2 (Riven: 4.73 / 1.49)",
                    Value(SIM, "vmtorrent_over_vtube"),
                ),
                row(
                    "game: waiting, the plan",
                    "12 to 980 s",
                    Value(SIM, "game.7.2.vmtorrent.wait_s"),
                ),
                row(
                    "game: waiting, vTube's rule",
                    "39 to 255 s",
                    Value(SIM, "game.7.2.vtube.wait_s"),
                ),
                row(
                    "game: waiting, ours",
                    "",
                    Value(SIM, "game.7.2.floe.wait_s"),
                ),
                row(
                    "all workloads and links: waiting, ours over vTube's",
                    "",
                    Value(SIM, "floe_wait_over_vtube"),
                ),
                row(
                    "the same without the workload that flatters most",
                    "",
                    Value(SIM, "floe_wait_over_vtube_rest"),
                ),
                row(
                    "all workloads and links: pauses, ours over vTube's",
                    "",
                    Value(SIM, "pauses_per_min_over_vtube"),
                ),
            ],
        },
    ],
};
