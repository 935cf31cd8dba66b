//! Names of machines: they become directory names, host names and URL segments, so they are plain.

use std::{fmt, str::FromStr};

/// Longest name of a machine: a clone's has its family's numbers as well, and all of it fits in a host name (63 bytes) and in a column.
pub const MACHINE_NAME_MAX: usize = 40;

/// How many letters of a misspelt name may be wrong, for it to be recognised.
const LETTERS_MAX: usize = 3;

/// A machine's name: `[a-z0-9][a-z0-9-]*`, at most [`MACHINE_NAME_MAX`] bytes. A clone's name is its parent's with a number
/// appended: `web.1`, and `web.1.3` for a clone of that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineName(String);

/// A name that no machine can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "machine name {0:?} is not allowed; use 1 to {MACHINE_NAME_MAX} of a-z, 0-9 and '-', not starting with '-' (clones are NAME.1, NAME.2)"
)]
pub struct NameError(pub String);

impl MachineName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of a clone of this machine; `None` if it would be too long.
    pub fn clone_name(&self, number: u32) -> Option<MachineName> {
        format!("{self}.{number}").parse().ok()
    }

    /// Returns the number of a clone of this machine; `None` if the name is not that of one.
    pub fn number_of(&self, clone: &str) -> Option<u32> {
        let rest = clone.strip_prefix(self.as_str())?.strip_prefix('.')?;
        rest.parse().ok()
    }

    /// Returns the parent's name, if this is a clone's name.
    pub fn parent_of(clone: &str) -> Option<&str> {
        let (parent, number) = clone.rsplit_once('.')?;
        number.parse::<u32>().ok().map(|_| parent)
    }

    /// Makes a name from an image's (`https://hub/team/debian:12` gives `debian`), with a number appended if it is taken.
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

/// Room for `-NUMBER` at the end of a name, in bytes.
const NUMBER_DIGITS: usize = 11;
/// How many characters of an image id name a machine.
const SHORT_ID: usize = 12;

impl FromStr for MachineName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let mut parts = text.split('.');
        let first = parts.next().unwrap_or_default();
        let number = |part: &str| {
            part.parse::<u32>()
                .is_ok_and(|n| n > 0 && n.to_string() == part)
        };
        if first.is_empty()
            || text.len() > MACHINE_NAME_MAX
            || text.starts_with('-')
            || !first.bytes().all(plain)
            || !parts.all(number)
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

/// Returns which of the known names a misspelt one may have meant: the nearest, if a few letters make it that.
pub fn similar<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters_max = (asked.chars().count() / 3).clamp(1, LETTERS_MAX);
    let near = known.map(|name| (strsim::osa_distance(asked, name), name));
    let nearest = near.filter(|(letters, _)| *letters <= letters_max).min();
    nearest.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_another_is_not_guessed_at() {
        let near = |asked| similar(asked, ["debian", "web", "web.1", "db"].into_iter());
        assert_eq!(near("debain"), Some("debian"));
        assert_eq!(near("wbe"), Some("web"));
        assert_eq!(near("web.2"), Some("web.1"));
        assert_eq!(near("mail"), None);
        assert_eq!(near("x"), None);
        assert_eq!(similar("web", std::iter::empty()), None);
    }

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
    fn a_clone_has_its_parents_name_and_a_number() {
        let web: MachineName = "web".parse().unwrap();
        let clone = web.clone_name(3).unwrap();
        assert_eq!(clone.as_str(), "web.3");
        assert_eq!(clone.clone_name(12).unwrap().as_str(), "web.3.12");
        assert_eq!(web.number_of("web.3"), Some(3));
        for other in ["web", "web.3.1", "webber.3", "web.x", "we.3"] {
            assert_eq!(web.number_of(other), None, "{other}");
        }
        for bad in [
            ".1",
            "web.",
            "web.0",
            "web.01",
            "web.x",
            "web..1",
            "web.+1",
            "web.4294967296",
        ] {
            assert!(bad.parse::<MachineName>().is_err(), "{bad}");
        }
        let long: MachineName = "x".repeat(MACHINE_NAME_MAX).parse().unwrap();
        assert_eq!(long.clone_name(1), None);
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
