//! `mixed`: an evening at the computer. Three of a dozen things that share little (games, films, manuals, a compiler, TeX,
//! archives) in any order: what one evening touches says little about the next, the workload of high variance.
use super::{Session, choose, desktop, game, playback};
use rand::seq::SliceRandom;
use std::time::Duration;

/// Things done in one run.
const TASKS: usize = 3;
const STEP_MAX: Duration = Duration::from_secs(200);

/// Directories with some megabytes each, of which somebody makes an archive.
const DIRECTORIES: &[&str] = &[
    "/usr/share/doc/python3.11/html/library",
    "/usr/share/doc/python3.11/html/c-api",
    "/usr/share/doc/python3.11/html/whatsnew",
    "/usr/lib/python3.11/asyncio",
    "/usr/share/fonts",
    "/usr/share/icons",
    "/usr/share/perl/5.36.0",
    "/usr/share/texlive/texmf-dist/tex/latex",
];

/// Programs of which one is started once: each brings its own libraries.
const PROGRAMS: &[&str] = &[
    "perl -MPOSIX -MData::Dumper -e 'print Dumper([POSIX::uname()])'",
    "python3 -c 'import asyncio, json, sqlite3, unittest, xml.dom.minidom, decimal'",
    "ffmpeg -nostdin -loglevel error -f lavfi -i testsrc2=size=160x120:rate=5 -t 2 -y /tmp/clip.avi",
    "gs -q -dBATCH -dNOPAUSE -sDEVICE=pnggray -r40 -dLastPage=2 -sOutputFile=/tmp/page%d.png /root/documents/licences.pdf",
    "objdump -d /usr/bin/make | tail -1",
];

type Task = fn(&mut Session) -> anyhow::Result<()>;

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut tasks: [Task; 12] = [
        |session| shoot(session, &game::GAMES[0]),
        |session| shoot(session, &game::GAMES[1]),
        |session| playback::watch(session, "zoom", 1),
        |session| playback::watch(session, "pattern", 1),
        |session| playback::watch(session, "cells", 1),
        |session| desktop::alone(session, desktop::browse),
        |session| desktop::alone(session, desktop::read),
        typeset,
        compile,
        archive,
        start,
        |session| desktop::alone(session, desktop::untangle),
    ];
    session.input.wake()?;
    tasks.shuffle(&mut session.random);
    for task in &tasks[..TASKS] {
        task(session)?;
    }
    Ok(())
}

fn shoot(session: &mut Session, game: &game::Game) -> anyhow::Result<()> {
    game::play(session, game, 2)?;
    // The shell that started it ends it.
    session.try_shell("kill $!; wait", STEP_MAX)?;
    Ok(())
}

fn typeset(session: &mut Session) -> anyhow::Result<()> {
    session.shell(
        "mkdir -p /root/work; cd /root/work; /root/documents/make doc report mathpazo GPL-3 > doc.tex",
        STEP_MAX,
    )?;
    session.try_shell("pdflatex -interaction=batchmode doc.tex; cd", STEP_MAX)?;
    session.shell("test -s /root/work/doc.pdf", STEP_MAX)
}

fn compile(session: &mut Session) -> anyhow::Result<()> {
    let name = choose(session, &["lparser", "lvm", "lcode", "lstrlib"]);
    let compile = format!("gcc -std=gnu99 -O1 -c -o /tmp/{name}.o /usr/src/project/src/{name}.c");
    session.shell(&compile, STEP_MAX)
}

fn archive(session: &mut Session) -> anyhow::Result<()> {
    let directory = choose(session, DIRECTORIES);
    // An archive to a pipe: tar reads nothing when it writes to /dev/null itself.
    session.shell(&format!("tar -cf - {directory} | wc -c"), STEP_MAX)
}

fn start(session: &mut Session) -> anyhow::Result<()> {
    let program = choose(session, PROGRAMS);
    session.shell(program, STEP_MAX)
}
