//! Which device states QEMU is given. An image's memory and disks can harm only its own guest. Its device state is read by QEMU's loader of
//! migrations, which trusts it: whoever made it may take that QEMU over. If each machine's QEMU runs as a user of its own, no more than
//! that user is lost. If not, the node refuses a stranger's device state unless its user says that he trusts it. A stranger's is any that
//! is neither on this host nor, by its hub's word, the user's own; that only this user can read it proves nothing, since whoever made it
//! chose its readers.

use super::{
    Images,
    sources::{Found, Sources},
};
use floe_ground::error::{NodeError, refused};
use floe_machine::User;
use floe_store::Repository;
use std::time::Duration;

/// How long a place may take to say whose an image is.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

impl Images {
    /// Returns an error if the device state of an image must not be loaded on this node: the node has no users for its machines, the
    /// image is somebody else's, and the user has not said that he trusts whoever made it (`trust`). What is in this node's
    /// repository was made here, or came with this check.
    pub fn check_trusted(&self, found: &Found, trust: bool) -> Result<(), NodeError> {
        let may = trust || User::for_machine(0).is_some();
        check(&self.repo, &self.sources, found, may)
    }
}

/// Does the same; `may` says whether a stranger's device state is acceptable here.
fn check(repo: &Repository, sources: &Sources, found: &Found, may: bool) -> Result<(), NodeError> {
    let id = &found.id;
    if may || found.manifest.region("device").is_none() || repo.contains(id)? {
        return Ok(());
    }
    let mut places = found.origin.urls.iter();
    let is_own = places.any(|place| {
        let source = sources.ask_one(place, &found.origin, ASK_TIMEOUT);
        // one that does not say is no reason to trust anybody
        matches!(source.and_then(|source| source.is_own(id)), Ok(true))
    });
    if is_own {
        return Ok(());
    }
    Err(refused(
        format!(
            "image {} is somebody else's; QEMU trusts its device state, and machines of this node run as user {}, with all of that user's rights",
            id.short(),
            rustix::process::geteuid().as_raw()
        ),
        "if you trust whoever made it, say so with --trust; or boot from its disks (floe run --cold); or run the node as root, which gives each machine a user of its own",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::{server, sources_in};
    use super::*;
    use floe_api::credentials::HubAddress;
    use floe_image::{Hash, Manifest, Region};
    use floe_inventory::inventory::record::Origin;
    use std::sync::Arc;

    fn manifest(region: &str) -> Manifest {
        let region = Region {
            name: region.into(),
            size: 4096,
            segments: vec![Hash::ZERO],
            ..Default::default()
        };
        Manifest {
            parent: None,
            created_unix_s: 1_700_000_000,
            config: Default::default(),
            regions: vec![region],
        }
    }

    #[test]
    fn somebody_elses_device_state_is_loaded_only_for_who_trusts_its_maker() {
        let dir = tempfile::tempdir().unwrap();
        let sources = sources_in(dir.path(), None);
        let repo = Repository::open(&dir.path().join("repo")).unwrap();
        let found_as = |token: Option<&str>, region: &str, places: &[&str]| {
            let manifest = manifest(region);
            let hubs = places.iter().filter_map(|place| HubAddress::of(place));
            let origin = Origin {
                urls: places.iter().map(|place| (*place).to_owned()).collect(),
                tokens: hubs
                    .filter_map(|hub| Some((hub, token?.to_owned())))
                    .collect(),
                ..Default::default()
            };
            Found {
                id: Hash::of(&manifest.encode()),
                manifest,
                fetcher: sources.fetcher(&origin).unwrap(),
                origin,
                loads: Arc::default(),
            }
        };
        let found = |region: &str, place: &str| found_as(Some("floe_ann"), region, &[place]);
        let id = found("device", "floe+http://127.0.0.1:1").id;
        let hub = |says: &str| {
            let body = format!("{{\"id\":\"{id}\"{says}}}");
            let (url, _) = server(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            ));
            url.replace("http://", "floe+http://")
        };
        let checked = |found: &Found, may| check(&repo, &sources, found, may);
        let of_others = [
            hub(",\"own\":false"),
            hub(""),                          // of an older version
            "floe+http://127.0.0.1:1".into(), // nobody answers
            // a web server, which knows no owners
            server(
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into(),
            )
            .0,
        ];
        for place in &of_others {
            let refused = checked(&found("device", place), false)
                .unwrap_err()
                .to_api();
            assert_eq!(refused.code, floe_api::ErrorCode::Refused, "{place}");
            for word in ["--trust", "--cold", "root"] {
                assert!(refused.fix.contains(word), "{refused}");
            }
            checked(&found("device", place), true).unwrap();
            checked(&found("disk0", place), false).unwrap();
        }
        let elsewhere = dir.path().join("elsewhere");
        Repository::create(&elsewhere).unwrap();
        let own = [hub(",\"own\":true"), elsewhere.to_str().unwrap().to_owned()];
        for place in &own {
            checked(&found("device", place), false).unwrap();
        }
        // one of several places that says so suffices: it is the same image
        let both = [&*of_others[0], &*own[0]];
        checked(&found_as(Some("floe_ann"), "device", &both), false).unwrap();
        // a hub that the user is no user of may say what it likes
        let stranger = found_as(None, "device", &[&own[0]]);
        assert!(checked(&stranger, false).is_err());
    }
}
