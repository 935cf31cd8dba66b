//! An image of this host by its name, and which name a misspelt one may have meant.

use crate::{
    error::{NodeError, not_found},
    names::similar,
};
use floe_image::Hash;
use floe_store::{Repository, StoreError};

/// Returns the id of the image with this name, id or prefix of an id.
pub(super) fn named(repo: &Repository, name: &str) -> Result<Hash, NodeError> {
    let error = match repo.resolve(name) {
        Ok(id) => return Ok(id),
        Err(error) => error,
    };
    let tags = repo.tags().unwrap_or_default();
    let known: Vec<String> = tags
        .iter()
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
        let error = named(&repo, "windows").unwrap_err().to_api();
        assert!(error.to_string().contains("floe image ls"), "{error}");
    }
}
