//! An image of this host by its name, and which name a misspelt one may have meant.

use super::{
    Images,
    address::{is_address, references},
};
use floe_ground::{
    error::{NodeError, not_found},
    names::similar,
};
use floe_image::Hash;
use floe_store::{Repository, StoreError};
use std::path::Path;

impl Images {
    /// Returns the reference by which this node finds the image that a user has named `image`: what the user wrote, or the image's id if
    /// what he wrote is the beginning of several ids of which he may see one. `sees` says which images he may see. An image of this node
    /// that he may not see gives the same error as one that does not exist, also when it is named as a directory of static files.
    pub fn asked_for(
        &self,
        image: &str,
        sees: &dyn Fn(&Hash) -> bool,
    ) -> Result<String, NodeError> {
        let name = match is_address(image) {
            true => self.name_in_own_repository(image),
            false => Some(image.to_owned()),
        };
        let Some(name) = name else {
            return Ok(image.to_owned());
        };
        match (
            self.repo.resolve(&name),
            named_among(&self.repo, &name, sees),
        ) {
            // the beginning of an id, and one that he may not see begins like that too
            (Err(StoreError::Ambiguous { .. }), Ok(id)) => Ok(id.to_string()),
            // who asks for what is not here is told that by the call itself
            (Err(StoreError::NotFound { .. }), _) | (_, Ok(_)) => Ok(image.to_owned()),
            (_, Err(error)) => Err(error),
        }
    }

    /// Returns the name in an address that means the directory of this node's own images.
    fn name_in_own_repository(&self, address: &str) -> Option<String> {
        let real = |dir: &Path| dir.canonicalize().ok();
        let own = real(&self.core.home.repo())?;
        let mut ways = references(address).ok()?.into_iter();
        let way = ways.find(|way| {
            let dir = way.base.strip_prefix("file://").unwrap_or(&way.base);
            real(Path::new(dir)).as_ref() == Some(&own)
        })?;
        Some(way.name)
    }
}

/// Returns the id of the image with this name, id or prefix of an id.
pub(super) fn named(repo: &Repository, name: &str) -> Result<Hash, NodeError> {
    named_among(repo, name, &|_| true)
}

/// Does the same as if the images that `sees` says no to did not exist.
pub(super) fn named_among(
    repo: &Repository,
    name: &str,
    sees: &dyn Fn(&Hash) -> bool,
) -> Result<Hash, NodeError> {
    let error = match repo.resolve_among(name, sees) {
        Ok(id) => return Ok(id),
        Err(error) => error,
    };
    let tags = repo.tags().unwrap_or_default();
    let known: Vec<String> = tags
        .iter()
        .filter(|tag| sees(&tag.id))
        .map(|tag| tag.name.to_string())
        .map(|name| {
            name.strip_suffix(":latest")
                .map_or(name.clone(), str::to_owned)
        })
        .collect();
    match similar(name, known.iter().map(String::as_str)) {
        Some(near) if matches!(error, StoreError::NotFound { .. }) => Err(not_found(
            format!("there is no image {name}"),
            format!("did you mean {near}? `floe image ls` lists what is here"),
        )),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::ErrorCode;
    use floe_image::ImageName;
    use floe_store::{Ingest, IngestOptions};

    #[test]
    fn a_misspelt_image_is_answered_with_the_one_that_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(&dir.path().join("repo")).unwrap();
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        ingest.region_bytes("device", b"state").unwrap();
        let id = ingest.finish(Default::default()).unwrap();
        repo.tag(&ImageName::parse("debian").unwrap(), &id).unwrap();
        repo.tag(&ImageName::parse("team/web:v2").unwrap(), &id)
            .unwrap();
        assert_eq!(named(&repo, "debian").unwrap(), id);
        for (asked, near) in [("debain", "debian"), ("team/wbe:v2", "team/web:v2")] {
            let error = named(&repo, asked).unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::NotFound);
            assert!(
                error.fix.contains(&format!("did you mean {near}?")),
                "{error}"
            );
        }
        // one who may not see an image gets the same answers as for one that does not exist
        let blind = |name: &str| {
            let error = named_among(&repo, name, &|seen| *seen != id).unwrap_err();
            error.to_api()
        };
        let id = id.to_string();
        for asked in ["debian", "debain", &id, &id[..12]] {
            let error = blind(asked);
            assert_eq!(error.code, ErrorCode::NotFound, "{error}");
            assert!(!error.fix.contains("did you mean"), "{error}");
        }
        let error = named(&repo, "windows").unwrap_err().to_api();
        assert!(error.to_string().contains("floe image ls"), "{error}");
    }
}
