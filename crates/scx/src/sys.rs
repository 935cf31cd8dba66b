//! The system call bpf(2). Its arguments are a block of bytes whose layout never changes.

use crate::ScxError;
use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const BTF_LOAD: libc::c_int = 18;
const LINK_CREATE: libc::c_int = 28;
/// Kinds of programs: one of a structure of functions, and one that its loader runs.
const STRUCT_OPS: u32 = 27;
const SYSCALL: u32 = 31;
const ATTACH_STRUCT_OPS: u32 = 44;
const SLEEPABLE: u32 = 1 << 4;
/// Bytes of what the verifier says.
const LOG_BYTES: usize = 16 << 20;

/// Arguments of a call.
struct Arguments([u64; 18]);

impl Arguments {
    fn new() -> Arguments {
        Arguments([0; 18])
    }

    /// Sets four bytes.
    fn set(mut self, at: usize, value: u32) -> Arguments {
        let (word, shift) = (at / 8, at % 8 * 8);
        self.0[word] = self.0[word] & !(0xffff_ffff << shift) | u64::from(value) << shift;
        self
    }

    fn wide(mut self, at: usize, value: u64) -> Arguments {
        self.0[at / 8] = value;
        self
    }

    fn pointer<T>(self, at: usize, to: *const T) -> Arguments {
        self.wide(at, to as u64)
    }

    fn call(&mut self, command: libc::c_int) -> io::Result<i32> {
        let size = size_of_val(&self.0) as libc::c_uint;
        // SAFETY: the block has this size, and each pointer in it was made of a slice that lives until after the call
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size) };
        match answer {
            0.. => Ok(answer as i32),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn open(&mut self, command: libc::c_int) -> io::Result<OwnedFd> {
        let number = self.call(command)?;
        // SAFETY: the kernel has just opened it for this call
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// What a map is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The kind of map, as in the kernel's interface.
    pub kind: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Most entries.
    pub entries: u32,
    /// Flags.
    pub flags: u32,
    /// The kernel's type of its value, or 0.
    pub of_kernel: u32,
}

/// The description of one number. A map whose value is of a type of the kernel's needs a description by its maker, too, whatever is in it.
fn any_type() -> io::Result<OwnedFd> {
    const NAMES: &[u8] = b"\0int\0";
    let words = [24, 0, 16, 16, NAMES.len() as u32, 1, 1 << 24, 4, 32];
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    bytes.extend(words.iter().flat_map(|word: &u32| word.to_le_bytes()));
    bytes.extend(NAMES);
    let arguments = Arguments::new().pointer(0, bytes.as_ptr());
    arguments.set(16, bytes.len() as u32).open(BTF_LOAD)
}

/// A map.
pub struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

impl Map {
    /// Makes a map.
    pub fn new(shape: &Shape) -> io::Result<Map> {
        let arguments = Arguments::new().set(0, shape.kind).set(4, shape.key);
        let arguments = arguments.set(8, shape.value).set(12, shape.entries);
        let described = match shape.of_kernel {
            0 => None,
            _ => Some(any_type()?),
        };
        let fd = arguments
            .set(48, described.as_ref().map_or(0, |fd| fd.as_raw_fd() as u32))
            .set(16, shape.flags)
            .set(60, shape.of_kernel)
            .open(MAP_CREATE)?;
        Ok(Map {
            fd,
            key: shape.key as usize,
            value: shape.value as usize,
        })
    }

    /// Its descriptor.
    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn arguments(&self, key: &[u8], value: *const u8) -> Arguments {
        assert_eq!(key.len(), self.key);
        let arguments = Arguments::new().set(0, self.number() as u32);
        arguments.pointer(8, key.as_ptr()).pointer(16, value)
    }

    /// Sets an entry.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value);
        self.arguments(key, value.as_ptr()).call(MAP_UPDATE)?;
        Ok(())
    }

    /// Reads an entry.
    pub fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value];
        self.arguments(key, value.as_mut_ptr()).call(MAP_LOOKUP)?;
        Ok(value)
    }

    /// Removes an entry; one that is not there is none the worse.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        match self.arguments(key, std::ptr::null()).call(MAP_DELETE) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub enum For {
    /// A function of a structure: the structure's type, and the function's number in it.
    Member {
        /// The kernel's type.
        structure: u32,
        /// The function's number.
        number: u32,
        /// Whether it may sleep.
        sleeps: bool,
    },
    /// To be run by its loader.
    Loader,
}

/// Loads a program. If the kernel refuses it, the end of what the verifier says is in the error.
pub fn load(name: &str, code: &[u8], purpose: For) -> Result<OwnedFd, ScxError> {
    let license = CString::from(c"Dual BSD/GPL");
    let arguments = |log: &mut [u8]| {
        let (kind, structure, number, flags) = match purpose {
            For::Member {
                structure,
                number,
                sleeps,
            } => (
                STRUCT_OPS,
                structure,
                number,
                if sleeps { SLEEPABLE } else { 0 },
            ),
            For::Loader => (SYSCALL, 0, 0, SLEEPABLE),
        };
        let arguments = Arguments::new()
            .set(0, kind)
            .set(4, (code.len() / 8) as u32);
        let arguments = arguments
            .pointer(8, code.as_ptr())
            .pointer(16, license.as_ptr())
            .set(44, flags)
            .set(68, number)
            .set(108, structure);
        match log.is_empty() {
            true => arguments,
            false => arguments
                .set(24, 1)
                .set(28, log.len() as u32)
                .pointer(32, log.as_mut_ptr()),
        }
    };
    match arguments(&mut []).open(PROG_LOAD) {
        Ok(fd) => return Ok(fd),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(ScxError::Denied),
        Err(_) => {}
    }
    // once more, to be told why
    let mut log = vec![0; LOG_BYTES];
    let again = arguments(&mut log).open(PROG_LOAD);
    let end = log.iter().position(|byte| *byte == 0).unwrap_or_default();
    let why = String::from_utf8_lossy(&log[..end]).into_owned();
    match again {
        Ok(fd) => Ok(fd),
        Err(source) => Err(ScxError::Refused {
            program: name.to_owned(),
            why,
            source,
        }),
    }
}

/// Puts a structure of functions, which a map holds, in force for as long as what is returned is open in any process.
pub fn attach(map: &Map) -> io::Result<OwnedFd> {
    let arguments = Arguments::new().set(0, map.number() as u32);
    arguments.set(8, ATTACH_STRUCT_OPS).open(LINK_CREATE)
}

/// Runs a program that its loader runs. Returns what it returns.
pub fn run(program: &OwnedFd) -> io::Result<u32> {
    let mut arguments = Arguments::new().set(0, program.as_raw_fd() as u32);
    arguments.call(PROG_TEST_RUN)?;
    Ok((arguments.0[0] >> 32) as u32)
}
