//! The process whose page faults are measured: a substitute for QEMU that maps memory and touches it, page by page.
//!
//! It is a separate process, because if a process answers its own faults, the measurement includes contention for its
//! memory map's lock.
use super::uffd::Uffd;
use anyhow::{Context, bail};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

/// Page size, in bytes.
pub const PAGE: usize = 4096;

/// Only one page in each window of this many pages is touched: a fault may also map up to 16 cached neighbours of its
/// page, and touching those would measure nothing.
const WINDOW_PAGES: usize = 16;

/// The process's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// Map this file, privately, as QEMU maps a guest's RAM
    #[arg(long, conflicts_with = "uffd")]
    file: Option<PathBuf>,
    /// Map empty memory whose faults go to a userfaultfd
    #[arg(long)]
    uffd: bool,
    /// Bytes to map
    #[arg(long)]
    bytes: usize,
    /// Stay on this core
    #[arg(long)]
    core: usize,
    /// Order of the pages
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A mapping in this process.
struct Mapping {
    address: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(file: Option<&Path>, bytes: usize) -> anyhow::Result<Mapping> {
        let (flags, file) = match file {
            // As QEMU opens it: read-only, which is enough for a private mapping that is written.
            Some(path) => (
                libc::MAP_PRIVATE,
                Some(File::open(path).with_context(|| format!("cannot open {}", path.display()))?),
            ),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None),
        };
        let fd = file.as_ref().map_or(-1, |file| file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("cannot map the memory");
        }
        // As the exec wrapper does for QEMU: forbid huge pages, because a fault would otherwise read megabytes.
        // SAFETY: the advice is for a mapping that this process owns.
        unsafe { libc::madvise(address, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(Mapping {
            address: address.cast(),
            bytes,
        })
    }

    /// Returns the time of each page's first touch, in nanoseconds.
    fn touch(&self, pages: &[usize]) -> Vec<u64> {
        let mut times = Vec::with_capacity(pages.len());
        for page in pages {
            assert!((page + 1) * PAGE <= self.bytes);
            let start = Instant::now();
            // SAFETY: within the mapping, which lives as long as the process.
            unsafe { self.address.add(page * PAGE).read_volatile() };
            times.push(start.elapsed().as_nanos() as u64);
        }
        times
    }
}

/// Returns one page of each window, with the windows in random order.
pub fn order(bytes: usize, seed: u64) -> Vec<usize> {
    use rand::{Rng, SeedableRng, seq::SliceRandom};
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut pages: Vec<usize> = (0..bytes / PAGE / WINDOW_PAGES)
        .map(|window| window * WINDOW_PAGES + random.random_range(0..WINDOW_PAGES))
        .collect();
    pages.shuffle(&mut random);
    pages
}

/// Keeps the calling thread, and threads that it will start, on one core; `None` allows all cores again.
pub fn stay_on(core: Option<usize>) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    match core {
        Some(core) => set.set(core),
        None => (0..std::thread::available_parallelism()
            .map_or(1, usize::from)
            .max(64))
            .for_each(|core| set.set(core)),
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

impl Arguments {
    /// Maps the memory and prints its address. For every line of input, touches the pages and prints the times; ends with
    /// the input.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        stay_on(Some(self.core))?;
        let mapping = Mapping::new(self.file.as_deref(), self.bytes)?;
        let uffd = if self.uffd {
            Some(Uffd::register(mapping.address as u64, self.bytes as u64)?)
        } else {
            None
        };
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} {}",
            uffd.as_ref().map_or(-1, |uffd| uffd.as_raw_fd()),
            mapping.address as u64
        )?;
        out.flush()?;
        let pages = order(self.bytes, self.seed);
        for line in io::stdin().lock().lines() {
            line?;
            let mut text = String::new();
            for time in mapping.touch(&pages) {
                write!(text, "{time} ")?;
            }
            writeln!(out, "{text}")?;
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A running toucher process. Dropping this ends it.
pub struct Toucher {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    uffd: i32,
    /// The address of its memory, in its own address space.
    pub address: u64,
}

impl Toucher {
    /// Starts a toucher that maps `file`, or userfaultfd memory, on `core`.
    pub fn start(
        file: Option<&Path>,
        bytes: usize,
        core: usize,
        seed: u64,
    ) -> anyhow::Result<Toucher> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "toucher",
            "--bytes",
            &bytes.to_string(),
            "--core",
            &core.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        match file {
            Some(file) => command.arg("--file").arg(file),
            None => command.arg("--uffd"),
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the toucher")?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().context("it was started with a pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Some((uffd, address)) = line.trim().split_once(' ') else {
            bail!("the toucher could not map its memory")
        };
        Ok(Toucher {
            uffd: uffd.parse()?,
            address: address.parse()?,
            child,
            input,
            output,
        })
    }

    /// Returns the userfaultfd of its memory.
    pub fn uffd(&self) -> anyhow::Result<OwnedFd> {
        use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
        let pid = Pid::from_child(&self.child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(pidfd_getfd(pidfd, self.uffd, PidfdGetfdFlags::empty())?)
    }

    /// Touches every page in its order. Returns the time of each in microseconds.
    pub fn touch(&mut self) -> anyhow::Result<Vec<f64>> {
        self.input
            .as_mut()
            .context("it was started with a pipe")?
            .write_all(b"touch\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let times: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let times = times?;
        if times.is_empty() {
            bail!("the toucher died at a page: {}", self.child.wait()?);
        }
        Ok(times.into_iter().map(|ns| ns / 1000.0).collect())
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
