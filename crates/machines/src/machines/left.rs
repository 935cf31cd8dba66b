//! Which QEMUs run in a state directory, whoever started them: asked of the files there, without a record of any machine.

use super::{STANDBY_DIR, VM_DIR};
use floe_api::paths::Home;
use floe_ground::{aside, error::NodeError};
use floe_machine::Machine;
use std::path::{Path, PathBuf};

/// Returns the directories of machines whose QEMUs run, or may run: one that can't be asked for is named too.
pub fn running_in(home: &Home) -> Result<Vec<PathBuf>, NodeError> {
    let mut running = Vec::new();
    for above in [home.machines(), home.root().join(STANDBY_DIR)] {
        for found in aside::list(&above)? {
            let dir = found.path();
            if may_run(&dir) {
                running.push(dir);
            }
        }
    }
    Ok(running)
}

fn may_run(dir: &Path) -> bool {
    // a file in place of a directory has no QEMU
    let is_file = std::fs::metadata(dir).is_ok_and(|found| !found.is_dir());
    !is_file && !matches!(Machine::process_in(&dir.join(VM_DIR)), Ok(None))
}
