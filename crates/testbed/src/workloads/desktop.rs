//! `desktop`: a browser with a large manual, PDF files, small programs and games, all used with mouse and keyboard.
use super::{Session, choose};
use rand::Rng;
use rand::seq::SliceRandom;
use std::ops::Range;
use std::time::Duration;

/// Number of tasks in one run.
const TASKS: usize = 3;
/// Number of times that the guest looks for a program's window before its key is pressed again; then how often it is
/// pressed.
const OPEN_LOOKS: u32 = 25;
const OPEN_TRIES: u32 = 4;
/// Time for a page or the effect of a click to be drawn.
const DRAWN: Duration = Duration::from_millis(1800);
/// Where a page's links and a puzzle's fields are, in pixels of the screen: a window that is alone is in the upper left
/// corner.
const PAGE: (Range<i64>, Range<i64>) = (60..640, 120..560);
const PUZZLE: (Range<i64>, Range<i64>) = (30..160, 70..200);

/// Pages of the manual that the browser visits.
const PAGES: &[&str] = &[
    "tutorial/index",
    "tutorial/classes",
    "tutorial/inputoutput",
    "library/functions",
    "library/stdtypes",
    "library/os",
    "library/re",
    "library/json",
    "library/asyncio-task",
    "library/sqlite3",
    "library/tkinter",
    "library/turtle",
    "library/unittest",
    "library/xml",
    "reference/datamodel",
    "reference/expressions",
    "reference/grammar",
    "faq/design",
    "howto/regex",
    "howto/sockets",
    "howto/unicode",
    "c-api/intro",
    "c-api/object",
    "extending/extending",
    "glossary",
    "license",
    "py-modindex",
    "genindex",
    "whatsnew/3.11",
    "whatsnew/2.6",
    "distutils/apiref",
    "installing/index",
];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut tasks = [
        browse as fn(&mut Session) -> anyhow::Result<()>,
        read,
        read_figures,
        mines,
        net,
        untangle,
        calculate,
        terminal,
    ];
    session.input.wake()?;
    tasks[1..].shuffle(&mut session.random);
    // Every user browses; when, and what else is done, differs.
    let when = session.random.random_range(0..TASKS);
    tasks.swap(0, when);
    for task in &tasks[..TASKS] {
        alone(session, *task)?;
    }
    Ok(())
}

/// Uses two of the desktop's small programs for a minute.
pub fn use_desktop(session: &mut Session) -> anyhow::Result<()> {
    let mut tasks = [
        calculate as fn(&mut Session) -> anyhow::Result<()>,
        terminal,
        mines,
        net,
        read_figures,
    ];
    tasks.shuffle(&mut session.random);
    for task in &tasks[..2] {
        alone(session, *task)?;
    }
    Ok(())
}

/// Does something with a program's window and closes it.
pub(super) fn alone(
    session: &mut Session,
    task: fn(&mut Session) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    task(session)?;
    session.input.press(&["alt", "f4"])?;
    session.wait(DRAWN)
}

/// Starts a program by its key and waits until a window of class `window` is on the screen. A key that was pressed while
/// a menu or a window was closing is pressed again.
fn open(session: &mut Session, key: &str, window: &str) -> anyhow::Result<()> {
    for _ in 0..OPEN_TRIES {
        session.input.press(&["ctrl", "alt", key])?;
        if session.window(window, OPEN_LOOKS)? {
            return session.wait(2 * DRAWN);
        }
    }
    anyhow::bail!("no window of {window} after {OPEN_TRIES} times Ctrl+Alt+{key}")
}

fn click_somewhere(
    session: &mut Session,
    area: &(Range<i64>, Range<i64>),
    button: &str,
) -> anyhow::Result<()> {
    let (x, y) = (
        session.random.random_range(area.0.clone()),
        session.random.random_range(area.1.clone()),
    );
    session.input.point(x, y)?;
    session.input.click(button)?;
    session.wait(DRAWN)
}

fn keys(session: &mut Session, names: &[&str], times: usize) -> anyhow::Result<()> {
    for _ in 0..times {
        let name = choose(session, names);
        session.input.press(&[name])?;
        session.wait(DRAWN)?;
    }
    Ok(())
}

pub(super) fn browse(session: &mut Session) -> anyhow::Result<()> {
    open(session, "b", "netsurf")?;
    for _ in 0..2 {
        let page = choose(session, PAGES);
        session.input.press(&["ctrl", "l"])?;
        session.input.press(&["ctrl", "a"])?;
        session.input.text(&format!(
            "file:///usr/share/doc/python3.11/html/{page}.html"
        ))?;
        session.input.press(&["ret"])?;
        session.wait(2 * DRAWN)?;
        for _ in 0..2 {
            keys(session, &["pgdn", "pgdn", "end", "down"], 1)?;
            click_somewhere(session, &PAGE, "left")?;
        }
    }
    Ok(())
}

fn read(session: &mut Session) -> anyhow::Result<()> {
    open(session, "d", "xpdf")?;
    keys(
        session,
        &["n", "n", "pgdn", "spc", "w", "z", "equal", "minus"],
        7,
    )
}

fn read_figures(session: &mut Session) -> anyhow::Result<()> {
    open(session, "p", "xpdf")?;
    keys(session, &["n", "n", "p", "equal", "w"], 6)
}

fn mines(session: &mut Session) -> anyhow::Result<()> {
    open(session, "m", "sgt-mines")?;
    clicks(session, &["left", "left", "right"])
}

fn net(session: &mut Session) -> anyhow::Result<()> {
    open(session, "n", "sgt-net")?;
    clicks(session, &["left", "right", "middle"])
}

fn untangle(session: &mut Session) -> anyhow::Result<()> {
    open(session, "u", "sgt-untangle")?;
    clicks(session, &["left"])?;
    keys(session, &["n", "u", "s"], 2)
}

fn calculate(session: &mut Session) -> anyhow::Result<()> {
    open(session, "c", "xcalc")?;
    keys(
        session,
        &["1", "2", "7", "9", "slash", "equal", "minus", "dot"],
        8,
    )
}

fn terminal(session: &mut Session) -> anyhow::Result<()> {
    open(session, "t", "xterm")?;
    let command = choose(
        session,
        &[
            "ls -la /etc",
            "ps aux",
            "df",
            "find /usr/share/doc -name tutorial",
            "sort /etc/services",
            "python3 -m this",
        ],
    );
    session.input.text(command)?;
    session.input.press(&["ret"])?;
    session.wait(2 * DRAWN)
}

fn clicks(session: &mut Session, buttons: &[&str]) -> anyhow::Result<()> {
    for _ in 0..6 {
        let button = choose(session, buttons);
        click_somewhere(session, &PUZZLE, button)?;
    }
    Ok(())
}
