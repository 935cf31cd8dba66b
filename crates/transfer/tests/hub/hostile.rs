//! Clients that lie: refused with the reason, and nothing of it is ever shown.

use crate::support::*;
use floe_image::{Hash, Kind, PackWriter, chunk_hash, compress_frame};
use proptest::prelude::*;

fn begin(world: &World, parts: &Parts) -> String {
    let opened = world.ask(
        "POST",
        "/v1/uploads",
        Some(&world.ann),
        Some(&parts.manifest.encode()),
    );
    assert_eq!(opened.status, 200, "{}", opened.text());
    opened.json()["id"].as_str().unwrap().to_owned()
}

fn put(world: &World, key: &str, pack: &str, bytes: &[u8]) -> Answer {
    world.ask(
        "PUT",
        &format!("/v1/uploads/{key}/packs/{pack}"),
        Some(&world.ann),
        Some(bytes),
    )
}

fn nothing_is_shown(world: &World, key: &str) {
    assert_eq!(
        world.commit(key, &world.ann, "{\"public\":true}").code(),
        "incomplete"
    );
    assert_eq!(world.visible(Some(&world.ann)), 0);
    assert_eq!(
        std::fs::read_dir(world.hub_dir().join("repo/packs"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(
        std::fs::read_dir(world.hub_dir().join("repo/images"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_pack_that_is_not_what_its_name_says_is_refused() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let key = begin(&world, &parts);
    let (reference, bytes) = &parts.packs[0];
    let wrong = put(&world, &key, &Hash::of(b"another").to_string(), bytes);
    assert_eq!((wrong.status, &*wrong.code()), (422, "invalid-content"));
    for at in [0, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(
            put(&world, &key, &reference.id.to_string(), &damaged).status,
            422,
            "byte {at}"
        );
    }
    for length in [0, 1, 16, 71, bytes.len() - 1] {
        assert_eq!(
            put(&world, &key, &reference.id.to_string(), &bytes[..length]).status,
            422,
            "{length} bytes"
        );
    }
    nothing_is_shown(&world, &key);
}

#[test]
fn an_item_that_is_not_what_its_hash_says_is_refused() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let key = begin(&world, &parts);
    let mut forged = PackWriter::new(Vec::new()).unwrap();
    let (told, sent) = (chunk_hash(&page(1)), page(666));
    forged
        .push_frame(
            Kind::Chunk,
            &[told],
            &compress_frame(Kind::Chunk, &[&sent], 1),
        )
        .unwrap();
    let (bytes, reference) = forged.finish().unwrap();
    let answer = put(&world, &key, &reference.id.to_string(), &bytes);
    assert_eq!(answer.status, 422);
    assert!(
        answer.text().contains(&told.to_string()),
        "{}",
        answer.text()
    );
    nothing_is_shown(&world, &key);
}

#[test]
fn a_bomb_is_refused_before_it_unpacks() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let key = begin(&world, &parts);
    // A frame of 16 pages that is announced as one page.
    let pages: Vec<Vec<u8>> = (1..17).map(page).collect();
    let frame = compress_frame(
        Kind::Chunk,
        &pages.iter().map(|p| &**p).collect::<Vec<_>>(),
        1,
    );
    let mut bomb = PackWriter::new(Vec::new()).unwrap();
    bomb.push_frame(Kind::Chunk, &[chunk_hash(&pages[0])], &frame)
        .unwrap();
    let (bytes, reference) = bomb.finish().unwrap();
    assert_eq!(
        put(&world, &key, &reference.id.to_string(), &bytes).status,
        422
    );
    nothing_is_shown(&world, &key);
}

#[test]
fn an_image_with_a_hole_is_not_shown_and_can_be_completed() {
    let world = world();
    let hole = image_parts(&[1, 2, 3, 4], &[3]);
    let key = world.stage(&hole, &world.ann);
    let refused = world.commit(&key, &world.ann, "{\"name\":\"a\",\"public\":true}");
    assert_eq!((refused.status, &*refused.code()), (409, "incomplete"));
    assert!(
        refused.text().contains(&chunk_hash(&page(3)).to_string()),
        "{}",
        refused.text()
    );
    assert_eq!(world.visible(Some(&world.ann)), 0);
    let rest = image_parts(&[3], &[]);
    let (reference, bytes) = &rest.packs[0];
    assert_eq!(
        put(&world, &key, &reference.id.to_string(), bytes).status,
        204
    );
    assert_eq!(
        world
            .commit(&key, &world.ann, "{\"name\":\"a\",\"public\":true}")
            .status,
        200
    );
    assert_eq!(world.visible(None), 1);
    assert_eq!(
        std::fs::read_dir(world.hub_dir().join("staging"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn bodies_beyond_their_limits_are_refused() {
    let world = world_with(|o| {
        o.limits.pack_bytes_max = 100_000;
        o.limits.staged_bytes_max = 150_000;
        o.limits.image_bytes_max = 2000 * 4096;
        o.limits.uploads_max = 2;
    });
    let parts = image_parts(&[1, 2, 3], &[]);
    let key = begin(&world, &parts);
    let id = parts.packs[0].0.id.to_string();
    assert_eq!(put(&world, &key, &id, &vec![0; 100_001]).status, 413);
    assert_eq!(put(&world, &key, &id, &vec![0; 200_000]).status, 413);
    let json = format!("{{\"name\":\"{}\"}}", "a".repeat(100_000));
    assert_eq!(world.commit(&key, &world.ann, &json).status, 413);
    let have = vec![0; 33 * (floe_api::hub::HAVE_ITEMS_MAX + 1)];
    assert_eq!(
        world
            .ask(
                "POST",
                &format!("/v1/uploads/{key}/have"),
                Some(&world.ann),
                Some(&have)
            )
            .status,
        413
    );
    // What is staged counts against the owner's quota.
    let mut staged = 0;
    for from in [1000, 2000, 3000] {
        let numbers: Vec<u64> = (from..from + 30).collect();
        let (reference, bytes) = &image_parts(&numbers, &[]).packs[0];
        let answer = put(&world, &key, &reference.id.to_string(), bytes);
        staged += bytes.len();
        assert_eq!(
            answer.status,
            if staged <= 150_000 { 204 } else { 429 },
            "{}",
            answer.text()
        );
    }
    assert!(staged > 150_000);
    begin(&world, &image_parts(&[7], &[]));
    let third = world.ask(
        "POST",
        "/v1/uploads",
        Some(&world.ann),
        Some(&image_parts(&[8], &[]).manifest.encode()),
    );
    assert_eq!((third.status, &*third.code()), (429, "too-many-uploads"));
    assert_eq!(
        world
            .ask(
                "DELETE",
                &format!("/v1/uploads/{key}"),
                Some(&world.ann),
                None
            )
            .status,
        204
    );
    begin(&world, &image_parts(&[8], &[]));
}

#[test]
fn names_that_leave_the_folder_lead_nowhere() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let key = world.stage(&parts, &world.ann);
    for name in [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../b",
        "a:..",
        "a\0b",
        "",
        "a b",
    ] {
        let wish = serde_json::json!({ "name": name }).to_string();
        assert_eq!(
            world.commit(&key, &world.ann, &wish).status,
            400,
            "{name:?}"
        );
    }
    let id = parts.id();
    for path in [
        "/v1/packs/../../hub.db",
        "/v1/packs/..%2F..%2Fhub.db",
        "/v1/images/..%2F..%2Fhub.db/manifest",
        "/v1/static/images/..%2F..%2Fhub.db",
        "/v1/static/../hub.db",
        "/v1/static/packs/..%2F../x.pack",
        "/v1/static/hub.db",
        "/v1/static/tags/..%2F..%2Fhub.db",
    ] {
        let status = world.get(path, Some(&world.ann)).status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    for pack in ["..%2F..%2Fx", "x", &id.to_string()[..63]] {
        assert_eq!(put(&world, &key, pack, b"x").status, 404, "{pack}");
    }
    assert_eq!(
        put(&world, "..%2F..%2Frepo", &id.to_string(), b"x").code(),
        "no-upload"
    );
}

#[test]
fn manifests_that_are_none_or_loop_are_refused() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let good = parts.manifest.encode();
    let mut bad: Vec<Vec<u8>> = vec![vec![], b"junk".to_vec(), good[..good.len() - 1].to_vec()];
    let mut version = good.clone();
    version[8] = 99;
    bad.push(version);
    let mut twice = parts.manifest.clone();
    twice.regions.push(twice.regions[0].clone());
    bad.push(twice.encode());
    // A parent of zero, which would be its own ancestor in any walk.
    let mut loops = parts.manifest.clone();
    loops.parent = Some(Hash::ZERO);
    bad.push(loops.encode());
    for bytes in bad {
        let answer = world.ask("POST", "/v1/uploads", Some(&world.ann), Some(&bytes));
        assert_eq!((answer.status, &*answer.code()), (422, "invalid-content"));
    }
    // A parent is named by its hash and cannot name its child; that one is not here is no reason to refuse.
    let mut orphan = parts.manifest.clone();
    orphan.parent = Some(Hash::of(b"elsewhere"));
    let key = world.stage(
        &Parts {
            manifest: orphan,
            packs: parts.packs,
        },
        &world.ann,
    );
    assert_eq!(world.commit(&key, &world.ann, "{}").status, 200);
}

#[test]
fn a_segment_that_reaches_beyond_its_region_is_refused() {
    let world = world();
    let mut parts = image_parts(&[1, 2, 3, 4], &[]);
    parts.manifest.regions[0].size = 2 * 4096;
    let key = world.stage(&parts, &world.ann);
    assert_eq!(world.commit(&key, &world.ann, "{}").status, 422);
    assert_eq!(world.visible(Some(&world.ann)), 0);
}

proptest! {
    #[test]
    fn no_bytes_make_the_pack_check_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(floe_hub::verify_pack(&bytes, &Hash::of(&bytes)).is_err());
    }

    #[test]
    fn no_flipped_bit_of_a_pack_goes_unseen(at in 0usize..1000, bit in 0u8..8) {
        let (reference, mut bytes) = image_parts(&[1, 2, 3], &[]).packs.remove(0);
        let at = at * bytes.len() / 1000;
        bytes[at] ^= 1 << bit;
        let checked = floe_hub::verify_pack(&bytes, &reference.id);
        // Inside a frame, zstd has bits that change nothing; what unpacks is checked all the same.
        let in_frames = (16..reference.index_offset as usize).contains(&at);
        prop_assert!(in_frames || checked.is_err());
    }

    #[test]
    fn questions_are_read_as_they_were_written(items in proptest::collection::vec((any::<bool>(), any::<[u8; 32]>()), 0..50), cut in 1usize..33) {
        let mut body = Vec::new();
        for (segment, hash) in &items {
            body.push(u8::from(*segment));
            body.extend_from_slice(hash);
        }
        let read = floe_hub::decode_questions(&body).unwrap();
        prop_assert_eq!(read.len(), items.len());
        for ((kind, hash), (segment, bytes)) in read.iter().zip(&items) {
            prop_assert_eq!((*kind == Kind::Segment, hash.as_bytes()), (*segment, bytes));
        }
        if !body.is_empty() {
            prop_assert!(floe_hub::decode_questions(&body[..body.len() - cut]).is_err());
            body[0] = 2;
            prop_assert!(floe_hub::decode_questions(&body).is_err());
        }
    }
}
