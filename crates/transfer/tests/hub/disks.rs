//! What a disk did to a hub's own files, and what a second hub must not do to them.

use crate::support::*;
use floe_hub::{HubOptions, Tls};

#[test]
fn a_second_hub_on_a_directory_touches_nothing_and_says_who_has_it() {
    let world = world();
    let parts = image_parts(&(1..200).collect::<Vec<_>>(), &[]);
    // an upload of the first hub, between a pack's file and its row
    let key = world.stage(&parts, &world.ann);
    let staged = world.hub_dir().join("staging").join(&key);
    let before = walk(&world.hub_dir());
    let litter = world.hub_dir().join("staging/in-the-making");
    std::fs::create_dir(&litter).unwrap();
    // on the same port, as a service that was started twice, and on another
    for addr in [world.hub.addr(), "127.0.0.1:0".parse().unwrap()] {
        let refused = floe_hub::serve(HubOptions::new(world.hub_dir(), addr));
        let said = refused.err().expect("one hub a directory").to_string();
        assert!(
            said.contains(&std::process::id().to_string())
                && said.contains(&world.hub.addr().to_string())
                && said.contains("--dir"),
            "{said}"
        );
    }
    assert!(litter.exists() && staged.exists());
    for path in before {
        assert!(path.exists(), "{}", path.display());
    }
    // tokens are made beside a hub that runs, and it believes them
    let carol = floe_hub::create_token(&world.hub_dir(), "carol").unwrap();
    assert_eq!(world.visible(Some(&carol)), 0);
    assert_eq!(world.commit(&key, &world.ann, "{}").status, 200);
    // and when the first has gone, the next may
    let dir = world.hub_dir();
    world.hub.shutdown();
    floe_hub::serve(options(&dir)).unwrap();
    assert!(!litter.exists());
}

#[test]
fn a_damaged_pack_is_replaced_by_the_next_upload_of_the_same() {
    // nothing in memory: what is read comes from the disk
    let world = world_with(|o| o.limits.cache_bytes = 0);
    let numbers: Vec<u64> = (1..200).collect();
    let parts = image_parts(&numbers, &[]);
    let key = world.stage(&parts, &world.ann);
    let wish = "{\"name\":\"a\",\"public\":true}";
    assert_eq!(world.commit(&key, &world.ann, wish).status, 200);
    let read = |number: u64| {
        let wants = vec![(
            floe_image::Kind::Chunk,
            floe_image::chunk_hash(&page(number)),
        )];
        let body = floe_image::ReadRequest { wants }.encode();
        let path = format!("/v1/images/{}/read", parts.id());
        let raw = [("x-floe-encoding", "raw")];
        let answer = ask(&world.hub.url(), "POST", &path, None, &raw, Some(&body));
        assert_eq!(answer.status, 200);
        answer.body.windows(4096).any(|part| part == page(number))
    };
    assert!(read(1));
    let pack = parts.packs[0].0.id;
    let path = spoil(&world.hub_dir(), &pack);
    // a read finds it, and then nobody is told any more that the hub has it
    assert!(!read(1));
    let again = image(&world.repository, &numbers);
    assert_eq!(again, parts.id());
    let report = world.push(&again, "a", true).unwrap();
    assert!(report.chunks_sent > 0, "{report:?}");
    assert!(read(1));
    let whole = std::fs::read(&path).map(|bytes| floe_hub::verify_pack(&bytes, &pack).is_ok());
    assert!(whole.unwrap_or(true), "the damaged file is still there");
}

#[test]
fn a_pack_that_rotted_unseen_is_replaced_when_it_is_sent_again() {
    let world = world_with(|o| o.limits.cache_bytes = 0);
    let parts = image_parts(&(1..200).collect::<Vec<_>>(), &[]);
    let key = world.stage(&parts, &world.ann);
    assert_eq!(
        world.commit(&key, &world.ann, "{\"public\":true}").status,
        200
    );
    let path = spoil(&world.hub_dir(), &parts.packs[0].0.id);
    // bob sends the same packs without asking first
    let key = world.stage(&parts, &world.bob);
    assert_eq!(world.commit(&key, &world.bob, "{}").status, 200);
    let bytes = std::fs::read(&path).unwrap();
    floe_hub::verify_pack(&bytes, &parts.packs[0].0.id).unwrap();
}

#[test]
fn a_lost_catalogue_does_not_take_the_images_along() {
    let world = world();
    let id = image(&world.repository, &(1..100).collect::<Vec<_>>());
    world.push(&id, "a", true).unwrap();
    let dir = world.hub_dir();
    let repo = dir.join("repo");
    let before = walk(&repo).len();
    world.hub.shutdown();
    // the copy is made at every start
    floe_hub::serve(options(&dir)).unwrap().shutdown();
    for name in ["hub.db-wal", "hub.db-shm"] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    for lost in [true, false] {
        match lost {
            true => std::fs::remove_file(dir.join("hub.db")).unwrap(),
            false => std::fs::write(dir.join("hub.db"), b"").unwrap(),
        }
        // nor does a command make an empty one, which the next start would believe
        let command = floe_hub::create_token(&dir, "eve").unwrap_err();
        for said in [command, floe_hub::serve(options(&dir)).err().unwrap()] {
            assert!(said.to_string().contains("hub.db.backup"), "{said}");
        }
        assert_eq!(walk(&repo).len(), before);
    }
    std::fs::write(dir.join("hub.db"), [7; 9000]).unwrap();
    let said = floe_hub::serve(options(&dir)).err().unwrap().to_string();
    assert!(said.contains("hub.db.backup"), "{said}");
    // and the way out that it names is one
    std::fs::copy(dir.join("hub.db.backup"), dir.join("hub.db")).unwrap();
    let again = floe_hub::serve(options(&dir)).unwrap();
    let list = ask(&again.url(), "GET", "/v1/images", None, &[], None).json();
    assert_eq!(list["images"].as_array().unwrap().len(), 1);
}

#[test]
fn an_unreadable_certificate_of_its_own_is_set_aside_and_made_anew() {
    let world = world_with(|o| o.tls = Tls::SelfSigned { names: vec![] });
    let dir = world.hub_dir();
    world.hub.shutdown();
    for name in ["hub.key", "hub.pem"] {
        std::fs::write(dir.join("tls").join(name), b"").unwrap();
        let mut again = options(&dir);
        again.tls = Tls::SelfSigned { names: vec![] };
        let again = floe_hub::serve(again).unwrap();
        assert!(again.fingerprint().is_some());
        again.shutdown();
    }
    let aside = std::fs::read_dir(&dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    assert!(
        aside
            .map(name)
            .any(|n| n.to_string_lossy().starts_with("tls.damaged-"))
    );
}
