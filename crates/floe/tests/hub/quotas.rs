//! What users may have.

use crate::support::*;
use floe_hub::{Quota, QuotaWish};

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
