//! What was pushed can be pulled, and only what is missing moves.

use crate::support::*;
use floe_image::Hash;
use floe_source::Registry;
use floe_store::{Cache, Ingest, IngestOptions, Repository};
use floe_transfer::{
    Cancel, Destination, Progress, PullOptions, PushOptions, TransferError, copy_packs, pull, push,
};
use std::sync::Mutex;

fn numbers(count: u64) -> Vec<u64> {
    // Zero pages, repeated pages, and more than one segment.
    (0..count)
        .map(|i| {
            if i % 7 == 0 {
                0
            } else if i % 11 == 0 {
                5
            } else {
                i
            }
        })
        .collect()
}

fn pulled(
    world: &World,
    id: &Hash,
    into: &str,
    token: Option<&str>,
) -> (Repository, floe_transfer::PullReport) {
    let repository = Repository::create(&world.dir.path().join(into)).unwrap();
    let registry = Registry::default();
    let source = registry.open_at(&world.hub.url(), token, None).unwrap();
    let report = pull(
        &*source,
        id,
        Destination::Repository(&repository, None),
        &PullOptions::default(),
        &|_| (),
    )
    .unwrap();
    (repository, report)
}

#[test]
fn what_was_pushed_can_be_pulled_byte_for_byte() {
    let world = world();
    let id = image(&world.repository, &numbers(2500));
    let last = Mutex::new(Progress::default());
    let options = PushOptions {
        name: Some("debian".into()),
        public: Some(true),
        ..PushOptions::default()
    };
    let report = push(
        &world.repository,
        &id,
        &world.hub.url(),
        Some(&world.ann),
        &options,
        &|p| {
            let mut last = last.lock().unwrap();
            *last = Progress {
                done_bytes: last.done_bytes.max(p.done_bytes),
                total_bytes: p.total_bytes,
                wire_bytes: last.wire_bytes.max(p.wire_bytes),
            };
        },
    )
    .unwrap();
    let last = last.into_inner().unwrap();
    assert_eq!(last.done_bytes, last.total_bytes);
    assert_eq!(last.wire_bytes, report.bytes_sent);
    assert_eq!(report.chunks_reused, 0);
    assert!(report.chunks_sent > 1900, "{report:?}");

    let source = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    assert_eq!(source.resolve("debian").unwrap(), id);
    let (there, report) = pulled(&world, &id, "there", None);
    assert_eq!(pages_of(&there, &id), pages_of(&world.repository, &id));
    assert_eq!(report.chunks_reused, 0);
    assert!(there.verify(&id, &|_, _| true).unwrap().damage.is_empty());
}

#[test]
fn a_layer_of_patches_moves_as_its_chunks_and_its_manifest() {
    let world = world();
    let first = image(&world.repository, &numbers(2500));
    world.push(&first, "a", false).unwrap();
    let options = IngestOptions {
        parent: Some(first),
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&world.repository, options).unwrap();
    let size = 2500 * floe_image::CHUNK_SIZE as u64;
    let changed = |n: u64| <[u8; floe_image::CHUNK_SIZE]>::try_from(page(n)).unwrap();
    let pages = [(100, 1_000_001), (2000, 1_000_002)].map(|(at, n)| Ok((at, changed(n))));
    ingest
        .region_from_pages("ram", size, Some("ram"), pages.into_iter())
        .unwrap();
    let second = ingest.finish(floe_image::MachineConfig::default()).unwrap();
    let region = &world.repository.manifest(&second).unwrap().regions[0];
    assert_eq!(region.patches.len(), 2);

    let report = world.push(&second, "b", false).unwrap();
    assert_eq!(report.chunks_sent, 2, "{report:?}");
    assert!(
        report.bytes_sent < 3 * 4096,
        "no table goes again: {report:?}"
    );
    let (there, _) = pulled(&world, &second, "there", Some(&world.ann));
    assert_eq!(
        pages_of(&there, &second),
        pages_of(&world.repository, &second)
    );
    assert!(pages_of(&there, &second) != pages_of(&world.repository, &first));
}

#[test]
fn a_second_push_sends_only_what_is_new() {
    let world = world();
    let first = image(&world.repository, &numbers(2500));
    let sent = world.push(&first, "a", false).unwrap();
    let mut changed = numbers(2500);
    changed[100] = 1_000_001;
    changed[2000] = 1_000_002;
    let second = image(&world.repository, &changed);
    let report = world.push(&second, "b", false).unwrap();
    assert_eq!(report.chunks_sent, 2);
    assert!(report.chunks_reused >= sent.chunks_sent - 2, "{report:?}");
    // Two pages and two segments of hashes, which do not compress.
    assert!(
        report.bytes_sent < 2 * (32 << 10) + 3 * 4096 + 2048,
        "{report:?}"
    );
    let (there, _) = pulled(&world, &second, "there", Some(&world.ann));
    assert_eq!(
        pages_of(&there, &second),
        pages_of(&world.repository, &second)
    );

    let again = world.push(&second, "b", false).unwrap();
    assert_eq!((again.chunks_sent, again.bytes_sent), (0, 0));
}

#[test]
fn a_second_pull_fetches_only_what_is_new() {
    let world = world();
    let first = image(&world.repository, &numbers(2500));
    let mut changed = numbers(2500);
    changed[100] = 1_000_001;
    let second = image(&world.repository, &changed);
    world.push(&first, "a", true).unwrap();
    world.push(&second, "b", true).unwrap();
    let (there, _) = pulled(&world, &first, "there", None);
    let source = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    let report = pull(
        &*source,
        &second,
        Destination::Repository(&there, None),
        &PullOptions::default(),
        &|_| (),
    )
    .unwrap();
    assert_eq!(report.chunks_fetched, 1);
    assert_eq!(
        pages_of(&there, &second),
        pages_of(&world.repository, &second)
    );
}

#[test]
fn a_cache_takes_an_image_in_and_gives_it_to_a_repository() {
    let world = world();
    let id = image(&world.repository, &numbers(1500));
    world.push(&id, "a", true).unwrap();
    let source = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    let cache = Cache::open(&world.dir.path().join("cache"), 64 << 20).unwrap();
    let options = PullOptions::default();
    let report = pull(&*source, &id, Destination::Cache(&cache), &options, &|_| ()).unwrap();
    assert!(report.chunks_fetched > 1000);
    let again = pull(&*source, &id, Destination::Cache(&cache), &options, &|_| ()).unwrap();
    assert_eq!(
        (again.chunks_fetched, again.chunks_reused),
        (0, report.chunks_fetched)
    );

    let there = Repository::create(&world.dir.path().join("there")).unwrap();
    let from_cache = pull(
        &*source,
        &id,
        Destination::Repository(&there, Some(&cache)),
        &options,
        &|_| (),
    )
    .unwrap();
    assert_eq!(from_cache.chunks_fetched, 0);
    assert_eq!(pages_of(&there, &id), pages_of(&world.repository, &id));
}

#[test]
fn a_cancelled_push_shows_nothing_and_goes_on_where_it_stopped() {
    let world = world();
    let id = image(&world.repository, &numbers(2500));
    let cancel = Cancel::default();
    let options = PushOptions {
        name: Some("a".into()),
        cancel: cancel.clone(),
        connections: 1,
        ..PushOptions::default()
    };
    let ended = push(
        &world.repository,
        &id,
        &world.hub.url(),
        Some(&world.ann),
        &options,
        &|p| {
            if p.done_bytes > p.total_bytes / 2 {
                cancel.cancel();
            }
        },
    );
    assert!(matches!(ended, Err(TransferError::Cancelled)), "{ended:?}");
    assert_eq!(world.visible(Some(&world.ann)), 0);
    let report = world.push(&id, "a", false).unwrap();
    assert!(
        report.chunks_sent > 0 && report.chunks_reused > report.chunks_sent / 2,
        "{report:?}"
    );
    let (there, _) = pulled(&world, &id, "there", Some(&world.ann));
    assert_eq!(pages_of(&there, &id), pages_of(&world.repository, &id));
}

#[test]
fn a_cancelled_pull_goes_on_where_it_stopped() {
    let world = world();
    let id = image(&world.repository, &numbers(2500));
    world.push(&id, "a", true).unwrap();
    let there = Repository::create(&world.dir.path().join("there")).unwrap();
    let source = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    let options = PullOptions {
        connections: 1,
        ..PullOptions::default()
    };
    let ended = pull(
        &*source,
        &id,
        Destination::Repository(&there, None),
        &options,
        &|p| {
            if p.done_bytes > p.total_bytes / 2 {
                options.cancel.cancel();
            }
        },
    );
    assert!(matches!(ended, Err(TransferError::Cancelled)), "{ended:?}");
    assert!(there.manifest(&id).is_err());
    let report = pull(
        &*source,
        &id,
        Destination::Repository(&there, None),
        &PullOptions::default(),
        &|_| (),
    )
    .unwrap();
    assert!(
        report.chunks_reused > 0 && report.chunks_fetched > 0,
        "{report:?}"
    );
    assert_eq!(pages_of(&there, &id), pages_of(&world.repository, &id));
}

#[test]
fn a_public_image_can_be_read_as_static_files() {
    let world = world();
    let id = image(&world.repository, &numbers(1200));
    world.push(&id, "team/web:v2", true).unwrap();
    let base = format!("{}/v1/static", world.hub.url());
    assert_eq!(
        ask(&base, "GET", "/tags/team/web:v2", None, &[], None)
            .text()
            .trim(),
        id.to_string()
    );
    let manifest = ask(&base, "GET", &format!("/images/{id}"), None, &[], None);
    assert_eq!(Hash::of(&manifest.body), id);
    let layout = ask(
        &base,
        "GET",
        &format!("/images/{id}.layout"),
        None,
        &[],
        None,
    );
    for pack in floe_image::Layout::decode(&layout.body).unwrap().packs {
        let name = pack.id.to_string();
        let bytes = ask(
            &base,
            "GET",
            &format!("/packs/{}/{name}.pack", &name[..2]),
            None,
            &[],
            None,
        );
        assert_eq!(floe_hub::verify_pack(&bytes.body, &pack.id).unwrap(), pack);
    }
}

#[test]
fn packs_that_were_laid_out_anew_move_as_they_lie() {
    let world = world();
    let id = image(&world.repository, &numbers(2500));
    let clusters: Vec<Vec<Hash>> = [3, 60, 100]
        .map(|first| {
            (first..2500)
                .step_by(97)
                .map(|n| Hash::of(&page(n)))
                .collect()
        })
        .into();
    let ready = world
        .repository
        .rearrange(&id, &clusters, &mut |_, _| true)
        .unwrap();
    ready.publish().unwrap();
    let layout = world.repository.layout(&id).unwrap();

    // to a hub, for everybody: the same files, whatever their order
    world.push(&id, "web", true).unwrap();
    let path = format!("/v1/static/images/{id}.layout");
    let there = ask(&world.hub.url(), "GET", &path, None, &[], None);
    let there = floe_image::Layout::decode(&there.body).unwrap();
    let sorted = |layout: &floe_image::Layout| {
        let mut ids: Vec<Hash> = layout.packs.iter().map(|pack| pack.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(sorted(&there), sorted(&layout));

    // to a directory, cut off after the first pack and begun again: the same layout
    let directory = Repository::create(&world.dir.path().join("www")).unwrap();
    let cancel = Cancel::default();
    let cut = copy_packs(&world.repository, &directory, &id, &cancel, &|_| {
        cancel.cancel()
    });
    assert!(matches!(cut, Err(TransferError::Cancelled)));
    let go_on = Cancel::default();
    let copied = copy_packs(&world.repository, &directory, &id, &go_on, &|_| ()).unwrap();
    let all: u64 = layout.packs.iter().map(|pack| pack.file_bytes).sum();
    assert_eq!(copied.bytes, all - layout.packs[0].file_bytes);
    let source = floe_source::Directory::new(world.repository.clone());
    let to = Destination::Repository(&directory, None);
    let report = pull(&source, &id, to, &PullOptions::default(), &|_| ()).unwrap();
    assert_eq!(report.chunks_fetched, 0);
    assert_eq!(directory.layout(&id).unwrap(), layout);
    assert!(directory.verify(&id, &|_, _| true).unwrap().is_sound());
    // it is there now
    let again = copy_packs(&world.repository, &directory, &id, &go_on, &|_| ()).unwrap();
    assert_eq!((again.bytes, again.chunks), (0, 0));

    // a directory that has most of it in other packs gets only the rest
    let other = Repository::create(&world.dir.path().join("other")).unwrap();
    image(&other, &numbers(2400));
    let copied = copy_packs(&world.repository, &other, &id, &go_on, &|_| ()).unwrap();
    assert!(copied.bytes < all / 4, "{copied:?} of {all}");
    let to = Destination::Repository(&other, None);
    let report = pull(&source, &id, to, &PullOptions::default(), &|_| ()).unwrap();
    assert!(report.chunks_reused > 10 * report.chunks_fetched);
    assert!(other.verify(&id, &|_, _| true).unwrap().is_sound());
}
