//! What a source makes of servers, proxies and networks that answer oddly: no wrong byte, no answer that ends for good what would pass, and
//! each of them named as what it is.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::odd::{Mode, OddServer, SIGNATURE};
use common::*;
use floe_image::{Hash, Kind};
use floe_source::{
    Bucket, Files, Hub, Options, Registry, Retry, RetryOptions, Source, SourceError,
};
use parking_lot::Mutex;

/// A source of a fixture's files behind an odd server.
struct Case {
    name: &'static str,
    server: OddServer,
    source: Arc<dyn Source>,
    /// Where the server sends requests.
    elsewhere: OddServer,
}

/// The site on which all of them look.
const SITE: &str = "images";

fn files(at: SocketAddr) -> Arc<dyn Source> {
    let address = format!("http://{at}/{SITE}");
    Arc::new(Files::new(&origin(&address), &options()).unwrap())
}

/// The image in all wire forms.
fn cases(fixture: &Fixture) -> Vec<Case> {
    let dir = fixture.dir.path();
    let start = |below: &str| {
        let elsewhere = OddServer::start(dir, below, None).unwrap();
        let server = OddServer::start(dir, below, Some(&elsewhere)).unwrap();
        (server, elsewhere)
    };
    let case = |name, below: &str, open: &dyn Fn(SocketAddr) -> Arc<dyn Source>| {
        let (server, elsewhere) = start(below);
        Case {
            name,
            source: open(server.addr),
            server,
            elsewhere,
        }
    };
    let bucket = |address: &str, set: &[(&str, String)]| -> Arc<dyn Source> {
        let set = set
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()));
        let options = Options {
            environment: Some(set.collect()),
            ..options()
        };
        Arc::new(Bucket::new(&origin(address), &options).unwrap())
    };
    vec![
        case("files", "", &|at| files(at)),
        case("s3", "", &|at| {
            Arc::new(Bucket::new(&origin("s3://images"), &s3_options(at)).unwrap())
        }),
        case("google", "", &|at| {
            bucket("gs://images", &[("STORAGE_EMULATOR_HOST", at.to_string())])
        }),
        case("azure", "/ann", &|at| {
            let text = format!("AccountName=ann;AccountKey=YW5u;BlobEndpoint=http://{at}/ann");
            bucket("az://images", &[("AZURE_STORAGE_CONNECTION_STRING", text)])
        }),
    ]
}

/// Reads all that there is, manifest and layout included.
fn whole(
    source: &dyn Source,
    fixture: &Fixture,
) -> (Result<(), SourceError>, HashMap<Hash, Vec<u8>>) {
    let before = || {
        let id = source.resolve("team/web:v2")?;
        assert_eq!(id, fixture.image);
        source.manifest(&id)?;
        source.layout(&id)
    };
    if let Err(error) = before() {
        return (Err(error), HashMap::new());
    }
    let mut wants: Vec<_> = (0..CHUNKS).map(|i| fixture.want(i)).collect();
    wants.push((Kind::Segment, fixture.segment.0));
    read_all(source, &fixture.image, &wants, LIMIT)
}

#[test]
fn no_odd_answer_is_believed_and_each_passes() {
    let fixture = Fixture::new();
    for case in &cases(&fixture) {
        for mode in Mode::ODD {
            case.server.set(SITE, mode);
            // read_all has each byte verified
            let (outcome, _) = whole(&*case.source, &fixture);
            if let Err(error) = outcome {
                let told = format!("{} {mode:?}: {error}", case.name);
                let passes = error.is_retryable()
                    || matches!(
                        error,
                        SourceError::Missing { .. } | SourceError::Denied { .. }
                    );
                assert!(passes, "{told}");
                assert!(!told.contains("cannot reach"), "it was reached: {told}");
                assert!(
                    !told.contains(SIGNATURE) && !told.contains("<html"),
                    "{told}"
                );
            }
            // what passed leaves nothing behind
            case.server.set(SITE, Mode::Right);
            let (outcome, got) = whole(&*case.source, &fixture);
            outcome.unwrap_or_else(|e| panic!("{} after {mode:?}: {e}", case.name));
            assert_eq!(got.len(), CHUNKS + 1, "{} after {mode:?}", case.name);
        }
    }
}

#[test]
fn what_is_odd_now_and_then_costs_no_more_than_another_try() {
    let fixture = Fixture::new();
    let quick = RetryOptions {
        attempts: 12,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
    };
    for case in cases(&fixture) {
        let retry = Retry::new(case.source.clone(), quick);
        for mode in [Mode::WholeNow, Mode::WholeFirst, Mode::Cut, Mode::CutFirst] {
            case.server.set(SITE, mode);
            let (outcome, got) = whole(&retry, &fixture);
            outcome.unwrap_or_else(|e| panic!("{} {mode:?}: {e}", case.name));
            assert_eq!(got.len(), CHUNKS + 1, "{} {mode:?}", case.name);
        }
    }
}

#[test]
fn a_web_server_without_ranges_gives_the_part_of_a_small_file_and_is_named_for_a_large_one() {
    let fixture = Fixture::new();
    let server = OddServer::start(fixture.dir.path(), "", None).unwrap();
    let source = files(server.addr);
    server.set(SITE, Mode::Whole);
    let (outcome, got) = whole(&*source, &fixture);
    outcome.unwrap();
    assert_eq!(got.len(), CHUNKS + 1);

    // the packs grow behind their end
    let packs = fixture.repository.layout(&fixture.image).unwrap().packs;
    for pack in packs {
        let id = pack.id.to_string();
        let path = fixture
            .dir
            .path()
            .join(format!("packs/{}/{id}.pack", &id[..2]));
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
        std::fs::set_permissions(&path, permissions).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(17 << 20).unwrap();
    }
    let error = whole(&*files(server.addr), &fixture).0.unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_retryable() && text.contains("server that supports ranges"),
        "{text}"
    );
}

#[test]
fn what_came_in_place_of_data_is_named() {
    let fixture = Fixture::new();
    let server = OddServer::start(fixture.dir.path(), "", None).unwrap();
    let source = files(server.addr);
    let table = [
        (Mode::Page, "a web page came"),
        (Mode::PagePacks, "a web page came"),
        (Mode::PagePacksPart, "a web page came"),
        (Mode::PageBusy, "503 Service Unavailable with a web page"),
        (Mode::Gzip, "compressed on the way (gzip)"),
        (Mode::GzipUnsaid, "compressed on the way (gzip)"),
        (Mode::GzipWhole, "compressed on the way (gzip)"),
        (Mode::Silent, "was reached and did not give"),
    ];
    for (mode, said) in table {
        server.set(SITE, mode);
        let text = whole(&*source, &fixture).0.unwrap_err().to_string();
        assert!(text.contains(said), "{mode:?}: {text}");
    }
    // nobody asks for compression, so who compresses only then does not
    server.set(SITE, Mode::GzipIfAllowed);
    whole(&*source, &fixture).0.unwrap();
    let asked = server.take(SITE);
    assert!(
        asked
            .iter()
            .all(|asked| asked.accept_encoding.as_deref() == Some("identity"))
    );
}

#[test]
fn a_redirect_is_followed_without_the_token_and_anew_each_time() {
    let fixture = Fixture::new();
    let case = cases(&fixture).remove(0);
    for mode in [Mode::Moved, Mode::Signed, Mode::SignedPacks] {
        case.server.set(SITE, mode);
        let (outcome, got) = whole(&*case.source, &fixture);
        outcome.unwrap_or_else(|e| panic!("{mode:?}: {e}"));
        assert_eq!(got.len(), CHUNKS + 1);
        let (here, there) = (case.server.take(SITE), case.elsewhere.take(SITE));
        assert!(!there.is_empty() && there.len() <= here.len(), "{mode:?}");
        assert!(here.iter().all(|asked| asked.authorization.is_some()));
        assert!(there.iter().all(|asked| asked.authorization.is_none()));
        let signed = there.iter().filter(|asked| asked.query.contains(SIGNATURE));
        assert_eq!(signed.count() > 0, mode != Mode::Moved);
    }
    // one that has expired is renewed by asking again
    case.server.set(SITE, Mode::SignedExpired);
    let error = whole(&*case.source, &fixture).0.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(
        error.is_retryable() && text.contains("answered 403"),
        "{text}"
    );
    assert!(!text.contains(SIGNATURE), "{text}");
    case.server.set(SITE, Mode::Signed);
    whole(&*case.source, &fixture).0.unwrap();
}

/// A server that answers each request with `answer`, and keeps the requests' heads.
fn raw_server(
    answer: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = heard.clone();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let head = read_head(&mut tcp);
            keep.lock().push(head.clone());
            let _ = tcp.write_all(answer(&head).as_bytes());
        }
    });
    (addr, heard)
}

fn read_head(tcp: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && matches!(tcp.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn a_hub_that_sends_questions_on_is_followed_and_a_circle_is_left() {
    let fixture = Fixture::new();
    let hub = hub_server(&fixture.repository);
    let to = hub.addr;
    let (front, _) = raw_server(move |head| {
        let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
        format!(
            "HTTP/1.1 308 x\r\nlocation: http://{to}{path}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
    });
    let source = Hub::new(&origin(&format!("http://{front}")), &options()).unwrap();
    // manifests are public in this hub; a name needs the token, which stays where it belongs
    source.manifest(&fixture.image).unwrap();
    let error = source.resolve("team/web:v2").unwrap_err().to_string();
    assert!(error.contains("401"), "{error}");
    assert_eq!(*hub.seen.tokens.lock(), [None]);

    let (circle, heard) = raw_server(|_| {
        "HTTP/1.1 302 x\r\nlocation: /again\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            .into()
    });
    let source = Files::new(&origin(&format!("http://{circle}")), &options()).unwrap();
    let error = source.resolve("web").unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(
        error.to_string().contains("from one place to the next"),
        "{error}"
    );
    let heard = heard.lock();
    assert_eq!(heard.len(), 6);
    let token = format!("authorization: Bearer {TOKEN}");
    assert!(
        heard.iter().all(|head| head.contains(&token)),
        "the same server may have the token"
    );
}

#[test]
fn what_is_asked_of_a_hub_waits_for_a_network_that_wants_somebody_to_sign_in() {
    let fixture = Fixture::new();
    let empty = "content-length: 0\r\nconnection: close\r\n\r\n";
    // the page's own server sends whoever comes on, out of the web even
    for status in [302, 303] {
        let (page, _) = raw_server(move |_| {
            format!("HTTP/1.1 {status} x\r\nlocation: ftp://page/?sig={SIGNATURE}\r\n{empty}")
        });
        let (front, heard) = raw_server(move |_| {
            format!("HTTP/1.1 {status} x\r\nlocation: http://{page}/\r\n{empty}")
        });
        let source = Hub::new(&origin(&format!("http://{front}")), &options()).unwrap();
        let wants = [fixture.want(0)];
        let errors = [
            read_all(&source, &fixture.image, &wants, LIMIT)
                .0
                .unwrap_err(),
            source.manifest(&fixture.image).unwrap_err(),
        ];
        assert!(heard.lock()[0].starts_with("POST "), "a read is no GET");
        for error in errors {
            assert!(error.is_retryable(), "{error}");
            assert!(!error.to_string().contains(SIGNATURE), "{error}");
        }
    }
}

#[test]
fn a_file_that_has_lost_its_end_and_a_proxy_without_a_password_are_no_end_for_good() {
    let answer = |status: u16| {
        let (at, _) = raw_server(move |_| {
            format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        });
        files(at).resolve("web").unwrap_err()
    };
    let short = answer(416);
    assert!(matches!(short, SourceError::Invalid { .. }), "{short}");
    assert!(short.falls_through(), "another source may have all of it");
    let proxy = answer(407);
    assert!(matches!(proxy, SourceError::Unanswered { .. }), "{proxy}");
}

#[test]
fn a_page_for_signing_in_does_not_make_a_hub_a_web_server() {
    let fixture = Fixture::new();
    let hub = hub_server(&fixture.repository);
    let odd = OddServer::start(fixture.dir.path(), "", None).unwrap();
    // what a hub and a web server are asked for first
    let set = |mode| ["v1", "tags"].map(|first| odd.set(first, mode));
    set(Mode::Page);
    let behind = Arc::new(Mutex::new(odd.addr));
    let (front, answers) = (TcpListener::bind("127.0.0.1:0").unwrap(), behind.clone());
    let addr = front.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in front.incoming().flatten() {
            let server = TcpStream::connect(*answers.lock()).unwrap();
            let both = [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ];
            for (mut from, mut to) in both {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    let registry = Registry::standard(options());
    let source = registry.open(&origin(&format!("http://{addr}"))).unwrap();
    let error = source.resolve("team/web:v2").unwrap_err();
    assert!(error.to_string().contains("a web page came"), "{error}");
    *behind.lock() = hub.addr;
    // a connection that was kept ends with the next request
    set(Mode::Silent);
    let quick = RetryOptions {
        attempts: 50,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(100),
    };
    let source = Retry::new(source, quick);
    assert_eq!(source.resolve("team/web:v2").unwrap(), fixture.image);
    assert!(!hub.seen.tokens.lock().is_empty());
}
