//! System calls that the standard library lacks, each with a safety argument.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Most descriptors in one [`poll`].
const POLL_MAX: usize = 1024;

/// Waits until one of the descriptors is ready. Returns for each the events for which it is ready.
pub(in crate::agent) fn poll(
    fds: &[(BorrowedFd<'_>, i16)],
    limit: Option<Duration>,
) -> io::Result<Vec<i16>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .take(POLL_MAX)
        .map(|(fd, events)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: *events,
            revents: 0,
        })
        .collect();
    let limit_ms = limit.map_or(-1, |limit| limit.as_millis().min(i32::MAX as u128) as i32);
    // SAFETY: the pointer and the count are those of a vector that lives until the call returns.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) };
    match ready {
        -1 => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(vec![0; fds.len()]),
            e => Err(e),
        },
        _ => Ok(polled.iter().map(|fd| fd.revents).collect()),
    }
}

/// The same for one descriptor.
pub(in crate::agent) fn poll_one(
    fd: BorrowedFd<'_>,
    events: i16,
    limit: Duration,
) -> io::Result<i16> {
    let ready = poll(&[(fd, events)], Some(limit))?;
    Ok(ready.first().copied().unwrap_or(0))
}

fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `struct rand_pool_info` of linux/random.h with its bytes.
#[repr(C)]
struct RandPool<const N: usize> {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    data: [u8; N],
}

/// `_IOW('R', 3, int[2])`
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
/// `_IO('R', 7)`
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// Mixes random bytes into the kernel's generator, and reseeds it so that all further output depends on them.
pub(in crate::agent) fn add_entropy<const N: usize>(
    random: &std::fs::File,
    data: [u8; N],
) -> io::Result<()> {
    let pool = RandPool {
        entropy_bits: 8 * N as libc::c_int,
        bytes: N as libc::c_int,
        data,
    };
    // SAFETY: RNDADDENTROPY reads two ints and as many bytes as the second one says, all of which `pool` has.
    checked(unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const pool) })?;
    // SAFETY: RNDRESEEDCRNG takes no argument.
    checked(unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG, 0) })
}

/// A byte that a terminal is to take as typed.
const TIOCSTI: libc::Ioctl = 0x5412;

/// Has a terminal take a byte as if it had been typed there.
pub(in crate::agent) fn type_on(terminal: BorrowedFd<'_>, byte: u8) -> io::Result<()> {
    // SAFETY: TIOCSTI reads one byte, which lives until the call returns.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCSTI, &raw const byte) })
}

/// Returns how many bytes wait that were typed on a terminal and that nobody has read. Of a line that is not complete a terminal may count
/// none.
pub(in crate::agent) fn typed_on(terminal: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes an int, which lives until the call returns.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What is set on a new input device, with linux/uinput.h's numbers.
#[derive(Clone, Copy)]
pub(in crate::agent) enum Uinput {
    /// `UI_SET_EVBIT`: a kind of events that it has.
    Kind,
    /// `UI_SET_KEYBIT`: a key or button.
    Key,
    /// `UI_SET_RELBIT`: an axis of movements.
    Movement,
    /// `UI_SET_ABSBIT`: an axis of places.
    Place,
    /// `UI_SET_PROPBIT`: a property.
    Property,
    /// `UI_DEV_CREATE`: the device begins to be there.
    Create,
}

/// Sets something on an input device that is being made.
pub(in crate::agent) fn uinput(device: BorrowedFd<'_>, what: Uinput, value: u16) -> io::Result<()> {
    let request: libc::Ioctl = match what {
        Uinput::Kind => 0x4004_5564,
        Uinput::Key => 0x4004_5565,
        Uinput::Movement => 0x4004_5566,
        Uinput::Place => 0x4004_5567,
        Uinput::Property => 0x4004_556e,
        Uinput::Create => 0x5501,
    };
    // SAFETY: these requests take a number and no pointer.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), request, libc::c_int::from(value)) })
}

/// Sets the wall clock, nanoseconds since 1970.
pub(in crate::agent) fn set_clock(time_ns: u64) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: (time_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (time_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the pointer is that of a timespec that lives until the call returns.
    checked(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) })
}

/// Returns milliseconds that never decrease, even in a clone.
pub(in crate::agent) fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is that of a timespec that lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Mounts one of the kernel's own file systems in a directory.
pub(in crate::agent) fn mount(
    kind: &CStr,
    dir: &std::path::Path,
    options: Option<&CStr>,
) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let to = CString::new(dir.as_os_str().as_bytes())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = options.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the names, and the options if there are any, end with a zero byte and live until the call returns.
    checked(unsafe {
        libc::mount(
            kind.as_ptr(),
            to.as_ptr(),
            kind.as_ptr(),
            flags,
            options.cast(),
        )
    })
}

/// Takes a mount away from its directory. Who has something in it open keeps that.
pub(in crate::agent) fn detach(dir: &std::path::Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let dir = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: the name ends with a zero byte and lives until the call returns.
    checked(unsafe { libc::umount2(dir.as_ptr(), libc::MNT_DETACH) })
}

/// Sets the host name.
pub(in crate::agent) fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length are those of `name`.
    checked(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) })
}

/// Opens a socket for ioctls about network cards.
pub(in crate::agent) fn any_socket() -> io::Result<std::os::fd::OwnedFd> {
    let any = std::net::Ipv4Addr::UNSPECIFIED;
    Ok(std::net::UdpSocket::bind((any, 0))?.into())
}

fn request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = CString::new(interface)?;
    let bytes = name.as_bytes_with_nul();
    if bytes.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// Sets a card's MAC address.
pub(in crate::agent) fn set_mac(
    socket: BorrowedFd<'_>,
    interface: &str,
    mac: [u8; 6],
) -> io::Result<()> {
    let mut request = request(interface)?;
    // SAFETY: zeros are a value of sockaddr.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: SIOCSIFHWADDR reads an ifreq with name and hardware address, which are set.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFHWADDR, &raw const request) })
}

fn inet(address: std::net::Ipv4Addr) -> libc::sockaddr {
    let inet = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from(address).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain data of 16 bytes, made to stand for one another.
    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) }
}

/// Sets a card's IPv4 address and prefix length, replacing the one that it has.
pub(in crate::agent) fn set_address(
    socket: BorrowedFd<'_>,
    interface: &str,
    address: std::net::Ipv4Addr,
    bits: u8,
) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    for (what, value) in [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, std::net::Ipv4Addr::from(mask)),
    ] {
        let mut request = request(interface)?;
        request.ifr_ifru.ifru_addr = inet(value);
        // SAFETY: both calls read an ifreq with name and address, which are set.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw const request) })?;
    }
    Ok(())
}

/// Enables a card.
pub(in crate::agent) fn set_up(socket: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    let mut request = request(interface)?;
    // SAFETY: SIOCGIFFLAGS reads the name and writes the flags into the same ifreq.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
    // SAFETY: the call above has written this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads name and flags, which are set.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}

/// Sets the default gateway, replacing all default routes.
pub(in crate::agent) fn set_gateway(
    socket: BorrowedFd<'_>,
    interface: &str,
    gateway: std::net::Ipv4Addr,
) -> io::Result<()> {
    let name = CString::new(interface)?;
    // SAFETY: rtentry is plain data for which zeros are a value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = inet(std::net::Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = inet(std::net::Ipv4Addr::UNSPECIFIED);
    route.rt_flags = libc::RTF_UP;
    // remove every default route of the parent; there may be several, or none
    for _ in 0..16 {
        // SAFETY: SIOCDELRT reads the entry, whose pointer to a device name may be null.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCDELRT, &raw const route) } != 0 {
            break;
        }
    }
    route.rt_gateway = inet(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    route.rt_dev = name.as_ptr().cast_mut();
    // SAFETY: SIOCADDRT reads the entry and the device's name, both of which live until it returns.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) })
}

/// Makes reading and writing of a descriptor return at once.
pub(in crate::agent) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(
        fd,
        flags | rustix::fs::OFlags::NONBLOCK,
    )?)
}

/// Makes a pipe hold so many bytes, if the kernel lets it.
pub(in crate::agent) fn widen(fd: BorrowedFd<'_>, bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: takes a number; a descriptor that is no pipe, or a size that is not granted, is an error, which changes nothing.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
}

/// Returns how many bytes can be read from a pipe.
pub(in crate::agent) fn readable(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(rustix::io::ioctl_fionread(fd)? as usize)
}

/// Makes the process that a command starts the leader of a session of its own, with these rights. With `terminal`, its standard
/// input is the session's terminal.
pub(in crate::agent) fn begin_session(
    command: &mut std::process::Command,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    terminal: bool,
) {
    use std::os::unix::process::CommandExt;
    // nothing is to be changed, and nobody but root could
    let is_own = rustix::process::geteuid().as_raw() == uid && uid != 0;
    let begin = move || {
        // an agent that a script has started in the background ignores Ctrl-C, and so would all that it starts
        for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM] {
            // SAFETY: sets the default, so no function of ours is called.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        // SAFETY: takes nothing and touches no memory.
        checked(unsafe { libc::setsid() })?;
        if terminal {
            // SAFETY: TIOCSCTTY takes an int by value; descriptor 0 is open.
            checked(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
        }
        if !is_own {
            // SAFETY: pointer and count are those of a vector that lives as long as this closure.
            checked(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
            // SAFETY: takes a number; the process has one thread, so that no other keeps the old rights.
            checked(unsafe { libc::setgid(gid) })?;
            // SAFETY: as above.
            checked(unsafe { libc::setuid(uid) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(begin) };
}

/// Starts a program as the leader of a session of its own, with these streams and no signal ignored or blocked, and returns its
/// process id. The descriptors must be above 2, as all are that a process of Rust opens.
pub(in crate::agent) fn spawn(
    program: &CString,
    arguments: &[CString],
    environment: &[CString],
    directory: &CString,
    streams: [libc::c_int; 3],
) -> io::Result<u32> {
    let list = |texts: &[CString]| {
        let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
        let pointers: Vec<*mut libc::c_char> = pointers.chain([std::ptr::null_mut()]).collect();
        pointers
    };
    let (arguments, environment) = (list(arguments), list(environment));
    let done = |error: libc::c_int| match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    };
    let flags = libc::POSIX_SPAWN_SETSID
        | libc::POSIX_SPAWN_SETSIGDEF as i16
        | libc::POSIX_SPAWN_SETSIGMASK as i16;
    // SAFETY: zeros are a value of each of these, which the init functions then fill in; every pointer is that of a value that
    // lives until the last call, and both lists of texts end with a null pointer. The actions and attributes are destroyed on every
    // way out, once, after their init function has succeeded.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        checked(libc::sigemptyset(&raw mut none))?;
        let mut all: libc::sigset_t = std::mem::zeroed();
        checked(libc::sigfillset(&raw mut all))?;
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        done(libc::posix_spawn_file_actions_init(&raw mut actions))?;
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        let begun = done(libc::posix_spawnattr_init(&raw mut attributes));
        if let Err(error) = begun {
            libc::posix_spawn_file_actions_destroy(&raw mut actions);
            return Err(error);
        }
        let mut pid = 0;
        let started = (|| {
            for (stream, number) in streams.into_iter().zip(0..) {
                let set = libc::posix_spawn_file_actions_adddup2(&raw mut actions, stream, number);
                done(set)?;
            }
            let place = directory.as_ptr();
            done(libc::posix_spawn_file_actions_addchdir_np(
                &raw mut actions,
                place,
            ))?;
            done(libc::posix_spawnattr_setflags(&raw mut attributes, flags))?;
            done(libc::posix_spawnattr_setsigmask(
                &raw mut attributes,
                &raw const none,
            ))?;
            done(libc::posix_spawnattr_setsigdefault(
                &raw mut attributes,
                &raw const all,
            ))?;
            done(libc::posix_spawn(
                &raw mut pid,
                program.as_ptr(),
                &raw const actions,
                &raw const attributes,
                arguments.as_ptr(),
                environment.as_ptr(),
            ))
        })();
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        started.map(|()| pid as u32) // a process id is positive
    }
}

/// Returns a new terminal: the end that the agent has, and the one that a process gets.
pub(in crate::agent) fn terminal() -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let owned = |fd: libc::c_int| {
        checked(fd)?;
        // SAFETY: the system call that returned this descriptor made it for us alone.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: takes flags and returns a descriptor.
    let master = owned(unsafe { libc::posix_openpt(flags) })?;
    let mut locked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads an int, which lives until the call returns.
    checked(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw mut locked) })?;
    // the other end without its name: /dev/pts may be missing
    // SAFETY: TIOCGPTPEER takes flags by value and returns a descriptor.
    let slave = owned(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    Ok((master, slave))
}

/// Sets a terminal's size.
pub(in crate::agent) fn set_size(
    terminal: BorrowedFd<'_>,
    columns: u16,
    rows: u16,
) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads a winsize, which lives until the call returns.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })
}

/// Returns a descriptor that can be read when a child process has ended. From then on no handler is called for that.
pub(in crate::agent) fn child_ends() -> io::Result<std::fs::File> {
    use std::os::fd::FromRawFd;
    // SAFETY: zeros are a value of sigset_t, and both calls write to one that lives until they return.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        checked(libc::sigemptyset(&raw mut set))?;
        checked(libc::sigaddset(&raw mut set, libc::SIGCHLD))?;
        set
    };
    // SAFETY: reads the set, and the old mask is not wanted.
    let blocked =
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    checked(blocked)?;
    // SAFETY: reads the set and returns a descriptor, made for us alone if it is none of the errors.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
        checked(fd)?;
        Ok(std::fs::File::from_raw_fd(fd))
    }
}

/// Returns how a child process has ended, if it has, and forgets it.
pub(in crate::agent) fn status_of(pid: u32) -> Option<std::process::ExitStatus> {
    use rustix::process::{Pid, WaitOptions, waitpid};
    use std::os::unix::process::ExitStatusExt;
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
    Some(std::process::ExitStatus::from_raw(status.as_raw()))
}

/// Sends a process group a signal.
pub(in crate::agent) fn signal_group(leader: u32, number: u8) {
    if let Some(leader) = signalled(leader) {
        // SAFETY: takes two numbers. A group that has ended is an error, which is of no interest here.
        unsafe { libc::kill(-leader, libc::c_int::from(number)) };
    }
}

/// Sends a process a signal.
pub(in crate::agent) fn signal(process: u32, number: u8) {
    if let Some(process) = signalled(process) {
        // SAFETY: takes two numbers. A process that has ended is an error, which is of no interest here.
        unsafe { libc::kill(process, libc::c_int::from(number)) };
    }
}

/// Returns a process's number if it may be sent signals: 0 stands for the agent's own group, and 1 is the guest's init.
fn signalled(process: u32) -> Option<libc::pid_t> {
    let process = libc::pid_t::try_from(process).ok()?;
    (process > 1).then_some(process)
}
