//! The exec wrapper: it prepares the process that is to become QEMU.
//!
//! The node starts `floe exec-qemu OPTIONS -- PROGRAM ARGS...` and this module turns that process into QEMU. It sets up:
//! its process id in a file (so that QEMU is found even if the node is killed at this moment), its control group (so that
//! no part of QEMU is outside), a session of its own (so that QEMU outlives the node), the machine's directory as working
//! directory (so that sockets have short names), a score for when the host's memory is full (so that the kernel ends QEMU before the node
//! and its supervisor), the machine's own user, the [guard], and a seccomp filter. The
//! alternative, `pre_exec` in the node, would run in a fork of a large threaded process, where almost nothing may be
//! called.
//!
//! The filter answers `madvise(.., MADV_HUGEPAGE)` with EINVAL, which QEMU ignores. QEMU makes this call for all of its
//! RAM; for a mapping of the FUSE mount it would make every first fault read 4 MiB instead of 4 KiB. `PR_SET_THP_DISABLE`
//! does not help.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::confine;
use crate::guard::{self, CONSOLE_LOG_BYTES, HostAccess, Role};
use crate::process::Process;

/// A numeric user and group. Machines need no entry in `/etc/passwd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// QEMU's environment. Its emulator allocates and frees large tables; freed memory is to be returned to the host at once.
/// With glibc's defaults, threads have separate heaps, and the sizes from which memory is returned grow with what was
/// freed, so that more is kept: a measured clone took 77 MB instead of 70.
pub(crate) const ENVIRONMENT: [(&str, &str); 2] = [
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    (
        "GLIBC_TUNABLES",
        "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072",
    ),
];
/// First id of the range from which machines get their own user: above the ids that Debian, systemd's DynamicUser and
/// containers' subordinate ranges (from 100000, and 524288 up) use by default.
pub const UID_FIRST: u32 = 90_000;
/// Number of ids in that range: more than machines that a host can run.
pub const UID_COUNT: u32 = 8192;

impl User {
    /// Returns the user of machine number `n`; `None` if this process can't change users.
    ///
    /// The caller chooses `n` so that no two live machines share it; it wraps around at [`UID_COUNT`].
    pub fn for_machine(n: u32) -> Option<User> {
        let id = UID_FIRST + n % UID_COUNT;
        rustix::process::geteuid()
            .is_root()
            .then_some(User { uid: id, gid: id })
    }
}

/// Where a process writes down its identity before it becomes QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The file that gets the process id and start time, as JSON.
    pub file: PathBuf,
    /// The process that started it. If that has ended when the file is written, perhaps nobody saw the file; so the
    /// process ends, too.
    pub starter: u32,
}

/// What the wrapper does before it becomes QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecPlan {
    /// The working directory, owned by the machine's user.
    pub dir: PathBuf,
    /// How others find the process. Tools need none, because they end by themselves.
    pub announcement: Option<Announcement>,
    /// The process with whose end the program is killed, if any: the one that starts it, on a thread that lives as long.
    pub ends_with: Option<u32>,
    /// Files of control groups into which the process writes its id, to enter those groups (see [`crate::cgroup`]).
    pub cgroup: Vec<PathBuf>,
    /// The user to become; needs root.
    pub user: Option<User>,
    /// The one further group in which that user is: the one that may open /dev/kvm.
    pub device_group: Option<u32>,
    /// Whether `madvise(MADV_HUGEPAGE)` is refused, as needed for RAM that is a file of the mount.
    pub refuse_huge_pages: bool,
    /// Files of the mount that QEMU gets opened read-only although it asks for writing (see `ram_fd`): its RAM, and the
    /// memory blocks that were added to it.
    pub ram: Vec<PathBuf>,
    /// What the [guard] enforces in the program.
    pub guard: Role,
    /// The program to execute: QEMU, or a tool.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
}

const MADV_HUGEPAGE: u64 = 14;

/// What QEMU gets for `oom_score_adj` at least: as if it used half of the host's memory beside its own. A node and its supervisor have 0,
/// or less as services.
const OOM_SCORE: i32 = 500;

impl ExecPlan {
    /// Returns the wrapper's own arguments, which [`run`] understands.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["--dir".into(), self.dir.clone().into()];
        if let Some(Announcement { file, starter }) = &self.announcement {
            args.extend(["--process-file".into(), file.clone().into()]);
            args.extend(["--starter".into(), starter.to_string().into()]);
        }
        if let Some(starter) = self.ends_with {
            args.extend(["--ends-with".into(), starter.to_string().into()]);
        }
        for file in &self.cgroup {
            args.extend(["--cgroup".into(), file.clone().into()]);
        }
        if let Some(User { uid, gid }) = self.user {
            args.extend(["--user".into(), format!("{uid}:{gid}").into()]);
        }
        if let Some(group) = self.device_group {
            args.extend(["--device-group".into(), group.to_string().into()]);
        }
        if self.refuse_huge_pages {
            args.push("--refuse-huge-pages".into());
        }
        for ram in &self.ram {
            args.extend(["--ram".into(), ram.clone().into()]);
        }
        match &self.guard {
            Role::Machine { access, log_bytes } => args.extend([
                "--host-access".into(),
                access.to_string().into(),
                "--log-bytes".into(),
                log_bytes.to_string().into(),
            ]),
            Role::Tool => args.push("--tool".into()),
        }
        args.extend(["--".into(), self.program.clone().into()]);
        args.extend(self.args.iter().cloned());
        args
    }

    /// Parses the arguments that [`ExecPlan::to_args`] returns.
    pub fn parse(args: &[OsString]) -> Result<ExecPlan, String> {
        let mut plan = ExecPlan {
            dir: PathBuf::new(),
            announcement: None,
            ends_with: None,
            cgroup: Vec::new(),
            user: None,
            device_group: None,
            refuse_huge_pages: false,
            ram: Vec::new(),
            guard: Role::Tool,
            program: PathBuf::new(),
            args: Vec::new(),
        };
        let (mut tool, mut access, mut log_bytes) = (false, HostAccess::None, CONSOLE_LOG_BYTES);
        let (mut process_file, mut starter) = (None, None);
        let mut rest = args.iter();
        let value =
            |name: &str, v: Option<&OsString>| v.cloned().ok_or(format!("{name} needs a value"));
        let number = |name: &str, v: Option<&OsString>| -> Result<u64, String> {
            let text = value(name, v)?;
            let number = text.to_str().and_then(|text| text.parse().ok());
            number.ok_or(format!("{name} {text:?}: expected a number"))
        };
        loop {
            let Some(arg) = rest.next() else {
                return Err("expected -- and a program after the options".into());
            };
            match arg.as_bytes() {
                b"--dir" => plan.dir = value("--dir", rest.next())?.into(),
                b"--cgroup" => plan.cgroup.push(value("--cgroup", rest.next())?.into()),
                b"--ram" => plan.ram.push(value("--ram", rest.next())?.into()),
                b"--refuse-huge-pages" => plan.refuse_huge_pages = true,
                b"--user" => {
                    let text = value("--user", rest.next())?;
                    let ids = text.to_str().and_then(|t| t.split_once(':'));
                    let user = ids.and_then(|(u, g)| {
                        Some(User {
                            uid: u.parse().ok()?,
                            gid: g.parse().ok()?,
                        })
                    });
                    plan.user = Some(user.ok_or(format!("--user {text:?}: expected UID:GID"))?);
                }
                b"--device-group" => {
                    plan.device_group = Some(number("--device-group", rest.next())? as u32);
                }
                b"--tool" => tool = true,
                b"--host-access" => {
                    let text = value("--host-access", rest.next())?;
                    access = text.to_string_lossy().parse()?;
                }
                b"--log-bytes" => log_bytes = number("--log-bytes", rest.next())?,
                b"--process-file" => process_file = Some(value("--process-file", rest.next())?),
                b"--starter" => starter = Some(number("--starter", rest.next())? as u32),
                b"--ends-with" => {
                    plan.ends_with = Some(number("--ends-with", rest.next())? as u32);
                }
                b"--" => break,
                _ => return Err(format!("unknown option {arg:?}")),
            }
        }
        plan.program = value("--", rest.next())?.into();
        plan.args = rest.cloned().collect();
        if !tool {
            plan.guard = Role::Machine { access, log_bytes };
        }
        plan.announcement = match (process_file, starter) {
            (Some(file), Some(starter)) => Some(Announcement {
                file: file.into(),
                starter,
            }),
            (None, None) => None,
            _ => return Err("--process-file and --starter go together".into()),
        };
        if plan.dir.as_os_str().is_empty() {
            return Err("--dir is needed".into());
        }
        Ok(plan)
    }
}

/// Becomes QEMU. Returns only if that failed, with the exit code for the process (126: could not execute it).
///
/// This is all that the hidden subcommand `floe exec-qemu` does: single-threaded, right after the start of the process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    let plan = match ExecPlan::parse(&args) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("exec-qemu: {why}");
            return 2;
        }
    };
    let Err((step, e)) = become_qemu(&plan);
    eprintln!("exec-qemu: {step}: {e}");
    126
}

fn become_qemu(plan: &ExecPlan) -> Result<std::convert::Infallible, (String, io::Error)> {
    let failed = |step: &str| {
        let step = step.to_string();
        move |e: io::Error| (step, e)
    };
    if let Some(announcement) = &plan.announcement {
        announce(announcement).map_err(failed("say which process it is"))?;
    }
    for file in &plan.cgroup {
        // 0 means this process, whatever its id is in the reader's namespace
        std::fs::write(file, "0").map_err(failed(&format!("enter {}", file.display())))?;
    }
    // As root: what root has set nobody can lower who isn't.
    be_ended_first().map_err(failed("set the score for when memory is full"))?;
    // Fails with EPERM if the process is already a session leader, as when started by hand.
    let _ = rustix::process::setsid();
    std::env::set_current_dir(&plan.dir)
        .map_err(failed(&format!("enter {}", plan.dir.display())))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let is_tool = plan.guard == Role::Tool;
    let keep = match is_tool {
        true => confine::arrange_descriptors().map_err(failed("arrange the descriptors"))?,
        false => LAST_STANDARD_FD,
    };
    close_inherited(keep).map_err(failed("close inherited descriptors"))?;
    guard::install(&plan.guard).map_err(failed("make the guard"))?;
    if is_tool {
        confine::limit().map_err(failed("set the limits"))?;
    }
    if let Some(user) = plan.user {
        become_user(user, plan.device_group)
            .map_err(failed(&format!("become user {}", user.uid)))?;
    }
    // A node that is not root reads the guest's memory for a capture; under Yama only a parent may do so unless it is
    // allowed here. Without Yama the call fails and is not needed. SAFETY: this prctl takes only integers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    // SAFETY: as above.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(failed("forbid new privileges")(io::Error::last_os_error()));
    }
    if let Some(starter) = plan.ends_with {
        // after the change of users, which would undo it
        end_with(starter).map_err(failed("end with the process that started it"))?;
    }
    if is_tool {
        confine::filter().map_err(failed("install the seccomp filter"))?;
    }
    if plan.refuse_huge_pages {
        refuse_huge_pages().map_err(failed("install the seccomp filter"))?;
    }
    if !plan.ram.is_empty()
        && let Err(error) = crate::ram_fd::open_for_reading(&plan.ram)
    {
        eprintln!("exec-qemu: QEMU opens its RAM itself, which is slower: {error}");
    }
    Err(exec(&plan.program, &plan.args)
        .map_err(failed(&format!("start {}", plan.program.display())))
        .unwrap_err())
}

/// Writes down which process this is. A node that starts looks for the file after its predecessor has ended: either it
/// finds this process, or this process finds that its starter has ended.
fn announce(announcement: &Announcement) -> io::Result<()> {
    let id = Process::hold(std::process::id())?.id();
    let made = announcement.file.with_extension("new");
    std::fs::write(&made, serde_json::to_vec(&id)?)?;
    std::fs::rename(&made, &announcement.file)?;
    let starter = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    match starter == Some(announcement.starter) {
        true => Ok(()),
        false => Err(io::Error::other("the process that started it has ended")),
    }
}

/// Has the kernel kill this process, and the program that it becomes, when the thread that started it ends.
fn end_with(starter: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // it may have ended before that
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    match parent == Some(starter) {
        true => Ok(()),
        false => Err(io::Error::other("it has ended")),
    }
}

/// Has the kernel end this process, and the program that it becomes, before others when the host's memory is full.
fn be_ended_first() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(FILE)?;
    let inherited = inherited.trim().parse().unwrap_or(0);
    std::fs::write(FILE, OOM_SCORE.max(inherited).to_string())
}

/// Descriptor of standard error.
const LAST_STANDARD_FD: u32 = 2;

/// Closes inherited descriptors: QEMU keeps standard input, output and error only; a tool keeps one more.
fn close_inherited(last: u32) -> io::Result<()> {
    // SAFETY: no object in this single-threaded process owns a descriptor above that which is used afterwards.
    let r = unsafe { libc::syscall(libc::SYS_close_range, last + 1, u32::MAX, 0u32) };
    if r == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn become_user(user: User, device_group: Option<u32>) -> io::Result<()> {
    let groups = device_group.as_slice();
    // SAFETY: the list is as long as it says and outlives the call, and the other calls take integers; the process has one
    // thread, so that all of it changes.
    let ok = unsafe {
        libc::setgroups(groups.len(), groups.as_ptr()) == 0
            && libc::setresgid(user.gid, user.gid, user.gid) == 0
            && libc::setresuid(user.uid, user.uid, user.uid) == 0
    };
    if ok {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn refuse_huge_pages() -> io::Result<()> {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };
    let filter = || -> Result<BpfProgram, seccompiler::BackendError> {
        let huge =
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, MADV_HUGEPAGE)?;
        SeccompFilter::new(
            [(libc::SYS_madvise, vec![SeccompRule::new(vec![huge])?])].into(),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EINVAL as u32),
            std::env::consts::ARCH.try_into()?,
        )?
        .try_into()
    };
    let filter = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}

fn exec(program: &Path, args: &[OsString]) -> io::Result<std::convert::Infallible> {
    let c = |s: &OsStr| CString::new(s.to_os_string().into_vec()).map_err(io::Error::other);
    let mut argv = vec![c(program.as_os_str())?];
    for arg in args {
        argv.push(c(arg)?);
    }
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: `pointers` is a null-terminated list of C strings that live in `argv` until the call replaces the process.
    unsafe { libc::execv(argv[0].as_ptr(), pointers.as_ptr()) };
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_command_line() {
        let mut plan = ExecPlan {
            dir: "/var/lib/floe/machines/web".into(),
            announcement: Some(Announcement {
                file: "/var/lib/floe/machines/web/qemu.json".into(),
                starter: 17,
            }),
            ends_with: Some(17),
            cgroup: vec![
                "/sys/fs/cgroup/cpu/floe/n/web/cgroup.procs".into(),
                "/sys/fs/cgroup/memory/floe/n/web/cgroup.procs".into(),
            ],
            user: Some(User {
                uid: 90_001,
                gid: 90_001,
            }),
            device_group: Some(107),
            refuse_huge_pages: true,
            ram: vec![
                "/var/lib/floe/mnt/machines/web/ram".into(),
                "/var/lib/floe/mnt/machines/web/ram1".into(),
            ],
            guard: Role::Tool,
            program: "/usr/bin/qemu-system-x86_64".into(),
            args: vec!["-name".into(), "web".into(), "--".into()],
        };
        for access in [
            HostAccess::None,
            HostAccess::All,
            HostAccess::Ports(vec![1, 2]),
        ] {
            assert_eq!(ExecPlan::parse(&plan.to_args()).as_ref(), Ok(&plan));
            plan.guard = Role::Machine {
                access,
                log_bytes: 7,
            };
        }
    }

    #[test]
    fn an_incomplete_command_line_is_refused_in_words() {
        for bad in [
            &["--dir"][..],
            &["--user", "x:1", "--", "q"],
            &["--dir", "/", "--"],
            &["--dir", "/"],
            &["--host-access", "some", "--", "q"],
            &["--log-bytes", "-1", "--", "q"],
            &["--dir", "/", "--starter", "1", "--", "q"],
            &["-z"],
        ] {
            let args: Vec<OsString> = bad.iter().map(Into::into).collect();
            assert!(!ExecPlan::parse(&args).unwrap_err().is_empty(), "{bad:?}");
        }
    }
}
