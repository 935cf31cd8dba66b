//! Puts floe's agent into the root file system of a disk that is being imported.
//!
//! The disk is a stranger's: `debugfs` and `e2fsck` read and write it confined, and no kernel mounts it. `decide.rs` says what is
//! missing in the system; `e2fs.rs` looks and writes; here it is found out where the system is. The user's file is only read:
//! what is written is the node's own copy, which holds the data of the disk without its holes, or shares it where the host's file
//! system can do that. Nothing is copied for a disk that is refused, or that has the agent already.

mod decide;
mod e2fs;
mod stat;

use crate::{disk_content, disk_file::read_up_to, disk_import::open_input};
use decide::Tree;
pub use e2fs::Host;
use e2fs::{Checked, FileSystem};
use floe_api::AgentReport;
use floe_extents::{partitions, signatures::EXT4};
use floe_ground::{
    error::{NodeError, at, failed, not_found, refused, usage},
    files::may_be_there,
    report::{ProgressLine, Report},
};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// What a user can do instead.
const LATER: &str =
    "import it without --agent, start it, and install the agent in it: floe agent install NAME";
/// Largest program of an agent, bytes.
const PROGRAM_BYTES_MAX: u64 = 64 << 20;
/// ext4 file systems of one disk that are looked into for a system.
const LOOKS_MAX: usize = 16;
/// How many bytes are copied at once.
const BLOCK_BYTES: usize = 4 << 20;

/// Where the agent's program is looked for besides the directory of floe's own.
const PLACES: [&str; 2] = ["/usr/local/lib/floe/floe-guest", "/usr/lib/floe/floe-guest"];

/// Returns where the agent's program is installed with this one.
pub fn installed() -> Result<PathBuf, NodeError> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name("floe-guest");
    // of a tarball that was unpacked anywhere
    let below = own.parent().and_then(Path::parent);
    let below = below.map(|prefix| prefix.join("lib/floe/floe-guest"));
    let places = PLACES.iter().map(PathBuf::from);
    let mut places = [beside].into_iter().chain(below).chain(places);
    places.find(|path| may_be_there(path)).ok_or_else(|| {
        not_found(
            format!(
                "the agent's program is neither beside floe nor in {}",
                PLACES[1]
            ),
            "name it with --agent; `make guest-tools` builds crates/guest/build/floe-guest",
        )
    })
}

/// The agent's program.
pub struct Agent(Vec<u8>);

impl Agent {
    /// Reads the program that a caller names, or, with an empty path, the installed one.
    pub fn open(path: &str) -> Result<Agent, NodeError> {
        let mut program = Vec::new();
        let installed = match path {
            "" => installed()?.display().to_string(),
            _ => String::new(),
        };
        let path = if path.is_empty() { &installed } else { path };
        if !Path::new(path).is_absolute() {
            return Err(usage(
                format!("{path} is no absolute path"),
                "give the whole path",
            ));
        }
        open_input(Path::new(path))?
            .take(PROGRAM_BYTES_MAX + 1)
            .read_to_end(&mut program)
            .map_err(at(format!("cannot read {path}")))?;
        match program.starts_with(b"\x7fELF") && program.len() as u64 <= PROGRAM_BYTES_MAX {
            true => Ok(Agent(program)),
            false => Err(refused(
                format!("{path} is not the program of floe's agent"),
                "name floe-guest, which is installed with floe",
            )),
        }
    }
}

/// A raw disk whose file the node has opened.
pub struct RawDisk {
    /// The file.
    pub file: File,
    /// Its name in messages.
    pub shown: String,
    /// The size of its sectors in bytes, if it is not the usual one.
    pub sector: Option<u32>,
    /// The file, if it is the node's own.
    pub own: Option<NamedTempFile>,
}

/// Where a system was found on a disk.
struct Root {
    /// The partition's number; `None` if the file system is not in one.
    partition: Option<u32>,
    first: u64,
    tree: Tree,
}

impl Root {
    fn place(&self, shown: &str) -> String {
        match self.partition {
            Some(number) => format!("partition {number} of {shown}"),
            None => shown.to_owned(),
        }
    }
}

/// Puts the agent into a disk. Returns the disk to import instead, and what was done.
///
/// # Errors
/// If there is no system on the disk that the agent can be put into, or the client has gone.
pub fn put(
    host: &Host,
    agent: &Agent,
    disk: RawDisk,
    report: &mut Report,
) -> Result<(RawDisk, AgentReport), NodeError> {
    let root = find_root(&disk, &|first| {
        FileSystem::new(host, &disk.file, &disk.shown, first).look()
    })?;
    let place = root.place(&disk.shown);
    let plan = |tree: &Tree| {
        let refused = |why: decide::Refusal| {
            refused(
                format!("the agent can't be put into {place}: {}", why.text()),
                LATER,
            )
        };
        tree.plan(&agent.0).map_err(refused)
    };
    let done = |starter, already_there| AgentReport {
        partition: root.partition,
        started_by: starter,
        already_there,
    };
    let first_plan = plan(&root.tree)?;
    report.stage("look for a system")?;
    if first_plan.is_done() {
        return Ok((disk, done(first_plan.starter, true)));
    }
    if FileSystem::new(host, &disk.file, &place, root.first).has_stuck_journal()? {
        return Err(refused(
            format!(
                "the system in {place} was not shut down, and its journal has to be replayed by itself"
            ),
            LATER,
        ));
    }
    let disk = own_copy(host, disk, report)?;
    let length = length(&disk)?;
    let inside = FileSystem::new(host, &disk.file, &place, root.first);
    match inside.check(inside.is_mendable())? {
        Checked::Clean => {}
        Checked::Mended => report.note(format!(
            "{place} was not unmounted cleanly: e2fsck has put it in order, as a start of the system would"
        )),
        Checked::Damaged(said) => {
            return Err(refused(format!("{place} has a damaged file system: {said}"), LATER));
        }
    }
    // a journal may have had more to say
    let plan_now = plan(&inside.look()?)?;
    let said = inside.change(&plan_now)?;
    let is_whole = matches!(inside.check(false)?, Checked::Clean);
    if !is_whole || !plan(&inside.look()?)?.is_done() || self::length(&disk)? != length {
        return Err(failed(
            format!("the agent could not be written into {place}: {said}"),
            LATER,
        ));
    }
    report.stage("install the agent")?;
    Ok((disk, done(plan_now.starter, false)))
}

/// Returns the disk in a file of the node's own.
fn own_copy(host: &Host, disk: RawDisk, report: &mut Report) -> Result<RawDisk, NodeError> {
    if disk.own.is_some() {
        return Ok(disk);
    }
    let own = (host.scratch)()?;
    let line = report.progress_line("copy", "bytes");
    copy(&disk.file, own.as_file(), length(&disk)?, &line)
        .map_err(at(format!("cannot copy {}", disk.shown)))?;
    report.stage("copy")?;
    Ok(RawDisk {
        file: own
            .as_file()
            .try_clone()
            .map_err(at("cannot share a file"))?,
        shown: disk.shown,
        sector: disk.sector,
        own: Some(own),
    })
}

fn length(disk: &RawDisk) -> Result<u64, NodeError> {
    let end = (&disk.file).seek(SeekFrom::End(0));
    end.map_err(at(format!("cannot find the size of {}", disk.shown)))
}

/// Copies a file, or has the file system share its content. Ends early if the client has gone, which the next stage tells.
fn copy(from: &File, to: &File, bytes: u64, progress: &ProgressLine) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    to.set_len(bytes)?;
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < bytes {
        let Some((start, end)) = floe_store::next_data(from, at, bytes)? else {
            break;
        };
        at = start;
        while at < end.min(bytes) {
            let most = (end.min(bytes) - at).min(BLOCK_BYTES as u64) as usize;
            let got = read_up_to(from, at, &mut buffer[..most])?;
            if got == 0 {
                return Ok(()); // the file has become shorter; it is cut off, which e2fsck sees
            }
            // a block device has no holes; its zeros become some
            if buffer[..got].iter().any(|byte| *byte != 0) {
                to.write_all_at(&buffer[..got], at)?;
            }
            at += got as u64;
            if !progress.at(at, bytes) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Finds the one file system that holds a system.
fn find_root(
    disk: &RawDisk,
    look: &dyn Fn(u64) -> Result<Tree, NodeError>,
) -> Result<Root, NodeError> {
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(&disk.file, offset, buffer);
    let unreadable = || at(format!("cannot read {}", disk.shown));
    let table = partitions::read(&read).map_err(unreadable())?;
    let parts = table.iter().flat_map(|table| &table.partitions);
    let parts = parts.filter(|part| !part.holds_no_data());
    let places =
        std::iter::once((None, 0)).chain(parts.map(|part| (Some(part.number), part.first)));
    let (mut roots, mut others, mut looks) = (Vec::new(), Vec::new(), 0);
    for (partition, first) in places {
        let content = disk_content::file_system(&read, first).map_err(unreadable())?;
        let mut what = content.unwrap_or("nothing that floe knows");
        if content == Some(EXT4) && looks < LOOKS_MAX {
            looks += 1;
            let tree = look(first)?;
            if tree.is_root() {
                roots.push(Root {
                    partition,
                    first,
                    tree,
                });
                continue;
            }
            what = "ext4 without a system";
        }
        match partition {
            Some(number) => others.push(format!("partition {number} has {what}")),
            None if table.is_none() || content == Some(EXT4) => {
                others.push(format!("it has {what}"))
            }
            None => {}
        }
    }
    let shown = &disk.shown;
    if roots.len() > 1 {
        let numbers: Vec<String> = roots.iter().map(|root| root.place(shown)).collect();
        return Err(refused(
            format!("several systems are on this disk: {}", numbers.join(", ")),
            LATER,
        ));
    }
    roots.pop().ok_or_else(|| {
        refused(
            format!(
                "the agent can only be put into an ext2, ext3 or ext4 file system with a system in it, and {shown} has none: {}",
                others.join(", ")
            ),
            LATER,
        )
    })
}
