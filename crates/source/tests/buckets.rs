//! Where the credentials of buckets go, by which proxies requests go, and what is said of those that can't be used.

mod common;

use common::*;
use floe_source::{Bucket, Options, Registry, Source, SourceError};
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// A proxy that knows no server, and keeps the first lines of the requests that it was to pass on.
fn proxy() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = heard.clone();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let (mut seen, mut byte) = (Vec::new(), [0]);
            while !seen.ends_with(b"\r\n\r\n") && matches!(tcp.read(&mut byte), Ok(1)) {
                seen.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&seen).into_owned();
            keep.lock()
                .push(head.lines().next().unwrap_or_default().to_owned());
            let _ = tcp.write_all(
                b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
    });
    (addr, heard)
}

/// A source at an address, in an environment.
fn open(address: &str, set: &[(&str, &str)]) -> Arc<dyn Source> {
    let set = set
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    let options = Options {
        environment: Some(set.collect()),
        ..options()
    };
    Registry::standard(options).open(&origin(address)).unwrap()
}

#[test]
fn a_bucket_that_is_asked_by_its_own_name_is_the_one_of_the_address() {
    let (at, heard) = proxy();
    let proxy = format!("http://{at}");
    for style in ["true", "false"] {
        let set = [
            ("AWS_ENDPOINT_URL", "http://other.example"),
            ("AWS_ENDPOINT_URL_S3", "http://s3.example:9000"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", S3_KEYS.0),
            ("AWS_SECRET_ACCESS_KEY", S3_KEYS.1),
            ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", style),
            ("http_proxy", &*proxy),
        ];
        open("s3://images/some", &set).resolve("web").unwrap_err();
    }
    let heard = heard.lock();
    let urls: Vec<_> = heard
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    let (by_name, by_path) = (
        "http://images.s3.example:9000/some/tags/",
        "http://s3.example:9000/images/some/tags/",
    );
    assert_eq!(urls.len(), 2, "{urls:?}");
    assert!(
        urls[0].starts_with(by_name) && urls[1].starts_with(by_path),
        "{urls:?}"
    );
}

#[test]
fn hubs_web_servers_and_buckets_are_asked_by_the_same_proxies_which_are_named() {
    let s3 = |extra: &[(&'static str, String)]| {
        let mut set = vec![
            ("AWS_ENDPOINT_URL", "http://bucket.example".to_owned()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", S3_KEYS.0.into()),
            ("AWS_SECRET_ACCESS_KEY", S3_KEYS.1.into()),
        ];
        set.extend_from_slice(extra);
        set
    };
    let ask = |address: &str, extra: &[(&'static str, String)]| {
        let set = s3(extra);
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, &**value)).collect();
        open(address, &set).resolve("web").unwrap_err()
    };
    let addresses = [
        "floe+http://hub.example",
        "http://web.example/x",
        "s3://images",
    ];
    for address in addresses {
        let (at, heard) = proxy();
        let one = format!("http://ann:geheim@{at}");
        let error = ask(address, &[("HTTP_PROXY", one)]);
        let text = error.to_string();
        assert!(
            matches!(error, SourceError::Unanswered { .. }),
            "{address}: {text}"
        );
        assert!(
            text.contains(&at.to_string()) && !text.contains("geheim"),
            "{text}"
        );
        let count = heard.lock().len();
        assert!(count > 0 && heard.lock().iter().all(|line| line.contains(".example")));

        let dead = nobody();
        let error = ask(address, &[("all_proxy", format!("http://{dead}"))]);
        assert!(
            matches!(error, SourceError::Unreachable { .. }),
            "{address}: {error}"
        );
        let text = error.to_string();
        assert!(
            text.contains(&format!("the proxy http://{dead} (all_proxy)")),
            "{text}"
        );
    }
}

#[test]
fn a_bucket_that_sends_us_elsewhere_is_not_followed() {
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = elsewhere.local_addr().unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let (mut stream, mut seen) = (stream.unwrap(), Vec::new());
            while !seen.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                seen.push(byte[0]);
            }
            write!(
                stream,
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{to}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
        }
    });
    let azure = format!("AccountName=ann;AccountKey=YW5u;BlobEndpoint=http://{at}/ann");
    for (address, name, value) in [
        ("gs://images", "STORAGE_EMULATOR_HOST", at.to_string()),
        ("az://images", "AZURE_STORAGE_CONNECTION_STRING", azure),
        ("s3://images", "", String::new()),
    ] {
        let mut options = s3_options(at);
        if !name.is_empty() {
            options.environment = Some(vec![(name.into(), value)]);
        }
        let bucket = Bucket::new(&origin(address), &options).unwrap();
        let error = bucket.resolve("web").unwrap_err().to_string();
        assert!(error.contains("sends us elsewhere"), "{address}: {error}");
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "somebody went there");
}

#[test]
fn a_bucket_whose_credentials_cannot_be_used_says_which() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, r#"{"type": "external_account", "secret": "geheim"}"#).unwrap();
    for (address, name, value, fix) in [
        (
            "gs://x",
            "GOOGLE_APPLICATION_CREDENTIALS",
            path,
            "external_account",
        ),
        (
            "gs://x",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "/nowhere",
            "can't be read",
        ),
        (
            "az://x",
            "AZURE_STORAGE_KEY",
            "geheim",
            "set AZURE_STORAGE_ACCOUNT",
        ),
        (
            "az://x",
            "AZURE_STORAGE_CONNECTION_STRING",
            "geheim",
            "NAME=VALUE",
        ),
    ] {
        let options = Options {
            environment: Some(vec![(name.into(), value.into())]),
            ..options()
        };
        let error = Bucket::new(&origin(address), &options).err().unwrap();
        let text = format!("{error} {error:?} {options:?}");
        assert!(text.contains(fix) && !text.contains("geheim"), "{text}");
    }
}
