//! Tests that files written by version 1 can be read for ever, and that today's encoders still write the same bytes.
//!
//! `FLOE_WRITE_GOLDEN=1 cargo test -p floe-image --test golden` makes files that are missing (it never replaces one: a format
//! that changes gets a new version and a new file).
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

use std::path::PathBuf;

use floe_image::*;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Returns content that compresses, differs from chunk to chunk and needs no random numbers.
fn item(kind: Kind, n: u8) -> Vec<u8> {
    (0..kind.raw_size())
        .map(|i| ((i / 64) as u8).wrapping_mul(n) ^ n)
        .collect()
}

fn golden(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("FLOE_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, make()).expect("the golden directory can be written");
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn segment() -> Segment {
    let mut s = Segment::new();
    for i in 0..20 {
        s.set(i * 3, Hash::of(&item(Kind::Chunk, i as u8 + 1)));
    }
    s
}

fn manifest() -> Manifest {
    let text = |s: &str| Some(s.to_owned());
    Manifest {
        parent: Some(Hash::of(b"the parent")),
        created_unix_s: 1_700_000_000,
        config: MachineConfig {
            machine_type: text("pc-q35-7.2"),
            qemu_version: text("7.2.15"),
            cpu_model: text("Nehalem"),
            cpu_flags: vec!["sse4_2".into(), "popcnt".into()],
            accel: text("tcg"),
            cpus: Some(2),
            memory_bytes: Some(1 << 30),
            cmdline: text("console=ttyS0 quiet"),
            devices: vec!["virtio-rng-pci".into()],
            disks: vec!["disk0".into()],
            nic_mac: text("52:54:00:12:34:56"),
            labels: [("note".to_owned(), "größer \"quoted\"\n".to_owned())].into(),
            ..Default::default()
        },
        regions: vec![
            Region {
                name: "ram".into(),
                size: 9 << 20,
                segments: vec![segment().id(), Hash::ZERO, Hash::of(b"x")],
                ..Default::default()
            },
            Region {
                name: "device".into(),
                size: 32_768 + 7,
                segments: vec![Hash::of(b"device")],
                ..Default::default()
            },
            Region {
                name: "disk0".into(),
                size: 0,
                segments: vec![],
                ..Default::default()
            },
        ],
    }
}

#[test]
fn manifest_of_version_1() {
    let bytes = golden("manifest-v1.bin", || manifest().encode());
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest());
    assert_eq!(manifest().encode(), bytes);
    assert_eq!(manifest().id(), Hash::of(&bytes));
}

#[test]
fn a_boot_disk_is_known_by_its_content_alone() {
    let mut same = manifest();
    let place = same.regions.iter().position(|r| r.name == "disk0").unwrap();
    same.regions[place].size = 4 << 20;
    same.regions[place].segments = vec![Hash([7; 32])];
    let disk = same.boot_disk().unwrap();
    // lists are stored by this: it stays what it is
    assert_eq!(disk.short(), "8f42f03eaa57");
    same.parent = None;
    same.created_unix_s += 1;
    same.config.cpus = Some(9);
    same.regions.swap(0, 1);
    assert_eq!(same.boot_disk(), Some(disk));
    let mut changed = Vec::new();
    let change = |with: fn(&mut Region)| {
        let mut other = same.clone();
        with(&mut other.regions[place]);
        other.boot_disk().unwrap()
    };
    changed.push(change(|disk| disk.size += 4096));
    changed.push(change(|disk| disk.segments[0] = Hash::of(b"other")));
    changed.push(change(|disk| disk.segments.push(Hash::ZERO)));
    let hash = Hash::of(b"other");
    let patched = Patch { chunk: 3, hash };
    let mut other = same.clone();
    other.regions[place].patches.push(patched);
    changed.push(other.boot_disk().unwrap());
    changed.push(disk);
    changed.sort_unstable();
    changed.dedup();
    assert_eq!(changed.len(), 5);
    same.config.disks.clear();
    assert_eq!(same.boot_disk(), None);
}

#[test]
fn manifest_of_version_2() {
    let mut patched = manifest();
    patched.regions[0].patches = vec![
        Patch {
            chunk: 3,
            hash: Hash::of(b"changed"),
        },
        Patch {
            chunk: 2047,
            hash: Hash::ZERO,
        },
    ];
    let bytes = golden("manifest-v2.bin", || patched.encode());
    assert_eq!(Manifest::decode(&bytes).unwrap(), patched);
    assert_eq!(patched.encode(), bytes);
}

#[test]
fn manifest_of_version_3() {
    let mut grown = manifest();
    grown.config.profile = Some(2);
    grown.config.cpus_max = Some(8);
    grown.config.memory_bytes_max = Some(16 << 30);
    grown.config.memory_blocks = vec![128 << 20];
    grown
        .config
        .devices
        .push("Nehalem-x86_64-cpu,id=cpu2,socket-id=0,core-id=2,thread-id=0".into());
    grown.regions.push(Region {
        name: "ram1".into(),
        size: 128 << 20,
        segments: vec![Hash::ZERO; 32],
        patches: vec![Patch {
            chunk: 9,
            hash: Hash::of(b"written"),
        }],
    });
    let bytes = golden("manifest-v3.bin", || grown.encode());
    assert_eq!(Manifest::decode(&bytes).unwrap(), grown);
    assert_eq!(grown.encode(), bytes);
    assert_eq!(grown.config.cpus_now(), Some(3));
    assert_eq!(
        grown.config.memory_bytes_now(),
        Some((1 << 30) + (128 << 20))
    );
}

#[test]
fn smallest_manifest_of_version_1() {
    let bytes = golden("manifest-empty-v1.bin", || Manifest::default().encode());
    assert_eq!(Manifest::decode(&bytes).unwrap(), Manifest::default());
    assert_eq!(Manifest::default().encode(), bytes);
}

#[test]
fn segment_of_version_1() {
    let bytes = golden("segment-v1.bin", || segment().encode());
    assert_eq!(Segment::decode(&bytes).unwrap(), segment());
    assert_eq!(segment().encode(), bytes);
}

/// Returns the frames of the golden pack, uncompressed.
fn frames() -> Vec<(Kind, Vec<Vec<u8>>)> {
    let chunks = |from: u8, n: u8| {
        (from..from + n)
            .map(|i| item(Kind::Chunk, i))
            .collect::<Vec<_>>()
    };
    vec![
        (Kind::Chunk, chunks(1, 16)),
        (Kind::Chunk, chunks(17, 3)),
        (Kind::Segment, vec![segment().encode()]),
        (Kind::Chunk, chunks(40, 1)),
    ]
}

fn compress(kind: Kind, items: &[Vec<u8>]) -> Vec<u8> {
    compress_frame(
        kind,
        &items.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        3,
    )
}

fn hashes(items: &[Vec<u8>]) -> Vec<Hash> {
    items.iter().map(|i| Hash::of(i)).collect()
}

fn write_pack(compressed: &[Vec<u8>]) -> Vec<u8> {
    let mut w = PackWriter::new(Vec::new()).unwrap();
    for ((kind, items), bytes) in frames().iter().zip(compressed) {
        w.push_frame(*kind, &hashes(items), bytes).unwrap();
    }
    w.finish().unwrap().0
}

#[test]
fn pack_of_version_1() {
    let file = golden("pack-v1.pack", || {
        write_pack(
            &frames()
                .iter()
                .map(|(k, i)| compress(*k, i))
                .collect::<Vec<_>>(),
        )
    });
    check_pack_header(&file[..PACK_HEADER_BYTES as usize]).unwrap();
    let footer = &file[file.len() - PACK_FOOTER_BYTES as usize..];
    let pack = PackRef::from_footer(footer, file.len() as u64).unwrap();
    let index_end = pack.index_offset as usize + pack.index_bytes as usize;
    let index = PackIndex::decode(&file[pack.index_offset as usize..index_end], &pack).unwrap();
    let mut compressed = Vec::new();
    for (i, (kind, items)) in frames().iter().enumerate() {
        let frame = index.frame(i as u32).unwrap();
        assert_eq!((frame.kind, usize::from(frame.items)), (*kind, items.len()));
        assert_eq!(index.frame_hashes(i as u32), hashes(items));
        let bytes = &file[frame.offset as usize..frame.offset as usize + frame.len as usize];
        assert_eq!(
            decompress_frame(*kind, bytes, items.len()).unwrap(),
            items.concat()
        );
        for (slot, hash) in hashes(items).iter().enumerate() {
            assert_eq!(
                index.lookup(hash),
                Some(Location {
                    frame: i as u32,
                    slot: slot as u16
                })
            );
        }
        compressed.push(bytes.to_vec());
    }
    // Uses the same frames: another zstd may compress differently, which doesn't change the format.
    assert_eq!(write_pack(&compressed), file);
}

/// A layout of three packs, with these roots.
fn layout(roots: [Option<Hash>; 3]) -> Layout {
    let pack = |(n, root): (u32, Option<Hash>)| PackRef {
        id: Hash::of(&n.to_le_bytes()),
        file_bytes: u64::from(n) * 1000 + 500 + PACK_FOOTER_BYTES,
        index_offset: u64::from(n) * 1000,
        index_bytes: 500,
        root,
    };
    Layout {
        packs: (1..).zip(roots).map(pack).collect(),
    }
}

fn check_layout(name: &str, roots: [Option<Hash>; 3]) {
    let layout = layout(roots);
    let bytes = golden(name, || layout.encode());
    let read = Layout::decode(&bytes).unwrap();
    assert_eq!(read, layout);
    assert!(read.packs.iter().map(|pack| pack.root).eq(roots));
    assert_eq!(layout.encode(), bytes);
}

#[test]
fn layout_of_version_1() {
    check_layout("layout-v1.bin", [None; 3]);
}

#[test]
fn layout_of_version_2() {
    let roots = [Some(Hash([1; 32])), None, Some(Hash([3; 32]))];
    check_layout("layout-v2.bin", roots);
}

#[test]
fn batch_request_of_version_1() {
    let request = ReadRequest {
        wants: vec![
            (Kind::Chunk, Hash::of(b"a chunk")),
            (Kind::Segment, Hash::of(b"a segment")),
        ],
    };
    let bytes = golden("batch-request-v1.bin", || request.encode());
    assert_eq!(ReadRequest::decode(&bytes).unwrap(), request);
    assert_eq!(request.encode(), bytes);
}

#[test]
fn batch_response_of_version_1() {
    let packed: Vec<_> = (1..4).map(|n| item(Kind::Chunk, n)).collect();
    let raw = item(Kind::Chunk, 9);
    let write = |zstd: &[u8]| {
        let mut w = ResponseEncoder::new(Vec::new()).unwrap();
        w.frame(Kind::Chunk, &hashes(&packed), Encoding::Zstd, zstd)
            .unwrap();
        w.missing(Kind::Segment, &Hash::of(b"not here")).unwrap();
        w.frame(Kind::Chunk, &[Hash::of(&raw)], Encoding::Raw, &raw)
            .unwrap();
        w.finish().unwrap()
    };
    let bytes = golden("batch-response-v1.bin", || {
        write(&compress(Kind::Chunk, &packed))
    });
    let mut records = Vec::new();
    read_response(&bytes[..], 5, |r| {
        records.push(r);
        Ok(())
    })
    .unwrap();
    assert_eq!(
        records,
        [
            Record::Frame {
                kind: Kind::Chunk,
                hashes: hashes(&packed),
                data: packed.concat()
            },
            Record::Missing {
                kind: Kind::Segment,
                hash: Hash::of(b"not here")
            },
            Record::Frame {
                kind: Kind::Chunk,
                hashes: vec![Hash::of(&raw)],
                data: raw.clone()
            },
        ]
    );
    let zstd_len = u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    assert_eq!(write(&bytes[24 + 3 * 32..][..zstd_len]), bytes);
}

#[test]
fn trace_of_version_1() {
    let header = TraceHeader {
        image: Hash::of(b"image"),
        machine: "web".into(),
        start_unix_us: 1_700_000_000_000_000,
    };
    let accesses = [
        Access {
            region: 0,
            chunk: 1000,
            t_us: 5,
            wait_us: 0,
        },
        Access {
            region: 0,
            chunk: 1001,
            t_us: 5,
            wait_us: 130,
        },
        Access {
            region: 63,
            chunk: u32::MAX,
            t_us: 70_000,
            wait_us: 1,
        },
        Access {
            region: 2,
            chunk: 0,
            t_us: 1 << 40,
            wait_us: u64::MAX,
        },
    ];
    let write = || {
        let mut w = TraceWriter::new(Vec::new(), &header).unwrap();
        accesses.iter().for_each(|a| w.push(*a).unwrap());
        w.into_inner()
    };
    let bytes = golden("trace-v1.bin", write);
    let mut reader = TraceReader::new(&bytes).unwrap();
    assert_eq!(reader.header(), &header);
    assert_eq!(reader.by_ref().collect::<Vec<_>>(), accesses);
    assert_eq!(reader.end(), Some(TraceEnd::Clean));
    assert_eq!(write(), bytes);
}
