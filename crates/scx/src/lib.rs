//! floe's scheduler for Linux's sched_ext: the policy of `floe_sched::cpu` in the kernel (`docs/cpu-scheduling.md`).
//!
//! `bpf/floe.bpf.c` is the scheduler. It is compiled once, with `make scx` (clang), for all kernels from 6.17 on; [`Scheduler::load`] fits it to the
//! running one by that one's own description of its types, and puts it in force for as long as the [`Scheduler`] lives. When its
//! process ends, by whatever, the kernel goes back to its own scheduler at once: nothing is pinned anywhere.
//!
//! [`btf`] and [`object`] read the kernel's types and the compiled program, [`sys`] makes the system calls, [`maps`] knows what the
//! scheduler keeps. There is no libbpf in this, since fields and functions are all that has to be filled in.

pub mod btf;
pub mod maps;
pub mod object;
pub mod sys;

use btf::Btf;
pub use maps::{Fares, GANGS, Ledger};
use object::{Object, Program, What};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};
use sys::{For, Map, Shape};

/// Where a kernel with sched_ext tells of it.
pub const SCHED_EXT: &str = "/sys/kernel/sched_ext";
/// Where a kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// The scheduler's name, as the kernel tells it.
pub const NAME: &str = "floe";
/// The compiled program's file.
pub const FILE: &str = "floe.bpf.o";
/// Map of a structure of functions, and that it ends with its loader.
const STRUCT_OPS: u32 = 26;
const LINK: u32 = 1 << 13;
/// A task that is the only one at its core is put into a queue, too: its group may have used up its quota.
const ENQ_LAST: u64 = 2;
/// The kernel ends a scheduler that lets a task wait longer than this, in milliseconds.
const TIMEOUT_MS: u32 = 30_000;
/// From which part of a queue on a sibling is far: two thirds, in thousandths.
const TWO_THIRDS: u32 = 667;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum ScxError {
    /// The kernel lets nobody replace its scheduler.
    #[error(
        "this kernel lets nobody replace its scheduler (no sched_ext): use one with CONFIG_SCHED_CLASS_EXT, Linux 6.17 or newer"
    )]
    Absent,
    /// Another scheduler is loaded.
    #[error(
        "the scheduler {0} is loaded (sched_ext), and the kernel takes one at a time: end the program that has loaded it"
    )]
    Taken(String),
    /// The compiled program is not there.
    #[error(
        "{} is missing: install a package of floe that was made where clang is, or make it with `make scx` (needs clang)",
        .0.display()
    )]
    Missing(PathBuf),
    /// The compiled program makes no sense.
    #[error("floe's scheduler is not what `make scx` makes: {0}; make it anew")]
    Object(&'static str),
    /// The kernel's description of its types makes no sense.
    #[error("the kernel's description of its types can't be read ({KERNEL_TYPES}): {0}")]
    Btf(&'static str),
    /// The kernel lacks something.
    #[error("this kernel has no {0}, which floe's scheduler needs: use Linux 6.17 or newer")]
    Lacks(String),
    /// The user may not.
    #[error("only root may load a scheduler (CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN)")]
    Denied,
    /// The verifier refuses a program.
    #[error("the kernel refuses floe's scheduler ({program}: {source}): {}", last(.why))]
    Refused {
        /// Which one.
        program: String,
        /// What the verifier says.
        why: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel has ended it.
    #[error(
        "the kernel has ended floe's scheduler, and has its own again (cores came or went, or a task waited too long): `dmesg` says why"
    )]
    Ended,
    /// The kernel refuses a call.
    #[error("the kernel does not load floe's scheduler: {0}; `dmesg` may say more")]
    Kernel(#[from] io::Error),
}

/// The last lines of what the verifier says.
fn last(why: &str) -> String {
    let lines: Vec<&str> = why.lines().rev().skip(1).take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}

/// What the scheduler does for vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Siblings have cores of their own.
    Balance,
    /// The same, and one that is far ahead of a sibling lends it virtual time.
    Sbco,
}

/// Which scheduler the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Its own, and it can have another one.
    Free,
    /// This one.
    Loaded(String),
    /// Its own, and it can't have another one.
    Absent,
}

fn read(path: &Path) -> Result<Option<String>, ScxError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ScxError::File {
            path: path.to_owned(),
            source,
        }),
        Ok(text) => Ok(Some(text.trim().to_owned())),
    }
}

impl Host {
    /// Finds out by the directory in which a kernel tells of its sched_ext.
    pub fn at(dir: &Path) -> Result<Host, ScxError> {
        match read(&dir.join("state"))?.as_deref() {
            None => Ok(Host::Absent),
            Some("disabled") => Ok(Host::Free),
            Some(_) => {
                let name = read(&dir.join("root/ops"))?;
                let name = name.unwrap_or_else(|| "of a name that it does not tell".into());
                Ok(Host::Loaded(name))
            }
        }
    }
}

/// The compiled program for floe's own: beside it, as `make scx` puts it, or below the same prefix, as packages have it.
pub fn file_beside(program: &Path) -> PathBuf {
    let beside = program.with_file_name(FILE);
    match beside.try_exists() {
        Ok(true) => beside,
        _ => {
            let prefix = program.parent().and_then(Path::parent);
            let prefix = prefix.unwrap_or(Path::new("/usr"));
            prefix.join("lib/floe").join(FILE)
        }
    }
}

/// floe's scheduler, in force. Dropping it gives the tasks back to the kernel's own.
pub struct Scheduler {
    maps: BTreeMap<&'static str, Map>,
    policy: Policy,
    epoch: u32,
    /// Of each vCPU's thread, the number of its machine.
    vcpus: BTreeMap<u32, u32>,
    unpark: OwnedFd,
    _link: OwnedFd,
    // they are the structure's, and must not end before it
    _programs: Vec<OwnedFd>,
    _ops: Map,
}

impl Scheduler {
    /// Loads the compiled program in this file.
    pub fn load(file: &Path, policy: Policy) -> Result<Scheduler, ScxError> {
        match Host::at(Path::new(SCHED_EXT))? {
            Host::Absent => return Err(ScxError::Absent),
            Host::Loaded(name) => return Err(ScxError::Taken(name)),
            Host::Free => {}
        }
        let bytes = fs::read(file).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ScxError::Missing(file.to_owned()),
            _ => ScxError::File {
                path: file.to_owned(),
                source,
            },
        })?;
        let object = object::parse(&bytes)?;
        let types = fs::read(KERNEL_TYPES).map_err(|source| ScxError::File {
            path: KERNEL_TYPES.into(),
            source,
        })?;
        Scheduler::of(object, &Btf::parse(types)?, policy)
    }

    fn of(object: Object, types: &Btf, policy: Policy) -> Result<Scheduler, ScxError> {
        let lacks = |what: &str| ScxError::Lacks(what.to_owned());
        let mut maps = BTreeMap::new();
        for (name, mut shape) in maps::SHAPES {
            let size = object.maps.get(name);
            shape.value = *size.ok_or(ScxError::Object("a map is missing"))?;
            maps.insert(name, Map::new(&shape).map_err(denied)?);
        }
        let holder = "bpf_struct_ops_sched_ext_ops";
        let holder = types.structure(holder).ok_or_else(|| lacks(holder))?;
        let ops = types.structure("sched_ext_ops");
        let ops = ops.ok_or_else(|| lacks("sched_ext_ops"))?;
        let data = types.field(holder, "data").ok_or_else(|| lacks("data"))?;
        let size = types.size(holder).ok_or_else(|| lacks("a size"))?;
        let mut value = vec![0; size as usize];
        let (mut loaded, mut unpark) = (Vec::new(), None);
        for mut program in object.programs {
            fit(&mut program, types, &maps)?;
            let (kind, member) = program.section.split_once('/').unwrap_or(("syscall", ""));
            if kind == "syscall" {
                unpark = Some(sys::load("unpark", &program.code, For::Loader)?);
                continue;
            }
            let field = types.field(ops, member).ok_or_else(|| lacks(member))?;
            let purpose = For::Member {
                structure: ops,
                number: field.number,
                sleeps: kind.ends_with(".s"),
            };
            let fd = sys::load(member, &program.code, purpose)?;
            put(
                &mut value,
                data.offset + field.offset,
                &(fd.as_raw_fd() as u64).to_le_bytes(),
            )?;
            loaded.push(fd);
        }
        let unpark = unpark.ok_or(ScxError::Object("it has no program to be run"))?;
        let timeout = TIMEOUT_MS.to_le_bytes();
        let plain: [(&str, &[u8]); 3] = [
            ("flags", &ENQ_LAST.to_le_bytes()),
            ("timeout_ms", &timeout),
            ("name", NAME.as_bytes()),
        ];
        for (name, bytes) in plain {
            let field = types.field(ops, name).ok_or_else(|| lacks(name))?;
            put(&mut value, data.offset + field.offset, bytes)?;
        }
        let shape = Shape {
            kind: STRUCT_OPS,
            key: 4,
            value: size,
            entries: 1,
            flags: LINK,
            of_kernel: holder,
        };
        let structure = Map::new(&shape).map_err(denied)?;
        structure.set(&[0; 4], &value)?;
        settings(&maps, policy, 0)?;
        let link = sys::attach(&structure).map_err(denied)?;
        Ok(Scheduler {
            maps,
            policy,
            epoch: 0,
            vcpus: BTreeMap::new(),
            unpark,
            _link: link,
            _programs: loaded,
            _ops: structure,
        })
    }

    /// Tells whose threads are vCPUs: of each thread the number of its machine, below [`GANGS`]. All others are none, or none any more.
    pub fn set_vcpus(&mut self, vcpus: &BTreeMap<u32, u32>) -> Result<(), ScxError> {
        if *vcpus == self.vcpus {
            return Ok(());
        }
        let map = &self.maps["vcpus"];
        for (tid, machine) in vcpus {
            if self.vcpus.get(tid) != Some(machine) {
                map.set(&tid.to_le_bytes(), &u64::from(machine + 1).to_le_bytes())?;
            }
        }
        for tid in self.vcpus.keys().filter(|tid| !vcpus.contains_key(tid)) {
            map.remove(&tid.to_le_bytes())?;
        }
        self.vcpus.clone_from(vcpus);
        self.epoch += 1;
        settings(&self.maps, self.policy, self.epoch)
    }

    /// Lets go on whose control group may. To be called each few milliseconds as long as it returns true: there are quotas.
    pub fn unpark(&self) -> Result<bool, ScxError> {
        Ok(sys::run(&self.unpark)? != 0)
    }

    /// How the vCPUs of a machine have fared since the scheduler was loaded.
    pub fn fares(&self, machine: u32) -> Result<Fares, ScxError> {
        Ok(maps::fares(&self.maps["gangs"], machine)?)
    }

    /// What lending has come to since then.
    pub fn ledger(&self) -> Result<Ledger, ScxError> {
        Ok(maps::ledger(&self.maps["state"])?)
    }

    /// Whether it is still in force: the kernel ends one that lets a task wait, or when cores come and go.
    pub fn is_in_force(&self) -> bool {
        matches!(Host::at(Path::new(SCHED_EXT)), Ok(Host::Loaded(name)) if name == NAME)
    }
}

fn denied(error: io::Error) -> ScxError {
    match error.raw_os_error() {
        Some(libc::EPERM) => ScxError::Denied,
        Some(libc::EBUSY) => ScxError::Taken("that came first".into()),
        _ => ScxError::Kernel(error),
    }
}

fn put(value: &mut [u8], at: u32, bytes: &[u8]) -> Result<(), ScxError> {
    let from = at as usize;
    let place = value.get_mut(from..from + bytes.len());
    place
        .ok_or(ScxError::Btf("a field outside of its structure"))?
        .copy_from_slice(bytes);
    Ok(())
}

fn settings(
    maps: &BTreeMap<&'static str, Map>,
    policy: Policy,
    epoch: u32,
) -> Result<(), ScxError> {
    let policy = match policy {
        Policy::Balance => 1u32,
        Policy::Sbco => 2,
    };
    let words = [policy, epoch, TWO_THIRDS, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(maps["settings"].set(&[0; 4], &bytes)?)
}

/// Fits a program to this kernel.
fn fit(
    program: &mut Program,
    types: &Btf,
    maps: &BTreeMap<&'static str, Map>,
) -> Result<(), ScxError> {
    for place in std::mem::take(&mut program.places) {
        let (number, name) = match &place.what {
            What::Map(name) => {
                let map = maps.get(name.as_str());
                (map.map(|map| map.number() as u32), name)
            }
            What::Field(name) => (types.offset(name), name),
            What::Function(name) => (types.function(name), name),
        };
        let number = number.ok_or_else(|| ScxError::Lacks(name.clone()))?;
        program.fill(&place, number);
    }
    Ok(())
}
