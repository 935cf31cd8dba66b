//! Where the credentials of buckets go, and what is said of those that can't be used.

mod common;

use common::*;
use floe_source::{Bucket, Options, Source};
use std::io::{Read, Write};

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
