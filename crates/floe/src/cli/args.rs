//! Parsers for values on the command line.

use std::path::{Path, PathBuf};

use super::error::CliError;

/// Whether strangers' device states are loaded.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TrustArgs {
    /// Load the image's running state whoever made it. QEMU trusts a state that it loads, so a node that does not run as root refuses
    /// a stranger's without this
    #[arg(long)]
    pub trust: bool,
}

/// How long hooks in a guest may take.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HooksArgs {
    /// How many seconds the guest's hooks (/etc/floe/hooks.d in it) may take before its state is taken: 10 by default; 0 runs none
    #[arg(long, value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(floe_api::HOOKS_S_MAX)))]
    pub hooks: Option<u32>,
}

/// Parses a number of bytes: `512M`, `1.5G`, `64KiB`, `4096`. Units are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let help = "write a number and a unit, such as 512M or 1.5G";
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit
        .strip_suffix("ib")
        .or(unit.strip_suffix('b'))
        .unwrap_or(&unit)
    {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("unknown unit {unit:?}; {help}")),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| format!("no number; {help}"))?;
    let whole = whole
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("too large; {help}"))?;
    // The fraction of a unit, exact enough: nobody writes more than a few digits.
    let part = match fraction {
        "" => 0.0,
        f => format!("0.{f}")
            .parse::<f64>()
            .map_err(|_| format!("no number; {help}"))?,
    };
    whole
        .checked_add((part * (1u64 << shift) as f64) as u64)
        .ok_or_else(|| format!("too large; {help}"))
}

/// Parses a duration into seconds: `90s`, `10m`, `1h`, `30d`, or a bare number of seconds.
pub fn time_s(text: &str) -> Result<u64, String> {
    let help = "write a number and a unit, such as 10m, 1h or 30d";
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        unit => return Err(format!("unknown unit {unit:?}; {help}")),
    };
    let number: u64 = number.parse().map_err(|_| format!("no number; {help}"))?;
    number
        .checked_mul(seconds)
        .ok_or_else(|| format!("too long; {help}"))
}

/// Least memory of a machine, in bytes.
const MEMORY_MIN: u64 = 1 << 20;
/// The smallest number that is taken for one of MiB if its unit is missing.
const MEMORY_MIB_LEAST: u64 = 16;

/// Parses a machine's memory: a size of at least 1 MiB (a bare `512` is probably a mistake).
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes >= MEMORY_MIN {
        return Ok(bytes);
    }
    // a number without its unit; less than this was no number of MiB either
    let bare = text.bytes().all(|byte| byte.is_ascii_digit()) && bytes >= MEMORY_MIB_LEAST;
    let way_out = match bare {
        true => format!("did you mean {bytes}M?"),
        false => "write a number and a unit, such as 512M or 1.5G".into(),
    };
    Err(format!("{text:?} is too little for a machine; {way_out}"))
}

/// Parses `KEY=VALUE`.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as team=web".into()),
    }
}

/// Makes a path absolute for the node, which has another working directory. It must exist.
pub fn existing(path: &Path) -> Result<String, CliError> {
    let found = std::fs::canonicalize(path).map_err(|e| CliError::file("open", path, e))?;
    text(found)
}

/// Makes a path absolute for the node; it need not exist.
pub fn absolute(path: &Path) -> Result<String, CliError> {
    text(std::path::absolute(path).map_err(|e| CliError::file("resolve", path, e))?)
}

fn text(path: PathBuf) -> Result<String, CliError> {
    path.into_os_string().into_string().map_err(|path| {
        CliError::usage(
            format!("the path {path:?} is not UTF-8"),
            "rename it, or make a symbolic link to it",
        )
    })
}

/// Returns an image in a form that the node can use: an address, a directory made absolute, or an unchanged name.
pub fn image(image: &str) -> Result<String, CliError> {
    // A name cannot begin with these, so they are unambiguous.
    if image.starts_with("./") || image.starts_with("../") || image == "." || image == ".." {
        return absolute(Path::new(image));
    }
    Ok(image.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(time_s("90"), Ok(90));
        assert_eq!(time_s("10m"), Ok(600));
        assert_eq!(time_s("1h"), Ok(3600));
        assert_eq!(time_s("30d"), Ok(2_592_000));
        for bad in ["", "h", "1w", "1.5h", "-1", "99999999999999999999d"] {
            assert!(time_s(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("2GiB", 2 << 30),
            ("1 TB", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "1X",
            "-1",
            "1..5G",
            "99999999999999G",
            "1e3",
            "0x10",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_forgotten_unit_is_noticed() {
        assert!(memory("512").unwrap_err().contains("did you mean 512M"));
        for text in ["0", "0M", "1", "512K", "0.5", "00"] {
            let error = memory(text).unwrap_err();
            assert!(!error.contains("did you mean"), "{error}");
            assert!(error.contains("such as 512M"), "{error}");
        }
        assert_eq!(memory("512M"), Ok(512 << 20));
    }

    #[test]
    fn labels_have_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("=b").is_err() && label("a").is_err());
    }

    #[test]
    fn directories_are_told_from_names() {
        assert_eq!(image("debian:v1").unwrap(), "debian:v1");
        assert_eq!(image("https://h/x").unwrap(), "https://h/x");
        assert!(image("./repo").unwrap().starts_with('/'));
    }
}
