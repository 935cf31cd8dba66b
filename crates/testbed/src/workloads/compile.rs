//! `compile`: a C project with make and gcc. People compile the same thing repeatedly, with other flags or another
//! target, so there is little variance.
use super::{Session, choose};
use std::time::Duration;

const COMPILE_MAX: Duration = Duration::from_secs(400);

const FLAGS: &[&str] = &["-O0", "-O0 -g", "-O1", "-O0 -Wall -Wextra"];
const TARGETS: &[&str] = &["posix", "linux", "generic"];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let (flags, target) = (choose(session, FLAGS), choose(session, TARGETS));
    let make = format!(
        "make -C /usr/src/project/src {target} MYCFLAGS='{flags}' CFLAGS='-std=gnu99 {flags} -DLUA_COMPAT_5_3 -DLUA_USE_POSIX'"
    );
    session.shell(&make, COMPILE_MAX)?;
    session.shell("/usr/src/project/src/lua -v", COMPILE_MAX)
}
