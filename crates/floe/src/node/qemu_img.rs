//! Other formats than raw, by `qemu-img` (package `qemu-utils`), and the traps that foreign disk images hold.
//!
//! A qcow2 or vmdk file can name other files of the host (a backing file, an external data file, an extent outside of its
//! directory), and a reader with the node's rights would copy them into the image. Such files are refused.

use crate::node::{
    error::{NodeError, at, failed, refused},
    report::{CANCEL_POLL, ProgressLine},
};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Longest answer of `qemu-img info` that is read.
const INFO_BYTES_MAX: u64 = 1 << 20;
/// Beginnings of formats that are not raw. A disk whose first sector looks like this is asked about.
const MAGICS: [(usize, &[u8]); 6] = [
    (0, b"QFI\xfb"),
    (0, b"KDMV"),
    (0, b"# Disk DescriptorFile"),
    (0, b"conectix"),
    (0, b"vhdxfile"),
    (0x40, b"\x7f\x10\xda\xbe"),
];

/// The format of a disk image, `raw` if nothing else.
pub fn format_of(path: &Path) -> Result<String, NodeError> {
    let shown = path.display();
    let mut head = [0; 512];
    let mut file = File::open(path).map_err(at(format!("cannot open {shown}")))?;
    let len = read_up_to(&mut file, &mut head).map_err(at(format!("cannot read {shown}")))?;
    let known = MAGICS
        .iter()
        .any(|(offset, magic)| head[..len].get(*offset..offset + magic.len()) == Some(*magic));
    if !known {
        return Ok("raw".into());
    }
    let output = Command::new("qemu-img")
        .args(["info", "--output=json", "-U", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(missing)?;
    if !output.status.success() {
        return Err(refused(
            format!(
                "{shown} can't be read: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            "check the file with `qemu-img check`",
        ));
    }
    let bytes = &output.stdout[..output.stdout.len().min(INFO_BYTES_MAX as usize)];
    let info: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| {
        failed(
            format!("qemu-img's answer about {shown}: {error}"),
            "report this",
        )
    })?;
    check_info(&shown.to_string(), &info)
}

/// Reads `qemu-img info`: the format, or why the file is refused.
fn check_info(shown: &str, info: &serde_json::Value) -> Result<String, NodeError> {
    let data = &info["format-specific"]["data"];
    for (key, value) in [
        ("backing file", &info["full-backing-filename"]),
        ("data file", &data["data-file"]),
    ] {
        if let Some(other) = value.as_str() {
            return Err(refused(
                format!("{shown} needs the {key} {other}"),
                "make it stand alone first: qemu-img convert -O qcow2 IN OUT",
            ));
        }
    }
    // a vmdk descriptor lists its extents; anything that leaves the directory is no part of this disk
    for extent in data["extents"].as_array().into_iter().flatten() {
        let name = extent["filename"].as_str().unwrap_or_default();
        let dir = Path::new(shown).parent().unwrap_or(Path::new("/"));
        if Path::new(name)
            .parent()
            .is_some_and(|parent| parent != dir && parent != Path::new(""))
        {
            return Err(refused(
                format!("{shown} has an extent outside of its directory: {name}"),
                "make it stand alone first: qemu-img convert -O qcow2 IN OUT",
            ));
        }
    }
    info["format"].as_str().map(str::to_owned).ok_or_else(|| {
        refused(
            format!("qemu-img does not tell the format of {shown}"),
            "convert it to raw or qcow2 yourself",
        )
    })
}

/// Converts between formats; `None` of `progress` means in silence.
pub fn convert(
    from: &Path,
    from_format: &str,
    to: &Path,
    to_format: &str,
    progress: &ProgressLine,
) -> Result<(), NodeError> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-p", "-f", from_format, "-O", to_format]);
    match to_format {
        "raw" => command.args(["-S", "4k", "-W", "-m", "8"]),
        _ => command.args(["-c", "-W", "-m", "8"]),
    };
    let child = command
        .arg("--")
        .arg(from)
        .arg(to)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let result = watch(child, progress);
    if result.is_err() {
        let _ = std::fs::remove_file(to);
    }
    result
}

fn watch(mut child: Child, progress: &ProgressLine) -> Result<(), NodeError> {
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let (percents, seen) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(len @ 1..) = stdout.read(&mut buffer) {
            if let Some(percent) = last_percent(&buffer[..len]) {
                let _ = percents.send(percent);
            }
        }
    });
    let status = loop {
        if let Some(percent) = seen.try_iter().last() {
            progress.at((percent * 100.0) as u64, 10_000);
        }
        if !progress.goes_on() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = reader.join();
            return Err(NodeError::Cancelled);
        }
        if let Some(status) = child.try_wait().map_err(at("cannot wait for qemu-img"))? {
            break status;
        }
        std::thread::sleep(CANCEL_POLL);
    };
    let _ = reader.join();
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(INFO_BYTES_MAX).read_to_string(&mut said);
    }
    Err(failed(
        format!("qemu-img failed: {}", said.trim()),
        "check the file with `qemu-img check`, and the free space",
    ))
}

/// The last `(12.34/100%)` in what qemu-img printed.
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

fn missing(error: io::Error) -> NodeError {
    match error.kind() {
        io::ErrorKind::NotFound => refused("qemu-img is not installed", "apt install qemu-utils"),
        _ => NodeError::Io {
            what: "cannot start qemu-img".into(),
            source: error,
        },
    }
}

fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..])? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_disk_that_reaches_for_other_files_is_refused() {
        let backing = json!({"format": "qcow2", "full-backing-filename": "/etc/shadow"});
        let external =
            json!({"format": "qcow2", "format-specific": {"data": {"data-file": "/etc/shadow"}}});
        let extent = json!({"format": "vmdk", "format-specific": {"data": {"extents": [{"filename": "/etc/shadow"}]}}});
        for info in [backing, external, extent] {
            let error = check_info("/images/x", &info).unwrap_err().to_string();
            assert!(error.contains("/etc/shadow"), "{error}");
        }
        let beside = json!({"format": "vmdk", "format-specific": {"data": {"extents": [{"filename": "/images/x-s001.vmdk"}]}}});
        assert_eq!(check_info("/images/x", &beside).unwrap(), "vmdk");
    }

    #[test]
    fn a_file_without_a_known_beginning_is_raw_even_without_qemu() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("empty", &b""[..]),
            ("short", b"QF"),
            ("disk", &[0x55; 1024]),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(format_of(&path).unwrap(), "raw");
        }
    }

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
