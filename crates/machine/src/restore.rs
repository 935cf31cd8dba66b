//! Restores a captured machine.
//!
//! QEMU starts with its RAM mapped privately from the image's file, loads the device state from a descriptor, and waits. All of this can be
//! done in advance; the result is a [`Standby`], which only has to be resumed. Before it is known which state will be loaded, QEMU can at
//! least be started: the result is a [`Blank`], which waits for a state that fits its hardware.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use floe_image::{CHUNK_SIZE, MachineConfig};
use serde_json::json;

use crate::capture::vram_span;
use crate::command::{self, RamBacking};
use crate::error::MachineError;
use crate::files;
use crate::host::Host;
use crate::incompatible::CPU_MODEL_DEFAULT;
use crate::launch::launch;
use crate::machine::{Machine, memfd};
use crate::process::Span;
use crate::profile::Profile;
use crate::spec::{PortForward, Spec};

/// Longest time to load the device state: it touches pages of RAM, which may first have to cross a slow link.
pub const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// How often to check whether a QEMU that says nothing has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// QEMU's name of the descriptor with the device state.
const STATE: &str = "state";

/// The state to restore.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The file of the `ram` region, of exactly the configured size. It is mapped and never written.
    pub ram: PathBuf,
    /// The files of the regions `ram1`, `ram2`, ..., one for each of the configuration's `memory_blocks`; like `ram`.
    pub blocks: Vec<PathBuf>,
    /// The content of the `device` region.
    pub device: Vec<u8>,
    /// The chunks of the `vram` region that are not zero: `(index, content)`.
    pub vram: Vec<(u32, Box<[u8; CHUNK_SIZE]>)>,
}

/// A part of a restore and the time that it took. The parts of one restore add up to its whole time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// `check`, `qemu` (from its start to its first answer), `load`, `vram`, `forwards` or `continue`.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// A machine that was restored.
pub struct Restored {
    /// The machine; its guest runs.
    pub machine: Machine,
    /// How the time was spent; only the parts that this call did.
    pub stages: Vec<Stage>,
}

/// A QEMU that was started with the hardware of a profile, before it is known which image it is to continue. It has mapped its memory's
/// files and opened its disks, but has read nothing of its memory, and of a disk the first sector only, for the geometry that it tells its
/// guest. What can be asked of QEMU before there is a state has been asked: each question takes a millisecond of processor time, and many
/// clones ask at once. Dropping it ends QEMU.
pub struct Blank {
    standby: Standby,
    /// QEMU has this file already, still empty, and reads the device state from it.
    state: File,
    /// Where its video memory is, if it has any.
    vram: Option<Span>,
}

/// A machine with its state loaded, waiting to be resumed. Dropping it ends QEMU.
pub struct Standby {
    machine: Option<Machine>,
    stages: Vec<Stage>,
}

struct Stopwatch {
    last: Instant,
    stages: Vec<Stage>,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch {
            last: Instant::now(),
            stages: Vec::new(),
        }
    }

    fn stage(&mut self, name: &'static str) {
        let now = Instant::now();
        self.stages.push(Stage {
            name,
            took: now - self.last,
        });
        self.last = now;
    }
}

impl Machine {
    /// Starts QEMU, loads the state and resumes the guest.
    pub fn restore(spec: Spec, snapshot: &Snapshot) -> Result<Restored, MachineError> {
        let standby = Standby::prepare(spec, snapshot)?;
        let mut stages = standby.stages().to_vec();
        let mut restored = standby.activate(&[])?;
        stages.append(&mut restored.stages);
        restored.stages = stages;
        Ok(restored)
    }
}

impl Blank {
    /// Starts a QEMU that loads no state yet. `spec.config` must be that of an image, and `memory` has the files of its regions
    /// `ram`, `ram1`, ...: their content is needed only when the state is loaded.
    pub fn start(spec: Spec, memory: &[PathBuf]) -> Result<Blank, MachineError> {
        let mut watch = Stopwatch::start();
        spec.check()?;
        // check this first: a later profile's devices would be refused as foreign
        Profile::of(&spec.config)?;
        command::check(&spec.config)?;
        let config = spec.config.clone();
        if config.devices.is_empty()
            || config.machine_type.is_none()
            || config.memory_bytes.is_none()
        {
            let what = "it does not tell the machine type, the memory and the devices of a running machine; \
                        it is an image of disks: start it cold";
            return Err(MachineError::Untrusted { what: what.into() });
        }
        let model = config.cpu_model.as_deref().unwrap_or(CPU_MODEL_DEFAULT);
        Host::probe(&spec.programs, &spec.accel, model)?.check_restore(&config)?;
        if let Some(relative) = memory.iter().find(|path| !path.is_absolute()) {
            return Err(MachineError::Spec {
                what: format!("path {} must be absolute", relative.display()),
            });
        }
        if memory.len() != 1 + config.memory_blocks.len() {
            let what = format!(
                "{} memory blocks are configured, {} files are given",
                config.memory_blocks.len(),
                memory.len().saturating_sub(1)
            );
            return Err(MachineError::Spec { what });
        }
        watch.stage("check");
        let mut backings = memory.iter().cloned().map(RamBacking::File);
        let ram = backings.next().expect("there is at least one file");
        let machine = launch(&spec, config, ram, backings.collect(), true)?;
        // from here on an error ends QEMU
        let mut standby = Standby {
            machine: Some(machine),
            stages: Vec::new(),
        };
        let machine = standby.machine();
        let state =
            memfd("floe-device-state").map_err(MachineError::io("make a file for a state"))?;
        let qmp = &machine.qmp;
        qmp.execute_with_fd("getfd", json!({"fdname": STATE}), state.as_fd())?;
        let tells = json!({"capabilities": [{"capability": "events", "state": true}]});
        qmp.execute("migrate-set-capabilities", tells)?;
        let vram = vram_span(machine)?;
        watch.stage("qemu");
        standby.stages = watch.stages;
        Ok(Blank {
            standby,
            state,
            vram,
        })
    }

    /// Returns the waiting machine.
    pub fn machine(&self) -> &Machine {
        self.standby.machine()
    }

    /// Returns whether the state of an image with this configuration can be loaded: the guest must find the hardware that it
    /// was captured with. The addresses of network cards are the blank's own, and what only the node reads may differ.
    pub fn fits(&self, config: &MachineConfig) -> bool {
        command::hardware_of(&self.machine().config()) == command::hardware_of(config)
    }

    /// Loads a state; what the machine's files contain must be the image's by now. `config` is the image's, and becomes the
    /// machine's, but for the addresses of the network cards.
    pub fn load(
        self,
        config: &MachineConfig,
        snapshot: &Snapshot,
        network_down: bool,
    ) -> Result<Standby, MachineError> {
        let machine = self.machine();
        let own = machine.config();
        if !self.fits(config) {
            return Err(MachineError::Spec {
                what: "the waiting QEMU has other hardware than the image".into(),
            });
        }
        let config = MachineConfig {
            devices: own.devices,
            nic_mac: own.nic_mac,
            ..config.clone()
        };
        machine.change(|record| record.config = config)?;
        self.fill(snapshot, network_down)
    }

    /// Loads a state of its own hardware. An error ends the QEMU, with the value.
    fn fill(mut self, snapshot: &Snapshot, network_down: bool) -> Result<Standby, MachineError> {
        let mut watch = Stopwatch::start();
        let machine = self.standby.machine();
        load(machine, &self.state, &snapshot.device)?;
        watch.stage("load");
        write_vram(machine, self.vram.as_ref(), &snapshot.vram)?;
        watch.stage("vram");
        // the state contains whether the cable was connected at the capture
        machine.set_network(!network_down)?;
        self.standby.stages.append(&mut watch.stages);
        Ok(self.standby)
    }
}

impl Standby {
    /// Starts QEMU and loads the state. `spec.config` must be the image's.
    pub fn prepare(spec: Spec, snapshot: &Snapshot) -> Result<Standby, MachineError> {
        let network_down = spec.network_down;
        let memory = std::iter::once(&snapshot.ram).chain(&snapshot.blocks);
        let memory: Vec<PathBuf> = memory.cloned().collect();
        Blank::start(spec, &memory)?.fill(snapshot, network_down)
    }

    /// Returns how the time of [`Standby::prepare`] was spent.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns the waiting machine.
    pub fn machine(&self) -> &Machine {
        self.machine
            .as_ref()
            .expect("it is taken only by activate and drop, which consume the standby")
    }

    /// Resumes the guest, with these forwards in addition to those of its spec. Its clock shows the time of the capture
    /// until somebody sets it ([`Machine::set_clock`]).
    pub fn activate(mut self, forwards: &[PortForward]) -> Result<Restored, MachineError> {
        let mut watch = Stopwatch::start();
        for forward in forwards {
            self.machine().add_forward(forward.clone())?;
        }
        if !forwards.is_empty() {
            watch.stage("forwards");
        }
        self.machine().cont()?;
        watch.stage("continue");
        let machine = self.machine.take().expect("activate takes it once");
        Ok(Restored {
            machine,
            stages: watch.stages,
        })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take() {
            machine.process().kill();
            machine.wait_end(Duration::from_secs(5));
            let _ = std::fs::remove_file(machine.dir().join(crate::record::FILE));
        }
    }
}

/// Has QEMU load a state from a file that it has by descriptor: it may start no process and needs no access to any file.
fn load(machine: &Machine, state: &File, device: &[u8]) -> Result<(), MachineError> {
    // QEMU's descriptor stands at the beginning of the file, as ours does
    let written = state.write_all_at(device, 0);
    written.map_err(MachineError::io("make a file of the device state"))?;
    let refused = |reason: String| {
        machine.process().wait(Duration::from_millis(200));
        MachineError::Restore {
            name: machine.name(),
            reason,
            log: files::tail(machine.dir(), 0),
        }
    };
    let until = Instant::now() + LOAD_TIMEOUT;
    let from = json!({"uri": format!("fd:{STATE}")});
    machine
        .qmp
        .execute_within("migrate-incoming", from, LOAD_TIMEOUT)
        .map_err(|e| refused(e.to_string()))?;
    loop {
        let look = (Instant::now() + LOOK_INTERVAL).min(until);
        match machine.events.wait_loaded(look) {
            Some(true) => return Ok(()),
            Some(false) => return Err(refused(why_not_loaded(machine))),
            None if !machine.process().is_alive() => return Err(refused("QEMU ended".into())),
            None if Instant::now() < until => {}
            None => {
                return Err(MachineError::Timeout {
                    name: machine.name(),
                    what: "loading the device state",
                    limit: LOAD_TIMEOUT,
                });
            }
        }
    }
}

/// Returns what QEMU says of a state that it could not load.
fn why_not_loaded(machine: &Machine) -> String {
    let answer = machine.qmp.execute("query-migrate", json!({}));
    let why = answer.map(|answer| answer["error-desc"].as_str().map(str::to_owned));
    match why {
        Ok(why) => why.unwrap_or_else(|| "it does not say why".into()),
        Err(error) => error.to_string(),
    }
}

fn write_vram(
    machine: &Machine,
    span: Option<&Span>,
    chunks: &[(u32, Box<[u8; CHUNK_SIZE]>)],
) -> Result<(), MachineError> {
    if chunks.is_empty() {
        return Ok(());
    }
    let span = span.ok_or_else(|| MachineError::Untrusted {
        what: "it has video memory and no video device".into(),
    })?;
    let write = || -> std::io::Result<()> {
        let memory = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/{}/mem", machine.pid()))?;
        for (chunk, content) in chunks {
            let offset = u64::from(*chunk) * CHUNK_SIZE as u64;
            if offset + CHUNK_SIZE as u64 > span.len {
                return Err(std::io::Error::other(format!(
                    "chunk {chunk} is beyond the {} bytes of video memory",
                    span.len
                )));
            }
            memory.write_all_at(&content[..], span.address + offset)?;
        }
        Ok(())
    };
    write().map_err(MachineError::io("write the video memory"))
}
