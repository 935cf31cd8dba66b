//! `gallery`: a visit to a collection of pictures that is too large for one visit. The visitor enters one of twelve
//! halls, looks at some pictures in a row, and perhaps continues in the hall next door. Most of what one visit touches is
//! not touched by another, as with a large game that users continue from different saved states, but within a hall the
//! order is always the same.
use super::Session;
use rand::Rng;
use std::time::Duration;

/// Number of halls; then number of pictures in each, as the guest's recipe makes them.
const HALLS: usize = 12;
const PICTURES: usize = 16;
/// Number of pictures that are viewed in the first hall, and then in the one next door.
const FIRST: std::ops::RangeInclusive<usize> = 9..=13;
const NEXT: std::ops::RangeInclusive<usize> = 4..=7;
/// How long a picture is viewed, in milliseconds.
const LOOK_MS: std::ops::Range<u64> = 2500..4500;

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    session.input.wake()?;
    let hall = session.random.random_range(0..HALLS);
    let count = session.random.random_range(FIRST);
    visit(session, hall, count)?;
    if session.random.random_bool(0.5) {
        let count = session.random.random_range(NEXT);
        visit(session, (hall + 1) % HALLS, count)?;
    }
    Ok(())
}

/// Views this many pictures of a hall in a row, some of them more closely.
fn visit(session: &mut Session, hall: usize, count: usize) -> anyhow::Result<()> {
    let from = session.random.random_range(1..=PICTURES - count + 1);
    let hall = format!("/root/gallery/{hall:02}");
    session.start(
        &format!("feh -F -Z --start-at {hall}/{from:02}.png {hall}"),
        "feh",
    )?;
    for _ in 1..count {
        look(session)?;
        session.input.press(&["right"])?;
    }
    look(session)?;
    session.end_started()
}

fn look(session: &mut Session) -> anyhow::Result<()> {
    let long = session.random.random_range(LOOK_MS);
    session.wait(Duration::from_millis(long))?;
    if session.random.random_bool(0.2) {
        session.input.press(&["up"])?; // zoom in
        session.wait(Duration::from_millis(long / 2))?;
    }
    Ok(())
}
