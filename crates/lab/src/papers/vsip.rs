//! vSIP: the disk requests of a program that a person waits for go first.

use super::Ours::{NotHere, Told, Value};
use super::{Paper, Part, row};

const IO: &str = "io";

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "vSIP",
    title: "vSIP: Virtual Scheduler for Interactive Performance (CF 2016)",
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
            title: "warm launches beside one to seven readers, by the host's default",
            rows: &[
                row("one", "more with each", Value(IO, "bfq.curve.warm_reader1")),
                row("seven", "", Value(IO, "bfq.curve.warm_reader7")),
            ],
        },
        Part {
            number: "figure 3",
            title: "warm launches beside one to seven boots, by the host's default",
            rows: &[
                row("one", "more with each", Value(IO, "bfq.curve.warm_boot1")),
                row("seven", "", Value(IO, "bfq.curve.warm_boot7")),
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
            title: "reads of a warm launch, and of warm browsing (theirs: ten traces of each; ours: one record each)",
            rows: &[
                row("viewer, warm", "", Value(IO, "warm-xpdf.reads")),
                row("browser, warm", "", Value(IO, "warm-netsurf.reads")),
                row("terminal, warm", "", Value(IO, "warm-xterm.reads")),
                row("player, warm", "", Value(IO, "warm-mplayer.reads")),
                row("pictures, warm", "", Value(IO, "warm-feh.reads")),
                row("page tutorial", "", Value(IO, "page-tutorial.reads")),
                row("page functions", "", Value(IO, "page-functions.reads")),
                row("page stdtypes", "", Value(IO, "page-stdtypes.reads")),
                row("page os", "", Value(IO, "page-os.reads")),
                row("page sqlite3", "", Value(IO, "page-sqlite3.reads")),
                row("page datamodel", "", Value(IO, "page-datamodel.reads")),
                row("page grammar", "", Value(IO, "page-grammar.reads")),
                row("page regex", "", Value(IO, "page-regex.reads")),
                row("page object", "", Value(IO, "page-object.reads")),
                row("page whatsnew", "", Value(IO, "page-whatsnew.reads")),
                row(
                    "how ten traces of each differ",
                    "",
                    NotHere(
                        "there is one record of each; others are made by",
                        "floe-lab record-launches",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 6",
            title: "bytes of these reads (theirs: ten traces of each; ours: one record each)",
            rows: &[
                row("viewer, warm", "", Value(IO, "warm-xpdf.read_mb")),
                row("browser, warm", "", Value(IO, "warm-netsurf.read_mb")),
                row("terminal, warm", "", Value(IO, "warm-xterm.read_mb")),
                row("player, warm", "", Value(IO, "warm-mplayer.read_mb")),
                row("pictures, warm", "", Value(IO, "warm-feh.read_mb")),
                row("page tutorial", "", Value(IO, "page-tutorial.read_mb")),
                row("page functions", "", Value(IO, "page-functions.read_mb")),
                row("page stdtypes", "", Value(IO, "page-stdtypes.read_mb")),
                row("page os", "", Value(IO, "page-os.read_mb")),
                row("page sqlite3", "", Value(IO, "page-sqlite3.read_mb")),
                row("page datamodel", "", Value(IO, "page-datamodel.read_mb")),
                row("page grammar", "", Value(IO, "page-grammar.read_mb")),
                row("page regex", "", Value(IO, "page-regex.read_mb")),
                row("page object", "", Value(IO, "page-object.read_mb")),
                row("page whatsnew", "", Value(IO, "page-whatsnew.read_mb")),
                row(
                    "how ten traces of each differ",
                    "",
                    NotHere(
                        "there is one record of each; others are made by",
                        "floe-lab record-launches",
                    ),
                ),
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
                    "beside five readers, by the host's default",
                    "39.1 %",
                    Value(IO, "bfq.curve.drops_reader5_pct"),
                ),
                row("beside seven boots", "small", Value(IO, "drops_boot7_pct")),
            ],
        },
        Part {
            number: "figure 11",
            title: "warm launches beside seven machines",
            rows: &[
                row("readers", "near 1", Value(IO, "curve.warm_reader7")),
                row(
                    "boots",
                    "worse than alone, better than the default",
                    Value(IO, "curve.warm_boot7"),
                ),
                row(
                    "readers, by the host's default",
                    "",
                    Value(IO, "bfq.curve.warm_reader7"),
                ),
                row(
                    "boots, by the host's default",
                    "",
                    Value(IO, "bfq.curve.warm_boot7"),
                ),
                row(
                    "Windows",
                    "",
                    NotHere(
                        "there is no map of NTFS; guests of Linux are in",
                        "floe-lab io --full",
                    ),
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
        Part {
            number: "section 4.5",
            title: "how long others take for their work beside launches / by the host's default",
            rows: &[
                row(
                    "a reader",
                    "near 1, or less",
                    Value(IO, "work_reader1_over_default"),
                ),
                row(
                    "a boot",
                    "near 1, or less",
                    Value(IO, "work_boot1_over_default"),
                ),
            ],
        },
        Part {
            number: "section 4.6",
            title: "ten random reads, then a second of nothing, in a machine that also reads without end, beside three readers",
            rows: &[
                row(
                    "a read / alone",
                    "guaranteed",
                    Value(IO, "mixed_latency_over_alone"),
                ),
                row(
                    "the reader that has least / an equal share",
                    "none starves",
                    Value(IO, "others_over_share"),
                ),
                row(
                    "a read, where all of the machine goes first",
                    "guaranteed",
                    Value(IO, "whole.mixed_latency_over_alone"),
                ),
                row(
                    "the reader that has least then",
                    "starves",
                    Value(IO, "whole.others_over_share"),
                ),
                row(
                    "a read, by the host's default",
                    "",
                    Value(IO, "bfq.mixed_latency_over_alone"),
                ),
                row(
                    "a read in a machine that does nothing else, ours",
                    "guaranteed",
                    Value(IO, "interactive_latency_over_alone"),
                ),
            ],
        },
    ],
};
