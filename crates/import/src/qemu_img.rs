//! Converts formats other than raw with `qemu-img` (package `qemu-utils`). It reads strangers' files, so it is confined.
//!
//! The file comes opened from [`crate::disk_import`], which refuses files that refer to others, and is handed to
//! `qemu-img` as a descriptor. What `qemu-img` may do beyond that is decided by [`floe_machine::tool`].

use crate::{
    confined::{self, Ended},
    disk_file::{length_of, read_up_to},
    disk_format::Format,
    disk_vhd,
    unpack::check_space,
};
use floe_ground::{
    error::{NodeError, at, failed, refused},
    report::ProgressLine,
};
use floe_machine::{
    Programs,
    tool::{INPUT, OUTPUT, Tool},
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::NamedTempFile;

/// How many bytes of `qemu-img`'s output an error repeats at most.
const SAID_BYTES_MAX: usize = 2048;
/// An opened disk image.
pub struct DiskImage {
    /// The file.
    pub file: File,
    /// Its format.
    pub format: Format,
    /// Its name in messages.
    pub shown: String,
    /// The node's own temporary file that it was unpacked into; it is deleted with this value.
    pub unpacked: Option<NamedTempFile>,
    /// The disk's length in bytes, where its format tells it: less must not come out of it.
    pub bytes: Option<u64>,
    /// The size of its sectors in bytes, where its format tells it.
    pub sector: Option<u64>,
}

impl DiskImage {
    /// A disk of which nothing is known yet.
    pub fn new(file: File, shown: String, unpacked: Option<NamedTempFile>) -> DiskImage {
        DiskImage {
            file,
            format: Format::Raw,
            shown,
            unpacked,
            bytes: None,
            sector: None,
        }
    }

    /// Opens a file of the node's own as raw disk, whatever its bytes look like.
    pub fn raw(path: &Path) -> Result<DiskImage, NodeError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(at(format!("cannot open {shown}")))?;
        Ok(DiskImage::new(file, shown, None))
    }
}

/// Converts an image into a file, which is emptied first, and again if the conversion fails.
pub fn convert(
    programs: &Programs,
    from: DiskImage,
    to: &File,
    to_format: Format,
    progress: &ProgressLine,
) -> Result<(), NodeError> {
    let DiskImage {
        file,
        format,
        shown,
        unpacked: _unpacked,
        ..
    } = from;
    let limit = confined::time_limit(length_of(&file, &shown)?);
    let mut head = [0; disk_vhd::FOOTER_BYTES as usize];
    let got = read_up_to(&file, 0, &mut head).map_err(at(format!("cannot read {shown}")))?;
    let args = arguments(format, &head[..got], to_format);
    let empty = || to.set_len(0).map_err(at("cannot empty a file"));
    empty()?;
    let tool = Tool {
        program: program()?,
        args: args.iter().map(Into::into).collect(),
        input: file,
        output: to.try_clone().map_err(at("cannot share a file"))?,
    };
    let mut said = Vec::new();
    let hear = |news: &[u8]| hear(news, &mut said, progress);
    // a few bytes of a stranger's can become a disk of any size; what a user exports may take all the room that there is
    let may_go_on = || match to_format {
        Format::Raw => check_space(to, &shown),
        _ => Ok(()),
    };
    let ended = confined::run(programs, tool, limit, progress.cancel(), hear, &may_go_on);
    let result = ended.and_then(|ended| judge(ended, &said, &shown, limit));
    if result.is_err() {
        empty()?;
    }
    result
}

/// Returns what `qemu-img` is to do with a file of a format that begins so.
fn arguments(from: Format, head: &[u8], to: Format) -> Vec<String> {
    let how = match to {
        Format::Raw => ["-S", "4k"].as_slice(),
        _ => &["-c"],
    };
    let input = match from {
        // otherwise it would cut the disks of most programs to their geometry
        Format::Vpc => {
            let by = disk_vhd::calculation(head);
            let options = "driver=vpc,file.driver=file,file.filename=";
            vec![
                "--image-opts".to_owned(),
                format!("{options}{INPUT},force_size_calc={by}"),
            ]
        }
        _ => vec!["-f".to_owned(), from.name().to_owned(), INPUT.to_owned()],
    };
    let words = ["convert", "-p", "-O", to.name(), "-W", "-m", "8"];
    let words = words.iter().chain(how).map(|word| (*word).to_owned());
    words.chain(input).chain([OUTPUT.to_owned()]).collect()
}

fn judge(ended: Ended, said: &[u8], shown: &str, limit: Duration) -> Result<(), NodeError> {
    let status = match ended {
        Ended::Itself(status) if status.success() => return Ok(()),
        Ended::Itself(status) => status,
        Ended::TimedOut => {
            return Err(failed(
                format!("converting {shown} took longer than {} s", limit.as_secs()),
                "convert it yourself: qemu-img convert -O raw IN OUT",
            ));
        }
    };
    let said = match messages(said).trim() {
        "" => status.to_string(),
        said => said.replace(INPUT, shown).replace('\n', "; "),
    };
    Err(failed(
        format!("qemu-img can't convert {shown}: {said}"),
        "check the file with `qemu-img check`, and the free space",
    ))
}

/// Takes what it prints: reports the progress, and keeps the last of it all.
fn hear(news: &[u8], said: &mut Vec<u8>, progress: &ProgressLine) {
    if let Some(percent) = last_percent(news) {
        progress.at((percent * 100.0) as u64, 10_000);
    }
    said.extend_from_slice(news);
    let excess = said.len().saturating_sub(2 * SAID_BYTES_MAX);
    said.drain(..excess);
}

/// Returns what it said besides its progress.
fn messages(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines = said.split(['\r', '\n']);
    let lines = lines.filter(|line| !line.contains("/100%)") && !line.trim().is_empty());
    let said = lines.collect::<Vec<_>>().join("\n");
    said.chars().take(SAID_BYTES_MAX).collect()
}

/// Returns the last `(12.34/100%)` in what `qemu-img` printed.
fn last_percent(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let end = text.rfind("/100%)")?;
    text[..end]
        .rsplit_once('(')?
        .1
        .trim()
        .parse()
        .ok()
        .filter(|p| (0.0..=100.0).contains(p))
}

/// Returns the path of `qemu-img`.
fn program() -> Result<PathBuf, NodeError> {
    floe_ground::programs::find("qemu-img")
        .ok_or_else(|| refused("qemu-img is not installed", "apt install qemu-utils"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_what_qemu_img_prints() {
        assert_eq!(
            last_percent(b"    (0.00/100%)\r    (12.50/100%)\r"),
            Some(12.5)
        );
        for garbage in [
            &b""[..],
            b"(",
            b"/100%)",
            b"(x/100%)",
            b"(900/100%)",
            b"\xff\xfe",
        ] {
            assert_eq!(last_percent(garbage), None);
        }
    }
}
