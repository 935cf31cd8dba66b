//! Disks that a cold start makes for its machine and that the image does not have: firmware, CD-ROM, seed. They are disks like the
//! others, so that a capture stores them and a fork hands them on.

use crate::machines::Machines;
use floe_api::RunRequest;
use floe_ground::{
    error::{NodeError, at, failed, refused},
    firmware::{BYTES_MAX, Uefi},
    plan::Plan,
    report::Report,
};
use floe_image::{CDROM_REGION, CHUNK_SIZE, FIRMWARE_REGION, NVRAM_REGION, is_zero};
use floe_import::seed::{SEED_BYTES, Seed};
use floe_inventory::inventory::{Entry, record::OwnDisk};
use floe_library::images::Images;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

/// How many bytes are written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What is written to a machine's own disk.
enum Content {
    /// A file's first bytes, as many as this.
    File(File, u64),
    /// What cloud-init is to set up; it is written once the machine has a name.
    Seed(Box<Seed>),
}

/// The disks that a cold start has to make, ready to be written.
#[derive(Default)]
pub struct OwnDisks(Vec<(&'static str, Content)>);

impl OwnDisks {
    /// Opens and checks all that is needed for the disks of a plan.
    pub fn prepare(
        request: &RunRequest,
        plan: &Plan,
        images: &Images,
        report: &mut Report,
    ) -> Result<OwnDisks, NodeError> {
        let mut disks = Vec::new();
        for name in &plan.own {
            let content = match *name {
                FIRMWARE_REGION => flash(&Uefi::needed()?.code)?,
                NVRAM_REGION => flash(&Uefi::needed()?.vars)?,
                CDROM_REGION => {
                    let path = request.cdrom.as_deref().unwrap_or_default();
                    let file = images.open_cdrom(Path::new(path), report)?;
                    let bytes = length(&file, Path::new(path))?;
                    Content::File(file, bytes)
                }
                _ => Content::Seed(Box::new(Seed::check(
                    request.seed.as_ref().unwrap_or(&Default::default()),
                )?)),
            };
            disks.push((*name, content));
        }
        Ok(OwnDisks(disks))
    }

    /// Returns what a machine's record says of them.
    pub fn records(&self) -> Vec<OwnDisk> {
        let bytes = |content: &Content| match content {
            Content::File(_, bytes) => bytes.next_multiple_of(CHUNK_SIZE as u64),
            Content::Seed(_) => SEED_BYTES,
        };
        let record = |(name, content): &(&str, Content)| OwnDisk {
            name: (*name).to_owned(),
            bytes: bytes(content),
            alias: None,
        };
        self.0.iter().map(record).collect()
    }
}

impl Machines {
    /// Writes the disks of a machine that is on the mount and has never run.
    pub(crate) fn write_own_disks(
        &self,
        entry: &Entry,
        disks: OwnDisks,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        if disks.0.is_empty() {
            return Ok(());
        }
        let paths = entry.state().disks.as_ref().map(|disks| disks.disk_paths());
        let paths = paths.unwrap_or_default();
        let line = report.progress_line("write disks", "bytes");
        for (name, content) in disks.0 {
            let path = paths.iter().find(|path| path.ends_with(name));
            let path = path.ok_or_else(|| {
                failed(
                    format!("machine {} has no disk {name}", entry.name),
                    "report this",
                )
            })?;
            let unwritable = || at(format!("cannot write the disk {name}"));
            let to = File::options().write(true).open(path);
            let to = to.map_err(unwritable())?;
            match content {
                Content::Seed(seed) => {
                    let instance = format!("floe-{:032x}", rand::random::<u128>());
                    let disk = seed.disk(entry.name.as_str(), &instance)?;
                    let mut progress = |_| Ok(());
                    copy(&mut disk.as_slice(), &to, &mut progress).map_err(unwritable())?;
                }
                Content::File(from, bytes) => {
                    let mut progress = |done| match line.at(done, bytes) {
                        true => Ok(()),
                        false => Err(std::io::Error::other("the client has hung up")),
                    };
                    match copy(&mut from.take(bytes), &to, &mut progress) {
                        Err(_) if report.cancel().is_cancelled() => {
                            return Err(NodeError::Cancelled);
                        }
                        done => done.map_err(unwritable())?,
                    }
                }
            }
            to.sync_all().map_err(unwritable())?;
        }
        report.stage("disks")
    }
}

/// Copies everything to a disk that is zero. `progress` is told how many bytes are done.
fn copy(
    from: &mut impl Read,
    to: &File,
    progress: &mut dyn FnMut(u64) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        let mut got = 0;
        while got < piece.len() {
            match from.read(&mut piece[got..])? {
                0 => break,
                more => got += more,
            }
        }
        if got == 0 {
            return Ok(());
        }
        // what is not written reads as zero
        if !is_zero(&piece[..got]) {
            to.write_all_at(&piece[..got], done)?;
        }
        done += got as u64;
        progress(done)?;
    }
}

fn length(mut file: &File, path: &Path) -> Result<u64, NodeError> {
    let length = file.seek(SeekFrom::End(0)).and_then(|end| {
        file.rewind()?;
        Ok(end)
    });
    length.map_err(at(format!("cannot find the size of {}", path.display())))
}

/// Opens a part of a firmware.
fn flash(path: &Path) -> Result<Content, NodeError> {
    let file = File::open(path).map_err(at(format!("cannot open {}", path.display())))?;
    let bytes = length(&file, path)?;
    if bytes > BYTES_MAX || !bytes.is_multiple_of(CHUNK_SIZE as u64) {
        return Err(refused(
            format!(
                "{} has {bytes} bytes, which no firmware has",
                path.display()
            ),
            "install the package ovmf again",
        ));
    }
    Ok(Content::File(file, bytes))
}
