//! The kernel's FUSE protocol (`include/uapi/linux/fuse.h`, 7.31 to 7.45): decodes requests from bytes and encodes answers to
//! bytes, in host byte order, without pointer casts. It has only the part of the protocol that this mount uses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The major version of the protocol that this mount speaks. (The kernel adapts to a lower minor version.)
pub(crate) const KERNEL_MAJOR: u32 = 7;
/// The minor version that this mount speaks: 7.40 brought RESEND.
pub(crate) const KERNEL_MINOR: u32 = 40;
/// The lowest minor version of the kernel that has everything this mount needs (7.31, Linux 5.4).
pub(crate) const KERNEL_MINOR_MIN: u32 = 31;

/// Bytes of `fuse_in_header`.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Bytes of `fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// Bytes of `fuse_write_in`, between a WRITE's header and its data.
pub(crate) const WRITE_IN_BYTES: usize = 40;

pub(crate) mod op {
    //! Opcodes of requests.
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
}

pub(crate) mod notify {
    //! Codes of messages that this process sends to the kernel unasked.
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RESEND: i32 = 7;
}

pub(crate) mod init {
    //! Flags that INIT negotiates.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

pub(crate) mod open {
    //! How the kernel is to treat an open file.
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// SETATTR: the size is to be changed.
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
/// WRITE: the data comes from the page cache, because somebody wrote to a shared mapping.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;

/// `fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    /// The user of the thread that made the request.
    pub uid: u32,
    /// The thread that made the request; 0 when the kernel made it on its own.
    pub pid: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Splits a request into header and body; `None` when it is shorter than its header says.
pub(crate) fn parse(request: &[u8]) -> Option<(Header, &[u8])> {
    let header = Header {
        len: u32_at(request, 0)?,
        opcode: u32_at(request, 4)?,
        unique: u64_at(request, 8)?,
        node: u64_at(request, 16)?,
        uid: u32_at(request, 24)?,
        pid: u32_at(request, 32)?,
    };
    let body = request.get(IN_HEADER_BYTES..header.len as usize)?;
    Some((header, body))
}

/// Decodes `fuse_init_in`: returns the major version, the minor version and the flags.
pub(crate) fn parse_init(body: &[u8]) -> Option<(u32, u32, u64)> {
    let flags = u64::from(u32_at(body, 12)?);
    let more = if flags & init::INIT_EXT != 0 {
        u64::from(u32_at(body, 16)?)
    } else {
        0
    };
    Some((u32_at(body, 0)?, u32_at(body, 4)?, flags | more << 32))
}

/// Decodes a name that ends with a NUL; `None` if it doesn't, or isn't UTF-8.
pub(crate) fn parse_name(body: &[u8]) -> Option<&str> {
    let end = body.iter().position(|b| *b == 0)?;
    OsStr::from_bytes(&body[..end]).to_str()
}

/// Decodes `fuse_read_in`: returns offset and size in bytes.
pub(crate) fn parse_read(body: &[u8]) -> Option<(u64, u32)> {
    Some((u64_at(body, 8)?, u32_at(body, 16)?))
}

/// Decodes `fuse_open_in`: returns whether the file is to be opened for writing.
pub(crate) fn parse_open(body: &[u8]) -> Option<bool> {
    let flags = u32_at(body, 0)? as i32;
    Some(flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Decodes `fuse_write_in`: returns offset, flags and data.
pub(crate) fn parse_write(body: &[u8]) -> Option<(u64, u32, &[u8])> {
    let size = u32_at(body, 16)? as usize;
    let data = body.get(WRITE_IN_BYTES..)?.get(..size)?;
    Some((u64_at(body, 8)?, u32_at(body, 20)?, data))
}

/// Decodes `fuse_setattr_in`: returns the mask of attributes to change, and the size.
pub(crate) fn parse_setattr(body: &[u8]) -> Option<(u32, u64)> {
    Some((u32_at(body, 0)?, u64_at(body, 16)?))
}

/// Decodes `fuse_fallocate_in`: returns offset, length and mode.
pub(crate) fn parse_fallocate(body: &[u8]) -> Option<(u64, u64, u32)> {
    Some((u64_at(body, 8)?, u64_at(body, 16)?, u32_at(body, 24)?))
}

/// Decodes `fuse_interrupt_in`: returns the id (`unique`) of the request that is interrupted.
pub(crate) fn parse_interrupt(body: &[u8]) -> Option<u64> {
    u64_at(body, 0)
}

/// The attributes of a file that the kernel gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub ino: u64,
    pub size: u64,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A message to the kernel that is being encoded: appends values in host byte order.
#[derive(Default)]
pub(crate) struct Out(pub Vec<u8>);

impl Out {
    pub(crate) fn u64(mut self, v: u64) -> Self {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, v: u32) -> Self {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(mut self, v: &[u8]) -> Self {
        self.0.extend_from_slice(v);
        self
    }

    fn zeros(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    fn attr(self, a: &Attr) -> Self {
        self.u64(a.ino)
            .u64(a.size)
            .u64(a.size.div_ceil(512))
            .zeros(3 * 8 + 3 * 4)
            .u32(a.mode)
            .u32(a.links)
            .u32(a.uid)
            .u32(a.gid)
            .u32(0)
            .u32(4096)
            .u32(0)
    }
}

/// How long the kernel may keep names and attributes, in seconds. In effect for ever: changes are announced to it.
const VALID_S: u64 = 1 << 30;

/// Encodes `fuse_out_header`: `len` is the body's length; `error` is a negative errno, or a notification's code.
pub(crate) fn out_header(len: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    let total = (OUT_HEADER_BYTES + len) as u32;
    header[..4].copy_from_slice(&total.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Encodes `fuse_entry_out`.
pub(crate) fn entry(attr: &Attr) -> Vec<u8> {
    Out::default()
        .u64(attr.ino)
        .u64(0)
        .u64(VALID_S)
        .u64(VALID_S)
        .u32(0)
        .u32(0)
        .attr(attr)
        .0
}

/// Encodes `fuse_attr_out`.
pub(crate) fn attr_out(attr: &Attr) -> Vec<u8> {
    Out::default().u64(VALID_S).u32(0).u32(0).attr(attr).0
}

/// Encodes `fuse_open_out` without a file handle: requests name the inode, so that a takeover needs no table of open files.
pub(crate) fn open_out(flags: u32) -> Vec<u8> {
    Out::default().u64(0).u32(flags).u32(0).0
}

/// Encodes `fuse_init_out`.
pub(crate) fn init_out(
    flags: u64,
    max_readahead: u32,
    max_background: u16,
    max_write: u32,
    max_pages: u16,
) -> Vec<u8> {
    let background =
        u32::from(max_background) | u32::from(max_background - max_background / 4) << 16;
    Out::default()
        .u32(KERNEL_MAJOR)
        .u32(KERNEL_MINOR)
        .u32(max_readahead)
        .u32(flags as u32)
        .bytes(&background.to_le_bytes())
        .u32(max_write)
        .u32(1)
        .bytes(&max_pages.to_ne_bytes())
        .bytes(&[0; 2])
        .u32((flags >> 32) as u32)
        .zeros(7 * 4)
        .0
}

/// Encodes `fuse_statfs_out`, with zeros for all sizes and free space.
pub(crate) fn statfs_out() -> Vec<u8> {
    Out::default()
        .zeros(5 * 8)
        .u32(4096)
        .u32(255)
        .u32(4096)
        .zeros(4 + 6 * 4)
        .0
}

/// Appends a `fuse_dirent` unless that would make `out` longer than `most` bytes; returns whether it fitted.
pub(crate) fn push_dirent(
    out: &mut Vec<u8>,
    most: usize,
    ino: u64,
    next: u64,
    directory: bool,
    name: &str,
) -> bool {
    let padded = (24 + name.len()).next_multiple_of(8);
    if out.len() + padded > most {
        return false;
    }
    let kind = if directory {
        libc::S_IFDIR
    } else {
        libc::S_IFREG
    } >> 12;
    let entry = Out::default()
        .u64(ino)
        .u64(next)
        .u32(name.len() as u32)
        .u32(kind)
        .bytes(name.as_bytes());
    out.extend_from_slice(&entry.0);
    out.resize(out.len() + padded - 24 - name.len(), 0);
    true
}

/// Encodes `fuse_notify_store_out`.
pub(crate) fn notify_store(node: u64, offset: u64, size: u32) -> Vec<u8> {
    Out::default().u64(node).u64(offset).u32(size).u32(0).0
}

/// Encodes `fuse_notify_inval_entry_out`, followed by its name.
pub(crate) fn notify_inval_entry(parent: u64, name: &str) -> Vec<u8> {
    Out::default()
        .u64(parent)
        .u32(name.len() as u32)
        .u32(0)
        .bytes(name.as_bytes())
        .bytes(&[0])
        .0
}

/// Encodes `fuse_notify_inval_inode_out`: the kernel is to drop `len` bytes of cached data from `offset` on.
pub(crate) fn notify_inval_inode(node: u64, offset: u64, len: u64) -> Vec<u8> {
    Out::default().u64(node).u64(offset).u64(len).0
}

/// Encodes `fuse_notify_inval_inode_out` with an offset that is negative: the kernel is to ask for the attributes again, and waits for
/// no page.
pub(crate) fn notify_inval_attributes(node: u64) -> Vec<u8> {
    notify_inval_inode(node, -1_i64 as u64, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers_have_the_sizes_of_the_kernels_structs() {
        let attr = Attr {
            ino: 1,
            size: 2,
            mode: 3,
            links: 4,
            uid: 5,
            gid: 6,
        };
        assert_eq!(entry(&attr).len(), 128);
        assert_eq!(attr_out(&attr).len(), 104);
        assert_eq!(open_out(1).len(), 16);
        assert_eq!(init_out(0, 4096, 64, 1 << 20, 256).len(), 64);
        assert_eq!(statfs_out().len(), 80);
        assert_eq!(notify_store(1, 2, 3).len(), 24);
        assert_eq!(notify_inval_entry(1, "ab").len(), 19);
        assert_eq!(notify_inval_inode(1, 2, 3).len(), 24);
    }

    #[test]
    fn a_directory_listing_stops_before_it_is_too_long() {
        let mut out = Vec::new();
        assert!(push_dirent(&mut out, 64, 7, 1, true, "images"));
        assert_eq!(out.len(), 32);
        assert!(push_dirent(&mut out, 64, 8, 2, false, "12345678"));
        assert!(!push_dirent(&mut out, 64, 9, 3, false, "x"));
        assert_eq!(out.len(), 64);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some((_, body)) = parse(&bytes) {
                parse_init(body);
            }
            parse_name(&bytes);
            parse_read(&bytes);
            parse_open(&bytes);
            parse_write(&bytes);
            parse_setattr(&bytes);
            parse_fallocate(&bytes);
            parse_interrupt(&bytes);
            parse_init(&bytes);
        }
    }
}
