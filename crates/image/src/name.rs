//! Names of images that people use.

use std::fmt;
use std::str::FromStr;

/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 128;
/// Most bytes of a tag.
pub const TAG_BYTES_MAX: usize = 128;
const TAG_DEFAULT: &str = "latest";

/// A `name:tag`, which points to an image and can be moved to another; the tag defaults to `latest`. A name is safe to use as a
/// relative path: each part between `/` begins with a letter or digit, so `..`, `//` and hidden files can't occur.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName {
    name: String,
    tag: String,
}

/// The error for text that isn't an image name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no image name: {why}; use NAME or NAME:TAG, such as debian or team/web:v2")]
pub struct NameError {
    text: String,
    why: String,
}

impl ImageName {
    /// Parses `name` or `name:tag`. The name is 1 to 128 of `a-z 0-9 . _ - /`; each part between `/` begins with a letter or
    /// digit; no `..`. The tag is 1 to 128 of `a-z A-Z 0-9 . _ -` and begins with a letter, digit or `_`; no `..`.
    pub fn parse(text: &str) -> Result<ImageName, NameError> {
        let fail = |why: String| NameError {
            text: text.chars().take(160).collect(),
            why,
        };
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, tag),
            None => (text, TAG_DEFAULT),
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(fail(format!(
                "the name has {} bytes, 1 to {NAME_BYTES_MAX} are allowed",
                name.len()
            )));
        }
        let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        if let Some(c) = name.chars().find(|&c| !in_name(c)) {
            return Err(fail(format!(
                "{c:?} is not allowed in the name (a-z 0-9 . _ - /)"
            )));
        }
        let begins =
            |part: &str| part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if let Some(part) = name.split('/').find(|part| !begins(part)) {
            return Err(fail(format!(
                "the part {part:?} of the name does not begin with a letter or digit"
            )));
        }
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
            return Err(fail(format!(
                "the tag has {} bytes, 1 to {TAG_BYTES_MAX} are allowed",
                tag.len()
            )));
        }
        if let Some(c) = tag
            .chars()
            .find(|&c| !(c.is_ascii_alphanumeric() || "._-".contains(c)))
        {
            return Err(fail(format!(
                "{c:?} is not allowed in the tag (a-z A-Z 0-9 . _ -)"
            )));
        }
        if tag.starts_with(['.', '-']) {
            return Err(fail("the tag begins with . or -".into()));
        }
        if text.contains("..") {
            return Err(fail("it contains ..".into()));
        }
        Ok(ImageName {
            name: name.to_owned(),
            tag: tag.to_owned(),
        })
    }

    /// Returns the part before the colon.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the part after the colon, `latest` if none was given.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

impl FromStr for ImageName {
    type Err = NameError;

    fn from_str(s: &str) -> Result<ImageName, NameError> {
        ImageName::parse(s)
    }
}
