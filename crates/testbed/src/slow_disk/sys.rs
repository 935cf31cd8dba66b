//! System calls for which there is no safe wrapper.

/// Lets all threads that this one starts from now on run before those of ordinary programs, as hardware does. Where that isn't
/// allowed, they are what others are.
pub fn be_first(priority: i32) {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is to a structure that lives until the call returns.
    let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if failed != 0 {
        tracing::warn!("the modelled disk has no priority, and may be late on a busy host");
    }
}
