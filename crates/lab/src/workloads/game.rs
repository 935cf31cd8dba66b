//! `game`: a shooter. Somebody starts one of two games, is taken through some of its 36 or 32 levels, runs around and shoots at
//! random: other maps, textures, sounds and monsters each time.
use super::{Session, choose};
use rand::Rng;
use std::time::Duration;

/// Levels that one run visits.
const LEVELS: usize = 9;
/// Actions in a level.
const ACTIONS: usize = 5;
/// A level is loaded and drawn after this.
const LOAD: Duration = Duration::from_millis(2500);

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
];

/// The keys that lead to some level.
type Cheat = fn(&mut Session) -> String;
/// A game and the cheat that leads to a level.
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

/// Starts a game and visits so many levels.
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
