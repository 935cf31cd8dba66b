//! Batch reads and ranges.

use crate::support::*;
use floe_image::{Hash, Kind, Layout, ReadRequest, Record, chunk_hash, read_response};
use std::io::{Read, Write};
use std::time::Instant;

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

/// Prints the time of a one-chunk read from the hub's memory over loopback, beside the smallest request that the same
/// server answers, on the same connection.
#[test]
fn latency_of_a_one_chunk_read_from_memory() {
    if std::env::var_os("FLOE_TEST_LATENCY").is_none() {
        eprintln!("skipped: a measurement; run it alone with FLOE_TEST_LATENCY=1 and --nocapture");
        return;
    }
    let world = world();
    let id = image(&world.repository, &(1..2500).collect::<Vec<_>>());
    world.push(&id, "a", true).unwrap();
    let mut stream = std::net::TcpStream::connect(world.hub.addr()).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut exchange = |request: &[u8], answer_bytes: &mut Vec<u8>| {
        stream.write_all(request).unwrap();
        answer_bytes.clear();
        let mut buffer = [0; 16384];
        loop {
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0);
            answer_bytes.extend_from_slice(&buffer[..n]);
            let Some(head) = answer_bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
                continue;
            };
            let text = String::from_utf8_lossy(&answer_bytes[..head]).to_lowercase();
            assert!(text.starts_with("http/1.1 200"), "{text}");
            let length: usize = text
                .split("content-length: ")
                .nth(1)
                .unwrap()
                .lines()
                .next()
                .unwrap()
                .parse()
                .unwrap();
            if answer_bytes.len() == head + 4 + length {
                return;
            }
        }
    };
    let request = |number: u64, encoding: &str| {
        let body = ReadRequest {
            wants: vec![want(number)],
        }
        .encode();
        let mut request =
            format!("POST /v1/images/{id}/read HTTP/1.1\r\nhost: hub\r\nx-floe-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n", body.len())
                .into_bytes();
        request.extend_from_slice(&body);
        request
    };
    let mut answer = Vec::new();
    for (what, requests) in [
        (
            "healthz",
            vec![b"GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\n".to_vec()],
        ),
        (
            "one chunk, raw",
            (1..2000).map(|i| request(i, "raw")).collect(),
        ),
        (
            "one chunk, zstd",
            (1..2000).map(|i| request(i, "zstd")).collect(),
        ),
    ] {
        for request in &requests {
            exchange(request, &mut answer);
        }
        let mut times: Vec<u128> = (0..20_000)
            .map(|i| {
                let from = Instant::now();
                exchange(&requests[i % requests.len()], &mut answer);
                from.elapsed().as_nanos()
            })
            .collect();
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize] as f64 / 1000.0;
        println!(
            "{what}: median {:.1} us, p99 {:.1} us, {} bytes",
            at(0.5),
            at(0.99),
            answer.len()
        );
    }
}
