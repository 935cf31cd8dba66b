//! The guard: a library that the exec wrapper loads into QEMU and `qemu-img` (`LD_PRELOAD`), compiled separately by
//! `build.rs`.
//!
//! It replaces a few functions of the C library, decides by [`rules`], and passes permitted calls on to the kernel:
//!
//! - **machine** (`FLOE_GUARD=machine`): QEMU's user network may reach neither the host's loopback nor link-local
//!   addresses, and the console's log and QEMU's own stay within their bound, whether a node runs or not. A forwarded port whose
//!   socket the node has kept, and passed to this process, is opened with that socket. A userfaultfd is opened for the node's captures.
//! - **tool** (`FLOE_GUARD=tool`): the names `/floe/in` and `/floe/out` stand for descriptors that the node opened; with
//!   the first use of one of them, the kernel is told to let this process open nothing else.
//!
//! It confines what a *guest* or a *file* can make the program do. An attacker who has taken over the program itself can
//! bypass the functions of this library (but not the kernel's filters, nor the program's own user).
//!
//! No standard library, no allocation: it uses the C library of the program that it is loaded into, and needs nothing of the one
//! that it was built with.

#![no_std]

mod passed;
mod rules;
mod said;
mod watch;

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn strlen(text: *const c_char) -> usize;
    fn __errno_location() -> *mut c_int;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process; takes an integer.
    unsafe { syscall(sys::EXIT_GROUP, 134 as c_int) };
    loop {}
}

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod sys {
    use core::ffi::{c_long, c_uint};
    pub const READ: c_long = 0;
    pub const WRITE: c_long = 1;
    pub const CLOSE: c_long = 3;
    pub const LSEEK: c_long = 8;
    pub const MMAP: c_long = 9;
    pub const MUNMAP: c_long = 11;
    pub const IOCTL: c_long = 16;
    pub const PREAD64: c_long = 17;
    pub const CONNECT: c_long = 42;
    pub const SENDTO: c_long = 44;
    pub const RECVFROM: c_long = 45;
    pub const SENDMSG: c_long = 46;
    pub const BIND: c_long = 49;
    pub const GETSOCKNAME: c_long = 51;
    pub const SETSOCKOPT: c_long = 54;
    pub const GETSOCKOPT: c_long = 55;
    pub const FCNTL: c_long = 72;
    pub const FTRUNCATE: c_long = 77;
    pub const EXIT_GROUP: c_long = 231;
    pub const OPENAT: c_long = 257;
    pub const RENAMEAT: c_long = 264;
    pub const DUP3: c_long = 292;
    pub const SENDMMSG: c_long = 307;
    pub const SECCOMP: c_long = 317;
    pub const USERFAULTFD: c_long = 323;
    /// AUDIT_ARCH_X86_64.
    pub const ARCH: c_uint = 0xc000_003e;
    /// open, creat, openat, openat2, execve, execveat.
    pub const OPENING: [c_uint; 6] = [2, 85, 257, 437, 59, 322];
}
#[cfg(target_arch = "aarch64")]
mod sys {
    use core::ffi::{c_long, c_uint};
    pub const READ: c_long = 63;
    pub const WRITE: c_long = 64;
    pub const CLOSE: c_long = 57;
    pub const LSEEK: c_long = 62;
    pub const MMAP: c_long = 222;
    pub const MUNMAP: c_long = 215;
    pub const PREAD64: c_long = 67;
    pub const CONNECT: c_long = 203;
    pub const SENDTO: c_long = 206;
    pub const BIND: c_long = 200;
    pub const GETSOCKNAME: c_long = 204;
    pub const SETSOCKOPT: c_long = 208;
    pub const RECVFROM: c_long = 207;
    pub const SENDMSG: c_long = 211;
    pub const GETSOCKOPT: c_long = 209;
    pub const FCNTL: c_long = 25;
    pub const IOCTL: c_long = 29;
    pub const FTRUNCATE: c_long = 46;
    pub const EXIT_GROUP: c_long = 94;
    pub const OPENAT: c_long = 56;
    pub const RENAMEAT: c_long = 38;
    pub const DUP3: c_long = 24;
    pub const SENDMMSG: c_long = 269;
    pub const SECCOMP: c_long = 277;
    pub const USERFAULTFD: c_long = 282;
    /// AUDIT_ARCH_AARCH64.
    pub const ARCH: c_uint = 0xc000_00b7;
    /// openat, openat2, execve, execveat.
    pub const OPENING: [c_uint; 4] = [56, 437, 221, 281];
}

const EACCES: c_int = 13;
const EHOSTUNREACH: c_int = 113;
const SOL_SOCKET: c_int = 1;
const AT_FDCWD: c_int = -100;
const O_WRONLY: c_int = 1;
const O_CREAT: c_int = 0o100;
const O_TRUNC: c_int = 0o1000;
const O_APPEND: c_int = 0o2000;
const O_CLOEXEC: c_int = 0o2_000_000;

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's own place for the calling thread's error.
    unsafe { *__errno_location() = errno };
    -1
}

/// Returns the value of an environment variable. Nobody changes the environment after the start.
fn variable(name: &core::ffi::CStr) -> &'static [u8] {
    // SAFETY: `getenv` returns null or a C string that lives as long as the process.
    unsafe {
        let value = getenv(name.as_ptr());
        if value.is_null() {
            return b"";
        }
        core::slice::from_raw_parts(value.cast(), strlen(value))
    }
}

fn is_machine() -> bool {
    variable(c"FLOE_GUARD") == b"machine"
}

// ---- addresses that may be reached ------------------------------------------------------------------------------------

/// Returns whether the process may send to this address on this socket.
///
/// # Safety
///
/// `address` must be null or point to `len` bytes.
unsafe fn may_reach(socket: c_int, address: *const c_void, len: c_uint) -> bool {
    if address.is_null() {
        return true;
    }
    // SAFETY: the caller vouches for it.
    let bytes =
        unsafe { core::slice::from_raw_parts(address.cast::<u8>(), (len as usize).min(28)) };
    let Some((to, port)) = rules::target(bytes) else {
        return true;
    };
    !rules::is_guarded(to)
        || !is_machine()
        || rules::allows(variable(c"FLOE_GUARD_ALLOW"), port)
        || port == rules::DNS_PORT && is_nameserver(to)
        || Peers::knows(socket, to, port)
}

/// Returns whether `/etc/resolv.conf` currently lists this server. QEMU's user network also reads it again when it
/// changes.
fn is_nameserver(address: IpAddr) -> bool {
    let mut text = [0; 8192];
    let mut len = 0;
    // SAFETY: a constant path, and a buffer of the length that is passed.
    unsafe {
        let path = c"/etc/resolv.conf".as_ptr();
        let file = syscall(sys::OPENAT, AT_FDCWD, path, O_CLOEXEC, 0 as c_int);
        if file < 0 {
            return false;
        }
        while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match syscall(sys::READ, file, rest.as_mut_ptr(), rest.len()) {
                read @ 1.. => len += read as usize,
                _ => break,
            }
        }
        syscall(sys::CLOSE, file);
    }
    rules::is_nameserver(text.get(..len).unwrap_or_default(), address)
}

/// Records who has sent a datagram to which socket, so that clients of a forwarded UDP port at 127.0.0.1 get answers.
/// Only the latest are kept.
struct Peers {
    locked: AtomicBool,
    known: core::cell::UnsafeCell<[Peer; PEERS_MAX]>,
    next: AtomicU64,
}

/// Number of peers that are kept: more than a forwarded port has clients at a time; they take 32 KiB.
const PEERS_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq)]
struct Peer {
    /// A number that is unique among all sockets that this kernel ever made; 0 is none.
    socket: u64,
    address: IpAddr,
    port: u16,
}

// SAFETY: `known` is only accessed while `locked` is held.
unsafe impl Sync for Peers {}

static PEERS: Peers = Peers {
    locked: AtomicBool::new(false),
    known: core::cell::UnsafeCell::new(
        [Peer {
            socket: 0,
            address: IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
            port: 0,
        }; PEERS_MAX],
    ),
    next: AtomicU64::new(0),
};

impl Peers {
    fn with<T>(&self, f: impl FnOnce(&mut [Peer; PEERS_MAX]) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: this thread holds the lock until it is released below, and `f` does not call this function.
        let result = f(unsafe { &mut *self.known.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    fn knows(socket: c_int, address: IpAddr, port: u16) -> bool {
        let Some(socket) = cookie(socket) else {
            return false;
        };
        let peer = Peer {
            socket,
            address,
            port,
        };
        PEERS.with(|known| known.contains(&peer))
    }

    fn remember(socket: c_int, address: IpAddr, port: u16) {
        let Some(socket) = cookie(socket) else { return };
        let peer = Peer {
            socket,
            address,
            port,
        };
        PEERS.with(|known| {
            if !known.contains(&peer) {
                let at = PEERS.next.fetch_add(1, Ordering::Relaxed) as usize % PEERS_MAX;
                known[at] = peer;
            }
        });
    }
}

/// Returns the socket's unique number. Unlike a descriptor, the number is never reused.
fn cookie(socket: c_int) -> Option<u64> {
    const SO_COOKIE: c_int = 57;
    let mut cookie = 0u64;
    let mut len = 8 as c_uint;
    // SAFETY: writes at most `len` bytes to `cookie`.
    let got = unsafe {
        syscall(
            sys::GETSOCKOPT,
            socket,
            SOL_SOCKET,
            SO_COOKIE,
            &raw mut cookie,
            &raw mut len,
        )
    };
    (got == 0 && len == 8 && cookie != 0).then_some(cookie)
}

/// Like the C library's function, but checks the address.
///
/// # Safety
///
/// As in the C library; this holds for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(socket: c_int, address: *const c_void, len: c_uint) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        if !may_reach(socket, address, len) {
            return fail(EHOSTUNREACH);
        }
        syscall(sys::CONNECT, socket, address, len) as c_int
    }
}

/// Like the C library's function, but checks the address.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    socket: c_int,
    bytes: *const c_void,
    count: usize,
    flags: c_int,
    address: *const c_void,
    len: c_uint,
) -> isize {
    // SAFETY: as the caller vouches.
    unsafe {
        if !may_reach(socket, address, len) {
            return fail(EHOSTUNREACH) as isize;
        }
        syscall(sys::SENDTO, socket, bytes, count, flags, address, len) as isize
    }
}

/// The beginning of a `struct msghdr`.
#[repr(C)]
pub struct Message {
    name: *const c_void,
    name_len: c_uint,
    iov: *const c_void,
    iov_len: usize,
    control: *const c_void,
    control_len: usize,
    flags: c_int,
}

/// A `struct mmsghdr`.
#[repr(C)]
pub struct Messages {
    message: Message,
    len: c_uint,
}

/// Like the C library's function, but checks the address.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const Message, flags: c_int) -> isize {
    // SAFETY: as the caller vouches.
    unsafe {
        if !message.is_null() && !may_reach(socket, (*message).name, (*message).name_len) {
            return fail(EHOSTUNREACH) as isize;
        }
        syscall(sys::SENDMSG, socket, message, flags) as isize
    }
}

/// Like the C library's function, but checks the addresses.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    socket: c_int,
    messages: *mut Messages,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        for at in 0..if messages.is_null() { 0 } else { count } {
            let message = &(*messages.add(at as usize)).message;
            if !may_reach(socket, message.name, message.name_len) {
                return fail(EHOSTUNREACH);
            }
        }
        syscall(sys::SENDMMSG, socket, messages, count, flags) as c_int
    }
}

/// Like the C library's function, but remembers the sender.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    count: usize,
    flags: c_int,
    address: *mut c_void,
    len: *mut c_uint,
) -> isize {
    // SAFETY: as the caller vouches; the kernel has written at most as many bytes of the address as there is room for.
    unsafe {
        let room = if len.is_null() { 0 } else { *len };
        let got = syscall(sys::RECVFROM, socket, buffer, count, flags, address, len) as isize;
        if got >= 0 && !address.is_null() && !len.is_null() {
            let written = (*len).min(room).min(28) as usize;
            let bytes = core::slice::from_raw_parts(address.cast::<u8>(), written);
            if let Some((from, port)) = rules::target(bytes)
                && rules::is_guarded(from)
            {
                Peers::remember(socket, from, port);
            }
        }
        got
    }
}

/// What the compiler calls instead of `recvfrom` if it knows the buffer's size.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    socket: c_int,
    buffer: *mut c_void,
    count: usize,
    buffer_len: usize,
    flags: c_int,
    address: *mut c_void,
    len: *mut c_uint,
) -> isize {
    // SAFETY: as the caller vouches, and no more than the buffer holds.
    unsafe { recvfrom(socket, buffer, count.min(buffer_len), flags, address, len) }
}

// ---- files --------------------------------------------------------------------------------------------------------------

/// The console's log: QEMU opens this name in its own directory, and appends to the file.
const LOG: &core::ffi::CStr = c"console.log";
const LOG_BEFORE: &core::ffi::CStr = c"console.log.1";
/// QEMU's descriptor of the log; the next one is the log's size in bytes.
static LOG_FD: AtomicI32 = AtomicI32::new(-1);
static LOG_BYTES: AtomicU64 = AtomicU64::new(0);

/// Opens a file like the C library, but handles `/floe/in`, `/floe/out` and the console's log; `mode` matters only with
/// `O_CREAT`.
///
/// # Safety
///
/// As in the C library.
unsafe fn open_any(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: a path from the caller is a C string, or null, which the kernel refuses.
    unsafe {
        let name: &[u8] = match path.is_null() {
            true => b"",
            false => core::slice::from_raw_parts(path.cast(), strlen(path)),
        };
        let given = match name {
            b"/floe/in" => Some(0 as c_int),
            b"/floe/out" => Some(3 as c_int),
            _ => None,
        };
        if let Some(descriptor) = given
            && variable(c"FLOE_GUARD") == b"tool"
        {
            return open_given(descriptor, flags);
        }
        // QEMU opens it, as often as it likes, to find out how files can be locked, and complains where it can't
        if name == NULL.to_bytes() && NULL_FD.load(Ordering::Acquire) >= 0 {
            return duplicate(NULL_FD.load(Ordering::Acquire));
        }
        let file = syscall(sys::OPENAT, dir, path, flags, mode) as c_int;
        if file >= 0 && name == LOG.to_bytes() && is_machine() {
            const SEEK_END: c_int = 2;
            let len = syscall(sys::LSEEK, file, 0 as c_long, SEEK_END);
            LOG_BYTES.store(len.max(0) as u64, Ordering::Relaxed);
            LOG_FD.store(file, Ordering::Relaxed);
        }
        file
    }
}

/// A file that has nothing in it, which a tool can open after all others are out of its reach.
const NULL: &core::ffi::CStr = c"/dev/null";
/// A tool's descriptor of it, from when it can open nothing more; none before that.
static NULL_FD: AtomicI32 = AtomicI32::new(-1);

/// Returns a duplicate of a descriptor of this process.
fn duplicate(descriptor: c_int) -> c_int {
    const F_DUPFD_CLOEXEC: c_int = 1030;
    // SAFETY: integers only.
    unsafe { syscall(sys::FCNTL, descriptor, F_DUPFD_CLOEXEC, 4 as c_long) as c_int }
}

/// Returns a duplicate of a descriptor that the node opened.
///
/// # Safety
///
/// The descriptor must be one that the node passed to this process.
unsafe fn open_given(descriptor: c_int, flags: c_int) -> c_int {
    if !open_nothing_more() {
        return fail(EACCES);
    }
    // SAFETY: integers only.
    unsafe {
        let file = duplicate(descriptor);
        if file >= 0 && flags & O_TRUNC != 0 && descriptor != 0 {
            syscall(sys::FTRUNCATE, file, 0 as c_long);
        }
        file
    }
}

/// An instruction of the kernel's packet filter.
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: c_uint,
}

/// Makes the kernel refuse to open any further file or execute any further program, for all threads of this process and
/// forever. At this point the libraries are loaded, and nothing of a foreign file has been read.
fn open_nothing_more() -> bool {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Acquire) {
        return true;
    }
    if NULL_FD.load(Ordering::Acquire) < 0 {
        const O_RDWR: c_int = 2;
        // SAFETY: a constant path.
        let null = unsafe { syscall(sys::OPENAT, AT_FDCWD, NULL.as_ptr(), O_RDWR | O_CLOEXEC) } as c_int;
        NULL_FD.store(null, Ordering::Release);
    }
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const ALLOW: c_uint = 0x7fff_0000;
    const ERRNO: c_uint = 0x0005_0000;
    const KILL: c_uint = 0x8000_0000;
    const COUNT: usize = sys::OPENING.len();
    let step = |code, if_true, if_false, k| Instruction {
        code,
        if_true,
        if_false,
        k,
    };
    let mut program = [const {
        Instruction {
            code: RETURN,
            if_true: 0,
            if_false: 0,
            k: ALLOW,
        }
    }; COUNT + 6];
    program[0] = step(LOAD, 0, 0, 4); // the architecture
    program[1] = step(EQUAL, 1, 0, sys::ARCH);
    program[2] = step(RETURN, 0, 0, KILL);
    program[3] = step(LOAD, 0, 0, 0); // the system call's number
    for (at, number) in sys::OPENING.iter().enumerate() {
        program[4 + at] = step(EQUAL, (COUNT - at) as u8, 0, *number);
    }
    program[COUNT + 5] = step(RETURN, 0, 0, ERRNO | EACCES as c_uint);
    #[repr(C)]
    struct Program {
        len: u16,
        first: *const Instruction,
    }
    let whole = Program {
        len: program.len() as u16,
        first: program.as_ptr(),
    };
    const SET_MODE_FILTER: c_int = 1;
    const ALL_THREADS: c_int = 1;
    // SAFETY: the kernel copies the program during the call.
    let done =
        unsafe { syscall(sys::SECCOMP, SET_MODE_FILTER, ALL_THREADS, &raw const whole) } == 0;
    DONE.store(done, Ordering::Release);
    done
}

/// Writes like the C library. If the console's log is full, it is renamed first, replacing the older log, and a new log
/// begins.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, count: usize) -> isize {
    // SAFETY: as the caller vouches.
    unsafe {
        if file == LOG_FD.load(Ordering::Relaxed) && file >= 0 {
            let max = bound();
            let before = LOG_BYTES.load(Ordering::Relaxed);
            if before > 0 && before.saturating_add(count as u64) > max {
                rotate(file);
            }
            let written = syscall(sys::WRITE, file, bytes, count) as isize;
            LOG_BYTES.fetch_add(written.max(0) as u64, Ordering::Relaxed);
            return written;
        }
        let count = match said::is_log(file) {
            true => said::make_room(file, count),
            false => count,
        };
        syscall(sys::WRITE, file, bytes, count) as isize
    }
}

/// Returns the largest size of the current log, in bytes; the log before it is as large.
fn bound() -> u64 {
    let text = core::str::from_utf8(variable(c"FLOE_GUARD_LOG_BYTES"));
    text.ok().and_then(|t| t.parse().ok()).unwrap_or(4 << 20)
}

/// Renames the full log and puts a new one in its place, under the same descriptor. If that fails, the log is emptied.
fn rotate(log: c_int) {
    // SAFETY: constant paths, and descriptors that are this library's own or the log's.
    unsafe {
        let renamed = syscall(
            sys::RENAMEAT,
            AT_FDCWD,
            LOG.as_ptr(),
            AT_FDCWD,
            LOG_BEFORE.as_ptr(),
        ) == 0;
        let flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
        let new = match renamed {
            true => syscall(sys::OPENAT, AT_FDCWD, LOG.as_ptr(), flags, 0o600 as c_int),
            false => -1,
        };
        if new < 0 || syscall(sys::DUP3, new, log, O_CLOEXEC) < 0 {
            syscall(sys::FTRUNCATE, log, 0 as c_long);
        }
        if new >= 0 {
            syscall(sys::CLOSE, new);
        }
        LOG_BYTES.store(0, Ordering::Relaxed);
    }
}

/// Defines the functions that open files, under all of their names.
macro_rules! opens {
    ($($name:ident)*) => {$(
        /// As in the C library.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: as the caller vouches.
            unsafe { open_any(AT_FDCWD, path, flags, mode) }
        }
    )*};
}

opens!(open open64);

macro_rules! opens_existing {
    ($($name:ident)*) => {$(
        /// As in the C library.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: as the caller vouches.
            unsafe { open_any(AT_FDCWD, path, flags, 0) }
        }
    )*};
}

opens_existing!(__open_2 __open64_2);
