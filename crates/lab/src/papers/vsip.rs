//! vSIP: the disk requests of a program that a person waits for go first.

use super::Ours::{NotHere, Told, Value};
use super::{Paper, Part, row};

const IO: &str = "io";

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "vSIP",
    title: "vSIP: Virtual Scheduler for Interactive Performance (VEE 2016)",
    parts: &[
        Part {
            number: "figure 1",
            title: "what interactive programs lose on a shared disk",
            rows: &[
                row(
                    "a launch beside one reader / alone, by the host's default",
                    "",
                    Value(IO, "bfq.launch_reader1"),
                ),
                row("beside seven readers", "", Value(IO, "bfq.launch_reader7")),
            ],
        },
        Part {
            number: "figure 2",
            title: "launches beside one to seven readers, by the host's default",
            rows: &[
                row("one", "more with each", Value(IO, "bfq.launch_reader1")),
                row("seven", "", Value(IO, "bfq.launch_reader7")),
            ],
        },
        Part {
            number: "figure 3",
            title: "launches beside one to seven boots, by the host's default",
            rows: &[
                row("one", "more with each", Value(IO, "bfq.launch_boot1")),
                row("seven", "", Value(IO, "bfq.launch_boot7")),
            ],
        },
        Part {
            number: "figure 4",
            title: "pages beside readers and boots, by the host's default",
            rows: &[
                row(
                    "seven readers",
                    "more with each",
                    Value(IO, "bfq.page_reader7"),
                ),
                row("seven boots", "", Value(IO, "bfq.page_boot7")),
            ],
        },
        Part {
            number: "figure 5",
            title: "reads of a launch",
            rows: &[
                row("a browser", "", Value(IO, "netsurf.reads")),
                row("a viewer", "", Value(IO, "xpdf.reads")),
            ],
        },
        Part {
            number: "figure 6",
            title: "bytes of a launch",
            rows: &[
                row("a browser", "", Value(IO, "netsurf.read_mb")),
                row("a viewer", "", Value(IO, "xpdf.read_mb")),
            ],
        },
        Part {
            number: "figure 7",
            title: "how a program is known",
            rows: &[row("the rule", "", Told("docs/io-scheduling.md"))],
        },
        Part {
            number: "table 1",
            title: "parameters",
            rows: &[row(
                "periods, threshold, weight and cap",
                "4 s, 4 s, 60 %, 5, 10",
                Told("docs/io-scheduling.md"),
            )],
        },
        Part {
            number: "figure 8",
            title: "which programs are known rightly",
            rows: &[
                row(
                    "programs",
                    "all but one",
                    Value("io-who", "file.programs_right"),
                ),
                row(
                    "requests, of what was taken for waited for",
                    "",
                    Value("io-who", "file.precision"),
                ),
                row(
                    "requests, of what was waited for",
                    "",
                    Value("io-who", "file.recall"),
                ),
                row(
                    "Windows",
                    "",
                    NotHere(
                        "there is no map of NTFS; inputs alone are known there",
                        "floe-lab io-who",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 9",
            title: "a cold launch beside one machine",
            rows: &[
                row(
                    "beside a reader / alone",
                    "1.09",
                    Value(IO, "launch_reader1"),
                ),
                row("beside a boot / alone", "1.17", Value(IO, "launch_boot1")),
                row(
                    "beside a reader / by the host's default",
                    "0.62",
                    Value(IO, "launch_reader1_over_default"),
                ),
                row(
                    "beside a boot / by the host's default",
                    "0.52",
                    Value(IO, "launch_boot1_over_default"),
                ),
            ],
        },
        Part {
            number: "figure 10",
            title: "frames that a player drops",
            rows: &[
                row(
                    "beside seven readers",
                    "small",
                    Value(IO, "drops_reader7_pct"),
                ),
                row(
                    "by the host's default",
                    "39.1 % (five readers)",
                    Value(IO, "bfq.drops_reader7_pct"),
                ),
                row("beside seven boots", "small", Value(IO, "drops_boot7_pct")),
            ],
        },
        Part {
            number: "figure 11",
            title: "launches beside seven machines",
            rows: &[
                row("readers", "near 1", Value(IO, "launch_reader7")),
                row(
                    "boots",
                    "worse than alone, better than the default",
                    Value(IO, "launch_boot7"),
                ),
                row(
                    "readers, by the host's default",
                    "",
                    Value(IO, "bfq.launch_reader7"),
                ),
            ],
        },
        Part {
            number: "figure 12",
            title: "pages beside seven machines",
            rows: &[
                row("readers", "near 1", Value(IO, "page_reader7")),
                row("boots", "", Value(IO, "page_boot7")),
            ],
        },
    ],
};
