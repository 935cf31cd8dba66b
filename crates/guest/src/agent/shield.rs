//! Keeps the kernel from ending the agent when the guest's memory is used up: the streams of all commands would end with it.

use std::fs::File;
use std::io::Write;

/// The value with which the kernel never chooses a process (proc(5), `oom_score_adj`).
const NEVER: &str = "-1000";
/// The value of ordinary processes.
const ORDINARY: &str = "0";

/// The agent's protection.
pub(in crate::agent) struct Shield(Option<File>);

impl Shield {
    /// Protects the agent. Without root's rights it stays as it is.
    pub fn raise() -> Shield {
        let open = File::options().write(true).open("/proc/self/oom_score_adj");
        let raised = open.and_then(|mut file| file.write_all(NEVER.as_bytes()).map(|()| file));
        if let Err(error) = &raised {
            eprintln!("floe-guest: the kernel may end it when memory is short: {error}");
        }
        Shield(raised.ok())
    }

    /// Starts a process, which inherits what the agent has: it is to be an ordinary one.
    pub fn without<T>(&self, start: impl FnOnce() -> T) -> T {
        self.set(ORDINARY);
        let started = start();
        self.set(NEVER);
        started
    }

    fn set(&self, value: &str) {
        let Some(mut file) = self.0.as_ref() else {
            return;
        };
        if let Err(error) = file.write_all(value.as_bytes()) {
            eprintln!("floe-guest: cannot set its oom_score_adj to {value}: {error}");
        }
    }
}
