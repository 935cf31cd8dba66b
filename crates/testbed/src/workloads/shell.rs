//! `shell`: commands that every guest has.
use super::{Session, choose};
use std::time::Duration;

const COMMAND_MAX: Duration = Duration::from_secs(60);

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    for _ in 0..3 {
        let command = choose(
            session,
            &["ls -la /bin", "ps", "mount", "cat /proc/meminfo", "df"],
        );
        session.shell(command, COMMAND_MAX)?;
    }
    Ok(())
}
