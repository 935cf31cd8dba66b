//! What happens to machines' traces, and to those who send bad ones.

use crate::support::*;
use floe_http::{Connections, Limits, Server, Url};
use floe_image::{Access, Hash, TraceHeader, TraceWriter};
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// A trace of some chunks of region 0; different ones for different seeds.
fn trace_of(image: &Hash, seed: u64, accesses: impl IntoIterator<Item = (u8, u32)>) -> Vec<u8> {
    let header = TraceHeader {
        image: *image,
        machine: String::new(),
        start_unix_us: 1_700_000_000_000_000 + seed,
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    for (number, (region, chunk)) in accesses.into_iter().enumerate() {
        let access = Access {
            region,
            chunk,
            t_us: number as u64 * 1000,
            wait_us: 10,
        };
        writer.push(access).unwrap();
    }
    writer.into_inner()
}

fn trace(image: &Hash, seed: u64) -> Vec<u8> {
    trace_of(image, seed, (0..200).map(|chunk| (0, chunk)))
}

fn pages() -> Vec<u64> {
    (1..300).collect()
}

/// A hub with ann's image.
fn with_image(public: bool) -> (World, Hash) {
    let world = world_with(|options| {
        options.limits.training_quiet = QUIET;
        options.anonymous_traces = true;
    });
    let id = image(&world.repository, &pages());
    world.push(&id, "desktop", public).unwrap();
    (world, id)
}

impl World {
    fn send(&self, id: &Hash, token: Option<&str>, bytes: &[u8]) -> Answer {
        self.ask(
            "POST",
            &format!("/v1/images/{id}/traces"),
            token,
            Some(bytes),
        )
    }

    fn taken(&self, id: &Hash, token: Option<&str>, bytes: &[u8]) -> serde_json::Value {
        let answer = self.send(id, token, bytes);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    fn traces(&self, id: &Hash) -> Vec<serde_json::Value> {
        let list = self.get(&format!("/v1/images/{id}/traces"), Some(&self.ann));
        assert_eq!(list.status, 200, "{}", list.text());
        list.json()["traces"].as_array().unwrap().clone()
    }

    fn model(&self, id: &Hash, method: &str) -> Answer {
        let path = format!("/v1/images/{id}/model?method={method}");
        self.get(&path, Some(&self.ann))
    }

    fn restart(self) -> World {
        self.again(|options| {
            options.limits.training_quiet = QUIET;
            options.anonymous_traces = true;
        })
    }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn traces_become_a_model_that_every_reader_gets() {
    let (world, id) = with_image(true);
    let absent = world.model(&id, "floe");
    assert_eq!((absent.status, absent.code()), (404, "no-model".into()));
    for seed in 0..3 {
        let taken = world.taken(&id, Some(&world.bob), &trace(&id, seed));
        assert_eq!(taken["kept"], seed + 1);
    }
    eventually("a model", || world.model(&id, "floe").status == 200);
    let of_all = || {
        let list = world.get(&format!("/v1/images/{id}/traces"), Some(&world.ann));
        list.json()["models"][0]["current"] == true
    };
    eventually("a model of all traces", of_all);
    let model = world.get(&format!("/v1/images/{id}/model"), None);
    assert_eq!(model.status, 200, "{}", model.text());
    let decoded = floe_traces::Model::decode(&model.body).unwrap();
    assert_eq!(decoded.image(), id);
    // and does not get it again
    let etag = model.header("etag").to_owned();
    assert_eq!(etag, format!("\"{}\"", Hash::of(&model.body)));
    let path = format!("/v1/images/{id}/model");
    let seen = [("if-none-match", etag.as_str())];
    let again = ask(&world.hub.url(), "GET", &path, None, &seen, None);
    assert_eq!((again.status, again.body.len()), (304, 0));
    // other methods are made when somebody asks for them
    for method in ["vtube", "vmtorrent"] {
        let other = world.model(&id, method);
        assert_eq!(other.status, 200, "{}", other.text());
        assert_ne!(other.body, model.body);
    }
    let unknown = world.model(&id, "magic");
    assert_eq!(
        (unknown.status, unknown.code()),
        (400, "bad-request".into())
    );
}

#[test]
fn traces_are_for_the_images_owner_alone() {
    for public in [true, false] {
        let (world, id) = with_image(public);
        world.taken(&id, Some(&world.ann), &trace(&id, 1));
        let hash = Hash::of(&trace(&id, 1));
        let absent = "00".repeat(31) + "01";
        for viewer in [Some(&*world.bob), None] {
            for path in ["traces".to_owned(), format!("traces/{hash}")] {
                let foreign = world.get(&format!("/v1/images/{id}/{path}"), viewer);
                let nothing = world.get(&format!("/v1/images/{absent}/{path}"), viewer);
                assert_eq!(foreign.status, 404, "{path} {public}");
                let same = nothing.text().replace(&absent, &id.to_string());
                assert_eq!(foreign.text(), same, "{path} {public}");
            }
            let path = format!("/v1/images/{id}/traces/{hash}");
            assert_eq!(world.ask("DELETE", &path, viewer, None).status, 404);
            // whoever can't read the image can't send a trace of it either
            let expected = if public { 200 } else { 404 };
            let sent = world.send(&id, viewer, &trace(&id, 1));
            assert_eq!(sent.status, expected);
            let model = world.get(&format!("/v1/images/{id}/model"), viewer);
            assert!(public || model.text().contains("there is no image"));
        }
        let path = format!("/v1/images/{id}/traces/{hash}");
        let own = world.get(&path, Some(&world.ann));
        assert_eq!((own.status, own.body), (200, trace(&id, 1)));
        let entry = &world.traces(&id)[0];
        assert_eq!(
            (&entry["accesses"], &entry["uploader"]),
            (&200.into(), &"ann".into())
        );
        let gone = world.ask("DELETE", &path, Some(&world.ann), None);
        assert_eq!(gone.status, 204);
        assert_eq!(world.get(&path, Some(&world.ann)).code(), "no-trace");
    }
}

/// Says that so many bytes will come, and what the hub answers to that.
fn announce(world: &World, path: &str, bytes: u64) -> String {
    use std::io::{Read, Write};
    let address = world.hub.addr();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_hostile_trace_is_refused_and_nothing_of_it_is_kept() {
    let (world, id) = with_image(true);
    let other = Hash::of(b"another image");
    let hostile = [
        (422, trace_of(&id, 0, [(0, u32::MAX)])),
        (422, trace_of(&id, 0, [(0, 299)])),
        (422, trace_of(&id, 0, [(63, 0)])),
        (422, trace_of(&id, 0, (0..200_001).map(|_| (0, 0)))),
        (422, trace(&other, 0)),
        (422, trace(&id, 0)[..499].to_vec()),
        (422, b"FLOETRCE".to_vec()),
        (422, Vec::new()),
    ];
    for (status, bytes) in hostile {
        let answer = world.send(&id, None, &bytes);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.code(), "invalid-trace");
    }
    // a hundred million accesses would be half a gigabyte: what is announced to be too long is not even read
    let announced = announce(&world, &format!("/v1/images/{id}/traces"), 500 << 20);
    assert!(announced.starts_with("HTTP/1.1 413"), "{announced}");
    assert!(world.traces(&id).is_empty());
    assert!(!world.hub_dir().join("traces").join(id.to_string()).exists());
    // a good one is welcome after all that
    world.taken(&id, None, &trace(&id, 0));
}

#[test]
fn the_65th_trace_displaces_the_oldest_and_a_strangers_flood_only_the_strangers() {
    let (world, id) = with_image(true);
    for seed in 0..64 {
        world.taken(&id, Some(&world.ann), &trace(&id, seed));
    }
    world.taken(&id, Some(&world.ann), &trace(&id, 64));
    let kept = world.traces(&id);
    assert_eq!(kept.len(), 64);
    assert_eq!(kept[0]["hash"], Hash::of(&trace(&id, 1)).to_string());
    for seed in 100..140 {
        world.taken(&id, Some(&world.bob), &trace(&id, seed));
    }
    let kept = world.traces(&id);
    let from = |name: &str| {
        kept.iter()
            .filter(|entry| entry["uploader"] == name)
            .count()
    };
    assert_eq!((from("ann"), from("bob")), (48, 16));
    // one that was sent already changes nothing
    let again = world.taken(&id, Some(&world.bob), &trace(&id, 139));
    assert_eq!(again["known"], true);
    assert_eq!(world.traces(&id), kept);
}

#[test]
fn traces_and_models_outlive_the_hub_and_not_their_image() {
    let (world, id) = with_image(false);
    world.taken(&id, Some(&world.ann), &trace(&id, 1));
    eventually("a model", || world.model(&id, "floe").status == 200);
    let model = world.model(&id, "floe").body;
    let folder = world.hub_dir().join(format!("traces/{id}/ann"));
    // a hub that was killed while it wrote leaves such a file
    std::fs::write(folder.join(".new-half"), b"half").unwrap();
    let world = world.restart();
    assert!(!folder.join(".new-half").exists());
    assert_eq!(world.traces(&id).len(), 1);
    assert_eq!(world.model(&id, "floe").body, model);

    let removed = world.ask(
        "DELETE",
        &format!("/v1/images/{id}"),
        Some(&world.ann),
        None,
    );
    assert_eq!(removed.status, 204);
    assert!(!folder.exists());
    assert_eq!(world.model(&id, "floe").status, 404);
    // published again, it begins anew
    world.push(&id, "desktop", false).unwrap();
    assert!(world.traces(&id).is_empty());
}

#[test]
fn a_hub_that_is_stopped_while_traces_come_keeps_whole_ones_and_trains_after() {
    let (world, id) = with_image(true);
    let url = world.hub.url();
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let (url, path) = (url.clone(), format!("/v1/images/{id}/traces"));
            std::thread::spawn(move || {
                let server = Server::new(&Url::parse(&url).unwrap(), None).unwrap();
                let server = std::sync::Arc::new(server);
                let kept = Connections::new(server.clone(), 1);
                let mut sent = Vec::new();
                for seed in 0..200 {
                    let bytes = trace(&id, sender * 1000 + seed);
                    let make = || {
                        let body = floe_http::Bytes::copy_from_slice(&bytes);
                        server.request(floe_http::Method::POST, &path).body(body)
                    };
                    let limits = Limits::within(ASK_TIMEOUT, ASK_TIMEOUT);
                    match kept.exchange(&limits, &make, None, &mut |_, _| Ok(())) {
                        Ok(head) if head.status.is_success() => sent.push(Hash::of(&bytes)),
                        _ => break, // the hub has gone
                    }
                }
                sent
            })
        })
        .collect();
    eventually("some traces", || !world.traces(&id).is_empty());
    let world = world.restart();
    let sent: Vec<Hash> = senders
        .into_iter()
        .flat_map(|sender| sender.join().unwrap())
        .collect();
    assert!(!sent.is_empty());
    // what is listed was read whole and checked; the newest of what was answered is there
    let kept = world.traces(&id);
    assert_eq!(kept.len(), sent.len().min(16));
    let folder = world.hub_dir().join(format!("traces/{id}/ann"));
    let files = std::fs::read_dir(&folder).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    let unfinished = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with('.');
    assert_eq!(names.iter().find(unfinished), None);
    eventually("a model of what is there", || {
        let list = world.get(&format!("/v1/images/{id}/traces"), Some(&world.ann));
        list.json()["models"][0]["current"] == true
    });
}

#[test]
fn a_trace_without_a_token_is_taken_only_where_the_operator_wants_it() {
    let world = world();
    let id = image(&world.repository, &pages());
    world.push(&id, "desktop", true).unwrap();
    let refused = world.send(&id, None, &trace(&id, 0));
    assert_eq!(
        (refused.status, refused.code()),
        (403, "no-anonymous-traces".into())
    );
    world.taken(&id, Some(&world.bob), &trace(&id, 0));
    assert_eq!(world.traces(&id).len(), 1);
}

#[test]
fn strangers_do_not_outweigh_the_owner_in_a_model_and_the_list_says_what_counts() {
    let (world, id) = with_image(true);
    for seed in 0..8 {
        world.taken(&id, Some(&world.ann), &trace(&id, seed));
        world.taken(&id, Some(&world.bob), &trace(&id, 100 + seed));
        world.taken(&id, None, &trace(&id, 200 + seed));
    }
    let kept = world.traces(&id);
    let weight = |who: Option<&str>| -> (usize, u64) {
        let of = kept
            .iter()
            .filter(|entry| entry["uploader"].as_str() == who);
        let weights: Vec<u64> = of
            .map(|entry| entry["weight_percent"].as_u64().unwrap())
            .collect();
        (
            weights.iter().filter(|weight| **weight > 0).count(),
            weights.iter().sum(),
        )
    };
    assert_eq!(
        (weight(Some("ann")).0, weight(Some("bob")).0, weight(None).0),
        (8, 4, 2)
    );
    assert!(weight(Some("ann")).1 >= weight(Some("bob")).1 + weight(None).1);
}
