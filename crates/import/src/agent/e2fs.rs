//! An ext2, ext3 or ext4 file system inside of a disk, seen through `debugfs` and `e2fsck` (package `e2fsprogs`), which are
//! confined: no kernel mounts it, and the links in it lead nowhere but into it.

use super::{
    decide::{DIRECTORIES, NAMES, Plan, READ, Tree},
    stat::{self, Entry, Kind},
};
use crate::{
    confined::{self, Ended},
    disk_file::read_up_to,
    disk_import::Scratch,
};
use floe_ground::{
    error::{NodeError, at, failed, refused},
    programs::find_admin,
};
use floe_machine::{
    Programs,
    tool::{INPUT, OUTPUT, Tool},
};
use floe_threads::Cancel;
use std::{
    fs::File,
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

/// How many bytes of what a program says are kept: what comes first.
const SAID_BYTES_MAX: usize = 8192;
/// How many characters of that an error repeats.
const SHOWN_MAX: usize = 1024;

/// What the programs need of the node.
pub struct Host<'a> {
    /// As which programs they run.
    pub programs: &'a Programs,
    /// The client's wish to end.
    pub cancel: &'a Cancel,
    /// Where temporary files are made.
    pub tmp: &'a Path,
    /// Makes a file for a disk.
    pub scratch: &'a Scratch<'a>,
}

/// A file system in a disk's file.
pub struct FileSystem<'a> {
    host: &'a Host<'a>,
    disk: &'a File,
    shown: &'a str,
    first: u64,
}

/// How a check found a file system.
pub enum Checked {
    /// In order.
    Clean,
    /// It is in order now: a journal was replayed, or something was mended that can be without a loss.
    Mended,
    /// Damaged.
    Damaged(String),
}

impl<'a> FileSystem<'a> {
    /// One that begins at the byte `first` of a disk, which messages call `shown`.
    pub fn new(host: &'a Host<'a>, disk: &'a File, shown: &'a str, first: u64) -> FileSystem<'a> {
        FileSystem {
            host,
            disk,
            shown,
            first,
        }
    }

    /// Looks at what matters of its content. Changes nothing, and may be done with a file that is open for reading only.
    pub fn look(&self) -> Result<Tree, NodeError> {
        let mut tree = Tree::default();
        // each question is a program, so what can't be there is not asked for
        let can_be_there = |tree: &Tree, name: &str| {
            let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
            !DIRECTORIES.contains(&parent)
                || matches!(tree.entries.get(parent), Some(entry) if entry.kind == Kind::Directory)
        };
        for name in DIRECTORIES {
            if !can_be_there(&tree, name) {
                continue;
            }
            // what is behind a link counts
            if let Some(entry) = self.entry(&format!("{name}/."))? {
                tree.entries.insert(name, entry);
            } else if let Some(entry) = self.entry(name)? {
                tree.entries.insert(name, entry);
            }
            // without this one it is no system, and nothing else matters
            if tree.entries.is_empty() {
                return Ok(tree);
            }
        }
        for name in NAMES {
            if !can_be_there(&tree, name) {
                continue;
            }
            if let Some(entry) = self.entry(name)? {
                tree.entries.insert(name, entry);
            }
        }
        for (name, most) in READ {
            let fits = |entry: &Entry| entry.kind == Kind::File && entry.bytes <= most;
            if tree.entries.get(name).is_some_and(fits) {
                tree.files.insert(name, self.content(name)?);
            }
        }
        Ok(tree)
    }

    fn entry(&self, name: &str) -> Result<Option<Entry>, NodeError> {
        let said = self.read_only(&format!("stat {name}"), self.temporary()?)?;
        Ok(stat::entry(&said))
    }

    fn content(&self, name: &str) -> Result<Vec<u8>, NodeError> {
        let mut file = self.temporary()?;
        let share = file.try_clone().map_err(at("cannot share a file"))?;
        self.read_only(&format!("dump {name} {OUTPUT}"), share)?;
        let mut content = Vec::new();
        file.rewind()
            .and_then(|()| file.read_to_end(&mut content))
            .map_err(at("cannot read a temporary file"))?;
        Ok(content)
    }

    /// Runs a command that reads.
    fn read_only(&self, command: &str, output: File) -> Result<Vec<u8>, NodeError> {
        // -c: reads no more than the command needs, and so of a damaged file system too
        let args = ["-c".into(), "-R".into(), command.into(), self.device(INPUT)];
        let (code, said) = self.run("debugfs", args.into(), self.share()?, output)?;
        match code {
            Some(0) => Ok(said),
            _ => Err(self.failed("debugfs", &said)),
        }
    }

    /// Makes the changes of a plan. Whether they were made is for [`FileSystem::look`] to say; returns what debugfs said.
    pub fn change(&self, plan: &Plan) -> Result<String, NodeError> {
        let mut said = self.commands(&plan.before())?;
        for (name, _, content) in &plan.files {
            let args = [
                "-w".into(),
                "-R".into(),
                format!("write {INPUT} {name}"),
                self.device(OUTPUT),
            ];
            let (_, more) = self.run("debugfs", args.into(), self.with(content)?, self.share()?)?;
            said.extend(more);
        }
        said.extend(self.commands(&plan.after())?);
        Ok(shown(&said))
    }

    fn commands(&self, commands: &str) -> Result<Vec<u8>, NodeError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let args = ["-w".into(), "-f".into(), "-".into(), self.device(OUTPUT)];
        let input = self.with(commands.as_bytes())?;
        Ok(self.run("debugfs", args.into(), input, self.share()?)?.1)
    }

    /// Whether its journal has something that is to be replayed, but can't be: e2fsck looks for the file system at the disk's
    /// beginning after a replay.
    pub fn has_stuck_journal(&self) -> Result<bool, NodeError> {
        const FEATURES_AT: u64 = 1024 + 0x60;
        const RECOVER: u32 = 1 << 2;
        let mut features = [0; 4];
        read_up_to(
            self.disk,
            self.first.saturating_add(FEATURES_AT),
            &mut features,
        )
        .map_err(at(format!("cannot read {}", self.shown)))?;
        Ok(self.first > 0 && u32::from_le_bytes(features) & RECOVER != 0)
    }

    /// Whether what a check finds can be mended: for the same reason, only if it fills the disk.
    pub fn is_mendable(&self) -> bool {
        self.first == 0
    }

    /// Has it checked. With `mend` its journal is replayed, and mended what can be without a loss, as before a mount.
    pub fn check(&self, mend: bool) -> Result<Checked, NodeError> {
        const MENDED: [i32; 2] = [1, 2];
        let args = [
            "-f".into(),
            if mend { "-p" } else { "-n" }.into(),
            self.device(OUTPUT),
        ];
        let (code, said) = self.run("e2fsck", args.into(), self.temporary()?, self.share()?)?;
        Ok(match code {
            Some(0) => Checked::Clean,
            Some(code) if mend && MENDED.contains(&code) => Checked::Mended,
            _ => Checked::Damaged(shown(&said)),
        })
    }

    /// Runs a program; returns its exit code, if it ended by itself, and the first of what it said.
    fn run(
        &self,
        program: &str,
        args: Vec<String>,
        input: File,
        output: File,
    ) -> Result<(Option<i32>, Vec<u8>), NodeError> {
        let length = |file: &File| file.metadata().map_or(0, |meta| meta.len());
        let tool = Tool {
            program: find(program)?,
            args: args.into_iter().map(Into::into).collect(),
            input,
            output,
        };
        let mut said = Vec::new();
        let hear = |news: &[u8]| {
            let room = SAID_BYTES_MAX - said.len();
            said.extend_from_slice(&news[..news.len().min(room)]);
        };
        let limit = confined::time_limit(length(self.disk));
        let host = self.host;
        match confined::run(host.programs, tool, limit, host.cancel, hear, &|| Ok(()))? {
            Ended::Itself(status) => Ok((status.code(), said)),
            Ended::TimedOut => Err(self.failed(program, b"it took too long")),
        }
    }

    fn failed(&self, program: &str, said: &[u8]) -> NodeError {
        failed(
            format!("{program} can't work on {}: {}", self.shown, shown(said)),
            super::LATER,
        )
    }

    /// The name by which a program opens the disk.
    fn device(&self, name: &str) -> String {
        match self.first {
            0 => name.into(),
            first => format!("{name}?offset={first}"),
        }
    }

    fn share(&self) -> Result<File, NodeError> {
        self.disk.try_clone().map_err(at("cannot share a file"))
    }

    fn temporary(&self) -> Result<File, NodeError> {
        tempfile::tempfile_in(self.host.tmp).map_err(at("cannot make a temporary file"))
    }

    fn with(&self, content: &[u8]) -> Result<File, NodeError> {
        let mut file = self.temporary()?;
        file.write_all(content)
            .and_then(|()| file.rewind())
            .map_err(at("cannot write a temporary file"))?;
        Ok(file)
    }
}

/// What a program said, for a message: on one line, without what it says each time.
fn shown(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines = said.lines().map(str::trim);
    let lines = lines.filter(|line| {
        let banner = ["debugfs 1.", "e2fsck 1.", "debugfs: ", "Allocated inode"];
        !line.is_empty() && !banner.iter().any(|start| line.starts_with(start))
    });
    let said = lines
        .collect::<Vec<_>>()
        .join("; ")
        .replace(OUTPUT, "the disk");
    said.chars().take(SHOWN_MAX).collect()
}

fn find(program: &str) -> Result<PathBuf, NodeError> {
    find_admin(program).ok_or_else(|| {
        refused(
            format!("{program} is not installed"),
            "apt install e2fsprogs",
        )
    })
}
