//! Batch reads and ranges.

use crate::support::*;
use floe_image::{Hash, Kind, Layout, ReadRequest, Record, chunk_hash, read_response};

fn read(world: &World, id: &Hash, wants: &[(Kind, Hash)], encoding: &str) -> (Vec<Record>, usize) {
    let body = ReadRequest {
        wants: wants.to_vec(),
    }
    .encode();
    let path = format!("/v1/images/{id}/read");
    let answer = ask(
        &world.hub.url(),
        "POST",
        &path,
        None,
        &[("x-floe-encoding", encoding)],
        Some(&body),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-floe-encoding"), encoding);
    let mut records = Vec::new();
    read_response(&answer.body[..], wants.len(), |record| {
        for (kind, hash, bytes) in record.items() {
            kind.verify(&hash, bytes)?;
        }
        records.push(record);
        Ok(())
    })
    .unwrap();
    (records, answer.body.len())
}

fn want(number: u64) -> (Kind, Hash) {
    (Kind::Chunk, chunk_hash(&page(number)))
}

#[test]
fn a_batch_read_gives_what_is_there_and_names_what_is_not() {
    let world = world();
    let numbers: Vec<u64> = (1..2500).collect();
    let id = image(&world.repository, &numbers);
    world.push(&id, "a", true).unwrap();
    let segment = world.repository.manifest(&id).unwrap().regions[0].segments[1];
    // From disk first, then from memory; the answers are the same.
    for encoding in ["raw", "zstd", "raw", "zstd"] {
        let (records, bytes) = read(
            &world,
            &id,
            &[want(77), (Kind::Segment, segment), want(9_999), want(78)],
            encoding,
        );
        let found: Vec<Hash> = records
            .iter()
            .flat_map(|r| r.items().map(|(_, hash, _)| hash).collect::<Vec<_>>())
            .collect();
        assert_eq!(
            found,
            [want(77).1, want(78).1, segment],
            "only what was asked for, frame by frame"
        );
        assert!(records.contains(&Record::Missing {
            kind: Kind::Chunk,
            hash: want(9_999).1
        }));
        assert!(bytes < (2 * 4096 + 32768) + 400, "{bytes}");
        // A segment's hash is no chunk's.
        let (records, _) = read(&world, &id, &[(Kind::Chunk, segment)], encoding);
        assert_eq!(
            records,
            [Record::Missing {
                kind: Kind::Chunk,
                hash: segment
            }]
        );
    }
    // More than is answered at once: the answer comes in pieces.
    let all: Vec<_> = (1..2500).map(want).collect();
    for encoding in ["zstd", "raw"] {
        let (records, bytes) = read(&world, &id, &all, encoding);
        assert_eq!(
            records.iter().map(|r| r.items().count()).sum::<usize>(),
            all.len()
        );
        assert_eq!(encoding == "raw", bytes > all.len() * 4096, "{bytes}");
    }
}

#[test]
fn a_malformed_batch_read_is_refused() {
    let world = world();
    let id = image(&world.repository, &[1, 2, 3]);
    world.push(&id, "a", true).unwrap();
    let path = format!("/v1/images/{id}/read");
    let good = ReadRequest {
        wants: vec![want(1)],
    }
    .encode();
    for bad in [&b""[..], b"nonsense", &good[..good.len() - 1]] {
        let answer = world.ask("POST", &path, None, Some(bad));
        assert_eq!((answer.status, &*answer.code()), (400, "bad-request"));
    }
    let huge = vec![0; floe_image::batch::REQUEST_BYTES_MAX + 1];
    assert_eq!(world.ask("POST", &path, None, Some(&huge)).status, 413);
    let odd = ask(
        &world.hub.url(),
        "POST",
        &path,
        None,
        &[("x-floe-encoding", "gzip")],
        Some(&good),
    );
    assert_eq!(odd.status, 400);
}

#[test]
fn a_pack_can_be_read_by_range_and_kept_for_ever() {
    let world = world();
    let id = image(&world.repository, &(1..900).collect::<Vec<_>>());
    world.push(&id, "a", true).unwrap();
    let layout = Layout::decode(&world.get(&format!("/v1/images/{id}/layout"), None).body).unwrap();
    let pack = layout.packs[0];
    let path = format!("/v1/packs/{}", pack.id);
    let whole = world.get(&path, None);
    assert_eq!(whole.body.len() as u64, pack.file_bytes);
    assert!(whole.header("cache-control").contains("immutable"));
    let etag = whole.header("etag").to_owned();
    assert_eq!(etag, format!("\"{}\"", pack.id));
    let get = |headers: &[(&str, &str)]| ask(&world.hub.url(), "GET", &path, None, headers, None);
    let part = get(&[("range", "bytes=100-299")]);
    assert_eq!((part.status, &*part.body), (206, &whole.body[100..300]));
    assert_eq!(
        part.header("content-range"),
        format!("bytes 100-299/{}", pack.file_bytes)
    );
    assert_eq!(
        get(&[("range", "bytes=-56")]).body,
        whole.body[whole.body.len() - 56..]
    );
    assert_eq!(get(&[("range", "bytes=999999999-")]).status, 416);
    assert_eq!(get(&[("if-none-match", &etag)]).status, 304);
    assert_eq!(
        get(&[("range", "bytes=0-9"), ("if-range", "\"other\"")]).status,
        200
    );
    assert_eq!(
        get(&[("range", "bytes=0-9"), ("if-range", &etag)]).status,
        206
    );
    let head = world.ask("HEAD", &path, None, None);
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, &*pack.file_bytes.to_string())
    );
}
