//! Starts QEMU from a spec, and connects to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_image::MachineConfig;
use rustix::fs::inotify;

use crate::cgroup::Group;
use crate::command::{self, RamBacking};
use crate::error::MachineError;
use crate::exec::{Announcement, ENVIRONMENT, ExecPlan, User};
use crate::files::{self, LOG, RUN_DIR};
use crate::guard;
use crate::host::Host;
use crate::incompatible::CPU_MODEL_DEFAULT;
use crate::machine::{EventLog, Machine};
use crate::process::Process;
use crate::qmp::{Qmp, QmpError};
use crate::record::{self, Record};
use crate::spec::Spec;

/// Longest time until QEMU answers: it first reads firmware, kernel and initrd, perhaps over a slow link.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a connection to QEMU's socket is retried without a notification: QEMU creates a socket a moment before it
/// listens.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// Starts QEMU and connects to it. If that fails, QEMU is killed.
pub(crate) fn launch(
    spec: &Spec,
    config: MachineConfig,
    ram: RamBacking,
    blocks: Vec<RamBacking>,
    incoming: bool,
) -> Result<Machine, MachineError> {
    let run = make_dirs(spec)?;
    let log_path = spec.dir.join(LOG);
    // readable, because the guard keeps the end of one that is full
    let log = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(&log_path);
    let mut log = log.map_err(MachineError::io(format!("open {}", log_path.display())))?;
    let log_start = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let plan = ExecPlan {
        dir: run.clone(),
        announcement: Some(Announcement {
            file: spec.dir.join(record::PROCESS),
            starter: std::process::id(),
        }),
        ends_with: None,
        cgroup: spec.cgroup.iter().flat_map(Group::entrances).collect(),
        user: spec.user,
        device_group: spec.accel.device_group(),
        refuse_huge_pages: matches!(ram, RamBacking::File(_)),
        ram: std::iter::once(&ram)
            .chain(&blocks)
            .filter_map(RamBacking::file)
            .cloned()
            .collect(),
        guard: guard::Role::Machine {
            access: spec.host_access.clone(),
            log_bytes: spec.console_log_bytes,
        },
        program: spec.programs.qemu.clone(),
        args: command::arguments(spec, &config, &ram, &blocks, incoming),
    };
    let process = start_wrapper(spec, &plan, &log)?;

    let finish = || -> Result<Machine, MachineError> {
        let pid = process.id().pid;
        let events = Arc::new(EventLog::default());
        let qmp = connect(spec, &run, &process, &events)?;
        check_guard(spec, &process)?;
        let record = Record::new(spec, config, ram, blocks, process.id());
        record.save(&spec.dir)?;
        let held = Process::find(process.id())
            .map_err(MachineError::io(format!("watch QEMU, process {pid}")))?;
        Ok(Machine::assemble(
            spec.dir.clone(),
            record,
            held,
            qmp,
            events,
        ))
    };
    finish().map_err(|e| {
        process.kill();
        let _ = std::fs::remove_file(spec.dir.join(record::FILE));
        match e {
            MachineError::Start { name, reason, .. } => MachineError::Start {
                name,
                reason,
                log: files::tail(&spec.dir, log_start),
            },
            e => e,
        }
    })
}

/// Starts the wrapper that becomes QEMU, and collects its exit status once it ends.
fn start_wrapper(spec: &Spec, plan: &ExecPlan, log: &File) -> Result<Process, MachineError> {
    let wrapper = spec.programs.wrapper.first();
    let wrapper = wrapper.ok_or_else(|| MachineError::Spec {
        what: "no exec wrapper is given".into(),
    })?;
    let stdio = |f: &File| {
        f.try_clone()
            .map(Stdio::from)
            .map_err(MachineError::io("share the log"))
    };
    let stdin = match &spec.tap {
        Some(tap) => {
            let fd = tap.fd().try_clone_to_owned();
            Stdio::from(fd.map_err(MachineError::io("share the tap device"))?)
        }
        None => Stdio::null(),
    };
    let mut child = Command::new(wrapper)
        .args(&spec.programs.wrapper[1..])
        .args(plan.to_args())
        // the node's environment contains tokens, and a guest may take over its QEMU
        .env_clear()
        .envs(ENVIRONMENT)
        .stdin(stdin)
        .stdout(stdio(log)?)
        .stderr(stdio(log)?)
        .spawn()
        .map_err(MachineError::io(format!("start {}", wrapper.display())))?;
    let pid = child.id();
    let process = Process::hold(pid);
    // Some thread must collect the child's exit status, otherwise it stays a zombie as long as this process lives.
    let reaper = floe_threads::spawn("qemu-reaper", move || child.wait());
    reaper.map_err(|e| MachineError::io("watch QEMU")(e.into()))?;
    let process = process.map_err(MachineError::io(format!("watch QEMU, process {pid}")))?;
    tracing::debug!(machine = spec.name, pid, "QEMU started");
    Ok(process)
}

/// Refuses a QEMU that did not load the guard, because its guest could reach what it must not. A QEMU that was just
/// started is still executing its firmware, so no guest has run.
fn check_guard(spec: &Spec, process: &Process) -> Result<(), MachineError> {
    let mappings = process
        .mappings()
        .map_err(MachineError::io("read QEMU's mappings"))?;
    match guard::is_in(&mappings) {
        true => Ok(()),
        false => Err(MachineError::Start {
            name: spec.name.clone(),
            reason: "it did not load floe's guard (a QEMU that is linked statically, or that has file capabilities, ignores \
                     LD_PRELOAD); install your distribution's package qemu-system-x86"
                .into(),
            log: String::new(),
        }),
    }
}

fn connect(
    spec: &Spec,
    run: &Path,
    process: &Process,
    events: &Arc<EventLog>,
) -> Result<Qmp, MachineError> {
    let failed = |reason: String| MachineError::Start {
        name: spec.name.clone(),
        reason,
        log: String::new(),
    };
    let deadline = Instant::now() + START_TIMEOUT;
    // Watch before the first try: if the socket does not exist yet, its creation is noticed.
    let made = Sockets::watch(run).map_err(|e| failed(format!("{}: {e}", run.display())))?;
    loop {
        let events = events.clone();
        match Qmp::connect(&run.join(files::QMP), process.id().pid, move |e| {
            events.take(e)
        }) {
            Ok(qmp) => return Ok(qmp),
            Err(QmpError::Closed { .. }) if process.is_alive() && Instant::now() < deadline => {
                made.wait(process);
            }
            Err(e) if process.is_alive() => {
                return Err(failed(format!("no answer within {START_TIMEOUT:?}: {e}")));
            }
            Err(_) => return Err(failed("QEMU ended".into())),
        }
    }
}

/// Notifies when QEMU creates sockets. Polling instead would take more CPU time than the rest of a start.
struct Sockets(OwnedFd);

impl Sockets {
    fn watch(run: &Path) -> io::Result<Sockets> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, run, inotify::WatchFlags::CREATE)?;
        Ok(Sockets(fd))
    }

    /// Waits until QEMU has created another socket, has ended, or may have begun to listen on one that it had created
    /// before.
    fn wait(&self, process: &Process) {
        process.wait_beside(Some(self.0.as_fd()), CONNECT_INTERVAL);
        let mut events = [0; 4096];
        let _ = rustix::io::read(&self.0, &mut events);
    }
}

/// Makes the machine's directory and the `run` directory in it that belongs to the machine's user. Removes everything of
/// an earlier run except the console's history.
fn make_dirs(spec: &Spec) -> Result<PathBuf, MachineError> {
    let run = spec.dir.join(RUN_DIR);
    let make = || -> io::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&run)?;
        for file in [
            files::QMP,
            files::QMP_SPARE,
            files::CONSOLE,
            files::AGENT,
            files::FLOE,
            files::VNC,
        ] {
            match std::fs::remove_file(run.join(file)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        if let Some(User { uid, gid }) = spec.user {
            std::os::unix::fs::lchown(&run, Some(uid), Some(gid))?;
            for log in [files::CONSOLE_LOG, files::CONSOLE_LOG_BEFORE] {
                match std::os::unix::fs::lchown(run.join(log), Some(uid), Some(gid)) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(())
    };
    make().map_err(MachineError::io(format!("prepare {}", run.display())))?;
    Ok(run)
}

impl Machine {
    /// Starts a machine cold: firmware, then its kernel or first disk.
    pub fn start(spec: Spec) -> Result<Machine, MachineError> {
        spec.check()?;
        command::check(&spec.config)?;
        let model = spec
            .config
            .cpu_model
            .as_deref()
            .unwrap_or(CPU_MODEL_DEFAULT);
        let host = Host::probe(&spec.programs, &spec.accel, model)?;
        host.check_start(&spec.config)?;
        let config = command::complete(&spec.config, spec.profile, spec.boot.is_some(), &host)?;
        let machine = launch(&spec, config, RamBacking::Anonymous, Vec::new(), false)?;
        if spec.network_down {
            // the firmware does not use the network, and the kernel is not loaded yet
            machine
                .set_network(false)
                .inspect_err(|_| machine.process().kill())?;
        }
        Ok(machine)
    }
}
