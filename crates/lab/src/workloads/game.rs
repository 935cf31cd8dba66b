//! `game`: a shooter. Somebody begins a game, is taken to some of its 36 levels, runs around and shoots at random: other
//! maps, textures, sounds and monsters each time, the workload of high variance.
use super::Session;
use rand::Rng;
use std::time::Duration;

/// Levels that one run visits.
const LEVELS: usize = 3;
/// Actions in a level.
const ACTIONS: usize = 14;
/// A level is loaded and drawn after this.
const LOAD: Duration = Duration::from_secs(3);
/// How long a menu takes to react.
const MENU: Duration = Duration::from_millis(700);

/// Keys and how often they are chosen.
const KEYS: &[(&[&str], u32)] = &[
    (&["up"], 5),
    (&["up", "shift"], 5),
    (&["up", "left"], 4),
    (&["up", "right"], 4),
    (&["left"], 2),
    (&["right"], 2),
    (&["down"], 1),
    (&["ctrl"], 4),
    (&["up", "ctrl"], 3),
    (&["spc"], 3),
    (&["2"], 1),
    (&["3"], 1),
    (&["tab"], 1),
];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    // Menu, new game, episode, skill.
    let (episode, skill) = (
        session.random.random_range(0..4),
        session.random.random_range(0..4),
    );
    for key in ["esc", "ret"] {
        session.input.press(&[key])?;
        session.wait(MENU)?;
    }
    for downs in [episode, skill] {
        for _ in 0..downs {
            session.input.press(&["down"])?;
        }
        session.wait(MENU)?;
        session.input.press(&["ret"])?;
        session.wait(MENU)?;
    }
    session.wait(LOAD)?;
    for level in 0..LEVELS {
        if level > 0 {
            let (episode, map) = (
                session.random.random_range(1..=4),
                session.random.random_range(1..=9),
            );
            session.input.text(&format!("idclev{episode}{map}"))?;
            session.wait(LOAD)?;
        }
        // A player who can't die goes on, and sees every weapon.
        for cheat in ["iddqd", "idkfa"] {
            session.input.text(cheat)?;
        }
        for _ in 0..ACTIONS {
            act(session)?;
        }
    }
    Ok(())
}

fn act(session: &mut Session) -> anyhow::Result<()> {
    let total: u32 = KEYS.iter().map(|(_, often)| often).sum();
    let mut at = session.random.random_range(0..total);
    for (keys, often) in KEYS {
        if at < *often {
            let hold = Duration::from_millis(session.random.random_range(80..900));
            return session.input.hold(keys, hold);
        }
        at -= often;
    }
    Ok(())
}
