//! Substrate, SBCO and AMPhone: chapters 3 to 5 of one dissertation.

use super::Ours::{Against, NotHere, Told, Value};
use super::{Paper, Part, row};

const CPU: &str = "cpu-sim";
/// What corresponds to the fifth chapter's ARM board and server: a device of 17 % of a core, and a strong host behind a slow link.
const OFFLOAD: &str = "offload";
/// What corresponds to its phones on one device: two machines on such a device.
const ISOLATION: &str = "isolation";

/// Its tables and figures.
pub(super) const PAPER: Paper = Paper {
    name: "Substrate, SBCO and AMPhone",
    title: "K. Wang's dissertation, chapters 3 to 5",
    parts: &[
        Part {
            number: "table 3.1",
            title: "copying the disk of a template",
            rows: &[
                row(
                    "cp of a template's disk of 20 GB on one host",
                    "1229 s",
                    Against("template", "new_ms_20gb"),
                ),
                row(
                    "the same by NFS, and by scp",
                    "1412 s, 1589 s",
                    NotHere(
                        "these are of somebody's network and disks; a copy on one host is the fastest of them, and is in",
                        "floe-lab template",
                    ),
                ),
                row(
                    "a new machine on that disk, which copies when it writes",
                    "",
                    Value("template", "new_ms_20gb"),
                ),
                row(
                    "a guest's whole disk, while it runs",
                    "",
                    Value("independent", "copied_s"),
                ),
            ],
        },
        Part {
            number: "figure 3.1",
            title: "states of a machine",
            rows: &[row(
                "phases and their changes",
                "",
                Told("crates/inventory/src/inventory/lifecycle/"),
            )],
        },
        Part {
            number: "figure 3.2",
            title: "a machine from a substrate",
            rows: &[row("its steps", "", Told("docs/pools.md"))],
        },
        Part {
            number: "figure 3.3",
            title: "docking",
            rows: &[row("its steps", "", Told("docs/pools.md"))],
        },
        Part {
            number: "figure 3.4",
            title: "memory of a machine",
            rows: &[row(
                "that is neither free nor zero",
                "below 200 MB",
                Against("dock", "live_mb"),
            )],
        },
        Part {
            number: "figure 3.5",
            title: "vertical copy on write",
            rows: &[row("layers", "", Told("docs/format.md"))],
        },
        Part {
            number: "figure 3.6",
            title: "linear copy on write",
            rows: &[row("layers", "", Told("docs/format.md"))],
        },
        Part {
            number: "figure 3.7",
            title: "the disk while its base is copied",
            rows: &[
                row(
                    "throughput meanwhile / before",
                    "",
                    Value("independent", "during_ratio"),
                ),
                row(
                    "what the machine needs of others afterwards",
                    "0",
                    Value("independent", "left_bytes"),
                ),
                row(
                    "what lies over its own base once it is merged (steps 6 to 8)",
                    "0",
                    Value("independent", "overlay_bytes"),
                ),
            ],
        },
        Part {
            number: "figure 3.8",
            title: "activating, by the size of the memory",
            rows: &[
                row(
                    "by a QEMU that has loaded it, first instruction",
                    "",
                    Value("activate", "first_ms_p50"),
                ),
                row(
                    "by a QEMU that has loaded it, until it answers",
                    "",
                    Value("activate", "ready_ms_p50"),
                ),
                row(
                    "until it answers, with nothing waiting, 128 MB",
                    "0.875 s",
                    Value("activate", "size_ready_ms_128mb"),
                ),
                row("256 MB", "", Value("activate", "size_ready_ms_256mb")),
                row("512 MB", "", Value("activate", "size_ready_ms_512mb")),
                row("1 GB", "", Value("activate", "size_ready_ms_1024mb")),
                row("2 GB", "", Value("activate", "size_ready_ms_2048mb")),
                row("slowest / fastest", "", Value("activate", "size_spread")),
            ],
        },
        Part {
            number: "figure 3.9",
            title: "compressing a substrate",
            rows: &[
                row(
                    "a substrate made small first",
                    "16 MB",
                    Value("dock", "converted_mb"),
                ),
                row("docked live", "", Value("dock", "live_mb")),
                row(
                    "until it is durable and in memory",
                    "",
                    Value("pool", "dock_ms_p50"),
                ),
            ],
        },
        Part {
            number: "figure 3.10",
            title: "multicast of a substrate",
            rows: &[
                row(
                    "until 16 hosts have 64 MB",
                    "1 s (25 MB)",
                    Value("mcast", "seconds_n16"),
                ),
                row(
                    "1 GB; the same by NFS",
                    "30 s; by NFS longer the more hosts",
                    NotHere(
                        "the hosts share two processors and one disk, which a gigabyte to each of them would measure; 64 MB are in",
                        "floe-lab mcast",
                    ),
                ),
                row(
                    "bytes for 16 hosts / for one",
                    "1",
                    Value("mcast", "uplink_n16_over_n1"),
                ),
            ],
        },
        Part {
            number: "figure 3.11",
            title: "where the time of new machines goes",
            rows: &[
                row(
                    "one machine, until it executes",
                    "2.5 s",
                    Value("activate", "first_ms_n1"),
                ),
                row("two", "", Value("activate", "first_ms_n2")),
                row("four", "", Value("activate", "first_ms_n4")),
                row(
                    "eight",
                    "hardly more than one",
                    Value("activate", "first_ms_n8"),
                ),
                row(
                    "of one: reading the manifest",
                    "",
                    Value("activate", "part.manifest_ms"),
                ),
                row(
                    "of one: a QEMU that waits",
                    "",
                    Value("activate", "part.standby_ms"),
                ),
                row("of one: network", "", Value("activate", "part.network_ms")),
                row(
                    "of one: first instruction",
                    "",
                    Value("activate", "part.first_instruction_ms"),
                ),
            ],
        },
        Part {
            number: "figure 3.12",
            title: "delay of a game of checkers that is computed elsewhere",
            rows: &[
                row(
                    "the game",
                    "",
                    NotHere(
                        "the text says nothing of it, nor of its device; other jobs on a strong host are in",
                        "floe-lab offload",
                    ),
                ),
                row(
                    "a JavaScript suite: on a weak device / lent and back, 7.2 Mbit/s",
                    "",
                    Value(OFFLOAD, "gain_js"),
                ),
                row(
                    "for how long nobody answers on the way there, a minute after a sync",
                    "",
                    Value(OFFLOAD, "down_s"),
                ),
            ],
        },
        Part {
            number: "figure 3.13",
            title: "a substrate, a migration, a resume",
            rows: &[
                row(
                    "live migration / first instruction",
                    "about 1",
                    Value("activate", "migrate_over_first"),
                ),
                row(
                    "QEMU's restore from a file / first instruction",
                    "considerably more",
                    Value("activate", "restore_over_first"),
                ),
                row(
                    "a cold boot / until it answers",
                    "",
                    Value("activate", "boot_over_ready"),
                ),
                row(
                    "different machines in 8 GB",
                    "230",
                    Value("pool", "different_in_8gb"),
                ),
            ],
        },
        Part {
            number: "table 4.1",
            title: "spin locks",
            rows: &[row(
                "share of the time in which kernbench holds one",
                "9 %",
                Value(CPU, "table_4_1.kernbench.holding_pct"),
            )],
        },
        Part {
            number: "table 4.2",
            title: "siblings in one run queue",
            rows: &[
                row(
                    "SPECjbb, 2 machines",
                    "20.25 %",
                    Value(CPU, "table_4_2.specjbb.m2.stacked_pct"),
                ),
                row(
                    "SPECjbb, 3 machines",
                    "31.63 %",
                    Value(CPU, "table_4_2.specjbb.m3.stacked_pct"),
                ),
                row(
                    "kernbench, 2 machines",
                    "33.19 %",
                    Value(CPU, "table_4_2.kernbench.m2.stacked_pct"),
                ),
                row(
                    "kernbench, 3 machines",
                    "42.84 %",
                    Value(CPU, "table_4_2.kernbench.m3.stacked_pct"),
                ),
                row(
                    "for real, two vCPUs",
                    "",
                    Value("cpu-user", "off.stacking_pct"),
                ),
            ],
        },
        Part {
            number: "table 4.3",
            title: "siblings farther apart than the threshold",
            rows: &[
                row(
                    "kernbench, queue of 6",
                    "42.36 %",
                    Value(CPU, "table_4_3.kernbench.q6.far_pct"),
                ),
                row(
                    "kernbench, queue of 10",
                    "48.21 %",
                    Value(CPU, "table_4_3.kernbench.q10.far_pct"),
                ),
                row(
                    "streamcluster, queue of 6",
                    "40.75 % (Parsec)",
                    Value(CPU, "table_4_3.streamcluster.q6.far_pct"),
                ),
                row(
                    "streamcluster, queue of 10",
                    "45.13 % (Parsec)",
                    Value(CPU, "table_4_3.streamcluster.q10.far_pct"),
                ),
            ],
        },
        Part {
            number: "figure 4.1",
            title: "cost of a switch of vCPUs",
            rows: &[row(
                "with / without virtualization",
                "2.5 to 3",
                NotHere(
                    "vCPUs are emulated here: a switch is one of threads; a host with KVM is needed",
                    "make kvm-check",
                ),
            )],
        },
        Part {
            number: "figure 4.2",
            title: "cost of a switch of vCPUs, with caches",
            rows: &[row(
                "with / without virtualization",
                "2.5 to 3",
                NotHere("as above", "make kvm-check"),
            )],
        },
        Part {
            number: "figure 4.3",
            title: "scheduling distance",
            rows: &[row("its definition", "", Told("docs/cpu-scheduling.md"))],
        },
        Part {
            number: "figure 4.4",
            title: "a run queue",
            rows: &[row("its eight rows, as a test", "", Told("crates/sched"))],
        },
        Part {
            number: "figure 4.5",
            title: "the tree with an index",
            rows: &[row("its counterpart", "", Told("docs/cpu-scheduling.md"))],
        },
        Part {
            number: "figure 4.6",
            title: "time of kernbench",
            rows: &[
                row(
                    "SBCO / the kernel's default",
                    "0.86",
                    Value(CPU, "kernbench_over_default"),
                ),
                row(
                    "SBCO / balanced",
                    "0.94",
                    Value(CPU, "kernbench_over_balance"),
                ),
            ],
        },
        Part {
            number: "figure 4.7",
            title: "switches of kernbench",
            rows: &[row(
                "SBCO / the kernel's default",
                "0.97",
                Value(CPU, "switches_over_default"),
            )],
        },
        Part {
            number: "figure 4.8",
            title: "Parsec, queues of 8",
            rows: &[
                row(
                    "dedup, SBCO / default",
                    "0.32",
                    Value(CPU, "q8.dedup.sbco_over_default"),
                ),
                row(
                    "streamcluster, SBCO / default",
                    "0.48",
                    Value(CPU, "q8.streamcluster.sbco_over_default"),
                ),
                row(
                    "dedup, SBCO / balanced (the worse of 8 and 12)",
                    "0.93",
                    Value(CPU, "dedup_over_balance"),
                ),
                row(
                    "streamcluster, SBCO / balanced (the worse of 8 and 12)",
                    "0.91",
                    Value(CPU, "streamcluster_over_balance"),
                ),
            ],
        },
        Part {
            number: "figure 4.9",
            title: "Parsec, queues of 12",
            rows: &[
                row(
                    "dedup, SBCO / default",
                    "0.30",
                    Value(CPU, "q12.dedup.sbco_over_default"),
                ),
                row(
                    "streamcluster, SBCO / default",
                    "",
                    Value(CPU, "q12.streamcluster.sbco_over_default"),
                ),
            ],
        },
        Part {
            number: "figure 4.10",
            title: "throughput of SPECjbb beside one to five machines",
            rows: &[
                row("SBCO / PROCCO", "1.06", Value(CPU, "specjbb_over_procco")),
                row(
                    "SBCO / balanced",
                    "1.04",
                    Value(CPU, "specjbb_over_balance"),
                ),
            ],
        },
        Part {
            number: "figure 4.11",
            title: "longer queues",
            rows: &[row(
                "dedup, SBCO / default, queue of 14",
                "0.39 at best",
                Value(CPU, "fig_4_11.q14.dedup.sbco_over_default"),
            )],
        },
        Part {
            number: "figure 4.12",
            title: "fairness among machines",
            rows: &[
                row(
                    "largest lag, SBCO",
                    "15 to 25 ms (default: 20)",
                    Value(CPU, "lag_ms"),
                ),
                row("its deviation", "7 to 14 %", Value(CPU, "rsd_pct")),
            ],
        },
        Part {
            number: "figure 5.1",
            title: "architecture",
            rows: &[row(
                "a device, and a strong host that runs its machine for a while",
                "",
                Told("docs/operations.md (On a strong host for a while)"),
            )],
        },
        Part {
            number: "figure 5.2",
            title: "a virtual phone",
            rows: &[row(
                "a personal and a company's machine on one device",
                "",
                Told("crates/floe/tests/guest/isolated.rs"),
            )],
        },
        Part {
            number: "figure 5.3",
            title: "lmbench (theirs: one virtual phone over none; ours: beside a second machine over alone)",
            rows: &[
                row("fork", "1.05 to 1.08", Value(ISOLATION, "fork_over_alone")),
                row("exec", "1.05 to 1.08", Value(ISOLATION, "exec_over_alone")),
                row("TCP", "1.05 to 1.08", Value(ISOLATION, "tcp_over_alone")),
                row(
                    "a machine over none; switches and pipes",
                    "",
                    NotHere(
                        "guests are emulated here; a host with KVM is needed",
                        "make kvm-check",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 5.4",
            title: "Octane (theirs: its score there / on the device; ours: a suite of our own end to end, both ways in it)",
            rows: &[
                row(
                    "by a strong host, 7.2 Mbit/s",
                    "5400 / 917 = 5.9",
                    Value(OFFLOAD, "gain_js"),
                ),
                row("50 Mbit/s", "", Value(OFFLOAD, "gain_js_50")),
                row("a recorded LTE link", "", Value(OFFLOAD, "gain_js_lte")),
                row(
                    "Octane in Chrome, on an ARM board and on a server",
                    "917, 5400",
                    NotHere(
                        "floe is for x86-64; a device of 17 % of a core and a suite of our own are in",
                        "floe-lab offload",
                    ),
                ),
            ],
        },
        Part {
            number: "figure 5.5",
            title: "OpenSSL (theirs: its speed by algorithm there / on the device; ours: SHA-512 of 640 MB end to end, both ways in it)",
            rows: &[
                row(
                    "by a strong host, 7.2 Mbit/s",
                    "5 to 12",
                    Value(OFFLOAD, "gain_openssl"),
                ),
                row("50 Mbit/s", "", Value(OFFLOAD, "gain_openssl_50")),
                row(
                    "a recorded LTE link",
                    "",
                    Value(OFFLOAD, "gain_openssl_lte"),
                ),
                row(
                    "each algorithm, on an ARM board and on a server",
                    "",
                    NotHere(
                        "floe is for x86-64; SHA-512 on a device of 17 % of a core is in",
                        "floe-lab offload",
                    ),
                ),
                row(
                    "on the device: beside a second machine / alone (theirs: a phone / none)",
                    "<= 1.05",
                    Value(ISOLATION, "openssl_over_alone"),
                ),
            ],
        },
    ],
};
