//! Who may see and do what.

use crate::support::*;
use floe_hub::{Anonymous, HubOptions, Tls};
use floe_image::{Kind, Layout, ReadRequest, chunk_hash};
use floe_source::Registry;
use floe_transfer::{PushOptions, TransferError, push};

/// Every route that tells something about an image.
fn routes(id: &str) -> Vec<(&'static str, String)> {
    vec![
        ("GET", format!("/v1/resolve?name={id}")),
        ("GET", "/v1/resolve?name=secret".into()),
        ("GET", format!("/v1/images/{id}/manifest")),
        ("GET", format!("/v1/images/{id}/layout")),
        ("GET", format!("/v1/static/images/{id}")),
        ("GET", format!("/v1/static/images/{id}.layout")),
        ("GET", "/v1/static/tags/secret".into()),
    ]
}

#[test]
fn a_private_image_looks_absent_to_all_but_its_owner() {
    let world = world();
    let id = image(&world.repository, &(0..600).collect::<Vec<_>>());
    world.push(&id, "secret", false).unwrap();
    let text = id.to_string();
    let absent = "00".repeat(31) + "01";
    let question = ReadRequest {
        wants: vec![(Kind::Chunk, chunk_hash(&page(3)))],
    }
    .encode();
    for viewer in [None, Some(&*world.bob)] {
        for ((method, path), (_, other)) in routes(&text).into_iter().zip(routes(&absent)) {
            let answer = world.ask(method, &path, viewer, None);
            assert_eq!(answer.status, 404, "{path}");
            // The refusal is the same as for an image that does not exist, but for its own id.
            let nothing = world.ask(method, &other, viewer, None);
            assert_eq!(
                answer.text().replace(&text, "ID"),
                nothing.text().replace(&absent, "ID"),
                "{path}"
            );
        }
        assert_eq!(
            world
                .ask(
                    "POST",
                    &format!("/v1/images/{id}/read"),
                    viewer,
                    Some(&question)
                )
                .status,
            404
        );
        assert_eq!(world.visible(viewer), 0);
        let layout = world.get(&format!("/v1/images/{id}/layout"), Some(&world.ann));
        for pack in Layout::decode(&layout.body).unwrap().packs {
            assert_eq!(
                world.get(&format!("/v1/packs/{}", pack.id), viewer).status,
                404
            );
            assert_eq!(
                world
                    .get(&format!("/v1/packs/{}", pack.id), Some(&world.ann))
                    .status,
                200
            );
        }
    }
    for (method, path) in routes(&text) {
        assert_eq!(
            world.ask(method, &path, Some(&world.ann), None).status,
            200,
            "{path}"
        );
    }
    let forbidden = [
        ("DELETE", format!("/v1/images/{id}"), None),
        (
            "PUT",
            format!("/v1/images/{id}/visibility"),
            Some(&b"{\"public\":true}"[..]),
        ),
    ];
    for (method, path, body) in forbidden {
        assert_eq!(
            world.ask(method, &path, Some(&world.bob), body).status,
            404,
            "{path}"
        );
        assert_eq!(world.ask(method, &path, None, body).status, 401, "{path}");
    }
    let tag = format!("{{\"name\":\"mine\",\"id\":\"{id}\"}}");
    assert_eq!(
        world
            .ask("PUT", "/v1/tags", Some(&world.bob), Some(tag.as_bytes()))
            .status,
        404
    );
}

#[test]
fn asking_what_to_send_does_not_tell_what_others_keep_private() {
    let world = world();
    let parts = image_parts(&(1..300).collect::<Vec<_>>(), &[]);
    let id = image(&world.repository, &(1..300).collect::<Vec<_>>());
    world.push(&id, "secret", false).unwrap();
    let have = |token: &str| {
        let opened = world.ask(
            "POST",
            "/v1/uploads",
            Some(token),
            Some(&parts.manifest.encode()),
        );
        let key = opened.json()["id"].as_str().unwrap().to_owned();
        let mut question = vec![0];
        question.extend_from_slice(chunk_hash(&page(7)).as_bytes());
        question.push(1);
        question.extend_from_slice(parts.manifest.regions[0].segments[0].as_bytes());
        let answer = world.ask(
            "POST",
            &format!("/v1/uploads/{key}/have"),
            Some(token),
            Some(&question),
        );
        (answer.body[0], key)
    };
    assert_eq!(have(&world.ann).0, 0b11);
    let (bits, key) = have(&world.bob);
    assert_eq!(bits, 0);
    // Nor can another's upload be used.
    assert_eq!(world.commit(&key, &world.ann, "{}").code(), "no-upload");
    assert_eq!(world.commit(&key, &world.bob, "{}").code(), "incomplete");
    assert_eq!(world.visible(Some(&world.bob)), 0);
}

#[test]
fn a_public_image_does_not_take_private_neighbours_along() {
    let world = world();
    // The second image uses half of the first one's pages: it shares packs with it.
    let secret = image(&world.repository, &(1..400).collect::<Vec<_>>());
    world.push(&secret, "secret", false).unwrap();
    let open_numbers: Vec<u64> = (1..400).map(|i| if i % 2 == 0 { 0 } else { i }).collect();
    let shown = image(&world.repository, &open_numbers);
    let report = world.push(&shown, "shown", true).unwrap();
    assert_eq!(report.chunks_sent, 0);

    let layout =
        Layout::decode(&world.get(&format!("/v1/images/{shown}/layout"), None).body).unwrap();
    let private = chunk_hash(&page(2));
    for pack in &layout.packs {
        let bytes = world.get(&format!("/v1/packs/{}", pack.id), None).body;
        let index = &bytes[pack.index_offset as usize..][..pack.index_bytes as usize];
        assert!(
            floe_image::PackIndex::decode(index, pack)
                .unwrap()
                .lookup(&private)
                .is_none()
        );
    }
    let question = ReadRequest {
        wants: vec![(Kind::Chunk, private)],
    }
    .encode();
    let answer = world.ask(
        "POST",
        &format!("/v1/images/{shown}/read"),
        None,
        Some(&question),
    );
    let mut records = Vec::new();
    floe_image::read_response(&answer.body[..], 1, |record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    assert_eq!(
        records,
        [floe_image::Record::Missing {
            kind: Kind::Chunk,
            hash: private
        }]
    );

    // The same when the first becomes public only later, and no longer once it is private again.
    let wish = |public: bool| {
        let body = format!("{{\"public\":{public}}}");
        let answer = world.ask(
            "PUT",
            &format!("/v1/images/{secret}/visibility"),
            Some(&world.ann),
            Some(body.as_bytes()),
        );
        assert_eq!(answer.status, 204, "{}", answer.text());
        world.get("/v1/resolve?name=secret", None).status
    };
    assert_eq!((wish(true), wish(false)), (200, 404));
}

#[test]
fn names_are_each_owners_own_and_public_ones_stay_with_the_first() {
    let world = world();
    let (a, b) = (
        image(&world.repository, &[1, 2, 3]),
        image(&world.repository, &[4, 5, 6]),
    );
    world.push(&a, "web", true).unwrap();
    let options = PushOptions {
        name: Some("web".into()),
        public: Some(true),
        ..PushOptions::default()
    };
    push(
        &world.repository,
        &b,
        &world.hub.url(),
        Some(&world.bob),
        &options,
        &|_| (),
    )
    .unwrap();
    let resolve = |name: &str, token| {
        world.get(&format!("/v1/resolve?name={name}"), token).json()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(resolve("web", Some(&world.ann)), a.to_string());
    assert_eq!(resolve("web", Some(&world.bob)), b.to_string());
    assert_eq!(resolve("web", None), a.to_string());
    assert_eq!(resolve("bob/web:latest", None), b.to_string());
    assert_eq!(
        world
            .ask("DELETE", "/v1/tags?name=web", Some(&world.ann), None)
            .status,
        204
    );
    assert_eq!(
        world
            .ask("DELETE", "/v1/tags?name=web", Some(&world.ann), None)
            .status,
        404
    );
    assert_eq!(resolve("web", None), b.to_string());
    let tag = format!("{{\"name\":\"again:v1\",\"id\":\"{a}\"}}");
    assert_eq!(
        world
            .ask("PUT", "/v1/tags", Some(&world.ann), Some(tag.as_bytes()))
            .status,
        204
    );
    assert_eq!(resolve("again:v1", None), a.to_string());
    assert_eq!(
        world
            .ask("DELETE", &format!("/v1/images/{a}"), Some(&world.bob), None)
            .status,
        403
    );
    assert_eq!(
        world
            .ask("DELETE", &format!("/v1/images/{a}"), Some(&world.ann), None)
            .status,
        204
    );
    assert_eq!(
        world.get(&format!("/v1/images/{a}/manifest"), None).status,
        404
    );
    assert_eq!(
        world.get(&format!("/v1/images/{b}/manifest"), None).status,
        200
    );
}

#[test]
fn wrong_tokens_are_slowed_down_and_right_ones_are_not() {
    let world = world_with(|o| o.limits.wrong_tokens_per_minute = 5);
    for token in ["floe_0000", "x", &world.ann[..world.ann.len() - 1]] {
        let answer = world.get("/v1/images", Some(token));
        assert_eq!(
            (
                answer.status,
                &*answer.code(),
                answer.header("www-authenticate")
            ),
            (401, "unauthorized", "Bearer")
        );
    }
    assert_eq!(
        ask(
            &world.hub.url(),
            "GET",
            "/v1/images",
            None,
            &[("authorization", "Basic YTpi")],
            None
        )
        .status,
        401
    );
    assert_eq!(
        world.ask("POST", "/v1/uploads", None, Some(b"x")).status,
        401
    );
    for _ in 0..3 {
        world.get("/v1/images", Some("wrong"));
    }
    assert_eq!(world.get("/v1/images", Some("wrong")).status, 429);
    assert_eq!(world.get("/v1/images", None).status, 200);
    // whoever knows the right one is not locked out by those who guess beside it, nor is one made just now
    assert_eq!(world.get("/v1/images", Some(&world.ann)).status, 200);
    let carol = floe_hub::create_token(&world.hub_dir(), "carol").unwrap();
    assert_eq!(world.get("/v1/images", Some(&carol)).status, 200);
    assert_eq!(world.get("/v1/images", Some("wrong")).status, 429);
    let (dir, token) = (world.hub_dir(), world.ann);
    world.hub.shutdown();
    for file in walk(&dir) {
        let bytes = std::fs::read(&file).unwrap();
        let mut parts = bytes.windows(token.len());
        let clear = parts.any(|part| part == token.as_bytes());
        assert!(!clear, "a token in clear text: {}", file.display());
    }
}

#[test]
fn a_revoked_token_ends_and_a_closed_hub_needs_one() {
    let world = world_with(|o| o.anonymous = Anonymous::Denied);
    assert_eq!(world.get("/v1/images", None).status, 401);
    assert_eq!(world.get("/metrics", None).status, 401);
    assert_eq!(world.get("/healthz", None).json()["service"], "floe-hub");
    assert_eq!(floe_hub::revoke_tokens(&world.hub_dir(), "bob").unwrap(), 1);
    assert_eq!(world.get("/v1/images", Some(&world.bob)).status, 401);
    assert_eq!(world.get("/v1/images", Some(&world.ann)).status, 200);
    assert!(
        world
            .get("/metrics", Some(&world.ann))
            .text()
            .contains("floe_hub_requests_total")
    );
    assert_eq!(
        floe_hub::users(&world.hub_dir()).unwrap(),
        [("ann".into(), 1), ("bob".into(), 0)]
    );
    assert!(floe_hub::create_token(&world.hub_dir(), "../ann").is_err());
}

#[test]
fn a_browser_is_logged_in_by_a_url_and_no_other_page_uses_that() {
    let world = world();
    let id = image(&world.repository, &[1, 2, 3]);
    let (url, ann) = (world.hub.url(), world.ann.clone());
    push(
        &world.repository,
        &id,
        &url,
        Some(&ann),
        &PushOptions::default(),
        &|_| (),
    )
    .unwrap();
    let seen = |headers: &[(&str, &str)]| {
        let answer = ask(&url, "GET", "/v1/images", None, headers, None);
        assert_eq!(answer.status, 200, "{headers:?}");
        answer.text().contains(&id.to_string())
    };
    assert!(!seen(&[]), "whoever has no token sees what is public");
    let login = ask(&url, "GET", &format!("/login?token={ann}"), None, &[], None);
    assert_eq!(login.status, 303);
    let cookie = login.header("set-cookie").to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let mine = ("cookie", cookie.as_str());
    assert!(seen(&[
        mine,
        ("origin", &url),
        ("sec-fetch-site", "same-origin")
    ]));
    for foreign in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert!(!seen(&[mine, foreign]), "{foreign:?}");
    }
    // a browser's cookie looks; it changes nothing
    let path = format!("/v1/images/{id}");
    let answer = ask(&url, "DELETE", &path, None, &[mine], None);
    assert_eq!(answer.status, 401);
    for wrong in ["floe_wrong", ""] {
        let login = ask(
            &url,
            "GET",
            &format!("/login?token={wrong}"),
            None,
            &[],
            None,
        );
        assert_eq!(login.status, 401, "{wrong:?}");
        assert_eq!(login.header("set-cookie"), "");
    }
}

#[test]
fn a_hub_makes_its_own_certificate_and_only_its_authority_is_trusted() {
    let world = world_with(|o| {
        o.tls = Tls::SelfSigned {
            names: vec!["hub.test".into()],
        }
    });
    let url = world.hub.url();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let ca = world.hub.ca_file().unwrap().to_owned();
    let fingerprint = world.hub.fingerprint().unwrap().to_owned();
    assert_eq!(fingerprint.split(':').count(), 32);
    let id = image(&world.repository, &(1..300).collect::<Vec<_>>());
    let options = PushOptions {
        name: Some("a".into()),
        public: Some(true),
        ca: Some(ca.clone()),
        ..PushOptions::default()
    };
    push(
        &world.repository,
        &id,
        &url,
        Some(&world.ann),
        &options,
        &|_| (),
    )
    .unwrap();
    let registry = Registry::default();
    let trusted = registry.open_at(&url, None, Some(&ca)).unwrap();
    assert_eq!(trusted.resolve("a").unwrap(), id);
    let key = world.hub_dir().join("tls/hub.key");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    // Another hub's authority does not do.
    let other = world_with(|o| o.tls = Tls::SelfSigned { names: vec![] });
    let stranger = registry.open_at(&url, None, other.hub.ca_file()).unwrap();
    assert!(stranger.resolve("a").is_err());

    // The certificate stays the same at the next start.
    let (dir, at) = (world.dir, world.hub.addr());
    world.hub.shutdown();
    let mut again = HubOptions::new(dir.path().join("hub"), at);
    again.tls = Tls::SelfSigned { names: vec![] };
    let again = floe_hub::serve(again).unwrap();
    assert_eq!(again.fingerprint(), Some(&*fingerprint));
}

#[test]
fn an_operators_own_certificate_is_served() {
    let world = world_with(|o| o.tls = Tls::SelfSigned { names: vec![] });
    let tls = world.hub_dir().join("tls");
    let own = world_with(|o| {
        o.tls = Tls::Files {
            cert: tls.join("hub.pem"),
            key: tls.join("hub.key"),
        }
    });
    let source = Registry::default()
        .open_at(&own.hub.url(), None, Some(&tls.join("ca.pem")))
        .unwrap();
    assert!(matches!(
        source.resolve("nothing"),
        Err(floe_source::SourceError::Missing { .. })
    ));
    let mut wrong = options(&own.dir.path().join("wrong"));
    wrong.tls = Tls::Files {
        cert: tls.join("hub.key"),
        key: tls.join("hub.key"),
    };
    assert!(
        floe_hub::serve(wrong)
            .err()
            .unwrap()
            .to_string()
            .contains("PEM")
    );
}

#[test]
fn the_checked_in_description_of_the_interface_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi-hub.json");
    if std::env::var_os("FLOE_BLESS").is_some() {
        std::fs::write(&path, floe_hub::openapi_json()).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        checked_in == floe_hub::openapi_json(),
        "docs/openapi-hub.json is not current: FLOE_BLESS=1 cargo test -p floe-transfer --test hub description"
    );
}

#[test]
fn a_push_without_a_token_says_how_to_get_one() {
    let world = world();
    let id = image(&world.repository, &[1]);
    match push(
        &world.repository,
        &id,
        &world.hub.url(),
        None,
        &PushOptions::default(),
        &|_| (),
    ) {
        Err(TransferError::Refused {
            status: 401, fix, ..
        }) => assert!(fix.contains("floe hub token create"), "{fix}"),
        other => panic!("{other:?}"),
    }
}
