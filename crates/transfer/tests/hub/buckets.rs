//! What was pushed to a bucket can be read there, only what is missing is sent, and at no moment is half an image visible.

use crate::bucket::azurite::{ACCOUNT, Azurite};
use crate::bucket::{BucketServer, KEYS, Mood};
use crate::support::*;
use floe_image::{Hash, ImageName, Kind, Layout, PackIndex};
use floe_source::{Bucket, Options, Registry, Source};
use floe_store::Repository;
use floe_transfer::{
    Cancel, Destination, Place, Progress, PullOptions, PushReport, Stock, TransferError, pull, send,
};
use std::collections::HashSet;
use std::sync::Mutex;

const ADDRESS: &str = "s3://images/some/where";
const PREFIX: &str = "some/where";

fn numbers(count: u64) -> Vec<u64> {
    // Zero pages, repeated pages, and more than one segment.
    let number = |i: u64| match i {
        _ if i.is_multiple_of(7) => 0,
        _ if i.is_multiple_of(11) => 5,
        _ => i,
    };
    (0..count).map(number).collect()
}

fn open(address: &str, environment: Vec<(String, String)>) -> Bucket {
    let options = Options {
        environment: Some(environment),
        timeout: ASK_TIMEOUT,
        ..Options::default()
    };
    Bucket::new(&Registry::default().origin(address).unwrap(), &options).unwrap()
}

fn bucket(server: &BucketServer) -> Bucket {
    open(ADDRESS, server.environment())
}

fn name() -> ImageName {
    ImageName::parse("web").unwrap()
}

fn push(
    server: &BucketServer,
    stock: Stock<'_>,
    id: &Hash,
    cancel: &Cancel,
) -> Result<PushReport, TransferError> {
    let bucket = bucket(server);
    let place = Place::Bucket(&bucket, Some(name()));
    send(stock, id, &place, 0, cancel, &|_| ())
}

/// Reads the whole image back from the bucket.
fn pulled_from(bucket: &Bucket, id: &Hash) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let there = Repository::create(dir.path()).unwrap();
    let to = Destination::Repository(&there, None);
    pull(bucket, id, to, &PullOptions::default(), &|_| ()).unwrap();
    assert!(there.verify(id, &|_, _| true).unwrap().damage.is_empty());
    pages_of(&there, id)
}

fn pulled(server: &BucketServer, id: &Hash) -> Vec<u8> {
    pulled_from(&bucket(server), id)
}

/// A reader sees the image whole, or nothing of it.
fn visible_in(bucket: &Bucket, id: &Hash, pages: &[u8]) -> bool {
    let named = bucket.resolve("web").is_ok();
    let there = bucket.manifest(id).is_ok();
    assert!(there || !named, "a name without its image");
    if there {
        assert!(pulled_from(bucket, id) == pages, "the image is not whole");
    }
    there
}

fn visible(server: &BucketServer, id: &Hash, pages: &[u8]) -> bool {
    visible_in(&bucket(server), id, pages)
}

/// A push that is cut off after its first packs, one after it, and one of another image that has two other pages: what holds for
/// every vendor's buckets.
fn is_kept_by(bucket: &Bucket) {
    let world = world();
    let stock = Stock::Repository(&world.repository);
    let push = |id: &Hash, cancel: &Cancel, sent: &(dyn Fn(u64) + Sync)| {
        let place = Place::Bucket(bucket, Some(name()));
        let progress = |progress: Progress| sent(progress.wire_bytes);
        send(stock, id, &place, 1, cancel, &progress)
    };
    let first = image(&world.repository, &numbers(2500));
    let pages = pages_of(&world.repository, &first);
    let packs = world.repository.layout(&first).unwrap().packs.len();
    let cancel = Cancel::default();
    let cut = push(&first, &cancel, &|sent| {
        if sent > 0 {
            cancel.cancel();
        }
    });
    assert!(matches!(cut, Err(TransferError::Cancelled)), "{cut:?}");
    assert!(!visible_in(bucket, &first, &pages));
    let left = bucket.packs().unwrap();
    assert!(!left.is_empty() && left.len() < packs, "{left:?}");

    let rest = push(&first, &Cancel::default(), &|_| ()).unwrap();
    assert!(rest.resumed, "{rest:?}");
    assert!(visible_in(bucket, &first, &pages));
    let bytes = |packs: &[floe_source::Listed]| packs.iter().map(|pack| pack.bytes).sum::<u64>();
    let there = bucket.packs().unwrap();
    assert_eq!(bytes(&there), bytes(&left) + rest.bytes_sent);
    let again = push(&first, &Cancel::default(), &|_| ()).unwrap();
    assert_eq!((again.chunks_sent, again.bytes_sent), (0, 0));

    let mut changed = numbers(2500);
    changed[100] = 1_000_001;
    changed[2000] = 1_000_002;
    let second = image(&world.repository, &changed);
    let report = push(&second, &Cancel::default(), &|_| ()).unwrap();
    assert_eq!(report.chunks_sent, 2);
    assert_eq!(bucket.resolve("web").unwrap(), second);
    assert!(pulled_from(bucket, &second) == pages_of(&world.repository, &second));
    assert_eq!(bucket.images().unwrap().len(), 2);
}

/// What a push says that is refused.
fn refusal(bucket: &Bucket) -> String {
    let world = world();
    let id = image(&world.repository, &numbers(50));
    let place = Place::Bucket(bucket, Some(name()));
    let stock = Stock::Repository(&world.repository);
    let sent = send(stock, &id, &place, 0, &Cancel::default(), &|_| ());
    sent.unwrap_err().to_string()
}

#[test]
fn googles_buckets_are_used_with_the_tokens_of_a_service_account() {
    let server = BucketServer::start();
    is_kept_by(&open("gs://images/some/where", server.google_environment()));

    // the key of another account
    let other = BucketServer::start();
    let mut environment = other.google_environment();
    let stranger = std::fs::read_to_string(&environment[0].1).unwrap();
    let stranger = stranger.replace(&other.addr.to_string(), &server.addr.to_string());
    environment[0] = ("GOOGLE_SERVICE_ACCOUNT_KEY".into(), stranger);
    let text = refusal(&open("gs://images", environment));
    assert!(text.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{text}");
    assert!(!text.contains("PRIVATE KEY"), "a secret is shown: {text}");
    server.set(Mood::Refuses(404, "NoSuchBucket"));
    let text = refusal(&open("gs://nowhere", server.google_environment()));
    assert!(text.contains("there is no such bucket"), "{text}");
    server.set(Mood::Refuses(403, "AccessDenied"));
    let text = refusal(&open("gs://images", server.google_environment()));
    assert!(text.contains("storage.objects.create"), "{text}");
}

#[test]
#[ignore = "needs azurite: make test-all"]
fn azures_containers_are_used_with_the_key_of_an_account() {
    let server = Azurite::start();
    is_kept_by(&open(
        "az://images/some/where",
        server.environment(ACCOUNT.1),
    ));

    let text = refusal(&open("az://images", server.environment("d3Jvbmc=")));
    assert!(text.contains("check AZURE_STORAGE_ACCOUNT"), "{text}");
    assert!(!text.contains("d3Jvbmc="), "a secret is shown: {text}");
    let text = refusal(&open("az://nowhere/x", server.environment(ACCOUNT.1)));
    assert!(text.contains("there is no such container"), "{text}");
}

#[test]
fn what_was_pushed_to_a_bucket_is_read_there_and_only_what_is_new_is_sent() {
    let (world, server) = (world(), BucketServer::start());
    let stock = Stock::Repository(&world.repository);
    let first = image(&world.repository, &numbers(2500));
    let sent = push(&server, stock, &first, &Cancel::default()).unwrap();
    assert!(sent.chunks_sent > 1900 && !sent.resumed, "{sent:?}");
    assert_eq!(server.sent().0, sent.bytes_sent);
    assert_eq!(bucket(&server).resolve("web").unwrap(), first);
    assert!(pulled(&server, &first) == pages_of(&world.repository, &first));

    // the packs went as they are
    let own = world.repository.layout(&first).unwrap();
    assert_eq!(bucket(&server).layout(&first).unwrap(), Some(own));

    // the same again: nothing but the name
    server.set(Mood::Willing);
    let again = push(&server, stock, &first, &Cancel::default()).unwrap();
    assert_eq!((again.chunks_sent, server.sent()), (0, (0, 0)));

    let mut changed = numbers(2500);
    changed[100] = 1_000_001;
    changed[2000] = 1_000_002;
    let second = image(&world.repository, &changed);
    let report = push(&server, stock, &second, &Cancel::default()).unwrap();
    assert_eq!(report.chunks_sent, 2);
    // Two pages and two segments of hashes, which do not compress.
    assert!(
        report.bytes_sent < 2 * (32 << 10) + 3 * 4096 + 2048,
        "{report:?}"
    );
    assert_eq!(bucket(&server).resolve("web").unwrap(), second);
    assert!(pulled(&server, &second) == pages_of(&world.repository, &second));
}

#[test]
fn an_image_goes_from_a_hub_to_a_bucket_and_from_there_to_a_hub() {
    let (world, other, server) = (world(), crate::support::world(), BucketServer::start());
    let id = image(&world.repository, &numbers(2500));
    world.push(&id, "a", true).unwrap();
    let hub = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    push(&server, Stock::Source(&*hub), &id, &Cancel::default()).unwrap();
    assert!(pulled(&server, &id) == pages_of(&world.repository, &id));

    let from = bucket(&server);
    let wish = floe_api::hub::CommitRequest {
        name: Some("copied".into()),
        public: Some(true),
    };
    let cancel = Cancel::default();
    let client = floe_transfer::HubClient::new(&other.hub.url(), Some(&other.ann), None, &cancel);
    let place = Place::Hub(client.unwrap(), wish);
    send(Stock::Source(&from), &id, &place, 0, &cancel, &|_| ()).unwrap();
    let there = Registry::default()
        .open_at(&other.hub.url(), None, None)
        .unwrap();
    assert_eq!(there.resolve("copied").unwrap(), id);
    let repository = Repository::create(&other.dir.path().join("there")).unwrap();
    let to = Destination::Repository(&repository, None);
    pull(&*there, &id, to, &PullOptions::default(), &|_| ()).unwrap();
    assert!(pages_of(&repository, &id) == pages_of(&world.repository, &id));
}

#[test]
fn a_push_that_is_cut_shows_nothing_and_the_next_one_sends_the_rest() {
    let (world, hub_world) = (world(), crate::support::world());
    let id = image(&world.repository, &numbers(2500));
    let pages = pages_of(&world.repository, &id);
    // from a place where the packs are others, so that they are made anew
    let hub_id = image(&hub_world.repository, &numbers(2500));
    assert_eq!(id, hub_id);
    hub_world.push(&id, "a", true).unwrap();
    let hub = Registry::default()
        .open_at(&hub_world.hub.url(), None, None)
        .unwrap();
    let packs = world.repository.layout(&id).unwrap().packs.len();
    assert!(packs > 8, "{packs}");
    for (stock, after) in [
        (Stock::Repository(&world.repository), 0),
        (Stock::Repository(&world.repository), 3),
        (Stock::Repository(&world.repository), packs - 1),
        (Stock::Source(&*hub), 0),
    ] {
        let server = BucketServer::start();
        server.set(Mood::Hangs { after });
        let cancel = Cancel::default();
        let cut = std::thread::scope(|scope| {
            let push = scope.spawn(|| push(&server, stock, &id, &cancel));
            let until = std::time::Instant::now() + ASK_TIMEOUT;
            while server.stored_bytes(PREFIX) < 1 && after > 0 || server.sent().1 < after {
                assert!(std::time::Instant::now() < until, "{:?}", server.sent());
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            cancel.cancel();
            push.join().unwrap()
        });
        assert!(matches!(cut, Err(TransferError::Cancelled)), "{cut:?}");
        assert!(!visible(&server, &id, &pages));

        server.set(Mood::Willing);
        let there = server.stored_bytes(PREFIX);
        let rest = push(&server, stock, &id, &Cancel::default()).unwrap();
        assert!(visible(&server, &id, &pages));
        assert_eq!(rest.resumed, there > 0, "{rest:?}");
        assert_eq!(server.stored_bytes(PREFIX), there + rest.bytes_sent);
        assert_eq!(server.sent().0, rest.bytes_sent);
    }
}

#[test]
fn packs_that_were_made_anew_are_found_again_after_a_cut() {
    let (world, server) = (world(), BucketServer::start());
    // more than one pack of 8 MiB, since the source has no packs on this host
    let id = image(&world.repository, &numbers(6000));
    world.push(&id, "a", true).unwrap();
    let hub = Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    let stock = Stock::Source(&*hub);
    server.set(Mood::Hangs { after: 1 });
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let push = scope.spawn(|| push(&server, stock, &id, &cancel));
        let until = std::time::Instant::now() + ASK_TIMEOUT;
        while server.stored_bytes(PREFIX) == 0 {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        cancel.cancel();
        assert!(matches!(
            push.join().unwrap(),
            Err(TransferError::Cancelled)
        ));
    });
    server.set(Mood::Willing);
    let there = server.stored_bytes(PREFIX);
    let rest = push(&server, stock, &id, &Cancel::default()).unwrap();
    assert!(rest.resumed && rest.chunks_reused > 0, "{rest:?}");
    assert_eq!(server.stored_bytes(PREFIX), there + rest.bytes_sent);
    assert!(pulled(&server, &id) == pages_of(&world.repository, &id));
}

#[test]
fn a_server_that_is_busy_is_asked_again_and_one_that_forgets_publishes_nothing() {
    let (world, server) = (world(), BucketServer::start());
    let id = image(&world.repository, &numbers(1500));
    let pages = pages_of(&world.repository, &id);
    let stock = Stock::Repository(&world.repository);
    server.set(Mood::Forgetful);
    let error = push(&server, stock, &id, &Cancel::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("is not there as it was sent"), "{text}");
    assert!(!visible(&server, &id, &pages));

    server.set(Mood::Busy { after: 2, times: 3 });
    push(&server, stock, &id, &Cancel::default()).unwrap();
    assert!(visible(&server, &id, &pages));

    // a pack is lost later: the next push brings it back
    let packs = server.files(&format!("{PREFIX}/packs"));
    let lost = packs
        .iter()
        .find(|path| path.extension().is_some_and(|e| e == "pack"));
    std::fs::remove_file(lost.unwrap()).unwrap();
    server.set(Mood::Willing);
    push(&server, stock, &id, &Cancel::default()).unwrap();
    assert_eq!(server.sent().1, 1);
    assert!(visible(&server, &id, &pages));
}

#[test]
fn pushes_at_the_same_time_do_not_disturb_each_other() {
    let (world, server) = (world(), BucketServer::start());
    let mut changed = numbers(2500);
    changed[100] = 1_000_001;
    let ids = [
        image(&world.repository, &numbers(2500)),
        image(&world.repository, &changed),
    ];
    let stock = Stock::Repository(&world.repository);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (id, server) = (&ids[n % 2], &server);
            scope.spawn(move || push(server, stock, id, &Cancel::default()).unwrap());
        }
    });
    let named = bucket(&server).resolve("web").unwrap();
    assert!(ids.contains(&named));
    for id in &ids {
        assert!(pulled(&server, id) == pages_of(&world.repository, id));
    }
}

#[test]
fn nothing_of_other_images_reaches_the_bucket() {
    let (world, server) = (world(), BucketServer::start());
    let secret: Vec<u64> = (1..1000).collect();
    image(&world.repository, &secret);
    let mut ours = secret[..300].to_vec();
    ours.extend(5000..5600);
    let parts = image_parts(&ours, &secret);
    // as an import stores it: what another image has isn't stored again
    let mut layout = Layout::default();
    for entry in world.repository.list().unwrap() {
        layout
            .packs
            .extend(world.repository.layout(&entry.id).unwrap().packs);
    }
    for (_, bytes) in &parts.packs {
        let taken = world
            .repository
            .adopt_pack_from(&mut &bytes[..], bytes.len() as u64);
        layout.packs.push(taken.unwrap());
    }
    let id = world.repository.publish(&parts.manifest, &layout).unwrap();
    push(
        &server,
        Stock::Repository(&world.repository),
        &id,
        &Cancel::default(),
    )
    .unwrap();

    let region = &parts.manifest.regions[0];
    let mut own: HashSet<Hash> = region.segments.iter().copied().collect();
    own.extend(ours.iter().map(|n| floe_image::chunk_hash(&page(*n))));
    let layout = bucket(&server).layout(&id).unwrap().unwrap();
    let stored = server.files(&format!("{PREFIX}/packs"));
    let packs = stored
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "pack"));
    assert_eq!(packs.clone().count(), layout.packs.len());
    for path in packs {
        let bytes = std::fs::read(path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let pack = layout
            .packs
            .iter()
            .find(|pack| pack.id.to_string() == name)
            .unwrap();
        let at = pack.index_offset as usize;
        let index = PackIndex::decode(&bytes[at..at + pack.index_bytes as usize], pack).unwrap();
        assert!(index.hashes().iter().all(|hash| own.contains(hash)));
        assert!(
            index
                .frames()
                .iter()
                .all(|frame| frame.kind != Kind::Segment || own.len() > 1)
        );
    }
    assert!(pulled(&server, &id) == pages_of(&world.repository, &id));
    assert_eq!(bucket(&server).images().unwrap().len(), 1);
}

#[test]
fn refusals_say_what_to_do() {
    let server = BucketServer::start();
    let refused = |address: &str, keys: (&str, &str)| {
        let mut environment = server.environment();
        for (name, value) in &mut environment {
            match &**name {
                "AWS_ACCESS_KEY_ID" => *value = keys.0.into(),
                "AWS_SECRET_ACCESS_KEY" => *value = keys.1.into(),
                _ => {}
            }
        }
        refusal(&open(address, environment))
    };
    for (address, keys, fix) in [
        (ADDRESS, (KEYS.0, "wrong"), "AWS_SECRET_ACCESS_KEY"),
        (ADDRESS, ("nobody", "wrong"), "s3:PutObject"),
    ] {
        let text = refused(address, keys);
        assert!(text.contains(fix), "{text}");
    }
    let seen = Mutex::new(HashSet::new());
    for (status, code, fix) in [
        (403, "AccessDenied", "s3:PutObject"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", "set the clock"),
        (400, "ExpiredToken", "renew AWS_SESSION_TOKEN"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (301, "PermanentRedirect", "AWS_REGION"),
        (404, "NoSuchBucket", "AWS_ENDPOINT_URL"),
    ] {
        server.set(Mood::Refuses(status, code));
        let text = refused(ADDRESS, KEYS);
        assert!(text.contains(fix), "{code}: {text}");
        assert!(!text.contains(KEYS.1), "a secret is shown: {text}");
        seen.lock().unwrap().insert(text);
    }
    server.set(Mood::Willing);
    assert_eq!(server.stored_bytes(""), 0);
}
