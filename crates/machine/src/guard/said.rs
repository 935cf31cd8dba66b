//! Bounds QEMU's own output (`qemu.log`), which a guest can make endless: a log that is full loses its older half.
//!
//! QEMU writes it with the C library's functions, most of which call the kernel directly, so that replacing `write` would not catch them.
//! So standard output and standard error get streams whose writing function is here. What does not use that stream calls `write`, which the
//! guard replaces.

use super::{bound, is_machine, sys, syscall};
use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

const STDOUT: c_int = 1;
const STDERR: c_int = 2;

/// The functions of a stream, as the C library declares them (`cookie_io_functions_t`).
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    static mut stdout: *mut c_void;
    static mut stderr: *mut c_void;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut c_void;
    fn setvbuf(stream: *mut c_void, buffer: *mut c_char, mode: c_int, size: usize) -> c_int;
}

/// Whether this process is a machine's, and its output its log.
static IS_LOG: AtomicBool = AtomicBool::new(false);
/// Whether a thread is making room.
static MAKES_ROOM: AtomicBool = AtomicBool::new(false);

/// Runs before the program does.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    const UNBUFFERED: c_int = 2;
    if !is_machine() {
        return;
    }
    IS_LOG.store(true, Ordering::Relaxed);
    let stream = |descriptor: c_int| {
        let functions = Functions {
            read: None,
            write: Some(say),
            seek: None,
            close: None,
        };
        // SAFETY: a constant mode, and functions that take what the C library gives them.
        unsafe {
            let cookie = core::ptr::without_provenance_mut(descriptor as usize);
            let stream = fopencookie(cookie, c"w".as_ptr(), functions);
            if !stream.is_null() {
                setvbuf(stream, core::ptr::null_mut(), UNBUFFERED, 0);
            }
            stream
        }
    };
    // two, because a program may close both
    let (out, errors) = (stream(STDOUT), stream(STDERR));
    if !out.is_null() && !errors.is_null() {
        // SAFETY: the program has one thread, and has written nothing yet.
        unsafe { (stdout, stderr) = (out, errors) };
    }
}

/// The stream's function. Says that all was written: nobody can do anything about a disk that is full.
///
/// # Safety
///
/// As the C library calls it; its cookie is the number of the descriptor to write to.
unsafe extern "C" fn say(cookie: *mut c_void, bytes: *const c_char, count: usize) -> isize {
    let log = cookie.addr() as c_int;
    let room = make_room(log, count);
    // SAFETY: as the caller vouches.
    unsafe { syscall(sys::WRITE, log, bytes, room) };
    count as isize
}

/// Returns whether what is written to this descriptor goes into QEMU's log.
pub(super) fn is_log(file: c_int) -> bool {
    matches!(file, STDOUT | STDERR) && IS_LOG.load(Ordering::Relaxed)
}

/// Drops the older half of a log that would become too large by `count` bytes, or more if they need more. Returns how many of them
/// may be written at once.
pub(super) fn make_room(log: c_int, count: usize) -> usize {
    const SEEK_END: c_int = 2;
    let max = bound();
    // SAFETY: integers only. It fails for what is no file, which then is left as it is.
    let len = unsafe { syscall(sys::LSEEK, log, 0 as c_long, SEEK_END) } as i64;
    if len < 0 {
        return count;
    }
    let (len, room) = (len as u64, (count as u64).min(max));
    if len + room > max && !MAKES_ROOM.swap(true, Ordering::Acquire) {
        keep_end(log, len, (max / 2).min(max - room));
        MAKES_ROOM.store(false, Ordering::Release);
    }
    room as usize
}

/// Keeps the last `most` of a log's bytes; nothing if they can't be read. It is open for appending.
fn keep_end(log: c_int, len: u64, most: u64) {
    const READ_WRITE: c_int = 3;
    const PRIVATE_ANONYMOUS: c_int = 0x22;
    let most = most.min(len) as usize;
    // SAFETY: a new mapping of that size, which only this function uses.
    unsafe {
        let none: c_long = 0;
        let (any, no_file) = (core::ptr::null_mut::<c_void>(), -1 as c_int);
        let flags = PRIVATE_ANONYMOUS;
        let copy = syscall(sys::MMAP, any, most, READ_WRITE, flags, no_file, none);
        let mapped = copy > 0;
        let read = match mapped {
            true => syscall(sys::PREAD64, log, copy, most, (len as usize - most) as c_long),
            false => 0,
        };
        if syscall(sys::FTRUNCATE, log, none) == 0 && read > 0 {
            syscall(sys::WRITE, log, copy, read as usize);
        }
        if mapped {
            syscall(sys::MUNMAP, copy, most);
        }
    }
}
