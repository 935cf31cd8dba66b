//! Names of machines: they become directory names, host names and URL segments, so they are plain.

use std::{fmt, str::FromStr};

/// Longest name of a machine: `machines/NAME/run/console.sock` must fit in a socket address (108 bytes).
pub const MACHINE_NAME_MAX: usize = 40;

/// A machine's name: `[a-z0-9][a-z0-9-]*`, at most [`MACHINE_NAME_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineName(String);

/// A name that no machine can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "machine name {0:?} is not allowed; use 1 to {MACHINE_NAME_MAX} of a-z, 0-9 and '-', not starting with '-'"
)]
pub struct NameError(pub String);

impl MachineName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name made from an image's (`https://hub/team/debian:12` gives `debian`), with a number if it is taken.
    pub fn from_image(image: &str, taken: impl Fn(&MachineName) -> bool) -> MachineName {
        let last = image
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or(image);
        let base: String = last
            .split(':')
            .next()
            .unwrap_or(last)
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .take(MACHINE_NAME_MAX - NUMBER_DIGITS)
            .collect();
        let base = match base.trim_matches('-') {
            "" => "machine",
            base if base.len() > SHORT_ID && base.bytes().all(|b| b.is_ascii_hexdigit()) => {
                &base[..SHORT_ID]
            }
            base => base,
        };
        let plain = MachineName(base.to_owned());
        if !taken(&plain) {
            return plain;
        }
        (2u32..)
            .map(|number| MachineName(format!("{base}-{number}")))
            .find(|name| !taken(name))
            .expect("fewer than 2^32 machines on a node")
    }
}

/// Room for `-NUMBER` behind a name.
const NUMBER_DIGITS: usize = 11;
/// So much of an image id names a machine.
const SHORT_ID: usize = 12;

impl FromStr for MachineName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if text.is_empty()
            || text.len() > MACHINE_NAME_MAX
            || text.starts_with('-')
            || !text.bytes().all(plain)
        {
            return Err(NameError(text.chars().take(2 * MACHINE_NAME_MAX).collect()));
        }
        Ok(MachineName(text.to_owned()))
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        for text in [
            "",
            ".",
            "..",
            "a/b",
            "../x",
            "-x",
            "Web",
            "a b",
            "ü",
            "a\0",
            &"x".repeat(41),
        ] {
            assert!(text.parse::<MachineName>().is_err(), "{text:?}");
        }
        assert_eq!("web-1".parse::<MachineName>().unwrap().as_str(), "web-1");
    }

    #[test]
    fn a_machine_is_named_after_its_image_and_numbered_if_taken() {
        let free = |_: &MachineName| false;
        assert_eq!(
            MachineName::from_image("https://hub.example/team/Debian:12", free).as_str(),
            "debian"
        );
        assert_eq!(MachineName::from_image("///", free).as_str(), "machine");
        assert_eq!(
            MachineName::from_image(&"ab".repeat(32), free).as_str(),
            "abababababab"
        );
        let name =
            MachineName::from_image("tiny", |name| ["tiny", "tiny-2"].contains(&name.as_str()));
        assert_eq!(name.as_str(), "tiny-3");
        let long = MachineName::from_image(&"x".repeat(300), |name| !name.as_str().contains('-'));
        assert!(long.as_str().parse::<MachineName>().is_ok());
    }
}
