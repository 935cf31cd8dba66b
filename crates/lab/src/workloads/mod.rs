//! What a user does in a guest, scripted, and the traces of it: `floe-lab collect`.
//!
//! Each workload has a file that says, for a seed, what is typed, clicked and waited for. A workload starts from an image
//! captured when the guest stands at its [`Stage`]; the images are made once, each from the one before. Every run has a
//! node of its own: the kernel keeps the pages of an image that an earlier machine touched, and touches of such pages are
//! not seen by the mount, so its trace would lack them. The node fetches nothing ahead, so that all of a trace is the
//! machine's own doing.
//!
//! What is kept (`convert`): first accesses in the order of time without those to zero chunks, which never travel.

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

/// Something that users do.
pub struct Workload {
    /// Its name, and its directory's among the traces.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// Where it starts.
    pub stage: Stage,
    /// Runs that are collected unless the user says otherwise.
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

/// A few commands in any guest with a shell, asked for by name only: shows that collecting works.
pub const SHELL: Workload = Workload {
    name: "shell",
    about: "some commands of a shell",
    stage: Stage::Shell,
    count: 1,
    run: shell::run,
};

/// One of several, by the workload's own chance.
fn choose<'a, T>(session: &mut Session, among: &'a [T]) -> &'a T {
    use rand::Rng;
    &among[session.random.random_range(0..among.len())]
}
