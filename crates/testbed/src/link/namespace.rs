//! One end of a link: a network namespace.
//!
//! It has no name unless [`Namespace::publish`] gives it one: it is held by a descriptor, so it disappears with the
//! process, even if that is killed, and nothing needs to be cleaned up. `ip netns add` would leave a mount behind.
use super::sys;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `ip netns` looks for names.
const NAMED: &str = "/run/netns";

/// A network namespace with its loopback enabled.
pub struct Namespace {
    handle: File,
    published: Option<PathBuf>,
}

impl Namespace {
    /// Creates an unnamed namespace. Needs root (CAP_SYS_ADMIN).
    pub fn new() -> io::Result<Namespace> {
        let handle = std::thread::spawn(|| {
            sys::unshare_network()?;
            File::open("/proc/thread-self/ns/net")
        })
        .join()
        .expect("the thread only makes system calls")
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no network namespace of our own ({error}); run as root"),
            )
        })?;
        let namespace = Namespace {
            handle,
            published: None,
        };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Returns another handle of the same namespace, which lives until both are dropped.
    pub fn another(&self) -> io::Result<Namespace> {
        Ok(Namespace {
            handle: self.handle.try_clone()?,
            published: None,
        })
    }

    /// Makes the namespace visible to `ip netns exec NAME` and `nsenter --net=/run/netns/NAME` until it is dropped.
    pub fn publish(&mut self, name: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(NAMED)?;
        let path = Path::new(NAMED).join(name);
        File::create_new(&path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "{}: {error}; `ip netns del {name}` removes an old one",
                    path.display()
                ),
            )
        })?;
        let from = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        if let Err(error) = rustix::mount::mount_bind(from, &path) {
            let _ = fs::remove_file(&path);
            return Err(error.into());
        }
        self.published = Some(path.clone());
        Ok(path)
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices, as fast as the kernel copies. Addresses look like
    /// `10.78.0.1/30`.
    pub fn join_by_veth(
        &self,
        other: &Namespace,
        address: &str,
        others_address: &str,
    ) -> io::Result<()> {
        let theirs = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            other.handle.as_raw_fd()
        );
        self.ip(&format!(
            "link add floe1 type veth peer name floe1 netns {theirs}"
        ))?;
        for (end, address) in [(self, address), (other, others_address)] {
            end.ip(&format!("addr add {address} dev floe1"))?;
            end.ip("link set floe1 up")?;
        }
        Ok(())
    }

    /// Returns a command that will run inside. Only its network differs: files, mounts and processes are the same.
    pub fn command(&self, program: impl AsRef<OsStr>) -> io::Result<Command> {
        let mut command = Command::new(program);
        sys::run_in(&mut command, self.handle.try_clone()?, false);
        Ok(command)
    }

    /// Like [`Namespace::command`], but the process is killed when the thread that starts it ends.
    pub fn command_that_dies_with_us(&self, program: impl AsRef<OsStr>) -> io::Result<Command> {
        let mut command = Command::new(program);
        sys::run_in(&mut command, self.handle.try_clone()?, true);
        Ok(command)
    }

    /// Runs `work` on a thread inside; sockets and threads that it creates stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                sys::enter_network(self.handle.as_fd())?;
                Ok(work())
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip ARGUMENTS` inside.
    pub fn ip(&self, arguments: &str) -> io::Result<()> {
        self.tool("ip", "iproute2", arguments)
    }

    /// Runs a program of a Debian package inside.
    pub fn tool(&self, program: &str, package: &str, arguments: &str) -> io::Result<()> {
        let output = self
            .command(program)?
            .args(arguments.split_whitespace())
            .output()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => io::Error::new(
                    error.kind(),
                    format!("`{program}` is missing; install the Debian package {package}"),
                ),
                _ => error,
            })?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

impl AsRawFd for Namespace {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.handle.as_raw_fd()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(path) = &self.published {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            let _ = fs::remove_file(path);
        }
    }
}
