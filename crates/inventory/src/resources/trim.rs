//! Memory that this process has freed, back to its host.

/// Has the allocator give back the memory that it keeps for later.
pub(super) fn to_host() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
