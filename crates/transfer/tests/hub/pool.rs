//! Substrates on a hub: those whom they name may read them, and a hub that is a pool has them in memory.

use crate::support::*;
use floe_api::PoolStatus;
use floe_api::hub::PooledSubstrates;
use floe_api::{SUBSTRATE_LABEL, VISIBLE_LABEL, Visibility};
use floe_image::{Hash, Kind, ReadRequest, Record, chunk_hash, read_response};
use std::time::Instant;

/// An image as a dock makes it, visible to whom these words say.
fn substrate(numbers: &[u64], visible: &str) -> Parts {
    let mut parts = image_parts(numbers, &[]);
    let labels = &mut parts.manifest.config.labels;
    labels.insert(SUBSTRATE_LABEL.into(), "web".into());
    labels.insert(VISIBLE_LABEL.into(), visible.into());
    parts
}

fn publish(world: &World, parts: &Parts, token: &str, wish: &str) -> Hash {
    let key = world.stage(parts, token);
    let done = world.commit(&key, token, wish);
    assert_eq!(done.status, 200, "{}", done.text());
    parts.id()
}

/// Which of the pages with these numbers are in an image for who has this token.
fn pages(world: &World, id: &Hash, token: &str, numbers: &[u64]) -> Vec<bool> {
    let wants: Vec<(Kind, Hash)> = numbers
        .iter()
        .map(|number| (Kind::Chunk, chunk_hash(&page(*number))))
        .collect();
    let question = ReadRequest {
        wants: wants.clone(),
    };
    let path = format!("/v1/images/{id}/read");
    let answer = world.ask("POST", &path, Some(token), Some(&question.encode()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut found = vec![None; numbers.len()];
    read_response(&answer.body[..], wants.len(), |record| {
        if let Record::Missing { hash, .. } = &record {
            let at = wants.iter().position(|want| want.1 == *hash).unwrap();
            assert_eq!(found[at].replace(false), None);
        }
        for (kind, hash, bytes) in record.items() {
            kind.verify(&hash, bytes)?;
            // nothing comes that nobody asked for
            let at = wants.iter().position(|want| want.1 == hash).unwrap();
            assert_eq!(found[at].replace(true), None);
        }
        Ok(())
    })
    .unwrap();
    found.into_iter().map(Option::unwrap).collect()
}

fn status(world: &World, token: &str) -> PoolStatus {
    let answer = world.get("/v1/pool", Some(token));
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

fn in_memory(world: &World, token: &str, count: u64) {
    let until = Instant::now() + ASK_TIMEOUT;
    loop {
        let status = status(world, token);
        if !status.warming && status.in_memory == count {
            return;
        }
        assert!(Instant::now() < until, "{status:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn those_whom_a_restricted_substrate_names_read_it_and_for_others_there_is_none() {
    let world = world();
    let carol = floe_hub::create_token(&world.hub_dir(), "carol").unwrap();
    // it uses every second page of the packs of an image that only ann may read
    let secret = image_parts(&(1..200).collect::<Vec<_>>(), &[]);
    publish(&world, &secret, &world.ann, "{}");
    let numbers: Vec<u64> = (1..200).map(|i| if i % 2 == 0 { 0 } else { i }).collect();
    let mut parts = substrate(&numbers, "restricted bob");
    parts.packs.extend(secret.packs);
    let shop = publish(&world, &parts, &world.ann, "{\"name\":\"shop\"}");

    let paths = [
        "/v1/resolve?name=shop".to_owned(),
        "/v1/resolve?name=ann/shop".to_owned(),
        format!("/v1/images/{shop}/manifest"),
        format!("/v1/images/{shop}/layout"),
    ];
    for path in &paths {
        let seen = [Some(&*world.ann), Some(&world.bob), Some(&carol), None]
            .map(|token| world.get(path, token).status);
        assert_eq!(seen, [200, 200, 404, 404], "{path}");
    }
    assert_eq!(world.visible(Some(&world.bob)), 1);
    assert_eq!(world.visible(Some(&carol)), 0);
    let layout = world.get(&paths[3], Some(&world.bob)).body;
    for pack in floe_image::Layout::decode(&layout).unwrap().packs {
        let path = format!("/v1/packs/{}", pack.id);
        assert_eq!(world.get(&path, Some(&carol)).status, 404);
        let bytes = world.get(&path, Some(&world.bob)).body;
        let index = &bytes[pack.index_offset as usize..][..pack.index_bytes as usize];
        let index = floe_image::PackIndex::decode(index, &pack).unwrap();
        assert!(index.lookup(&chunk_hash(&page(2))).is_none(), "a neighbour");
    }
    assert_eq!(pages(&world, &shop, &world.bob, &[1, 2]), [true, false]);
    // to read it is all that he may
    let hidden = format!("/v1/images/{shop}/visibility");
    let alone = b"{\"public\":false}";
    for (token, code) in [(&world.bob, 403), (&carol, 404), (&world.ann, 204)] {
        let answer = world.ask("PUT", &hidden, Some(token), Some(alone));
        assert_eq!(answer.status, code, "{}", answer.text());
    }
    assert_eq!(world.get(&paths[0], Some(&world.bob)).status, 404);
    let plain = world.get("/v1/pool", Some(&world.ann));
    assert_eq!((plain.status, &*plain.code()), (404, "no-pool"));
}

#[test]
fn a_pool_has_what_fits_in_memory_each_chunk_once_and_tells_nobody_of_what_is_not_his() {
    let world = world_with(|options| options.pool_bytes = Some(400 << 10));
    let numbers = |from: u64, to: u64| (from..to).collect::<Vec<u64>>();
    // an image that is no substrate stays out of it
    let plain = image_parts(&numbers(1, 20), &[]);
    publish(&world, &plain, &world.ann, "{}");
    let first = substrate(&numbers(1, 100), "private");
    publish(&world, &first, &world.ann, "{\"name\":\"first\"}");
    in_memory(&world, &world.ann, 1);
    let alone = status(&world, &world.ann).used_bytes;
    let second = substrate(&numbers(1, 110), "private");
    let second = publish(&world, &second, &world.bob, "{\"name\":\"second\"}");
    in_memory(&world, &world.bob, 1);
    let both = status(&world, &world.bob);
    assert!(
        both.used_bytes < alone + alone / 4,
        "{both:?}, first {alone}"
    );
    assert!(both.referred_bytes > both.raw_bytes * 3 / 2, "{both:?}");

    // what ann has in the same memory is in no answer to bob
    let third = substrate(&numbers(300, 310), "private");
    publish(&world, &third, &world.ann, "{\"name\":\"third\"}");
    in_memory(&world, &world.ann, 2);
    let seen = pages(&world, &second, &world.bob, &[1, 109, 300]);
    assert_eq!(seen, [true, true, false]);
    let list = world.get("/v1/pool/substrates", Some(&world.bob));
    let list: PooledSubstrates = serde_json::from_slice(&list.body).unwrap();
    let names: Vec<&str> = list.substrates.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["second"]);
    let one = &list.substrates[0];
    assert_eq!((&*one.owner, &*one.machine), ("bob", "web"));
    assert!(one.in_memory && one.visibility == Visibility::Private);

    // one that is larger than all of it sends nobody away, and is read from the disk
    let large = substrate(&numbers(1000, 1400), "private");
    let large = publish(&world, &large, &world.bob, "{\"name\":\"large\"}");
    assert_eq!(pages(&world, &large, &world.bob, &[1399]), [true]);
    // as room is made for one that fits, it comes after the large one in the queue
    let fourth = substrate(&numbers(500, 560), "private");
    let fourth = publish(&world, &fourth, &world.bob, "{\"name\":\"fourth\"}");
    in_memory(&world, &world.bob, 2);
    assert!(status(&world, &world.bob).used_bytes <= 400 << 10);
    for (id, owner) in [
        (second, &world.bob),
        (fourth, &world.bob),
        (third.id(), &world.ann),
    ] {
        let path = format!("/v1/images/{id}");
        let gone = world.ask("DELETE", &path, Some(owner), None);
        assert_eq!(gone.status, 204, "{}", gone.text());
    }
    in_memory(&world, &world.bob, 0);
    in_memory(&world, &world.ann, 1);
    let left = status(&world, &world.ann);
    assert!(left.used_bytes <= alone, "{left:?}, first {alone}");
}

#[test]
fn a_substrate_that_cannot_be_read_when_its_pool_starts_is_there_once_it_can() {
    let pool = |options: &mut floe_hub::HubOptions| options.pool_bytes = Some(400 << 10);
    let world = world_with(pool);
    let numbers: Vec<u64> = (1..50).collect();
    let id = publish(&world, &substrate(&numbers, "private"), &world.ann, "{}");
    in_memory(&world, &world.ann, 1);
    let manifest = world.hub_dir().join("repo/images").join(id.to_string());
    let away = world.dir.path().join("away");
    std::fs::rename(&manifest, &away).unwrap();
    // what is there is no file
    std::fs::create_dir(&manifest).unwrap();
    let world = world.again(pool);
    in_memory(&world, &world.ann, 0);
    std::fs::remove_dir(&manifest).unwrap();
    std::fs::rename(&away, &manifest).unwrap();
    in_memory(&world, &world.ann, 1);
}
