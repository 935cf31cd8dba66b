//! What every source promises, over every source: a directory, a web server with ranges, a hub, an S3 server.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::proxy::{Fault, Proxy};
use common::*;
use floe_image::{Hash, Kind};
use floe_source::{
    Directory, Files, Hub, Options, Retry, RetryOptions, S3, Source, SourceError, open, range_reads,
};

/// Everything needed to talk to one image in one way; what is in `_keep` must outlive the source.
struct Case {
    name: &'static str,
    source: Arc<dyn Source>,
    /// In front of the server, where there is one.
    proxy: Option<Proxy>,
    _keep: Box<dyn std::any::Any>,
}

fn cases(fixture: &Fixture) -> Vec<Case> {
    let directory = Directory::open(fixture.dir.path()).unwrap();
    let mut cases = vec![Case {
        name: "directory",
        source: Arc::new(directory),
        proxy: None,
        _keep: Box::new(()),
    }];

    let server = web_server(fixture.dir.path());
    let proxy = Proxy::new(server.addr);
    let source = Arc::new(Files::new(&format!("http://{}", proxy.addr), &options()).unwrap());
    cases.push(Case {
        name: "files",
        source,
        proxy: Some(proxy),
        _keep: Box::new(server),
    });

    let server = hub_server(&fixture.repository);
    let proxy = Proxy::new(server.addr);
    let source = Arc::new(Hub::new(&format!("http://{}", proxy.addr), &options()).unwrap());
    cases.push(Case {
        name: "hub",
        source,
        proxy: Some(proxy),
        _keep: Box::new(server),
    });

    let server = s3_server(fixture.dir.path());
    let proxy = Proxy::new(server.addr);
    let source = Arc::new(S3::new("s3://images/some/where", &s3_options(proxy.addr)).unwrap());
    cases.push(Case {
        name: "s3",
        source,
        proxy: Some(proxy),
        _keep: Box::new(server),
    });
    cases
}

#[test]
fn every_source_answers_alike() {
    let fixture = Fixture::new();
    for Case { name, source, .. } in &cases(&fixture) {
        assert_eq!(
            source.resolve("team/web:v2").unwrap(),
            fixture.image,
            "{name}"
        );
        assert_eq!(
            source.resolve(&fixture.image.to_string()).unwrap(),
            fixture.image,
            "{name}"
        );
        assert_eq!(
            source.manifest(&fixture.image).unwrap(),
            fixture.repository.manifest(&fixture.image).unwrap(),
            "{name}"
        );
        let layout = source.layout(&fixture.image).unwrap().unwrap();
        assert_eq!(
            layout,
            fixture.repository.layout(&fixture.image).unwrap(),
            "{name}"
        );

        // One chunk; all of a frame; across all packs and backwards; a segment among chunks; one twice.
        let all: Vec<_> = (0..CHUNKS).rev().map(|i| fixture.want(i)).collect();
        let segment = (Kind::Segment, fixture.segment.0);
        let lists: [Vec<(Kind, Hash)>; 5] = [
            vec![fixture.want(7)],
            (16..32).map(|i| fixture.want(i)).collect(),
            all.clone(),
            vec![fixture.want(0), segment, fixture.want(CHUNKS - 1)],
            vec![fixture.want(3), fixture.want(3)],
        ];
        for wants in &lists {
            let (outcome, got) = read_all(&**source, &fixture.image, wants, LIMIT);
            outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
            for (_, hash) in wants {
                let expected = match fixture.chunks.iter().find(|(h, _)| h == hash) {
                    Some((_, data)) => data,
                    None => &fixture.segment.1,
                };
                assert_eq!(&got[hash], expected, "{name}");
            }
        }
    }
}

#[test]
fn what_is_missing_is_said_after_the_rest_was_delivered() {
    let fixture = Fixture::new();
    let absent = (Kind::Chunk, Hash::of(b"not there"));
    for Case { name, source, .. } in &cases(&fixture) {
        let (outcome, got) = read_all(
            &**source,
            &fixture.image,
            &[absent, fixture.want(1), fixture.want(299)],
            LIMIT,
        );
        assert!(
            matches!(outcome, Err(SourceError::Missing { .. })),
            "{name}: {outcome:?}"
        );
        assert!(
            got.contains_key(&fixture.want(1).1) && got.contains_key(&fixture.want(299).1),
            "{name}"
        );

        // A chunk's name is no segment.
        let (outcome, _) = read_all(
            &**source,
            &fixture.image,
            &[(Kind::Segment, fixture.chunks[0].0)],
            LIMIT,
        );
        assert!(outcome.is_err(), "{name}");
        assert!(
            matches!(
                source.resolve("team/web:v3"),
                Err(SourceError::Missing { .. })
            ),
            "{name}"
        );
        let no_image = Hash::of(b"no image");
        assert!(
            matches!(source.manifest(&no_image), Err(SourceError::Missing { .. })),
            "{name}"
        );
        assert!(
            matches!(
                read_all(&**source, &no_image, &[absent], LIMIT).0,
                Err(SourceError::Missing { .. })
            ),
            "{name}"
        );
    }
}

#[test]
fn no_fault_delivers_wrong_data_and_all_are_survived_by_trying_again() {
    let fixture = Fixture::new();
    let wants: Vec<_> = (40..60).map(|i| fixture.want(i)).collect();
    let faults = [
        Fault::Cut(0),
        Fault::Cut(100),
        Fault::Cut(5000),
        Fault::Error,
        Fault::Flip(0),
        Fault::Flip(30),
        Fault::Flip(700),
        Fault::Flip(9000),
        Fault::Endless,
        Fault::Refuse,
    ];
    let quick = RetryOptions {
        attempts: 6,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
    };
    for Case {
        name,
        source,
        proxy,
        ..
    } in &cases(&fixture)
    {
        let Some(proxy) = proxy else { continue };
        let retry = Retry::new(source.clone(), quick);
        for fault in faults {
            // The first read also meets the fault in layout and index; later ones in the frames.
            proxy.inject(fault, 2);
            let before = proxy.faults.load(SeqCst);
            let (outcome, got) = read_all(&retry, &fixture.image, &wants, LIMIT);
            outcome.unwrap_or_else(|e| panic!("{name} {fault:?}: {e}"));
            assert!(
                wants.iter().all(|(_, hash)| got.contains_key(hash)),
                "{name} {fault:?}"
            );
            assert!(
                proxy.faults.load(SeqCst) > before,
                "{name} {fault:?}: the fault did not happen"
            );

            proxy.inject(fault, usize::MAX);
            let (outcome, got) = read_all(&**source, &fixture.image, &wants, LIMIT);
            match outcome {
                Err(error) => assert!(error.is_retryable(), "{name} {fault:?}: {error}"),
                // A flip behind the answer's last needed byte, or a repaired one, is no fault; what came was verified.
                Ok(()) => assert!(
                    matches!(fault, Fault::Flip(_)) && got.len() >= wants.len(),
                    "{name} {fault:?}"
                ),
            }
            proxy.inject(Fault::None, 0);
        }
    }
}

#[test]
fn a_server_that_hangs_ends_in_a_timeout() {
    let fixture = Fixture::new();
    for Case {
        name,
        source,
        proxy,
        ..
    } in &cases(&fixture)
    {
        let Some(proxy) = proxy else { continue };
        proxy.inject(Fault::Hang, usize::MAX);
        let (outcome, got) = read_all(
            &**source,
            &fixture.image,
            &[fixture.want(0)],
            Duration::from_millis(200),
        );
        assert!(
            matches!(outcome, Err(SourceError::Timeout { .. })),
            "{name}: {outcome:?}"
        );
        assert!(got.is_empty(), "{name}");
        proxy.inject(Fault::None, 0);
        read_all(&**source, &fixture.image, &[fixture.want(0)], LIMIT)
            .0
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let id = Hash::of(b"x");
    let at = nobody();
    let sources: [Arc<dyn Source>; 3] = [
        Arc::new(Files::new(&format!("http://{at}"), &options()).unwrap()),
        Arc::new(Hub::new(&format!("http://{at}"), &options()).unwrap()),
        Arc::new(S3::new("s3://images", &s3_options(at)).unwrap()),
    ];
    for source in sources {
        let outcome = source.manifest(&id);
        assert!(
            matches!(outcome, Err(SourceError::Unreachable { .. })),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_wrong_token_is_denied_and_a_token_stays_with_its_host() {
    let fixture = Fixture::new();
    let server = hub_server(&fixture.repository);
    let wrong = Options {
        token: Some("wrong".into()),
        ..options()
    };
    let source = Hub::new(&format!("http://{}", server.addr), &wrong).unwrap();
    assert!(matches!(
        source.resolve("team/web:v2"),
        Err(SourceError::Denied { .. })
    ));
    assert!(matches!(
        read_all(&source, &fixture.image, &[fixture.want(0)], LIMIT).0,
        Err(SourceError::Denied { .. })
    ));

    // A redirect is an error that names the target; nothing is sent there.
    let lure = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = server.addr;
    let before = server.seen.tokens.lock().len();
    let addr = lure.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut tcp, _) = lure.accept().unwrap();
        let _ = tcp.read(&mut [0; 4096]);
        let answer = format!(
            "HTTP/1.1 302 Found\r\nlocation: http://{target}/v1/resolve?name=x\r\ncontent-length: 0\r\n\r\n"
        );
        tcp.write_all(answer.as_bytes()).unwrap();
    });
    let source = Hub::new(&format!("http://{addr}"), &options()).unwrap();
    let error = source.resolve("x").unwrap_err();
    assert!(
        matches!(&error, SourceError::Unsupported { reason, .. } if reason.contains(&target.to_string())),
        "{error}"
    );
    assert_eq!(server.seen.tokens.lock().len(), before);
    assert!(
        !format!("{:?}", options()).contains(TOKEN),
        "the token shows in debug output"
    );
}

#[test]
fn neighbours_are_read_with_one_request_and_indices_once() {
    let fixture = Fixture::new();
    let server = web_server(fixture.dir.path());
    let kept = tempfile::tempdir().unwrap();
    let base = format!("http://{}", server.addr);
    let with_dir = Options {
        index_dir: Some(kept.path().join("indices")),
        ..options()
    };
    let count = |text: &str| {
        server
            .seen
            .requests
            .lock()
            .iter()
            .filter(|r| r.contains(text))
            .count()
    };

    let source = Files::new(&base, &with_dir).unwrap();
    let wants: Vec<_> = (0..96).map(|i| fixture.want(i)).collect();
    read_all(&source, &fixture.image, &wants, LIMIT).0.unwrap();
    // One layout, one index (the first pack has all of them), one range for six frames.
    assert_eq!(
        (count(".layout"), count(".pack")),
        (1, 2),
        "{:?}",
        server.seen.requests.lock()
    );

    let (_, got) = read_all(&source, &fixture.image, &[fixture.want(17)], LIMIT);
    assert_eq!(got.len(), 16, "the frame's other chunks come along");
    assert_eq!((count(".layout"), count(".pack")), (1, 3));

    // Another process finds the index on disk; a damaged one is fetched again.
    let again = Files::new(&base, &with_dir).unwrap();
    read_all(&again, &fixture.image, &[fixture.want(0)], LIMIT)
        .0
        .unwrap();
    assert_eq!(count(".pack"), 4);
    let file = std::fs::read_dir(kept.path().join("indices"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    std::fs::write(&file, b"damaged").unwrap();
    let third = Files::new(&base, &with_dir).unwrap();
    read_all(&third, &fixture.image, &[fixture.want(0)], LIMIT)
        .0
        .unwrap();
    assert_eq!(count(".pack"), 6);
}

/// Ranges of packs that a server was asked for, and their bytes.
fn ranges(server: &Server) -> (u64, u64) {
    let requests = std::mem::take(&mut *server.seen.requests.lock());
    let bytes = requests.iter().filter_map(|request| {
        let (start, end) = request.split_once(".pack bytes=")?.1.split_once('-')?;
        Some(end.parse::<u64>().unwrap() + 1 - start.parse::<u64>().unwrap())
    });
    bytes.fold((0, 0), |(count, sum), len| (count + 1, sum + len))
}

#[test]
fn a_cluster_is_one_range_read_once_its_packs_are_laid_out_anew() {
    let fixture = Fixture::new();
    let server = web_server(fixture.dir.path());
    let base = format!("http://{}", server.addr);
    let everything: Vec<_> = (0..CHUNKS).map(|i| fixture.want(i)).collect();
    let cluster: Vec<_> = (5..CHUNKS).step_by(13).map(|i| fixture.want(i)).collect();
    // with warm indices, so that only the cluster counts
    let costs = |source: &Files| {
        read_all(source, &fixture.image, &everything, LIMIT)
            .0
            .unwrap();
        ranges(&server);
        let (done, got) = read_all(source, &fixture.image, &cluster, LIMIT);
        done.unwrap();
        assert!(cluster.iter().all(|want| got.contains_key(&want.1)));
        let scope = fixture.repository.scope(&fixture.image).unwrap();
        let told = range_reads(&scope.frames_of(&cluster).unwrap());
        let seen = ranges(&server);
        assert_eq!((told.requests, told.bytes), seen);
        seen
    };
    let old = Files::new(&base, &options()).unwrap();
    let before = costs(&old);

    let hashes: Vec<Hash> = cluster.iter().map(|(_, hash)| *hash).collect();
    let ready = fixture
        .repository
        .rearrange(&fixture.image, &[hashes], &mut |_, _| true);
    ready.unwrap().publish().unwrap();
    // one who knows the old layout finds the packs gone and looks again
    let (done, got) = read_all(&old, &fixture.image, &everything, LIMIT);
    done.unwrap();
    assert_eq!(got.len(), CHUNKS);

    let after = costs(&Files::new(&base, &options()).unwrap());
    let packed = |frame: &[(Kind, Hash)]| -> u64 {
        let content = |(_, hash): &(Kind, Hash)| {
            let chunk = fixture.chunks.iter().find(|(h, _)| h == hash);
            &chunk.unwrap().1[..]
        };
        let items: Vec<&[u8]> = frame.iter().map(content).collect();
        floe_image::compress_frame(Kind::Chunk, &items, 3).len() as u64
    };
    let alone: u64 = cluster.chunks(16).map(packed).sum();
    assert_eq!(after, (1, alone));
    assert!(
        before.0 > 2 && before.1 > 5 * after.1,
        "{before:?} {after:?}"
    );
}

#[test]
fn the_kind_of_a_web_address_is_found_out_at_first_use() {
    let fixture = Fixture::new();
    let (hub, files) = (
        hub_server(&fixture.repository),
        web_server(fixture.dir.path()),
    );
    let gone = nobody();
    for addr in [hub.addr, files.addr] {
        let source = open(&format!("http://{addr}/"), &options()).unwrap();
        assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
        read_all(&*source, &fixture.image, &[fixture.want(5)], LIMIT)
            .0
            .unwrap();
        assert!(source.link().wire_bytes > 0);
    }
    assert_eq!(hub.seen.reads.lock().len(), 1);
    let source =
        open(&format!("http://{gone}"), &options()).expect("a server that is down is no error yet");
    assert!(matches!(
        source.resolve("x"),
        Err(SourceError::Unreachable { .. })
    ));
    let local = open(fixture.dir.path().to_str().unwrap(), &options()).unwrap();
    assert_eq!(local.resolve("team/web:v2").unwrap(), fixture.image);
    for bad in [
        "ftp://x",
        "http://",
        "https://user:secret@host",
        "http://host?x=1",
        "s3://",
    ] {
        let error = open(bad, &options())
            .err()
            .unwrap_or_else(|| panic!("{bad} was accepted"));
        assert!(
            matches!(error, SourceError::Unsupported { .. }),
            "{bad}: {error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn an_unknown_link_is_spared_and_then_measured() {
    let fixture = Fixture::new();
    let server = hub_server(&fixture.repository);
    let source = Hub::new(&format!("http://{}", server.addr), &options()).unwrap();
    let all: Vec<_> = (0..CHUNKS).map(|i| fixture.want(i)).collect();
    read_all(&source, &fixture.image, &all, LIMIT).0.unwrap();
    assert_eq!(*server.seen.encodings.lock(), ["zstd"]);
    let link = source.link();
    assert!(
        link.bytes_per_s.is_some() && link.rtt_us.is_some() && link.requests == 1,
        "{link:?}"
    );
    // Half of each chunk compresses away.
    let raw = (CHUNKS * 4096) as u64;
    assert!(
        link.wire_bytes > raw / 2 && link.wire_bytes < raw * 6 / 10,
        "{link:?}"
    );
}

#[test]
fn tls_trusts_the_given_authority_only() {
    let fixture = Fixture::new();
    let cert = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let server = tls_front(&cert, hub_server(&fixture.repository));
    let url = format!("https://localhost:{}", server.port());
    let ca = pem_file(&cert.cert.pem());
    let trusting = Options {
        ca: Some(ca.path().into()),
        ..options()
    };
    let source = Hub::new(&url, &trusting).unwrap();
    assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
    read_all(&source, &fixture.image, &[fixture.want(9)], LIMIT)
        .0
        .unwrap();

    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let ca = pem_file(&other.cert.pem());
    let distrusting = Options {
        ca: Some(ca.path().into()),
        ..options()
    };
    let error = Hub::new(&url, &distrusting)
        .unwrap()
        .resolve("team/web:v2")
        .unwrap_err();
    assert!(
        matches!(&error, SourceError::Unreachable { .. }) && error.to_string().contains("--ca"),
        "{error}"
    );
    let empty = pem_file("nothing");
    assert!(
        Hub::new(
            &url,
            &Options {
                ca: Some(empty.path().into()),
                ..options()
            }
        )
        .is_err()
    );
}

#[test]
fn too_long_a_list_is_refused() {
    let fixture = Fixture::new();
    let wants = vec![fixture.want(0); floe_source::READ_ITEMS_MAX + 1];
    for Case { name, source, .. } in &cases(&fixture) {
        let (outcome, _) = read_all(&**source, &fixture.image, &wants, LIMIT);
        assert!(
            matches!(outcome, Err(SourceError::Unsupported { .. })),
            "{name}: {outcome:?}"
        );
    }
}
