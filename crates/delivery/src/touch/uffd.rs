//! The alternative to a FUSE mapping: a userfaultfd server like those of Firecracker and others, over the same store.
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;
const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_COPY: libc::c_ulong = 0xC028_AA03;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
/// Offset of a page fault's address in a message of 32 bytes.
const ADDRESS_AT: usize = 16;
/// How often an idle server checks whether it should end, in milliseconds.
const STOP_CHECK_MS: libc::c_int = 50;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// A userfaultfd.
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Registers this process's memory from `start`.
    pub fn register(start: u64, len: u64) -> io::Result<Uffd> {
        // SAFETY: a system call without pointers; the descriptor that it returns is ours.
        let fd = unsafe {
            let fd = check(
                libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK)
                    as libc::c_int,
            )?;
            OwnedFd::from_raw_fd(fd)
        };
        let mut api = Api {
            api: UFFD_API,
            features: 0,
            ioctls: 0,
        };
        let mut register = Register {
            start,
            len,
            mode: REGISTER_MISSING,
            ioctls: 0,
        };
        // SAFETY: each ioctl reads and writes one struct of its own layout, which outlives the call.
        unsafe {
            check(libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &mut api))?;
            check(libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &mut register))?;
        }
        Ok(Uffd(fd))
    }

    /// Answers faults in the memory from `start` on until `stop`: `page` writes the page with the given index.
    pub fn serve(
        fd: &OwnedFd,
        start: u64,
        stop: &AtomicBool,
        mut page: impl FnMut(usize, &mut [u8; PAGE]),
    ) -> io::Result<()> {
        let mut buffer = [0u8; PAGE];
        let mut message = [0u8; 32];
        while !stop.load(Relaxed) {
            match rustix::io::read(fd.as_fd(), &mut message) {
                Ok(32) if message[0] == EVENT_PAGEFAULT => {}
                Ok(_) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    let mut poll = libc::pollfd {
                        fd: fd.as_raw_fd(),
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    // SAFETY: one live pollfd.
                    unsafe { libc::poll(&mut poll, 1, STOP_CHECK_MS) };
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let address: [u8; 8] = message[ADDRESS_AT..ADDRESS_AT + 8]
                .try_into()
                .expect("eight of 32 bytes");
            let dst = u64::from_le_bytes(address) & !(PAGE as u64 - 1);
            page(((dst - start) / PAGE as u64) as usize, &mut buffer);
            let mut copy = Copy {
                dst,
                src: buffer.as_ptr() as u64,
                len: PAGE as u64,
                mode: 0,
                copied: 0,
            };
            // SAFETY: the kernel reads one page from `buffer` and writes it into the other process, at a page that it
            // has just reported as missing.
            match check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_COPY, &mut copy) }) {
                // The process has ended, or two threads have touched the same page.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ESRCH | libc::EEXIST | libc::EAGAIN)
                    ) => {}
                other => _ = other?,
            }
        }
        Ok(())
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
