//! Tests what every source promises on every source: a directory, a web server with ranges, a hub, an S3 server.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::proxy::{Fault, Proxy};
use common::*;
use floe_image::{Hash, Kind};
use floe_source::{
    Bucket, Directory, Files, Hub, Options, Registry, Retry, RetryOptions, Scheme, Source,
    SourceError, range_reads,
};

/// What is needed to read one image in one way; `_keep` must outlive the source.
struct Case {
    name: &'static str,
    source: Arc<dyn Source>,
    /// The proxy in front of the server, if there is one.
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
    let source =
        Arc::new(Files::new(&origin(&format!("http://{}", proxy.addr)), &options()).unwrap());
    cases.push(Case {
        name: "files",
        source,
        proxy: Some(proxy),
        _keep: Box::new(server),
    });

    let server = hub_server(&fixture.repository);
    let proxy = Proxy::new(server.addr);
    let source =
        Arc::new(Hub::new(&origin(&format!("http://{}", proxy.addr)), &options()).unwrap());
    cases.push(Case {
        name: "hub",
        source,
        proxy: Some(proxy),
        _keep: Box::new(server),
    });

    let server = s3_server(fixture.dir.path());
    let proxy = Proxy::new(server.addr);
    let source =
        Arc::new(Bucket::new(&origin("s3://images/some/where"), &s3_options(proxy.addr)).unwrap());
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

        // One chunk; all of a frame; across all packs and backwards; a segment among chunks; one chunk twice.
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

        // A chunk's hash is not a segment's.
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
            // In the first read the fault also hits layout and index; in later ones only the frames.
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
                // A flip after the last byte needed, or one that decoding repairs, does no harm; what was delivered was
                // verified.
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
        Arc::new(Files::new(&origin(&format!("http://{at}")), &options()).unwrap()),
        Arc::new(Hub::new(&origin(&format!("http://{at}")), &options()).unwrap()),
        Arc::new(Bucket::new(&origin("s3://images"), &s3_options(at)).unwrap()),
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
    let wrong = origin(&format!("http://{}", server.addr)).with_token(Some("wrong".into()));
    let source = Hub::new(&wrong, &options()).unwrap();
    assert!(matches!(
        source.resolve("team/web:v2"),
        Err(SourceError::Denied { .. })
    ));
    assert!(matches!(
        read_all(&source, &fixture.image, &[fixture.want(0)], LIMIT).0,
        Err(SourceError::Denied { .. })
    ));

    // Where a redirect leads, nobody is told the token.
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
    let source = Hub::new(&origin(&format!("http://{addr}")), &options()).unwrap();
    let error = source.resolve("x").unwrap_err();
    assert!(
        matches!(&error, SourceError::Unanswered { reason, .. } if reason.contains(&target.to_string())),
        "{error}"
    );
    assert_eq!(server.seen.tokens.lock()[before..], [None]);
    assert!(
        !format!("{:?}", origin("http://h")).contains(TOKEN),
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

    let source = Files::new(&origin(&base), &with_dir).unwrap();
    let wants: Vec<_> = (0..96).map(|i| fixture.want(i)).collect();
    read_all(&source, &fixture.image, &wants, LIMIT).0.unwrap();
    // One layout, one index (the first pack has all chunks), one range for six frames.
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
    let again = Files::new(&origin(&base), &with_dir).unwrap();
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
    let third = Files::new(&origin(&base), &with_dir).unwrap();
    read_all(&third, &fixture.image, &[fixture.want(0)], LIMIT)
        .0
        .unwrap();
    assert_eq!(count(".pack"), 6);
}

/// Returns how many ranges of packs a server was asked for, and their bytes.
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
    // The indices are in memory already, so that only the cluster counts.
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
    let old = Files::new(&origin(&base), &options()).unwrap();
    let before = costs(&old);

    let hashes: Vec<Hash> = cluster.iter().map(|(_, hash)| *hash).collect();
    let ready = fixture
        .repository
        .rearrange(&fixture.image, &[hashes], &mut |_, _| true);
    ready.unwrap().publish().unwrap();
    // A reader that knows the old layout finds the packs gone, and fetches the layout again.
    let (done, got) = read_all(&old, &fixture.image, &everything, LIMIT);
    done.unwrap();
    assert_eq!(got.len(), CHUNKS);

    let after = costs(&Files::new(&origin(&base), &options()).unwrap());
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
        let registry = Registry::standard(options());
        let source = registry.open(&origin(&format!("http://{addr}/"))).unwrap();
        assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
        read_all(&*source, &fixture.image, &[fixture.want(5)], LIMIT)
            .0
            .unwrap();
        assert!(source.link().wire_bytes > 0);
    }
    assert_eq!(hub.seen.reads.lock().len(), 1);
    let registry = Registry::standard(options());
    let source = registry
        .open_at(&format!("http://{gone}"), None, None)
        .expect("a server that is down is no error yet");
    assert!(matches!(
        source.resolve("x"),
        Err(SourceError::Unreachable { .. })
    ));
    let path = fixture.dir.path().to_str().unwrap();
    let local = registry.open_at(path, None, None).unwrap();
    assert_eq!(local.resolve("team/web:v2").unwrap(), fixture.image);
    for bad in [
        "ftp://x",
        "http://",
        "https://user:secret@host",
        "s3://user:secret@bucket/x",
        "http://host?x=1",
        "s3://",
    ] {
        let error = registry
            .open_at(bad, None, None)
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
    let source = Hub::new(&origin(&format!("http://{}", server.addr)), &options()).unwrap();
    let all: Vec<_> = (0..CHUNKS).map(|i| fixture.want(i)).collect();
    read_all(&source, &fixture.image, &all, LIMIT).0.unwrap();
    assert_eq!(*server.seen.encodings.lock(), ["zstd"]);
    let link = source.link();
    assert!(
        link.bytes_per_s.is_some() && link.rtt_us.is_some() && link.requests == 1,
        "{link:?}"
    );
    // Half of each chunk compresses.
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
    let trusting = origin(&url).with_ca(Some(ca.path().into()));
    let source = Hub::new(&trusting, &options()).unwrap();
    assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
    read_all(&source, &fixture.image, &[fixture.want(9)], LIMIT)
        .0
        .unwrap();

    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let ca = pem_file(&other.cert.pem());
    let distrusting = origin(&url).with_ca(Some(ca.path().into()));
    let error = Hub::new(&distrusting, &options())
        .unwrap()
        .resolve("team/web:v2")
        .unwrap_err();
    assert!(
        matches!(&error, SourceError::Unreachable { .. }) && error.to_string().contains("--ca"),
        "{error}"
    );
    let empty = pem_file("nothing");
    let nobody = origin(&url).with_ca(Some(empty.path().into()));
    assert!(Hub::new(&nobody, &options()).is_err());
}

#[test]
fn two_origins_with_different_tokens_each_get_their_own_and_nobody_elses() {
    let fixture = Fixture::new();
    let servers = [
        web_server(fixture.dir.path()),
        web_server(fixture.dir.path()),
        web_server(fixture.dir.path()),
    ];
    let tokens = [Some("for one"), Some("for the other"), None];
    let registry = Registry::standard(options());
    let open = |(server, token): (&Server, &Option<&str>)| {
        let url = format!("http://{}/", server.addr);
        registry.open_at(&url, *token, None).unwrap()
    };
    let sources = servers.iter().zip(&tokens).map(open).collect();
    let all = floe_source::Failover::new(sources);
    // No source has it, so all of them are asked.
    assert!(all.resolve("nothing:here").is_err());
    for (server, token) in servers.iter().zip(&tokens) {
        let carried = server.seen.tokens.lock().clone();
        let own = token.map(|token| format!("Bearer {token}"));
        assert!(!carried.is_empty());
        assert!(carried.iter().all(|got| *got == own), "{carried:?}");
    }
}

#[test]
fn origins_that_differ_in_kind_address_token_or_authority_are_not_the_same() {
    let registry = Registry::default();
    let of = |address: &str| registry.origin(address).unwrap();
    let all = [
        of("https://hub/team"),
        of("floe://hub/team"),
        of("https://hub/other"),
        of("https://hub/team").with_token(Some("a".into())),
        of("https://hub/team").with_token(Some("b".into())),
        of("https://hub/team").with_ca(Some("/etc/one.pem".into())),
        of("https://hub/team").with_ca(Some("/etc/two.pem".into())),
    ];
    for (at, one) in all.iter().enumerate() {
        for (other_at, other) in all.iter().enumerate() {
            assert_eq!(one == other, at == other_at, "{one:?} {other:?}");
        }
    }
    assert_eq!(of("HTTPS://HUB:443/team"), of("https://hub/team"));
}

#[test]
fn a_new_kind_of_source_is_one_entry_and_takes_only_what_is_its_own() {
    let fixture = Fixture::new();
    let repository = fixture.repository.clone();
    let registry = Registry::default().with(Scheme {
        kind: "drawer",
        names: &["floe", "drawer"],
        claims: |url| url.scheme() == "drawer" || url.path() == "/drawer",
        open: Arc::new(move |_, _| Ok(Arc::new(Directory::new(repository.clone())))),
    });
    for (address, kind) in [
        ("drawer://x", "drawer"),
        ("floe://x/drawer", "drawer"),
        ("floe://x", "hub"),
        ("s3://x", "bucket"),
        ("gs://x", "bucket"),
        ("az://x", "bucket"),
        ("/srv/images", "directory"),
    ] {
        assert_eq!(registry.origin(address).unwrap().kind(), kind, "{address}");
    }
    let source = registry.open_at("drawer://x", None, None).unwrap();
    assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
    let error = registry.origin("swarm://x").unwrap_err().to_string();
    assert!(
        error.contains("drawer://") && error.contains("s3://"),
        "{error}"
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
