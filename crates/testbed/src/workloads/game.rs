//! `game`: a shooter. The player starts one of two games, is taken to some of its 36 or 32 levels, runs around and shoots
//! at random, so that maps, textures, sounds and monsters differ each time.
use super::{Session, choose};
use rand::Rng;
use std::time::Duration;

/// Number of levels in one run.
const LEVELS: usize = 9;
/// Number of actions in a level.
const ACTIONS: usize = 5;
/// Time for a level to be loaded and drawn.
const LOAD: Duration = Duration::from_millis(2500);

/// Keys and their relative frequencies.
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
];

/// Returns the keys that lead to a random level.
type Cheat = fn(&mut Session) -> String;
/// A game and its cheat.
pub(super) type Game = (&'static str, Cheat);

/// Both games.
pub(super) const GAMES: &[Game] = &[
    ("freedoom1", |session| {
        let (episode, map) = (
            session.random.random_range(1..=4),
            session.random.random_range(1..=9),
        );
        format!("idclev{episode}{map}")
    }),
    ("freedoom2", |session| {
        format!("idclev{:02}", session.random.random_range(1..=32))
    }),
];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let game = choose(session, GAMES);
    play(session, game, LEVELS)
}

/// Starts a game and visits this many levels.
pub(super) fn play(
    session: &mut Session,
    (game, level): &Game,
    levels: usize,
) -> anyhow::Result<()> {
    let skill = session.random.random_range(1..=4);
    let warp = if *game == "freedoom1" { "1 1" } else { "1" };
    let command = format!(
        "chocolate-doom -iwad /usr/share/games/doom/{game}.wad -nomusic -skill {skill} -warp {warp}"
    );
    session.start(&command, "chocolate-doom")?;
    session.wait(LOAD)?;
    for _ in 0..levels {
        let cheat = level(session);
        session.input.text(&cheat)?;
        session.wait(LOAD)?;
        // A player who can't die continues, and sees every weapon.
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
