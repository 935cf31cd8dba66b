//! Tags, and the names that a user may use for an image.

use std::path::PathBuf;
use std::time::SystemTime;

use floe_image::{Hash, ImageName};
use rustix::fs::FlockOperation;

use super::{Repository, read_bounded};
use crate::{StoreError, durable};

/// Most bytes of a tag's file; floe writes at most 86.
const TAG_FILE_BYTES_MAX: u64 = 256;
/// Fewest digits of a prefix that may stand for an id.
const PREFIX_DIGITS_MIN: usize = 6;
/// Most bytes of a file name on Linux file systems.
const FILE_NAME_BYTES_MAX: usize = 255;

/// A tag and the image that it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagEntry {
    /// The name.
    pub name: ImageName,
    /// The image.
    pub id: Hash,
    /// When the tag was last moved, seconds since 1970.
    pub created_unix_s: u64,
}

/// Returns the name of a tag's file in `tags/`: `team/web:v2` is `team~web~~v2`. No image name contains a tilde, and tildes
/// need no escape in a URL.
pub fn tag_file_name(name: &ImageName) -> String {
    format!("{}~~{}", name.name().replace('/', "~"), name.tag())
}

fn name_of_file(file: &str) -> Option<ImageName> {
    let (name, tag) = file.split_once("~~")?;
    let parsed = ImageName::parse(&format!("{}:{tag}", name.replace('~', "/"))).ok()?;
    (tag_file_name(&parsed) == file).then_some(parsed)
}

/// Decodes a tag's file: the image, and when the tag was moved there, in seconds since 1970.
pub fn parse_tag_file(bytes: &[u8]) -> Option<(Hash, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (id, time) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((id.parse().ok()?, time.parse().ok()?))
}

impl Repository {
    fn tag_path(&self, name: &ImageName) -> PathBuf {
        self.dir().join("tags").join(tag_file_name(name))
    }

    fn read_tag(&self, name: &ImageName) -> Result<Option<(Hash, u64)>, StoreError> {
        let path = self.tag_path(name);
        match read_bounded(&path, TAG_FILE_BYTES_MAX) {
            Ok(bytes) => parse_tag_file(&bytes)
                .map(Some)
                .ok_or_else(|| StoreError::Invalid {
                    what: format!(
                        "{} is damaged; tag the image again with `floe image tag`",
                        path.display()
                    ),
                }),
            Err(StoreError::Io { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::ENOENT | libc::ENAMETOOLONG)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the image with this `name`, `name:tag`, full id or unique prefix of an id (at least 6 hex digits). A name is
    /// looked up before a prefix.
    pub fn resolve(&self, name: &str) -> Result<Hash, StoreError> {
        self.resolve_among(name, &|_| true)
    }

    /// Does the same as if the images that `sees` says no to did not exist.
    pub fn resolve_among(
        &self,
        name: &str,
        sees: &dyn Fn(&Hash) -> bool,
    ) -> Result<Hash, StoreError> {
        if let Ok(id) = name.parse::<Hash>() {
            return if sees(&id) && self.contains(&id)? {
                Ok(id)
            } else {
                Err(self.no_image(format!("image {id}")))
            };
        }
        let parsed = ImageName::parse(name);
        if let Ok(parsed) = &parsed
            && let Some((id, _)) = self.read_tag(parsed)?
            && sees(&id)
        {
            return Ok(id);
        }
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if name.len() >= PREFIX_DIGITS_MIN && name.len() < 64 && name.bytes().all(hex) {
            let mut matches = self.image_ids()?;
            matches.retain(|id| id.to_string().starts_with(name) && sees(id));
            matches.sort_unstable();
            match matches[..] {
                [] => {}
                [id] => return Ok(id),
                _ => {
                    return Err(StoreError::Ambiguous {
                        prefix: name.to_owned(),
                        matches,
                    });
                }
            }
        }
        match parsed {
            Ok(parsed) => Err(self.no_image(format!("image {parsed}"))),
            Err(why) => Err(StoreError::Invalid {
                what: why.to_string(),
            }),
        }
    }

    /// Makes `name` point to an image that is here.
    pub fn tag(&self, name: &ImageName, id: &Hash) -> Result<(), StoreError> {
        let file = tag_file_name(name);
        if file.len() > FILE_NAME_BYTES_MAX {
            return Err(StoreError::Invalid {
                what: format!(
                    "{name} is too long for a file's name by {}; shorten name or tag",
                    file.len() - FILE_NAME_BYTES_MAX
                ),
            });
        }
        // the image is not removed meanwhile, nor is the file that gets the tag's name swept as litter
        let _lock = self.lock(FlockOperation::LockShared)?;
        if !self.contains(id)? {
            return Err(self.no_image(format!("image {id}")));
        }
        let now = unix_now();
        self.write_file(&self.tag_path(name), format!("{id} {now}\n").as_bytes())
    }

    /// Removes a name; the image stays. Returns the image that it pointed to.
    pub fn untag(&self, name: &ImageName) -> Result<Hash, StoreError> {
        let Some((id, _)) = self.read_tag(name)? else {
            return Err(self.no_image(format!("tag {name}")));
        };
        let path = self.tag_path(name);
        std::fs::remove_file(&path).map_err(|e| StoreError::io("remove", &path, e))?;
        durable::sync_parent(&path)?;
        Ok(id)
    }

    /// Returns all tags, sorted by name. A damaged one is left out, with a warning in the log.
    pub fn tags(&self) -> Result<Vec<TagEntry>, StoreError> {
        self.tags_or(|damaged| {
            tracing::warn!(error = %damaged, "a tag cannot be read");
            Ok(())
        })
    }

    /// Returns all tags, for whoever removes what has none: a damaged one is an error, because nobody knows what it points to.
    pub fn all_tags(&self) -> Result<Vec<TagEntry>, StoreError> {
        self.tags_or(Err)
    }

    fn tags_or(
        &self,
        damaged: impl Fn(StoreError) -> Result<(), StoreError>,
    ) -> Result<Vec<TagEntry>, StoreError> {
        let dir = self.dir().join("tags");
        let mut tags = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|e| StoreError::io("list", &dir, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &dir, e))?;
            let Some(name) = entry.file_name().to_str().and_then(name_of_file) else {
                continue;
            };
            match self.read_tag(&name) {
                Ok(Some((id, created_unix_s))) => tags.push(TagEntry {
                    name,
                    id,
                    created_unix_s,
                }),
                Ok(None) => {}
                Err(error @ StoreError::Invalid { .. }) => damaged(error)?,
                Err(error) => return Err(error),
            }
        }
        tags.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tags)
    }
}

pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_tags_file_name_tells_its_name_and_stays_in_the_folder(
            name in "[a-z0-9][a-z0-9._-]{0,8}(/[a-z0-9][a-z0-9._-]{0,8}){0,2}", tag in "[A-Za-z0-9_][A-Za-z0-9._-]{0,8}",
        ) {
            if let Ok(parsed) = ImageName::parse(&format!("{name}:{tag}")) {
                let file = tag_file_name(&parsed);
                prop_assert!(!file.contains('/') && !file.starts_with('.'));
                prop_assert_eq!(name_of_file(&file), Some(parsed));
            }
        }

        #[test]
        fn foreign_tag_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            parse_tag_file(&bytes);
        }
    }
}
