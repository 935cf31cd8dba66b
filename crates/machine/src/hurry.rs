//! Gives a thread priority over everything else on the host.

/// While this exists, the calling thread runs before everything else on the host: a guest is paused for some tens of
/// milliseconds and waits for it. Only root may request that; without root it has no effect. Niceness would not help, as
/// it only matters within a session.
pub(crate) struct Hurry {
    policy: libc::c_int,
    parameters: libc::sched_param,
}

impl Hurry {
    pub(crate) fn begin() -> Hurry {
        let mut parameters = libc::sched_param { sched_priority: 0 };
        let lowest = libc::sched_param { sched_priority: 1 };
        // SAFETY: the calls read and write one structure each and concern only the calling thread.
        let policy = unsafe {
            libc::sched_getparam(0, &mut parameters);
            let policy = libc::sched_getscheduler(0);
            libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &lowest);
            policy
        };
        Hurry { policy, parameters }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // SAFETY: the call reads one structure and concerns only the calling thread.
        unsafe { libc::sched_setscheduler(0, self.policy, &self.parameters) };
    }
}
