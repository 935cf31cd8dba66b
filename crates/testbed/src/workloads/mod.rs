//! Scripts of what a user does in a guest, and the recording of traces: `floe-lab collect`.
//!
//! Each workload has a file that determines from a seed what is typed, clicked and waited for. A workload starts from an
//! image that was captured when the guest was at its [`Stage`]; the images are made once, each from the previous one.
//! Every run has a new node: the kernel caches the pages of an image that an earlier machine touched, and the mount does
//! not see touches of such pages, so they would be missing in the trace. The node fetches nothing ahead, so that a trace
//! has only the machine's own accesses.
//!
//! What is stored (see `convert`): first accesses ordered by time, without those of zero chunks, which are never
//! transferred.

mod boot;
mod collect;
mod compile;
mod convert;
mod desktop;
mod document;
mod gallery;
mod game;
mod input;
mod mixed;
mod playback;
mod session;
mod shell;
mod stage;

pub use collect::{Arguments, Collector, Meta};
pub use desktop::use_desktop;
pub use session::Session;
pub use stage::Stage;

/// An activity of users.
pub struct Workload {
    /// Its name, and the name of its directory in the traces.
    pub name: &'static str,
    /// Its description in one line.
    pub about: &'static str,
    /// The stage at which it starts.
    pub stage: Stage,
    /// Default number of runs to collect.
    pub count: u32,
    /// Drives the guest through one run.
    pub run: fn(&mut Session) -> anyhow::Result<()>,
}

/// All workloads.
pub const ALL: &[Workload] = &[
    Workload {
        name: "desktop",
        about: "a manual in a browser, PDF files, small programs, by mouse and keyboard",
        stage: Stage::Screen,
        count: 10,
        run: desktop::run,
    },
    Workload {
        name: "game",
        about: "two shooters with 68 levels, by random keys",
        stage: Stage::Screen,
        count: 10,
        run: game::run,
    },
    Workload {
        name: "compile",
        about: "a C project with make and gcc",
        stage: Stage::Shell,
        count: 6,
        run: compile::run,
    },
    Workload {
        name: "playback",
        about: "a video player on the screen: play, seek, pause, another speed",
        stage: Stage::Screen,
        count: 10,
        run: playback::run,
    },
    Workload {
        name: "boot",
        about: "from the disk to the login shell and its first commands",
        stage: Stage::Disk,
        count: 10,
        run: boot::run,
    },
    Workload {
        name: "document",
        about: "a LaTeX document to PDF, PostScript and pages as pictures",
        stage: Stage::Shell,
        count: 10,
        run: document::run,
    },
    Workload {
        name: "mixed",
        about: "three of eight things that share little: games, films, a manual, a compiler, TeX, Ghostscript",
        stage: Stage::Screen,
        count: 10,
        run: mixed::run,
    },
    Workload {
        name: "gallery",
        about: "pictures of one or two halls of twelve, picture by picture",
        stage: Stage::Screen,
        count: 10,
        run: gallery::run,
    },
];

/// Some commands in any guest with a shell, which runs only if it is named: shows that collecting works.
pub const SHELL: Workload = Workload {
    name: "shell",
    about: "some commands of a shell",
    stage: Stage::Shell,
    count: 1,
    run: shell::run,
};

/// Returns one of several, chosen by the session's random numbers.
fn choose<'a, T>(session: &mut Session, among: &'a [T]) -> &'a T {
    use rand::Rng;
    &among[session.random.random_range(0..among.len())]
}
