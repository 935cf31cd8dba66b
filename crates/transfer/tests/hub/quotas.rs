//! What users may have, and may ask.

use crate::support::*;
use floe_hub::{Quota, QuotaWish};
use floe_image::Kind;

fn wish(bytes: Option<u64>, images: Option<u64>, traces: Option<u64>) -> QuotaWish {
    QuotaWish {
        bytes,
        images,
        traces,
    }
}

#[test]
fn nobody_stores_more_than_the_quota_however_many_uploads_race() {
    let world = world();
    floe_hub::set_quota(&world.hub_dir(), "ann", &wish(None, Some(2), None)).unwrap();
    let parts: Vec<Parts> = (0..6)
        .map(|n| image_parts(&(n * 1000 + 1..n * 1000 + 60).collect::<Vec<_>>(), &[]))
        .collect();
    let opened = || {
        let open = |parts: &Parts| {
            let sent = parts.manifest.encode();
            let answer = world.ask("POST", "/v1/uploads", Some(&world.ann), Some(&sent));
            if answer.status != 200 {
                assert_eq!((answer.status, &*answer.code()), (403, "quota"));
                assert!(
                    answer.text().contains("floe hub quota"),
                    "{}",
                    answer.text()
                );
            }
            answer.status == 200
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = parts.iter().map(|p| scope.spawn(move || open(p))).collect();
            all.into_iter()
                .map(|t| t.join().unwrap())
                .filter(|ok| *ok)
                .count()
        })
    };
    assert_eq!(opened(), 2);
    // bob is not concerned
    let key = world.stage(&parts[5], &world.bob);
    assert_eq!(world.commit(&key, &world.bob, "{}").status, 200);
    // nor is a commit of what was opened, and more room is had at once
    floe_hub::set_quota(&world.hub_dir(), "ann", &wish(None, Some(6), None)).unwrap();
    for parts in &parts {
        let key = world.stage(parts, &world.ann);
        assert_eq!(world.commit(&key, &world.ann, "{}").status, 200);
    }
    let shown = floe_hub::quotas(&world.hub_dir()).unwrap();
    let ann = shown.iter().find(|found| found.user == "ann").unwrap();
    assert_eq!((ann.used.images, ann.quota.images), (6, 6));
    assert_eq!(ann.quota.bytes, Quota::default().bytes);
    assert!(ann.used.bytes > 6 * 59 * 2048, "{:?}", ann.used);
}

#[test]
fn bytes_are_refused_where_they_come_and_a_smaller_quota_takes_nothing_away() {
    let world = world();
    let small = image_parts(&(1..60).collect::<Vec<_>>(), &[]);
    let large = image_parts(&(1000..1400).collect::<Vec<_>>(), &[]);
    let key = world.stage(&small, &world.ann);
    assert_eq!(
        world.commit(&key, &world.ann, "{\"name\":\"a\"}").status,
        200
    );
    let used = floe_hub::quotas(&world.hub_dir()).unwrap()[0].used.bytes;
    floe_hub::set_quota(
        &world.hub_dir(),
        "ann",
        &wish(Some(used + 300_000), None, None),
    )
    .unwrap();
    let sent = large.manifest.encode();
    let opened = world.ask("POST", "/v1/uploads", Some(&world.ann), Some(&sent));
    let key = opened.json()["id"].as_str().unwrap().to_owned();
    let mut refused = 0;
    for (reference, bytes) in &large.packs {
        let path = format!("/v1/uploads/{key}/packs/{}", reference.id);
        let answer = world.ask("PUT", &path, Some(&world.ann), Some(bytes));
        refused += usize::from(answer.status == 403 && answer.code() == "quota");
    }
    assert!(refused > 0 && refused < large.packs.len());
    assert!(floe_hub::quotas(&world.hub_dir()).unwrap()[0].used.bytes <= used + 300_000);
    // what is there stays, is read, named and shown
    floe_hub::set_quota(&world.hub_dir(), "ann", &wish(Some(1), Some(1), None)).unwrap();
    let path = format!("/v1/images/{}/visibility", small.id());
    let shown = world.ask("PUT", &path, Some(&world.ann), Some(b"{\"public\":true}"));
    assert_eq!(shown.status, 204, "{}", shown.text());
    assert_eq!(world.visible(None), 1);
}

/// What the files below a directory of the hub take on the disk, in blocks of 4 KiB.
fn taken(world: &World, dir: &str) -> u64 {
    let files = walk(&world.hub_dir().join(dir)).into_iter();
    let size = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().len();
    files.map(|path| size(path).div_ceil(4096) * 4096).sum()
}

fn used_by_ann(world: &World) -> u64 {
    let all = floe_hub::quotas(&world.hub_dir()).unwrap();
    all.iter().find(|one| one.user == "ann").unwrap().used.bytes
}

/// Images that have the same content, and each a manifest of its own.
fn alike(count: u64) -> Vec<Parts> {
    let parts = |number| {
        let mut parts = image_parts(&(1..400).collect::<Vec<_>>(), &[]);
        parts.manifest.created_unix_s += number;
        parts
    };
    (0..count).map(parts).collect()
}

#[test]
fn what_is_staged_counts_as_what_it_takes_on_the_disk_each_upload_for_itself() {
    let mut world = world();
    let images = alike(6);
    let shared = &world;
    let keys: Vec<String> = std::thread::scope(|scope| {
        let send = |parts| scope.spawn(move || shared.stage(parts, &shared.ann));
        let all: Vec<_> = images.iter().map(send).collect();
        all.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    let staged = taken(&world, "staging");
    let one: u64 = images[0]
        .packs
        .iter()
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    assert!(staged > 6 * one);
    assert_eq!(used_by_ann(&world), staged);
    // a pack that comes once more takes no more
    assert_eq!(world.stage(&images[0], &world.ann), keys[0]);
    assert_eq!(used_by_ann(&world), staged);
    // nor less once the hub was started again, until it is dropped or published
    world = world.again(|_| ());
    assert_eq!(used_by_ann(&world), staged);
    let path = format!("/v1/uploads/{}", keys[5]);
    assert_eq!(
        world.ask("DELETE", &path, Some(&world.ann), None).status,
        204
    );
    assert_eq!(taken(&world, "staging"), staged / 6 * 5);
    assert_eq!(used_by_ann(&world), staged / 6 * 5);
    for (count, key) in keys[..5].iter().enumerate() {
        let sent = world.commit(key, &world.ann, "{}");
        assert_eq!(sent.status, 200, "{}", sent.text());
        assert_eq!(taken(&world, "staging"), staged / 6 * (4 - count as u64));
        let all = taken(&world, "staging") + taken(&world, "repo");
        assert_eq!(used_by_ann(&world), all, "packs, manifests and layouts");
    }
    let path = format!("/v1/images/{}", images[0].id());
    assert_eq!(
        world.ask("DELETE", &path, Some(&world.ann), None).status,
        204
    );
    assert_eq!(used_by_ann(&world), taken(&world, "repo"));
}

#[test]
fn uploads_that_race_stage_no_more_bytes_than_the_quota() {
    let world = world();
    let images = alike(6);
    let all: u64 = images[0]
        .packs
        .iter()
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    let quota = all * 5 / 2;
    floe_hub::set_quota(&world.hub_dir(), "ann", &wish(Some(quota), None, None)).unwrap();
    let send = |parts: &Parts| {
        let manifest = parts.manifest.encode();
        let opened = world.ask("POST", "/v1/uploads", Some(&world.ann), Some(&manifest));
        if opened.status != 200 {
            assert_eq!((opened.status, &*opened.code()), (403, "quota"));
            return 1;
        }
        let key = opened.json()["id"].as_str().unwrap().to_owned();
        let packs = parts.packs.iter().map(|(reference, bytes)| {
            let path = format!("/v1/uploads/{key}/packs/{}", reference.id);
            let sent = world.ask("PUT", &path, Some(&world.ann), Some(bytes));
            if sent.status != 204 {
                assert_eq!((sent.status, &*sent.code()), (403, "quota"));
            }
            usize::from(sent.status != 204)
        });
        packs.sum()
    };
    let refused: usize = std::thread::scope(|scope| {
        let all: Vec<_> = images
            .iter()
            .map(|parts| scope.spawn(move || send(parts)))
            .collect();
        all.into_iter().map(|sent| sent.join().unwrap()).sum()
    });
    assert!(refused > 0);
    let staged = taken(&world, "staging");
    assert!(staged <= quota, "{staged} of {quota}");
    assert_eq!(used_by_ann(&world), staged);
    // a manifest counts too: where nothing is left, nothing begins
    floe_hub::set_quota(&world.hub_dir(), "ann", &wish(Some(staged), None, None)).unwrap();
    let manifest = image_parts(&[7], &[]).manifest.encode();
    let opened = world.ask("POST", "/v1/uploads", Some(&world.ann), Some(&manifest));
    assert_eq!((opened.status, &*opened.code()), (403, "quota"));
    assert_eq!(taken(&world, "staging"), staged);
    let key = world.stage(&image_parts(&[7], &[]), &world.bob);
    assert_eq!(world.commit(&key, &world.bob, "{}").status, 200);
}

#[test]
fn who_asks_too_fast_what_the_hub_has_waits_or_is_refused_and_others_are_not() {
    let few = 2000;
    let world = world_with(|o| {
        o.limits.have_items_burst = few;
        o.limits.have_items_per_s = 1;
    });
    let parts = image_parts(&[1, 2, 3], &[]);
    let question: Vec<u8> = (0..few)
        .flat_map(|number| {
            let hash = floe_image::Hash::of(&number.to_le_bytes());
            std::iter::once(Kind::Chunk as u8).chain(hash.0)
        })
        .collect();
    let opened = |token: &str| world.stage(&parts, token);
    let (anns, bobs) = (opened(&world.ann), opened(&world.bob));
    let have = |key: &str, token: &str| {
        let path = format!("/v1/uploads/{key}/have");
        world.ask("POST", &path, Some(token), Some(&question))
    };
    assert_eq!(have(&anns, &world.ann).status, 200);
    let refused = have(&anns, &world.ann);
    assert_eq!((refused.status, &*refused.code()), (503, "busy"));
    assert_eq!(refused.header("retry-after"), "1");
    // another upload of the same user has no pace of its own; another user does
    let other = world.stage(&image_parts(&[4], &[]), &world.ann);
    assert_eq!(have(&other, &world.ann).status, 503);
    assert_eq!(have(&bobs, &world.bob).status, 200);
    // whoever asks more than may be asked at once is kept waiting, and has its answer
    let world = world.again(|o| {
        o.limits.have_items_burst = 1;
        o.limits.have_items_per_s = 400;
    });
    let id = image(&world.repository, &(1..600).collect::<Vec<_>>());
    world.push(&id, "a", true).unwrap();
    assert_eq!(world.visible(None), 1);
}
