//! Azurite, Microsoft's own server for tests with Azure's blob storage, with an empty container `images`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The account that it knows, and its key.
pub const ACCOUNT: (&str, &str) = ("ann", "QXp1cml0ZSdzIGtleSBvZiB0aGUgdGVzdHM=");

pub struct Azurite {
    process: Child,
    addr: String,
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Azurite {
    pub fn start() -> Azurite {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = workspace.join(".cache/azurite/node_modules/azurite/dist/src/blob/main.js");
        assert!(
            program.exists(),
            "{} is missing: make azurite",
            program.display()
        );
        let mut process = Command::new("node")
            .arg(program)
            .args("--blobPort 0 --inMemoryPersistence --silent --disableTelemetry --skipApiVersionCheck".split(' '))
            .env("AZURITE_ACCOUNTS", format!("{}:{}", ACCOUNT.0, ACCOUNT.1))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is missing: make deps");
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let listens =
            said.find_map(|line| Some(line.ok()?.split_once("listens on http://")?.1.to_owned()));
        let server = Azurite {
            addr: listens.expect("azurite ended"),
            process,
        };
        // it must not be stopped by a full pipe
        std::thread::spawn(move || said.for_each(drop));
        server.make_container("images");
        server
    }

    /// What a process needs in its environment to use it, as somebody with this key.
    pub fn environment(&self, key: &str) -> Vec<(String, String)> {
        let text = format!(
            "DefaultEndpointsProtocol=http;AccountName={0};AccountKey={key};BlobEndpoint=http://{1}/{0};",
            ACCOUNT.0, self.addr
        );
        vec![("AZURE_STORAGE_CONNECTION_STRING".into(), text)]
    }

    fn make_container(&self, name: &str) {
        let date = Command::new("date")
            .args(["-u", "+%a, %d %b %Y %H:%M:%S GMT"])
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        let date = String::from_utf8(date.stdout).unwrap();
        let date = date.trim();
        let (account, version) = (ACCOUNT.0, "2021-08-06");
        let signed = format!(
            "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{account}/{account}/{name}\nrestype:container"
        );
        let key = hmac::Key::new(
            hmac::HMAC_SHA256,
            &BASE64_STANDARD.decode(ACCOUNT.1).unwrap(),
        );
        let signature = BASE64_STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
        let mut server = TcpStream::connect(&self.addr).unwrap();
        write!(
            server,
            "PUT /{account}/{name}?restype=container HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\
             x-ms-date: {date}\r\nx-ms-version: {version}\r\nAuthorization: SharedKey {account}:{signature}\r\n\r\n",
            self.addr
        )
        .unwrap();
        let mut answer = String::new();
        server.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}
