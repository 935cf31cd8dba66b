//! `mixed`: an evening at the computer: three of eight activities that share little (games, films, a manual, a compiler,
//! TeX, Ghostscript), in any order. What one evening touches says little about the next: this is the workload of high
//! variance.
use super::{Session, desktop, game, playback};
use rand::seq::SliceRandom;
use std::time::Duration;

/// Number of activities in one run.
const TASKS: usize = 3;
const STEP_MAX: Duration = Duration::from_secs(200);

type Task = fn(&mut Session) -> anyhow::Result<()>;

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut tasks: [Task; 8] = [
        |session| shoot(session, &game::GAMES[0]),
        |session| shoot(session, &game::GAMES[1]),
        |session| playback::watch(session, "zoom", 1),
        |session| playback::watch(session, "cells", 1),
        |session| desktop::alone(session, desktop::browse),
        typeset,
        compile,
        convert,
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
    session.end_started()
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
    session.shell(
        "gcc -std=gnu99 -O1 -c -o /tmp/lparser.o /usr/src/project/src/lparser.c",
        STEP_MAX,
    )
}

fn convert(session: &mut Session) -> anyhow::Result<()> {
    session.shell(
        "gs -q -dBATCH -dNOPAUSE -sDEVICE=pnggray -r40 -dLastPage=2 -sOutputFile=/tmp/page%d.png /root/documents/licences.pdf",
        STEP_MAX,
    )
}
