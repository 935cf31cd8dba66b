//! A bucket as a place that images are written to.
//!
//! A bucket has the same files as a repository in a directory. Those with contents of their own (packs, manifests) are named by hash,
//! and nothing is ever removed, so writers don't disturb each other. What makes an image visible is written last: its packs, its
//! layout, its manifest, and then the name that points to it. A reader sees an image whole or not at all, whatever moment a writer
//! dies at; packs that it has left are found by their names when the next one comes.

use std::path::Path as FilePath;

use bytes::Bytes;
use floe_image::{Hash, ImageName, Kind, Layout, PACK_FOOTER_BYTES, PACK_HEADER_BYTES, PackRef};
use floe_store::{VERSION_TEXT, tag_file_name};
use floe_threads::Cancel;

use super::Bucket;
use crate::packed::{Objects, PackBytes, pack_path};
use crate::{Purpose, Request, SourceError};

/// Most objects of a kind that are listed: packs of 8 TiB, as many as an image may have.
const LISTED_MAX: usize = floe_image::LAYOUT_PACKS_MAX as usize;
/// Most bytes of the file that says of which version a repository is.
const VERSION_BYTES_MAX: u64 = 256;

/// A pack or an image that is in a bucket, as the bucket lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id, by its name: the content is not checked.
    pub id: Hash,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was written, seconds since 1970.
    pub written_unix_s: u64,
}

impl Bucket {
    /// Returns its address, for messages.
    pub fn at(&self) -> &str {
        &self.0.objects().at
    }

    /// Makes a repository of the prefix unless it is one. Fails if it is one of another version.
    pub fn begin(&self, cancel: &Cancel) -> Result<(), SourceError> {
        if self.is_repository()? {
            return Ok(());
        }
        let what = "the repository's version";
        let text = Bytes::from_static(VERSION_TEXT.as_bytes());
        let bucket = self.0.objects();
        match bucket.put("version", text.clone(), true, what, cancel) {
            Ok(true) => Ok(()),
            // another writer was quicker
            Ok(false) => self.is_repository().map(drop),
            // a server without conditional writes; all writers write the same
            Err(SourceError::Unsupported { .. }) => {
                bucket.put("version", text, false, what, cancel).map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the prefix is a repository; one of another version is an error.
    fn is_repository(&self) -> Result<bool, SourceError> {
        let what = "the repository's version";
        let bucket = self.0.objects();
        match bucket.get("version", VERSION_BYTES_MAX, what, &self.request()) {
            Ok(text) if text == VERSION_TEXT.as_bytes() => Ok(true),
            Ok(text) => Err(SourceError::Unsupported {
                at: bucket.at.clone(),
                reason: format!(
                    "its file `version` says {:?}, this floe knows {:?}; use another prefix, or the floe that made it",
                    String::from_utf8_lossy(&text).trim(),
                    VERSION_TEXT.trim()
                ),
            }),
            Err(SourceError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the packs that are there, in no particular order.
    pub fn packs(&self) -> Result<Vec<Listed>, SourceError> {
        self.listed("packs", ".pack")
    }

    /// Returns the images that have a layout there, in no particular order. One that is being written is among them.
    pub fn images(&self) -> Result<Vec<Listed>, SourceError> {
        self.listed("images", ".layout")
    }

    fn listed(&self, dir: &str, suffix: &str) -> Result<Vec<Listed>, SourceError> {
        let bucket = self.0.objects();
        let mut listed = Vec::new();
        bucket.list(dir, self.0.patience(), &mut |object| {
            let name = object.location.filename().unwrap_or_default();
            let id = name.strip_suffix(suffix).and_then(|id| id.parse().ok());
            if listed.len() >= LISTED_MAX {
                return Err(SourceError::Unsupported {
                    at: bucket.at.clone(),
                    reason: format!(
                        "{dir}/ has more than {LISTED_MAX} objects; push to another prefix"
                    ),
                });
            }
            listed.extend(id.map(|id| Listed {
                id,
                bytes: object.size,
                written_unix_s: object.last_modified.timestamp().try_into().unwrap_or(0),
            }));
            Ok(())
        })?;
        Ok(listed)
    }

    /// Reads where a pack's index is from the pack's end.
    pub fn pack_ref(&self, pack: &Listed) -> Result<PackRef, SourceError> {
        let what = format!("the end of pack {}", pack.id.short());
        let invalid = |why: &dyn std::fmt::Display| self.0.invalid(&what, why);
        let start = pack.bytes.checked_sub(PACK_FOOTER_BYTES);
        let start = start.filter(|start| *start > PACK_HEADER_BYTES);
        let start = start.ok_or_else(|| invalid(&"it is too short"))?;
        let (range, request) = (start..start + PACK_FOOTER_BYTES, self.request());
        let objects = self.0.objects();
        let footer = objects.pack_range(&pack.id, range, &what, &request)?;
        let found = PackRef::from_footer(&footer, pack.bytes).map_err(|e| invalid(&e))?;
        match found.id == pack.id {
            true => Ok(found),
            false => Err(invalid(&format!("it is pack {}", found.id))),
        }
    }

    /// Returns the items of a pack, in the order of the file.
    pub fn pack_items(&self, pack: &PackRef) -> Result<Vec<(Kind, Hash)>, SourceError> {
        self.0.pack_items(pack, &self.request())
    }

    /// Writes a pack. Whoever writes one of the same name writes the same.
    pub fn put_pack(&self, id: &Hash, bytes: Bytes, cancel: &Cancel) -> Result<(), SourceError> {
        let what = format!("pack {}", id.short());
        self.put(&pack_path(id), bytes, &what, cancel)
    }

    /// Writes an image's layout and then its manifest. All packs of the layout must be there.
    pub fn put_image(
        &self,
        id: &Hash,
        manifest: Bytes,
        layout: &Layout,
        cancel: &Cancel,
    ) -> Result<(), SourceError> {
        let what = format!("the layout of image {}", id.short());
        let path = format!("images/{id}.layout");
        self.put(&path, layout.encode().into(), &what, cancel)?;
        let what = format!("the manifest of image {}", id.short());
        self.put(&format!("images/{id}"), manifest, &what, cancel)
    }

    /// Makes a name point to an image that is there; `now_unix_s` is written beside it. Of two writers the later one wins.
    pub fn put_tag(
        &self,
        name: &ImageName,
        id: &Hash,
        now_unix_s: u64,
        cancel: &Cancel,
    ) -> Result<(), SourceError> {
        let path = FilePath::new("tags").join(tag_file_name(name));
        let text = format!("{id} {now_unix_s}\n");
        let what = format!("the name {name}");
        self.put(&path.to_string_lossy(), text.into(), &what, cancel)
    }

    fn put(
        &self,
        path: &str,
        bytes: Bytes,
        what: &str,
        cancel: &Cancel,
    ) -> Result<(), SourceError> {
        let bucket = self.0.objects();
        bucket.put(path, bytes, false, what, cancel).map(drop)
    }

    fn request(&self) -> Request {
        Request::of(Purpose::Settle, self.0.patience())
    }
}
