//! For sources that promise nothing: drop everything that is not what its name says.

use std::collections::HashSet;
use std::sync::Arc;

use floe_image::{Hash, Kind, Layout, Manifest};

use crate::packed::item_name;
use crate::{LinkEstimate, Request, Sink, Source, SourceError};

/// Passes on only what matches its hash, each item once.
///
/// The sources of this crate verify on their own, where the bytes arrive; this is for others. Hashing twice costs a
/// microsecond a chunk.
pub struct Verified {
    inner: Arc<dyn Source>,
}

impl Verified {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Source>) -> Verified {
        Verified { inner }
    }

    fn invalid(&self, what: String, reason: String) -> SourceError {
        SourceError::Invalid {
            at: self.describe(),
            what,
            reason,
        }
    }
}

impl Source for Verified {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.inner.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        let manifest = self.inner.manifest(id)?;
        let found = manifest.id();
        if found == *id {
            Ok(manifest)
        } else {
            Err(self.invalid(
                format!("the manifest of image {}", id.short()),
                format!("it hashes to {found}"),
            ))
        }
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.inner.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let mut given = HashSet::new();
        let mut wrong = None;
        let outcome =
            self.inner
                .read(image, wants, request, &mut |kind, hash, bytes| match kind
                    .verify(&hash, bytes)
                {
                    Ok(()) if given.insert(hash) => sink(kind, hash, bytes),
                    Ok(()) => {}
                    Err(error) => {
                        wrong = Some(self.invalid(item_name(&(kind, hash)), error.to_string()))
                    }
                });
        let open = wants.iter().find(|(_, hash)| !given.contains(hash));
        match (outcome, wrong, open) {
            (Err(error), None, _) => Err(error),
            (_, Some(error), _) => Err(error),
            (Ok(()), None, Some(item)) => Err(self.invalid(
                item_name(item),
                "it was not delivered, without a reason".into(),
            )),
            (Ok(()), None, None) => Ok(()),
        }
    }

    fn link(&self) -> LinkEstimate {
        self.inner.link()
    }
}
