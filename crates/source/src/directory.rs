//! A repository on this host as a source.

use std::path::Path;

use floe_image::{Hash, Kind, Layout, Manifest};
use floe_store::{Repository, StoreError};

use crate::packed::{check_count, missing_items};
use crate::{Request, Sink, Source, SourceError};

/// A repository on this host, as a source. Reads are local and short; deadlines do not apply.
pub struct Directory {
    repository: Repository,
    at: String,
}

impl Directory {
    /// Makes a source of `repository`.
    pub fn new(repository: Repository) -> Directory {
        let at = repository.dir().display().to_string();
        Directory { repository, at }
    }

    /// Opens the repository in directory `dir` as a source.
    pub fn open(dir: &Path) -> Result<Directory, SourceError> {
        match Repository::open(dir) {
            Ok(repository) => Ok(Directory::new(repository)),
            Err(error) => Err(translate(
                &dir.display().to_string(),
                "the repository",
                error,
            )),
        }
    }

    fn error(&self, what: &str, error: StoreError) -> SourceError {
        translate(&self.at, what, error)
    }
}

fn translate(at: &str, what: &str, error: StoreError) -> SourceError {
    let (at, what, reason) = (at.to_string(), what.to_string(), error.to_string());
    match error {
        StoreError::NotFound { .. } => SourceError::Missing { at, what },
        StoreError::Corrupt { .. } | StoreError::Format { .. } | StoreError::Incomplete { .. } => {
            SourceError::Invalid { at, what, reason }
        }
        StoreError::Io { .. } | StoreError::Busy { .. } => {
            SourceError::Unreachable { at, what, reason }
        }
        StoreError::Full { .. } => SourceError::Local { what, reason },
        StoreError::Ambiguous { .. } | StoreError::Invalid { .. } | StoreError::Cancelled => {
            SourceError::Unsupported { at, reason }
        }
    }
}

impl Source for Directory {
    fn describe(&self) -> String {
        self.at.clone()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.repository
            .resolve(name)
            .map_err(|e| self.error(&format!("image {name}"), e))
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.repository
            .manifest(id)
            .map_err(|e| self.error(&format!("image {}", id.short()), e))
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.repository
            .layout(id)
            .map(Some)
            .map_err(|e| self.error(&format!("image {}", id.short()), e))
    }

    /// What is on this host was put there by somebody who may write here.
    fn is_own(&self, _: &Hash) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        _: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        check_count(&self.at, wants)?;
        let missing = self
            .repository
            .read_items(image, wants, sink)
            .map_err(|e| {
                self.error(
                    &format!("{} items of image {}", wants.len(), image.short()),
                    e,
                )
            })?;
        match missing.first() {
            None => Ok(()),
            Some(first) => Err(missing_items(&self.at, missing.len(), first)),
        }
    }
}
