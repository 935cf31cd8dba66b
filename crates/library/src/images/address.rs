//! Splits what the user typed into a source and the name of an image there.
//!
//! ```text
//! debian, debian:12, 5f3a..            this node's repository
//! https://hub/team/debian:12           hub; else the static server https://hub/team
//! https://server/any/path#debian       exactly this base and name
//! s3://bucket/prefix/debian            bucket and prefix (also gs://, az://)
//! /srv/images/debian, file:///...      the repository that encloses the path
//! ```

use floe_ground::{
    error::{NodeError, usage},
    files::may_be_there,
};
use floe_http::{Position, Url};
use std::path::Path;

/// An address and the name of an image there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// What `Registry::origin` takes.
    pub base: String,
    /// What its `resolve` takes.
    pub name: String,
}

/// Whether the text is an address, and not a local name.
pub fn is_address(text: &str) -> bool {
    text.contains("://")
        || text.starts_with('/')
        || text.starts_with("./")
        || text.starts_with("../")
}

/// Returns the ways in which an address can be read, the likeliest first.
pub fn references(text: &str) -> Result<Vec<Reference>, NodeError> {
    let bad = |why: &str| {
        let shown = match text.contains("://") {
            // there may be a password in it, or a signature
            true => floe_http::shown(text),
            false => text.to_owned(),
        };
        usage(
            format!("{shown:?} is no image's address: {why}"),
            "write for example https://hub/NAME or /srv/images/NAME",
        )
    };
    let reference = |base: &str, name: &str| Reference {
        base: base.into(),
        name: name.into(),
    };
    let in_repository = |path: &Path| {
        in_directory(path).map(|found| vec![found]).ok_or_else(|| {
            bad("no directory on the way is a repository (one has `images`, `packs` and `tags` in it)")
        })
    };
    if !text.contains("://") {
        return match text.split_once('#') {
            Some((_, "")) => Err(bad("nothing follows the #")),
            Some((base, name)) => Ok(vec![reference(base, name)]),
            None => in_repository(Path::new(text)),
        };
    }
    let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
    let base = url[..Position::AfterPath].trim_end_matches('/');
    match url.fragment() {
        Some("") => return Err(bad("nothing follows the #")),
        Some(name) => return Ok(vec![reference(base, name)]),
        None => {}
    }
    if url.scheme() == "file" {
        let path = url.to_file_path();
        return in_repository(&path.map_err(|()| bad("write file:///path"))?);
    }
    let path = url.path().trim_matches('/');
    if url.host_str().is_none_or(str::is_empty) || path.is_empty() {
        return Err(bad("it has no image's name"));
    }
    let host = &url[..Position::BeforePath];
    let hub = reference(host, path);
    Ok(match (path.rsplit_once('/'), url.scheme()) {
        // a hub has no directories
        (None, _) | (Some(_), "floe" | "floe+http") => vec![hub],
        (Some((prefix, name)), scheme) => {
            let inner = reference(&format!("{host}/{prefix}"), name);
            match floe_source::is_bucket_scheme(scheme) {
                true => vec![inner, hub],
                false => vec![hub, inner],
            }
        }
    })
}

/// Finds the nearest repository that encloses a path; the rest of the path is the image's name in it.
fn in_directory(path: &Path) -> Option<Reference> {
    let absolute = std::path::absolute(path).ok()?;
    absolute
        .ancestors()
        .skip(1)
        .find(|dir| may_be_there(&dir.join("images")) && may_be_there(&dir.join("packs")))
        .and_then(|dir| {
            let name = absolute.strip_prefix(dir).ok()?.to_str()?;
            Some(Reference {
                base: dir.to_str()?.to_owned(),
                name: name.to_owned(),
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(text: &str) -> Vec<(String, String)> {
        references(text)
            .unwrap()
            .into_iter()
            .map(|way| (way.base, way.name))
            .collect()
    }

    fn pair(base: &str, name: &str) -> (String, String) {
        (base.into(), name.into())
    }

    #[test]
    fn an_address_is_split_into_server_and_name() {
        assert_eq!(ways("https://hub/debian"), [pair("https://hub", "debian")]);
        assert_eq!(
            ways("https://hub:4500/team/debian:12"),
            [
                pair("https://hub:4500", "team/debian:12"),
                pair("https://hub:4500/team", "debian:12")
            ]
        );
        assert_eq!(
            ways("floe://hub/team/debian"),
            [pair("floe://hub", "team/debian")]
        );
        assert_eq!(
            ways("s3://bucket/a/b/debian")[0],
            pair("s3://bucket/a/b", "debian")
        );
        assert_eq!(ways("az://c/a/debian")[0], pair("az://c/a", "debian"));
        assert_eq!(ways("gs://bucket/debian"), [pair("gs://bucket", "debian")]);
        assert_eq!(
            ways("http://server/a/b#x/y:1"),
            [pair("http://server/a/b", "x/y:1")]
        );
    }

    #[test]
    fn a_path_is_split_at_the_repository_that_encloses_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("images")).unwrap();
        std::fs::create_dir_all(dir.path().join("packs")).unwrap();
        let base = dir.path().to_str().unwrap();
        assert_eq!(
            ways(&format!("{base}/team/debian:12")),
            [pair(base, "team/debian:12")]
        );
        assert_eq!(
            ways(&format!("file://{base}/debian")),
            [pair(base, "debian")]
        );
        assert!(references("/nowhere/debian").is_err());
    }

    #[test]
    fn an_address_without_a_name_is_refused() {
        for text in [
            "https://hub",
            "https://ann:geheim@hub/?sig=geheim",
            "https://ann:geheim@hub:port/x",
            "https:///x",
            "https://hub/#",
        ] {
            let error = references(text).unwrap_err().to_string();
            assert!(error.contains("no image's address"), "{error}");
            assert!(!error.contains("geheim"), "{error}");
        }
        assert!(!is_address("debian:12"));
        assert!(!is_address("team/debian"));
    }
}
