//! How a floe without shared libraries finds hosts by their names.
//!
//! For each service that /etc/nsswitch.conf names, except `files` and `dns`, glibc loads a library of the host, and with that the
//! host's own glibc: two in one process, which only works if both are the same version. Such a floe runs on any host, so it asks only
//! the services that it has in itself: /etc/hosts, and the name servers in /etc/resolv.conf.

use std::ffi::{c_char, c_int};

unsafe extern "C" {
    /// Declared in glibc's `<nss.h>`: lets this process look in `database` by the services of the line `services`.
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

/// Settles it for this process, whatever the host's /etc/nsswitch.conf says. Call it before another thread runs.
pub fn ask_files_and_dns_only() {
    // SAFETY: both are strings that end with a zero and live for ever; glibc copies what it needs. Nothing else looks up names yet.
    let refused = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    assert_eq!(refused, 0, "glibc knows the database of hosts");
}
