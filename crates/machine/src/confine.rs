//! How a process is confined that becomes a tool: its descriptors, its limits and the system calls that it may make (see `tool`).

use std::io;

use rustix::process::{Resource, Rlimit};

/// Largest address space in bytes: tables and buffers of `qemu-img` take some 100 MiB, the stacks of 64 threads 512 MiB.
const MEMORY_BYTES: u64 = 2 << 30;
/// Most CPU time, in seconds. The caller has a shorter limit of its own; this one holds if the caller dies.
const CPU_SECONDS: u64 = 24 * 3600;
/// Largest file that it can write, in bytes: the largest that ext4 supports.
const FILE_BYTES: u64 = 16 << 40;
/// Most open descriptors.
const DESCRIPTORS: u64 = 64;
/// Most processes and threads of its user.
const THREADS: u64 = 256;

/// Moves the tool's output file from descriptor 1 to descriptor 3, and redirects standard output to standard error.
/// Returns the last descriptor to keep.
pub(crate) fn arrange_descriptors() -> io::Result<u32> {
    const OUTPUT_FD: i32 = 3; // where the guard expects it
    // SAFETY: these duplicate descriptors of this process, which nothing else in it uses.
    let done = unsafe { libc::dup2(1, OUTPUT_FD) >= 0 && libc::dup2(2, 1) >= 0 };
    match done {
        true => Ok(OUTPUT_FD as u32),
        false => Err(io::Error::last_os_error()),
    }
}

/// Sets the limits of this process and of the program that it executes.
pub(crate) fn limit() -> io::Result<()> {
    let mut limits = vec![
        (Resource::As, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, FILE_BYTES),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::Core, 0),
    ];
    if rustix::process::geteuid().is_root() {
        // otherwise the limit would count all processes of the node's user
        limits.push((Resource::Nproc, THREADS));
    }
    for (resource, most) in limits {
        let most = Some(match rustix::process::getrlimit(resource).maximum {
            Some(allowed) => most.min(allowed),
            None => most,
        });
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    Ok(())
}

/// System calls that the tool, its libraries and their loader need. No sockets, no processes, and file names only for
/// opening and examining files, which ends when the tool opens its input. Other calls fail with `ENOSYS`, so that a newer
/// C library falls back to its older ways.
const CALLS: &[libc::c_long] = &[
    // open files
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // file names
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_execve,
    // memory
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // threads and time
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // the process itself
    libc::SYS_getrandom,
    libc::SYS_getrlimit,
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_prctl,
    libc::SYS_seccomp,
];

/// System calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[libc::c_long] = &[];

/// Lets this process and the program that it executes make only those system calls.
pub(crate) fn filter() -> io::Result<()> {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };
    let thread = libc::CLONE_THREAD as u64;
    let filter = || -> Result<BpfProgram, seccompiler::BackendError> {
        let is_thread = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(thread),
            thread,
        )?;
        let calls = CALLS.iter().chain(OLDER_CALLS);
        let mut rules: std::collections::BTreeMap<_, _> =
            calls.map(|call| (*call, Vec::new())).collect();
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
        SeccompFilter::new(
            rules,
            SeccompAction::Errno(libc::ENOSYS as u32),
            SeccompAction::Allow,
            std::env::consts::ARCH.try_into()?,
        )?
        .try_into()
    };
    let filter = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}
