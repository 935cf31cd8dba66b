//! Converts formats other than raw with `qemu-img` (package `qemu-utils`). It reads strangers' files, so it is confined.
//!
//! The file comes opened from [`crate::images::disk_import`], which refuses files that refer to others, and is handed to
//! `qemu-img` as a descriptor. What `qemu-img` may do beyond that is decided by [`floe_machine::tool`].

use crate::{
    error::{NodeError, at, failed, refused},
    images::disk_format::Format,
    report::ProgressLine,
};
use floe_machine::{
    Programs,
    tool::{INPUT, OUTPUT, Tool},
};
use floe_threads::Waited;
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// How many bytes of `qemu-img`'s output an error repeats at most.
const SAID_BYTES_MAX: usize = 2048;
/// How long a conversion may take at least, whatever its input: time to read tables on a busy host.
const TIME_LEAST: Duration = Duration::from_secs(600);
/// A conversion may take one more second for each such number of input bytes; any disk reads ten times as fast.
const BYTES_PER_S_LEAST: u64 = 1 << 20;

/// An opened disk image.
pub struct DiskImage {
    pub(crate) file: File,
    /// Its format.
    pub format: Format,
    /// Its name in messages.
    pub(crate) shown: String,
    /// The node's own temporary file that it was unpacked into; it is deleted with this value.
    pub(crate) unpacked: Option<NamedTempFile>,
}

impl DiskImage {
    /// Opens a file of the node's own as raw disk, whatever its bytes look like.
    pub fn raw(path: &Path) -> Result<DiskImage, NodeError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(at(format!("cannot open {shown}")))?;
        Ok(DiskImage {
            file,
            format: Format::Raw,
            shown,
            unpacked: None,
        })
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
    } = from;
    let bytes = file.metadata().map_or(0, |m| m.len());
    let limit = TIME_LEAST + Duration::from_secs(bytes / BYTES_PER_S_LEAST);
    let mut args = vec!["convert", "-p", "-f", format.name(), "-O", to_format.name()];
    match to_format {
        Format::Raw => args.extend(["-S", "4k", "-W", "-m", "8"]),
        _ => args.extend(["-c", "-W", "-m", "8"]),
    };
    args.extend([INPUT, OUTPUT]);
    let empty = || to.set_len(0).map_err(at("cannot empty a file"));
    empty()?;
    let tool = Tool {
        program: program()?,
        args: args.iter().map(Into::into).collect(),
        input: file,
        output: to.try_clone().map_err(at("cannot share a file"))?,
    };
    let child = tool.start(programs).map_err(at("cannot start qemu-img"))?;
    let result = watch(child, &shown, limit, progress);
    if result.is_err() {
        empty()?;
    }
    result
}

/// Waits until `qemu-img` ends, and reports its progress. Kills it when the client has gone or the time is over.
fn watch(
    mut child: Child,
    shown: &str,
    limit: Duration,
    progress: &ProgressLine,
) -> Result<(), NodeError> {
    let pipe = child.stderr.take();
    let until = Instant::now().checked_add(limit);
    let (waited, status, said) = floe_threads::scope(|scope| {
        let hear = || pipe.map(|pipe| listen(pipe, progress)).unwrap_or_default();
        let listener = scope.try_spawn("qemu-img", hear);
        let waited = match &listener {
            Ok(_) => floe_threads::ended(&child, until, Some(progress.cancel())),
            Err(_) => Ok(Waited::TimedOut),
        };
        if !matches!(waited, Ok(Waited::Come(()))) {
            let _ = child.kill(); // it may have ended already
        }
        let status = child.wait();
        let said = listener.map(|listener| listener.join().unwrap_or_default());
        (waited, status, said)
    });
    let said = said?;
    match waited.map_err(at("cannot wait for qemu-img"))? {
        Waited::Come(()) => {}
        Waited::Cancelled => return Err(NodeError::Cancelled),
        Waited::TimedOut => {
            return Err(failed(
                format!("converting {shown} took longer than {} s", limit.as_secs()),
                "convert it yourself: qemu-img convert -O raw IN OUT",
            ));
        }
    }
    let status = status.map_err(at("cannot wait for qemu-img"))?;
    if status.success() {
        return Ok(());
    }
    let said = match said.trim() {
        "" => status.to_string(),
        said => said.replace(INPUT, shown).replace('\n', "; "),
    };
    Err(failed(
        format!("qemu-img can't convert {shown}: {said}"),
        "check the file with `qemu-img check`, and the free space",
    ))
}

/// Reads its output to the end: reports the progress, and returns the last of the rest.
fn listen(mut pipe: ChildStderr, progress: &ProgressLine) -> String {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = pipe.read(&mut buffer) {
        let news = &buffer[..len];
        if let Some(percent) = last_percent(news) {
            progress.at((percent * 100.0) as u64, 10_000);
        }
        said.extend_from_slice(news);
        let excess = said.len().saturating_sub(2 * SAID_BYTES_MAX);
        said.drain(..excess);
    }
    let said = String::from_utf8_lossy(&said).into_owned();
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("qemu-img"))
        .find(|file| file.is_file())
        .ok_or_else(|| refused("qemu-img is not installed", "apt install qemu-utils"))
}

/// Fills the buffer as far as the file has bytes there; returns how many.
pub(crate) fn read_up_to(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        let Some(at) = offset
            .checked_add(len as u64)
            .filter(|at| *at < i64::MAX as u64)
        else {
            break;
        };
        match file.read_at(&mut buffer[len..], at)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
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
