//! A running machine: its QEMU process and the operations on it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use floe_image::MachineConfig;
use parking_lot::{Condvar, Mutex};
use serde_json::json;

use crate::clock::PendingClock;
use crate::command;
use crate::console::ConsoleLog;
use crate::devices;
use crate::error::MachineError;
use crate::exec::User;
use crate::files::{self, RUN_DIR};
use crate::guard;
use crate::process::Process;
use crate::qga::Agent;
use crate::qmp::{COMMAND_TIMEOUT, Event, Pending, Qmp, QmpError};
use crate::record::{self, Record, Told};
use crate::screen;
use crate::spec::PortForward;

/// How long to wait for a QEMU that closed its connection to end, and for its last event to be read.
const END_WAIT: Duration = Duration::from_secs(1);

/// The state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// The guest runs.
    Running,
    /// The guest is paused: by [`Machine::stop`], before its first instruction, or for a capture.
    Paused,
    /// The guest is paused because a disk could not be written; [`Machine::cont`] retries.
    IoError {
        /// The disk, such as `disk0`.
        disk: String,
        /// Whether the reason is a full disk.
        no_space: bool,
    },
    /// QEMU has ended.
    Ended(End),
}

/// How a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest of a restored machine has rebooted: start it cold from its disks.
    GuestReset,
    /// The guest powered itself off.
    GuestShutdown,
    /// It was ended on request: by [`Machine::quit`], or a signal.
    Asked,
    /// QEMU crashed or was killed, or ended while no process was connected to it.
    Lost,
}

/// What QEMU's events reported.
#[derive(Default)]
pub(crate) struct EventLog {
    state: Mutex<Events>,
    /// Notified of events about devices that the guest was given or asked to release, and when a state is loaded.
    changed: Condvar,
}

#[derive(Default, Clone)]
struct Events {
    end: Option<End>,
    io_error: Option<(String, bool)>,
    /// Number of events about devices.
    device_events: u64,
    /// The last device that the guest refused to release.
    kept: Option<String>,
    /// How often the guest was reset.
    resets: u64,
    /// Whether a program in the guest has the port to its node open; `None` if nothing was heard of that.
    floe_port_open: Option<bool>,
    /// Whether it has loaded a state; `None` as long as it has not tried.
    loaded: Option<bool>,
}

impl EventLog {
    pub(crate) fn take(&self, event: Event) {
        let mut state = self.state.lock();
        match event.name.as_str() {
            "SHUTDOWN" => {
                let reason = event.data["reason"].as_str().unwrap_or_default();
                state.end = Some(match reason {
                    "guest-reset" => End::GuestReset,
                    "guest-shutdown" => End::GuestShutdown,
                    reason if reason.starts_with("host-") => End::Asked,
                    _ => End::Lost,
                });
            }
            "BLOCK_IO_ERROR" if event.data["action"] == "stop" => {
                let node = event.data["node-name"].as_str().filter(|n| !n.is_empty());
                let disk = node.or(event.data["device"].as_str()).unwrap_or_default();
                let no_space = event.data["nospace"] == true;
                state.io_error = Some((disk.to_string(), no_space));
                tracing::warn!(
                    disk,
                    no_space,
                    "the machine is paused: a disk can't be written"
                );
            }
            "RESUME" => state.io_error = None,
            "RESET" => state.resets += 1,
            "DEVICE_DELETED" | "ACPI_DEVICE_OST" => state.device_event(),
            "DEVICE_UNPLUG_GUEST_ERROR" => {
                state.kept = event.data["device"].as_str().map(str::to_owned);
                state.device_event();
            }
            "MIGRATION" => match event.data["status"].as_str() {
                Some("completed") => state.loaded = Some(true),
                Some("failed") => state.loaded = Some(false),
                _ => return,
            },
            "VSERPORT_CHANGE" if event.data["id"] == devices::FLOE_PORT_ID => {
                state.floe_port_open = event.data["open"].as_bool();
            }
            _ => return,
        }
        self.changed.notify_all();
    }

    /// Returns the number of events about devices so far, to be passed to [`EventLog::wait_device`].
    pub(crate) fn device_events(&self) -> u64 {
        self.state.lock().device_events
    }

    /// Waits until there are more events than `seen`, or until `until`.
    pub(crate) fn wait_device(&self, seen: u64, until: Instant) {
        let mut state = self.state.lock();
        self.changed
            .wait_while_until(&mut state, |state| state.device_events == seen, until);
    }

    /// Waits until a state is loaded (true) or can't be (false), at most until `until`.
    pub(crate) fn wait_loaded(&self, until: Instant) -> Option<bool> {
        let mut state = self.state.lock();
        self.changed
            .wait_while_until(&mut state, |state| state.loaded.is_none(), until);
        state.loaded
    }

    /// Returns whether the guest has refused to release this device, and forgets that.
    pub(crate) fn take_kept(&self, id: &str) -> bool {
        self.state.lock().kept.take_if(|kept| kept == id).is_some()
    }
}

impl Events {
    fn device_event(&mut self) {
        self.device_events += 1;
    }
}

/// One machine. Dropping it leaves its QEMU running; any process can take it over again with [`Machine::adopt`].
pub struct Machine {
    dir: PathBuf,
    pub(crate) record: Mutex<Record>,
    process: Process,
    pub(crate) qmp: Qmp,
    pub(crate) events: Arc<EventLog>,
    pub(crate) capturing: AtomicBool,
    /// Held while the machine's hardware is changed, or the machine is captured.
    pub(crate) hardware: Mutex<()>,
    /// Held while talking to the agent, which allows one conversation at a time.
    agent: Mutex<()>,
}

/// A guest that was told to resume.
pub struct Continuing(Pending);

impl Continuing {
    /// Waits until the guest runs.
    pub fn wait(self) -> Result<(), MachineError> {
        self.0.wait(COMMAND_TIMEOUT)?;
        Ok(())
    }
}

impl Machine {
    pub(crate) fn assemble(
        dir: PathBuf,
        record: Record,
        process: Process,
        qmp: Qmp,
        events: Arc<EventLog>,
    ) -> Machine {
        Machine {
            dir,
            record: Mutex::new(record),
            process,
            qmp,
            events,
            capturing: AtomicBool::new(false),
            hardware: Mutex::new(()),
            agent: Mutex::new(()),
        }
    }

    /// Takes over a machine that an earlier process started.
    pub fn adopt(dir: impl Into<PathBuf>) -> Result<Machine, MachineError> {
        let dir = dir.into();
        let record = Record::load(&dir)?;
        let not = |reason: String| MachineError::NotAdoptable {
            dir: dir.clone(),
            reason,
        };
        let ended = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => not(format!(
                "its QEMU, process {}, has ended; start it again",
                record.process.pid
            )),
            _ => not(e.to_string()),
        };
        let process = Process::find(record.process).map_err(ended)?;
        if !process.mappings().is_ok_and(|all| guard::is_in(&all)) {
            tracing::warn!(
                machine = record.name,
                "an older floe started this machine: its guest reaches the host's loopback, and its console's log grows without \
                 bound, until it is stopped and started again"
            );
        }
        let events = Arc::new(EventLog::default());
        let shared = events.clone();
        let socket = dir.join(RUN_DIR).join(files::QMP);
        let qmp = Qmp::connect(&socket, record.process.pid, move |e| shared.take(e));
        let qmp = qmp.map_err(|e| not(format!("{e}; is another floe node using it?")))?;
        let machine = Machine::assemble(dir, record, process, qmp, events);
        // the earlier process may have ended in the middle of a change
        machine.settle_hardware()?;
        Ok(machine)
    }

    /// Returns the QEMU of the machine in `dir` if it is alive, even one that has not answered yet. Nothing is sent to it, so a QEMU that
    /// hangs can be ended this way. An error does not mean that there is none. If the file that should name it is damaged, it is looked for
    /// by the directory in which it runs.
    pub fn process_in(dir: &Path) -> Result<Option<Process>, MachineError> {
        let mut damaged = false;
        for told_in in [record::announced_in as fn(&Path) -> _, record::recorded_in] {
            match told_in(dir)? {
                Told::Nothing => {}
                Told::Damaged => damaged = true,
                Told::Process(id) => match Process::find(id) {
                    // a damaged file may name a later one
                    Err(error) if error.kind() == io::ErrorKind::NotFound && damaged => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    found => {
                        let what = format!("look for QEMU, process {}", id.pid);
                        return found.map(Some).map_err(MachineError::io(what));
                    }
                },
            }
        }
        match damaged {
            false => Ok(None),
            true => Process::running_in(&dir.join(RUN_DIR), |process| {
                Ok(guard::is_in(&process.mappings()?))
            })
            .map_err(MachineError::io(format!(
                "look for the QEMU that runs in {}",
                dir.display()
            ))),
        }
    }

    /// Returns the machine's name.
    pub fn name(&self) -> String {
        self.record.lock().name.clone()
    }

    /// Returns the machine's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the complete configuration that the guest sees, as it is to be recorded in the image of a capture.
    pub fn config(&self) -> MachineConfig {
        self.record.lock().config.clone()
    }

    /// Returns the machine's record.
    pub fn record(&self) -> Record {
        self.record.lock().clone()
    }

    /// Returns the id of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.id().pid
    }

    /// Returns QEMU's threads that run the guest's CPUs, by number of the CPU. With emulation, one thread may run
    /// several.
    pub fn vcpu_threads(&self) -> Result<Vec<u32>, MachineError> {
        let answer = self.qmp.execute("query-cpus-fast", json!({}))?;
        let mut threads: Vec<(u64, u32)> = answer
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|cpu| {
                let thread = u32::try_from(cpu["thread-id"].as_u64()?).ok()?;
                Some((cpu["cpu-index"].as_u64()?, thread))
            })
            .collect();
        threads.sort_unstable();
        Ok(threads.into_iter().map(|(_, thread)| thread).collect())
    }

    /// Returns the user that QEMU runs as, if it has one of its own.
    pub fn user(&self) -> Option<User> {
        self.record.lock().user
    }

    /// Returns the machine's state.
    pub fn status(&self) -> Result<Status, MachineError> {
        let answer = self.qmp.execute("query-status", json!({}));
        if !self.process.is_alive() || matches!(answer, Err(QmpError::Closed { .. })) {
            // The reason is in the last event before the end of the connection, which the reading thread may not have
            // processed yet.
            self.process.wait(END_WAIT);
            self.qmp.wait_closed(END_WAIT);
            return Ok(Status::Ended(
                self.events.state.lock().end.unwrap_or(End::Lost),
            ));
        }
        let answer = answer?;
        let io_error = || self.events.state.lock().io_error.clone();
        Ok(match answer["status"].as_str().unwrap_or_default() {
            "running" => Status::Running,
            "io-error" => {
                // A process that adopted the machine later has not seen the event, but QEMU still knows.
                let known = io_error().or_else(|| self.failed_disk());
                let (disk, no_space) = known.unwrap_or_else(|| ("a disk".into(), false));
                Status::IoError { disk, no_space }
            }
            _ => Status::Paused,
        })
    }

    /// Returns the disk because of which QEMU paused the guest, and whether it was full. QEMU remembers that until the
    /// guest is resumed.
    fn failed_disk(&self) -> Option<(String, bool)> {
        let blocks = self.qmp.execute("query-block", json!({})).ok()?;
        blocks.as_array()?.iter().find_map(failed_block)
    }

    /// Pauses the guest.
    pub fn stop(&self) -> Result<(), MachineError> {
        self.command("stop")
    }

    /// Tells QEMU to pause the guest, without waiting until it has. While one of its CPUs waits for a page, QEMU stops the guest's clock
    /// and the other CPUs at once, and answers no command before that page has come.
    pub fn begin_stop(&self) -> Result<(), MachineError> {
        self.qmp.begin("stop", json!({}))?;
        Ok(())
    }

    /// Resumes the guest.
    pub fn cont(&self) -> Result<(), MachineError> {
        self.command("cont")
    }

    /// Tells the guest to resume, without waiting until it does.
    pub fn begin_cont(&self) -> Result<Continuing, MachineError> {
        Ok(Continuing(self.qmp.begin("cont", json!({}))?))
    }

    /// Asks the guest to power off, as its power button does. The guest may ignore that.
    pub fn powerdown(&self) -> Result<(), MachineError> {
        self.command("system_powerdown")
    }

    /// Ends QEMU now: what the guest has not written to its disks is lost, the rest is kept. If QEMU still runs after
    /// `limit`, it is killed.
    pub fn quit(&self, limit: Duration) -> Result<(), MachineError> {
        // A QEMU that doesn't answer is killed below.
        let _ = self.qmp.execute_within("quit", json!({}), limit);
        if !self.process.wait(limit) {
            tracing::warn!(
                machine = self.name(),
                pid = self.pid(),
                "QEMU did not quit and is killed"
            );
            self.process.kill();
            if !self.process.wait(limit) {
                return Err(MachineError::Timeout {
                    name: self.name(),
                    what: "ending QEMU",
                    limit,
                });
            }
        }
        let _ = std::fs::remove_file(self.dir.join(record::FILE));
        Ok(())
    }

    /// Waits until QEMU has ended. Returns false if it still runs after `limit`.
    pub fn wait_end(&self, limit: Duration) -> bool {
        self.process.wait(limit)
    }

    /// Returns a descriptor that can be read once QEMU has ended, for a caller that waits for many.
    pub fn end_descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.process.end_descriptor()
    }

    /// Writes the screen as PNG to a new file at `path`.
    pub fn screenshot(&self, path: &Path) -> Result<(), MachineError> {
        let picture =
            memfd("floe-screen").map_err(MachineError::io("make a buffer for the screen"))?;
        let shoot = |format: &str| {
            self.with_fdset(picture.as_fd(), |file| {
                self.qmp
                    .execute("screendump", json!({"filename": file, "format": format}))
            })
        };
        let png = shoot("png");
        let mut out = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(MachineError::io(format!("write {}", path.display())))?;
        match png {
            Ok(_) => {
                let copied = (&picture)
                    .rewind()
                    .and_then(|()| io::copy(&mut (&picture), &mut out));
                copied.map_err(MachineError::io(format!("write {}", path.display())))?;
            }
            // This QEMU was built without libpng.
            Err(MachineError::Qmp(QmpError::Refused { .. })) => {
                picture
                    .set_len(0)
                    .map_err(MachineError::io("empty the buffer for the screen"))?;
                shoot("ppm")?;
                screen::png_from_ppm(picture, &mut out)?;
            }
            Err(e) => return Err(e),
        }
        out.flush()
            .map_err(MachineError::io(format!("write {}", path.display())))
    }

    /// Asks the guest agent to set the guest's clock, in the background and as soon as it answers. QEMU's agent starts a
    /// program for that, which takes an emulated guest seconds.
    pub fn set_clock(&self) -> PendingClock {
        let has_port = devices::has(&self.config().devices, "virtserialport");
        PendingClock::begin(self.run_file(files::AGENT), self.pid(), has_port)
    }

    /// Connects to the port through which programs in the guest talk to their node; `None` if the machine has no such
    /// port. Only one connection at a time is possible; what the guest writes to it must not be trusted.
    pub fn connect_floe_port(&self) -> Option<io::Result<UnixStream>> {
        devices::has_floe_port(&self.config().devices).then(|| self.connect_file(files::FLOE))
    }

    /// Returns whether a program in the guest has that port open. QEMU reports each change within a second; `None` if it has reported none
    /// since this process started or adopted the machine.
    pub fn floe_port_is_open(&self) -> Option<bool> {
        self.events.state.lock().floe_port_open
    }

    /// Returns how often the guest was reset and booted anew in this QEMU, as far as QEMU has told this process.
    pub fn resets(&self) -> u64 {
        self.events.state.lock().resets
    }

    /// Returns whether the machine has a port for floe's agent.
    pub fn has_floe_port(&self) -> bool {
        devices::has_floe_port(&self.config().devices)
    }

    /// Returns whether the machine has a network card.
    pub fn has_network(&self) -> bool {
        devices::has_network_card(&self.config().devices)
    }

    /// Connects or disconnects the cables of all network cards, at both ends: frames that the guest sends without a cable
    /// are lost.
    pub fn set_network(&self, up: bool) -> Result<(), MachineError> {
        for netdev in command::netdevs(&self.config()) {
            let arguments = json!({"name": netdev, "up": up});
            self.qmp.execute("set_link", arguments)?;
        }
        Ok(())
    }

    /// Returns the last bytes, at most `bytes_max`, of the kept output of the serial console.
    pub fn console_history(&self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut log = ConsoleLog::open(&self.dir.join(RUN_DIR), Some(bytes_max));
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the last lines of QEMU's own output, for error messages.
    pub fn qemu_log(&self) -> String {
        files::tail(&self.dir, 0)
    }

    /// Returns the forwards in effect.
    pub fn forwards(&self) -> Vec<PortForward> {
        self.record.lock().forwards.clone()
    }

    /// Adds a port forward.
    pub fn add_forward(&self, forward: PortForward) -> Result<(), MachineError> {
        if !forward.host_address.is_ipv4() {
            return Err(MachineError::Spec {
                what: format!("forward {forward}: use an IPv4 address such as 127.0.0.1"),
            });
        }
        let said = self.qmp.human(&format!("hostfwd_add net0 {forward}"))?;
        self.forward_result(&forward, &said, "")?;
        let mut record = self.record.lock();
        record.forwards.push(forward);
        record.save(&self.dir)
    }

    /// Removes a forward. Its open connections continue.
    pub fn remove_forward(&self, forward: &PortForward) -> Result<(), MachineError> {
        let said = self
            .qmp
            .human(&format!("hostfwd_remove net0 {}", forward.host_side()))?;
        self.forward_result(forward, &said, "removed")?;
        let mut record = self.record.lock();
        record.forwards.retain(|f| f != forward);
        record.save(&self.dir)
    }

    /// Interprets the human monitor's text: nothing means a successful addition, "... removed" a successful removal.
    fn forward_result(
        &self,
        forward: &PortForward,
        said: &str,
        good: &str,
    ) -> Result<(), MachineError> {
        let said = said.trim();
        if (good.is_empty() && said.is_empty()) || (!good.is_empty() && said.contains(good)) {
            return Ok(());
        }
        Err(MachineError::Spec {
            what: format!("forward {forward}: {said}; is the host's port free and yours to use?"),
        })
    }

    /// Waits up to `limit` for the guest agent to answer; an error if it doesn't.
    pub fn agent_ping(&self, limit: Duration) -> Result<(), MachineError> {
        Ok(self.with_agent(limit, |agent| agent.ping())?)
    }

    /// Sets the guest's clock to the host's, through its agent.
    pub fn set_guest_time(&self, limit: Duration) -> Result<(), MachineError> {
        Ok(self.with_agent(limit, |agent| agent.set_time())?)
    }

    fn with_agent<T>(
        &self,
        limit: Duration,
        f: impl FnOnce(&mut Agent) -> Result<T, crate::qga::QgaError>,
    ) -> Result<T, crate::qga::QgaError> {
        let _one_at_a_time = self.agent.lock();
        f(&mut Agent::over(self.connect_file(files::AGENT)?, limit)?)
    }

    /// Returns the id by which the guest's kernel recognizes a new generation of the machine; it is new after each
    /// restore. `None` if the machine has no device that tells it.
    pub fn generation_id(&self) -> Result<Option<String>, MachineError> {
        match self.qmp.execute("query-vm-generation-id", json!({})) {
            Ok(answer) => Ok(answer["guid"].as_str().map(str::to_owned)),
            Err(QmpError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn dead(&self) -> MachineError {
        MachineError::Dead {
            name: self.name(),
            pid: self.pid(),
        }
    }

    /// Gives QEMU a descriptor while `f` runs, under a path that its commands accept as a file. So QEMU needs access to
    /// no directory, and no file remains when it dies.
    pub(crate) fn with_fdset<T>(
        &self,
        fd: BorrowedFd<'_>,
        f: impl FnOnce(&str) -> Result<T, QmpError>,
    ) -> Result<T, MachineError> {
        // QEMU selects a descriptor of the set by its access mode, and uses a write-only one to write a file.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(MachineError::io(format!("open {path}")))?;
        let set = self
            .qmp
            .execute_with_fd("add-fd", json!({}), file.as_fd())?["fdset-id"]
            .as_u64()
            .unwrap_or_default();
        let result = f(&format!("/dev/fdset/{set}"));
        let _ = self.qmp.execute("remove-fd", json!({"fdset-id": set}));
        Ok(result?)
    }

    fn command(&self, name: &str) -> Result<(), MachineError> {
        match self.qmp.execute(name, json!({})) {
            Ok(_) => Ok(()),
            Err(QmpError::Closed { .. }) if !self.process.is_alive() => Err(self.dead()),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn run_file(&self, name: &str) -> PathBuf {
        self.dir.join(RUN_DIR).join(name)
    }
}

/// Creates an anonymous file in memory, which is gone with its last descriptor.
pub(crate) fn memfd(name: &str) -> io::Result<File> {
    Ok(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

/// Returns the name of a block device from `query-block` and whether it is full, if a failed request to it paused the
/// guest.
fn failed_block(block: &serde_json::Value) -> Option<(String, bool)> {
    let no_space = match block["io-status"].as_str()? {
        "failed" => false,
        "nospace" => true,
        _ => return None,
    };
    let names = [
        &block["inserted"]["node-name"],
        &block["device"],
        &block["qdev"],
    ];
    let name = names
        .iter()
        .find_map(|n| n.as_str().filter(|n| !n.is_empty()));
    Some((name.unwrap_or("a disk").to_owned(), no_space))
}
