//! `gallery`: a visit to a collection of pictures too large for one visit. Somebody enters one of twelve halls, looks at picture
//! after picture from some place on, and perhaps goes on to the hall next door: most of what one visit touches another one
//! does not, as with a large game that users play from different saved states, but within a hall one thing follows the other.
use super::Session;
use rand::Rng;
use std::time::Duration;

/// Halls, and pictures in each, as the guest's recipe makes them.
const HALLS: usize = 12;
const PICTURES: usize = 16;
/// Pictures that are looked at in the first hall, and in the one next door.
const FIRST: std::ops::RangeInclusive<usize> = 9..=13;
const NEXT: std::ops::RangeInclusive<usize> = 4..=7;
/// How many milliseconds a picture is looked at.
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

/// Looks at so many pictures of a hall, one after the other from some place on, at some of them more closely.
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
        session.input.press(&["up"])?; // closer
        session.wait(Duration::from_millis(long / 2))?;
    }
    Ok(())
}
