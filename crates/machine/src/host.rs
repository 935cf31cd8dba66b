//! What QEMU on this host supports, and whether an image can run here.
//!
//! Device state can only be loaded into the same machine type. ROMs and ACPI tables are not in it but are made anew by
//! QEMU, so the version must match too. And a guest that has seen a CPU flag will use it. QEMU is asked about all of this
//! once, and the answers are compared before anything is started, so that a refusal can say what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

use floe_image::MachineConfig;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::accel::Accel;
use crate::error::MachineError;
use crate::exec::{ENVIRONMENT, ExecPlan};
use crate::guard::{CONSOLE_LOG_BYTES, HostAccess, Role};
use crate::incompatible::{CPU_MODEL_DEFAULT, Incompatible, QEMU_OLDEST};
use crate::qmp::wire;
use crate::spec::Programs;

/// What one QEMU with one accelerator offers on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Version, such as `7.2.22`.
    pub qemu_version: String,
    /// Machine types, such as `pc-q35-7.2`.
    pub machine_types: BTreeSet<String>,
    /// Named CPU models, with the flags that this host lacks for each.
    pub cpu_models: BTreeMap<String, Vec<String>>,
    /// The CPU model that was asked about, and its flags on this host.
    pub cpu: (String, BTreeSet<String>),
    /// KVM or TCG, with the reason for the latter.
    pub accel: Accel,
}

impl Host {
    /// Asks QEMU once for each program, accelerator and model. Later calls are answered from memory as long as the
    /// program's file does not change. The first call takes about 100 ms.
    pub fn probe(
        programs: &Programs,
        accel: &Accel,
        model: &str,
    ) -> Result<Arc<Host>, MachineError> {
        let qemu = &programs.qemu;
        type Key = (PathBuf, Option<SystemTime>, &'static str, String);
        static PROBED: Mutex<BTreeMap<Key, Arc<Host>>> = Mutex::new(BTreeMap::new());
        let modified = std::fs::metadata(qemu)
            .map_err(|source| MachineError::QemuMissing {
                program: qemu.clone(),
                source,
            })?
            .modified()
            .ok();
        let key = (qemu.clone(), modified, accel.name(), model.to_string());
        if let Some(host) = PROBED.lock().get(&key) {
            return Ok(host.clone());
        }
        let host = Arc::new(ask(programs, accel, model)?);
        PROBED.lock().insert(key, host.clone());
        Ok(host)
    }

    /// Returns the newest versioned q35 machine type of this QEMU.
    pub fn newest_machine_type(&self) -> Option<&str> {
        self.machine_types
            .iter()
            .filter_map(|name| {
                let version = name.strip_prefix("pc-q35-")?;
                Some((version_of(version)?, name.as_str()))
            })
            .max()
            .map(|(_, name)| name)
    }

    /// Returns an error unless this configuration can start cold here.
    pub fn check_start(&self, config: &MachineConfig) -> Result<(), Incompatible> {
        if version_of(&self.qemu_version).is_none_or(|v| v < QEMU_OLDEST) {
            return Err(Incompatible::QemuTooOld {
                host: self.qemu_version.clone(),
            });
        }
        if let Some(image) = &config.machine_type
            && !self.machine_types.contains(image)
        {
            return Err(Incompatible::MachineType {
                image: image.clone(),
                qemu: self.qemu_version.clone(),
            });
        }
        let model = config.cpu_model.as_deref().unwrap_or(CPU_MODEL_DEFAULT);
        let Some(unavailable) = self.cpu_models.get(model) else {
            return Err(Incompatible::CpuModel {
                model: model.into(),
            });
        };
        if !unavailable.is_empty() {
            return Err(Incompatible::CpuFlags {
                model: model.into(),
                missing: unavailable.clone(),
            });
        }
        Ok(())
    }

    /// Returns an error unless a state that was captured with this configuration can run here.
    pub fn check_restore(&self, config: &MachineConfig) -> Result<(), Incompatible> {
        if let Some(image) = &config.qemu_version
            && version_of(image) != version_of(&self.qemu_version)
        {
            return Err(Incompatible::QemuVersion {
                image: image.clone(),
                host: self.qemu_version.clone(),
            });
        }
        if let Some(image) = &config.accel
            && image != self.accel.name()
        {
            return Err(Incompatible::Accel {
                image: image.clone(),
                host: self.accel.clone(),
            });
        }
        self.check_start(config)?;
        let (model, flags) = &self.cpu;
        let missing: Vec<String> = config
            .cpu_flags
            .iter()
            .filter(|f| !flags.contains(*f))
            .cloned()
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(Incompatible::CpuFlags {
                model: model.clone(),
                missing,
            })
        }
    }
}

/// Returns `(major, minor)`: a distribution's stable updates change only the third number, and not the state.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Normalizes QEMU's spellings of a CPU flag (`sse4.1`, `sse4_1`); `None` for a property that is a setting of the model,
/// not a flag.
fn flag_name(property: &str) -> Option<String> {
    const SETTINGS: &[&str] = &[
        "check",
        "cpuid-0xb",
        "enforce",
        "fill-mtrr-mask",
        "full-cpuid-auto-level",
        "host-cache-info",
        "hypervisor",
        "kvm",
        "l3-cache",
        "legacy-cache",
        "migratable",
        "tcg-cpuid",
        "vmware-cpuid-freq",
    ];
    let setting = property.starts_with("x-") || SETTINGS.contains(&property);
    (!setting).then(|| property.replace(['.', '_'], "-"))
}

/// Runs an empty QEMU and asks it over its standard input. No guest, no devices, no machine. It ends with this process, however
/// that ends.
fn ask(programs: &Programs, accel: &Accel, model: &str) -> Result<Host, MachineError> {
    let qemu = &programs.qemu;
    let trouble = |reason: String| MachineError::Start {
        name: "(probe)".into(),
        reason,
        log: String::new(),
    };
    let mut child = start_empty(programs, accel)?;
    let expand = json!({"execute": "query-cpu-model-expansion", "arguments": {"type": "full", "model": {"name": model}}});
    let commands = [
        json!({"execute": "qmp_capabilities"}),
        json!({"execute": "query-version"}),
        json!({"execute": "query-machines"}),
        json!({"execute": "query-cpu-definitions"}),
        expand,
        json!({"execute": "quit"}),
    ];
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let text: String = commands.iter().map(|c| format!("{c}\n")).collect();
    let written = stdin.write_all(text.as_bytes());
    let out = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let replies = replies(out, commands.len()).map_err(|e| {
        let _ = child.kill();
        let _ = child.wait();
        trouble(format!("{} does not speak QMP: {e}", qemu.display()))
    })?;
    drop(stdin);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
    }
    let _ = child.wait();
    if replies.len() < commands.len() || written.is_err() {
        return Err(trouble(format!(
            "{} with {} ended early: {}",
            qemu.display(),
            accel.name(),
            said.trim()
        )));
    }
    Ok(host_of(&replies, accel, model))
}

/// Starts a QEMU without a machine, in the wrapper that all QEMUs are started in.
fn start_empty(programs: &Programs, accel: &Accel) -> Result<Child, MachineError> {
    let args = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-machine",
        "none",
        "-qmp",
        "stdio",
        "-accel",
        accel.name(),
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    ];
    let plan = ExecPlan {
        dir: "/".into(),
        announcement: None,
        ends_with: Some(std::process::id()),
        cgroup: Vec::new(),
        user: None,
        device_group: None,
        refuse_huge_pages: false,
        ram: Vec::new(),
        guard: Role::Machine {
            access: HostAccess::None,
            log_bytes: CONSOLE_LOG_BYTES,
        },
        program: programs.qemu.clone(),
        args: args.map(Into::into).to_vec(),
    };
    let wrapper = programs.wrapper.split_first();
    let (wrapper, first) = wrapper.ok_or_else(|| MachineError::Spec {
        what: "no exec wrapper is given".into(),
    })?;
    Command::new(wrapper)
        .args(first)
        .args(plan.to_args())
        .env_clear()
        .envs(ENVIRONMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MachineError::io(format!(
            "start {}",
            Path::new(wrapper).display()
        )))
}

/// Reads replies to commands until there are `wanted` or QEMU ends; an error if it says anything else.
fn replies(mut out: impl BufRead, wanted: usize) -> Result<Vec<Value>, String> {
    let (mut replies, mut line) = (Vec::new(), Vec::new());
    while replies.len() < wanted {
        line.clear();
        if out.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            break;
        }
        match wire::parse(&line) {
            Ok(wire::Message::Return { value, .. }) => replies.push(value),
            // An unknown model can't be expanded; it is refused by name later.
            Ok(wire::Message::Error { .. }) => replies.push(Value::Null),
            Ok(_) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(replies)
}

/// Puts QEMU's replies together.
fn host_of(replies: &[Value], accel: &Accel, model: &str) -> Host {
    let version = &replies[1]["qemu"];
    let number = |v: &Value| v.as_u64().unwrap_or(0);
    let names = |list: &Value, key: &str| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .filter_map(|m| m[key].as_str().map(str::to_string))
            .collect()
    };
    let cpu_models = replies[3].as_array().into_iter().flatten().filter_map(|m| {
        let unavailable = m["unavailable-features"].as_array().into_iter().flatten();
        Some((
            m["name"].as_str()?.to_string(),
            unavailable
                .filter_map(|f| f.as_str().map(str::to_string))
                .collect(),
        ))
    });
    let props = replies[4]["model"]["props"].as_object();
    let flags = props
        .into_iter()
        .flatten()
        .filter(|(_, on)| **on == Value::Bool(true));
    let flags = flags.filter_map(|(name, _)| flag_name(name));
    Host {
        qemu_version: format!(
            "{}.{}.{}",
            number(&version["major"]),
            number(&version["minor"]),
            number(&version["micro"])
        ),
        machine_types: names(&replies[2], "name").into_iter().collect(),
        cpu_models: cpu_models.collect(),
        cpu: (model.to_string(), flags.collect()),
        accel: accel.clone(),
    }
}
