//! `playback`: a video player shows a clip at its normal speed; the viewer seeks, pauses, and changes the speed.
use super::{Session, choose};
use rand::Rng;
use std::time::Duration;

const CLIPS: &[&str] = &["zoom", "pattern", "cells"];
/// Time until the first picture.
const START: Duration = Duration::from_secs(8);
/// Seconds between two actions of the viewer.
const WATCH_S: std::ops::Range<u64> = 5..9;
/// Number of the viewer's actions in one run; the first one is to watch.
const ACTS: usize = 5;
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let clip = choose(session, CLIPS);
    watch(session, clip, ACTS)
}

/// Plays a clip, does this many actions, and ends the player.
pub(super) fn watch(session: &mut Session, clip: &str, acts: usize) -> anyhow::Result<()> {
    session.shell(
        "trap '' PIPE; rm -f /run/player; mkfifo /run/player",
        ANSWER_MAX,
    )?;
    session.type_line(&format!(
        "mplayer -slave -input file=/run/player -loop 0 -framedrop -ao null -vo x11 /root/video/{clip}.avi >/dev/null 2>&1 & exec 7>/run/player"
    ))?;
    session.wait(START)?;
    for _ in 0..acts {
        let watch = session.random.random_range(WATCH_S);
        session.wait(Duration::from_secs(watch))?;
        let act = match session.random.random_range(0..6) {
            0 => format!("seek {} 1", session.random.random_range(0..90)),
            1 => "seek 10 0".into(),
            2 => "pause".into(),
            3 => "speed_set 2".into(),
            4 => "osd 3".into(),
            _ => continue,
        };
        session.shell(&format!("echo {act} >&7"), ANSWER_MAX)?;
        if act == "pause" {
            session.wait(Duration::from_secs(2))?;
            session.shell("echo pause >&7", ANSWER_MAX)?;
        }
    }
    session.shell("echo quit >&7", ANSWER_MAX)
}
