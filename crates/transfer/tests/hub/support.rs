//! Images made by hand, hubs on free ports, and requests without the clients of hub and node.

use floe_http::{Bytes, Ended, Fault, Limits, Method, Server, Url};
use floe_hub::{HubHandle, HubOptions};
use floe_image::{
    CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Layout, MachineConfig, Manifest, PackRef,
    PackWriter, Region, Segment, chunk_hash, compress_frame,
};
use floe_store::Repository;
use floe_transfer::{PushOptions, PushReport, TransferError, push};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Bytes after which the packs of test images are closed: small, so that a small image has many.
const PACK_BYTES: u64 = 128 << 10;

/// A page of content that compresses to about a half and is different for each number; page 0 is zero.
pub fn page(number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; CHUNK_SIZE];
    }
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut page = vec![0; CHUNK_SIZE];
    for word in page[..CHUNK_SIZE / 2].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

/// The parts of an image, as they could be sent.
pub struct Parts {
    pub manifest: Manifest,
    pub packs: Vec<(PackRef, Vec<u8>)>,
}

impl Parts {
    pub fn id(&self) -> Hash {
        self.manifest.id()
    }
}

/// An image whose region `ram` has the pages with these numbers; those in `leave_out` are named but in no pack.
pub fn image_parts(numbers: &[u64], leave_out: &[u64]) -> Parts {
    let mut packs = Vec::new();
    let mut seen = HashSet::new();
    let mut writer = PackWriter::new(Vec::new()).unwrap();
    let close = |writer: &mut PackWriter<Vec<u8>>, packs: &mut Vec<(PackRef, Vec<u8>)>| {
        let full = std::mem::replace(writer, PackWriter::new(Vec::new()).unwrap());
        if full.items() > 0 {
            let (bytes, reference) = full.finish().unwrap();
            packs.push((reference, bytes));
        }
    };
    let mut segments = Vec::new();
    for part in numbers.chunks(CHUNKS_PER_SEGMENT) {
        let mut segment = Segment::new();
        let mut stored = Vec::new();
        for (i, number) in part.iter().enumerate() {
            let page = page(*number);
            let hash = chunk_hash(&page);
            segment.set(i, hash);
            if !hash.is_zero() && !leave_out.contains(number) && seen.insert(hash) {
                stored.push((hash, page));
            }
        }
        for frame in stored.chunks(16) {
            let hashes: Vec<Hash> = frame.iter().map(|(hash, _)| *hash).collect();
            let pages: Vec<&[u8]> = frame.iter().map(|(_, page)| &**page).collect();
            writer
                .push_frame(
                    Kind::Chunk,
                    &hashes,
                    &compress_frame(Kind::Chunk, &pages, 1),
                )
                .unwrap();
            if writer.bytes_written() > PACK_BYTES {
                close(&mut writer, &mut packs);
            }
        }
        if !segment.is_zero() {
            let bytes = segment.encode();
            writer
                .push_frame(
                    Kind::Segment,
                    &[segment.id()],
                    &compress_frame(Kind::Segment, &[&bytes], 1),
                )
                .unwrap();
        }
        segments.push(segment.id());
    }
    close(&mut writer, &mut packs);
    let region = Region {
        name: "ram".into(),
        size: (numbers.len() * CHUNK_SIZE) as u64,
        segments,
        ..Default::default()
    };
    let manifest = Manifest {
        parent: None,
        created_unix_s: 1_700_000_000,
        config: MachineConfig::default(),
        regions: vec![region],
    };
    Parts { manifest, packs }
}

/// The same, published in a repository.
pub fn image(repository: &Repository, numbers: &[u64]) -> Hash {
    let parts = image_parts(numbers, &[]);
    let mut layout = Layout::default();
    for (_, bytes) in &parts.packs {
        layout.packs.push(
            repository
                .adopt_pack_from(&mut &bytes[..], bytes.len() as u64)
                .unwrap(),
        );
    }
    repository.publish(&parts.manifest, &layout).unwrap()
}

/// Every page of an image's `ram`, read through the repository.
pub fn pages_of(repository: &Repository, id: &Hash) -> Vec<u8> {
    repository.read_region(id, "ram", 1 << 30).unwrap()
}

pub fn options(dir: &Path) -> HubOptions {
    HubOptions::new(dir, "127.0.0.1:0".parse().unwrap())
}

/// A hub with the users `ann` and `bob`.
pub struct World {
    pub dir: tempfile::TempDir,
    pub repository: Repository,
    pub hub: HubHandle,
    pub ann: String,
    pub bob: String,
}

pub fn world() -> World {
    world_with(|_| ())
}

pub fn world_with(change: impl FnOnce(&mut HubOptions)) -> World {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    let at = dir.path().join("hub");
    let mut options = options(&at);
    change(&mut options);
    let (ann, bob) = (
        floe_hub::create_token(&at, "ann").unwrap(),
        floe_hub::create_token(&at, "bob").unwrap(),
    );
    World {
        repository,
        hub: floe_hub::serve(options).unwrap(),
        ann,
        bob,
        dir,
    }
}

impl World {
    pub fn hub_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("hub")
    }

    /// Ends the hub and starts one in the same directory.
    pub fn again(self, change: impl FnOnce(&mut HubOptions)) -> World {
        let mut options = options(&self.hub_dir());
        change(&mut options);
        self.hub.shutdown();
        let hub = floe_hub::serve(options).unwrap();
        World { hub, ..self }
    }

    /// Pushes as ann.
    pub fn push(&self, id: &Hash, name: &str, public: bool) -> Result<PushReport, TransferError> {
        let options = PushOptions {
            name: Some(name.into()),
            public: Some(public),
            ..PushOptions::default()
        };
        push(
            &self.repository,
            id,
            &self.hub.url(),
            Some(&self.ann),
            &options,
            &|_| (),
        )
    }

    pub fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&[u8]>,
    ) -> Answer {
        ask(&self.hub.url(), method, path, token, &[], body)
    }

    pub fn get(&self, path: &str, token: Option<&str>) -> Answer {
        self.ask("GET", path, token, None)
    }

    /// Begins an upload and sends its packs, as `token`; the upload's key.
    pub fn stage(&self, parts: &Parts, token: &str) -> String {
        let opened = self.ask(
            "POST",
            "/v1/uploads",
            Some(token),
            Some(&parts.manifest.encode()),
        );
        assert_eq!(opened.status, 200, "{}", opened.text());
        let key = opened.json()["id"].as_str().unwrap().to_owned();
        for (reference, bytes) in &parts.packs {
            let path = format!("/v1/uploads/{key}/packs/{}", reference.id);
            let sent = self.ask("PUT", &path, Some(token), Some(bytes));
            assert_eq!(sent.status, 204, "{}", sent.text());
        }
        key
    }

    pub fn commit(&self, key: &str, token: &str, wish: &str) -> Answer {
        self.ask(
            "POST",
            &format!("/v1/uploads/{key}/commit"),
            Some(token),
            Some(wish.as_bytes()),
        )
    }

    /// Images that this token sees.
    pub fn visible(&self, token: Option<&str>) -> usize {
        let list = self.get("/v1/images", token);
        assert_eq!(list.status, 200, "{}", list.text());
        list.json()["images"].as_array().unwrap().len()
    }
}

pub struct Answer {
    pub status: u16,
    pub headers: floe_http::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The word of a refusal, which must also say what is wrong and what to do.
    pub fn code(&self) -> String {
        let body = self.json();
        assert!(
            !body["message"].as_str().unwrap().is_empty()
                && !body["fix"].as_str().unwrap().is_empty()
        );
        body["code"].as_str().unwrap().to_owned()
    }
}

pub fn ask(
    url: &str,
    method: &str,
    path: &str,
    token: Option<&str>,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Answer {
    let server = Server::new(&Url::parse(url).unwrap(), None).unwrap();
    let method: Method = method.parse().unwrap();
    let limits = Limits::within(ASK_TIMEOUT, ASK_TIMEOUT);
    let once = || -> Result<Answer, Fault> {
        let mut request = server.request(method.clone(), path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::copy_from_slice(body.unwrap_or_default()));
        let mut answer = Vec::new();
        let mut sent = |_| Ok(());
        let asked = server.connect(ASK_TIMEOUT)?.exchange::<()>(
            request.unwrap(),
            &limits,
            Some(&mut sent),
            &mut |_, piece| {
                answer.extend_from_slice(piece);
                Ok(())
            },
        );
        match asked {
            Ok(head) => Ok(Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body: answer,
            }),
            Err(Ended::Fault(fault)) => Err(fault),
            Err(Ended::Caller(())) => unreachable!("nobody ends it"),
        }
    };
    // A hub that refuses a large body answers before it has read all of it, and closes; whoever is still writing then may
    // learn of the closing first.
    let closed_early = |answer: &Result<Answer, Fault>| {
        let closed = matches!(answer, Err(Fault::NoAnswer(_) | Fault::CutOff(_)));
        closed && body.is_some()
    };
    let mut answer = once();
    for _ in 0..20 {
        if closed_early(&answer) {
            answer = once();
        }
    }
    answer.unwrap()
}

/// Longest time for a request of a test.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(120);

/// The files below a directory.
pub fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                walk(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Damages the stored pack, leaving its index whole, as a rotten disk would.
pub fn spoil(dir: &Path, pack: &floe_image::Hash) -> std::path::PathBuf {
    let path = dir
        .join("repo/packs")
        .join(&pack.to_string()[..2])
        .join(format!("{pack}.pack"));
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in &mut bytes[40..200] {
        *byte ^= 0x5a;
    }
    std::fs::write(&path, bytes).unwrap();
    path
}
