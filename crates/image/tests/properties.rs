//! Tests properties of every decoder: what was encoded comes back; arbitrary and damaged bytes are refused or decoded, but
//! never cause a panic; and whatever is accepted has exactly one encoding.

use floe_image::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn hash() -> impl Strategy<Value = Hash> {
    any::<[u8; 32]>().prop_map(|mut b| {
        b[0] |= 1; // never the zero hash
        Hash(b)
    })
}

fn maybe_zero_hash() -> impl Strategy<Value = Hash> {
    prop_oneof![3 => hash(), 1 => Just(Hash::ZERO)]
}

fn config() -> impl Strategy<Value = MachineConfig> {
    let text = || proptest::option::of(any::<String>());
    (
        text(),
        text(),
        vec(any::<String>(), 0..4),
        proptest::option::of(1..=u32::MAX),
        proptest::option::of(any::<u64>()),
        proptest::option::of(2..u32::MAX),
    )
        .prop_flat_map(
            |(machine_type, cmdline, devices, cpus, memory_bytes, profile)| {
                btree_map(any::<String>(), any::<String>(), 0..3).prop_map(move |labels| {
                    MachineConfig {
                        machine_type: machine_type.clone(),
                        cmdline: cmdline.clone(),
                        devices: devices.clone(),
                        cpus,
                        memory_bytes,
                        profile,
                        memory_bytes_max: profile.and(memory_bytes),
                        labels,
                        ..MachineConfig::default()
                    }
                })
            },
        )
}

fn region() -> impl Strategy<Value = Region> {
    (0u64..5)
        .prop_flat_map(|segments| {
            let size = match segments {
                0 => (0..=0u64).boxed(),
                n => ((n - 1) * SEGMENT_SPAN + 1..=n * SEGMENT_SPAN).boxed(),
            };
            let patches = btree_map(any::<u32>(), maybe_zero_hash(), 0..4);
            (size, vec(maybe_zero_hash(), segments as usize), patches)
        })
        .prop_map(|(size, segments, patches)| {
            let mut region = Region {
                size,
                segments,
                ..Region::default()
            };
            let chunks = region.chunks();
            let within = patches.into_iter().filter(|_| chunks > 0);
            let within: std::collections::BTreeMap<u32, Hash> = within
                .map(|(chunk, hash)| ((u64::from(chunk) % chunks) as u32, hash))
                .collect();
            region.patches = within
                .into_iter()
                .map(|(chunk, hash)| Patch { chunk, hash })
                .collect();
            region
        })
}

prop_compose! {
    fn manifest()(
        parent in proptest::option::of(hash()),
        created_unix_s in any::<u64>(),
        config in config(),
        regions in btree_map("[a-z0-9-]{1,32}", region(), 0..6),
    ) -> Manifest {
        let regions = regions.into_iter().map(|(name, region)| Region { name, ..region }).collect();
        Manifest { parent, created_unix_s, config, regions }
    }
}

prop_compose! {
    fn access()(region in 0u8..64, chunk in any::<u32>(), dt in 0u64..1 << 50, wait_us in any::<u64>()) -> Access {
        Access { region, chunk, t_us: dt, wait_us }
    }
}

/// Returns frames of small content: for each its kind, and a byte for each item.
fn frames() -> impl Strategy<Value = Vec<(Kind, Vec<u8>)>> {
    let frame = prop_oneof![
        4 => vec(1u8.., 1..=FRAME_MAX_CHUNKS).prop_map(|v| (Kind::Chunk, v)),
        1 => vec(1u8.., 1..=1).prop_map(|v| (Kind::Segment, v)),
    ];
    vec(frame, 0..5)
}

fn item(kind: Kind, n: u8) -> Vec<u8> {
    let mut out = vec![0; kind.raw_size()];
    out[usize::from(n) * 7] = n;
    out
}

fn build(frames: &[(Kind, Vec<u8>)]) -> (Vec<u8>, PackRef) {
    let mut w = PackWriter::new(Vec::new()).unwrap();
    for (kind, seeds) in frames {
        let items: Vec<_> = seeds.iter().map(|&n| item(*kind, n)).collect();
        let names: Vec<_> = items.iter().map(|i| Hash::of(i)).collect();
        let refs: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
        w.push_frame(*kind, &names, &compress_frame(*kind, &refs, 1))
            .unwrap();
    }
    w.finish().unwrap()
}

/// Damages `bytes`: overwrites some, and may cut the end off or add to it.
fn damage(
    mut bytes: Vec<u8>,
    edits: &[(prop::sample::Index, u8)],
    cut: Option<prop::sample::Index>,
    tail: &[u8],
) -> Vec<u8> {
    for (at, value) in edits {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len() + 1));
    }
    bytes.extend_from_slice(tail);
    bytes
}

type Damage = (
    Vec<(prop::sample::Index, u8)>,
    Option<prop::sample::Index>,
    Vec<u8>,
);

fn damages() -> impl Strategy<Value = Damage> {
    (
        vec(
            (
                any::<prop::sample::Index>(),
                prop_oneof![any::<u8>(), Just(0u8), Just(0xff)],
            ),
            0..6,
        ),
        proptest::option::of(any::<prop::sample::Index>()),
        vec(any::<u8>(), 0..4),
    )
}

/// Calls everything that takes untrusted bytes. Accepted bytes must be exactly those that the encoder writes.
fn decode_all(bytes: &[u8]) {
    if let Ok(m) = Manifest::decode(bytes) {
        assert_eq!(m.encode(), bytes);
    }
    if let Ok(s) = Segment::decode(bytes) {
        assert_eq!(s.encode(), bytes);
    }
    if let Ok(l) = Layout::decode(bytes) {
        assert_eq!(l.encode(), bytes);
    }
    if let Ok(r) = ReadRequest::decode(bytes) {
        assert_eq!(r.encode(), bytes);
    }
    let _ = check_pack_header(bytes);
    let _ = PackRef::from_footer(bytes, bytes.len() as u64);
    decode_index(bytes);
    for items in [1, FRAME_MAX_CHUNKS] {
        if let Ok(out) = decompress_frame(Kind::Chunk, bytes, items) {
            assert_eq!(out.len(), items * CHUNK_SIZE);
        }
    }
    let _ = read_response(bytes, 64, |r| {
        let n: usize = r.items().map(|(_, _, data)| data.len()).sum();
        assert!(n <= FRAME_MAX_CHUNKS * CHUNK_SIZE);
        Ok(())
    });
    if let Ok(reader) = TraceReader::new(bytes) {
        rewrite_trace(bytes, reader);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(name) = ImageName::parse(text) {
            assert_eq!(ImageName::parse(&name.to_string()), Ok(name.clone()));
            assert!(!name.to_string().contains("..") && !name.name().starts_with('/'));
        }
        if let Ok(hash) = text.parse::<Hash>() {
            assert_eq!(hash.to_string(), text);
        }
    }
}

fn decode_index(bytes: &[u8]) {
    // A forged index gets a reference that fits it; otherwise the hash alone would refuse it.
    let Some(last) = bytes.len().checked_sub(40).map(|n| n as u64) else {
        return;
    };
    for index_offset in [
        PACK_HEADER_BYTES,
        last.max(PACK_HEADER_BYTES),
        index_end(bytes),
    ] {
        let pack = PackRef {
            id: Hash::of(bytes),
            index_offset,
            index_bytes: bytes.len() as u32,
            file_bytes: index_offset + bytes.len() as u64 + PACK_FOOTER_BYTES,
            root: None,
        };
        if let Ok(index) = PackIndex::decode(bytes, &pack) {
            for hash in index.hashes() {
                let at = index.lookup(hash).expect("a listed item is found");
                assert_eq!(index.frame_hashes(at.frame)[usize::from(at.slot)], *hash);
            }
        }
    }
}

/// Returns the end of the frames according to the (perhaps damaged) index.
fn index_end(bytes: &[u8]) -> u64 {
    let u32_at = |at: usize| {
        bytes
            .get(at..at + 4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
    };
    let frames = u32_at(12).unwrap_or(0).min(64);
    let lens = (0..frames as usize).filter_map(|i| u32_at(24 + i * 16 + 4));
    PACK_HEADER_BYTES + lens.map(|n| u64::from(n.min(1 << 20))).sum::<u64>()
}

fn rewrite_trace(bytes: &[u8], mut reader: TraceReader<'_>) {
    let mut w = TraceWriter::new(Vec::new(), reader.header()).unwrap();
    reader.by_ref().for_each(|a| w.push(a).unwrap());
    assert_eq!(w.into_inner(), bytes[..reader.valid_bytes()]);
}

proptest! {
    #[test]
    fn a_manifest_comes_back(m in manifest()) {
        let bytes = m.encode();
        prop_assert_eq!(Manifest::decode_verified(&bytes, &m.id()).unwrap(), m);
    }

    #[test]
    fn every_item_of_a_pack_is_found_and_comes_back(frames in frames()) {
        let (file, pack) = build(&frames);
        let footer = &file[file.len() - PACK_FOOTER_BYTES as usize..];
        prop_assert_eq!(PackRef::from_footer(footer, file.len() as u64).unwrap(), pack);
        let index_bytes = &file[pack.index_offset as usize..][..pack.index_bytes as usize];
        let index = PackIndex::decode(index_bytes, &pack).unwrap();
        for (kind, seeds) in &frames {
            for &n in seeds {
                let raw = item(*kind, n);
                let at = index.lookup(&Hash::of(&raw)).unwrap();
                let f = index.frame(at.frame).unwrap();
                let bytes = &file[f.offset as usize..][..f.len as usize];
                let out = decompress_frame(f.kind, bytes, f.items.into()).unwrap();
                let size = kind.raw_size();
                prop_assert_eq!(&out[usize::from(at.slot) * size..][..size], &raw[..]);
            }
        }
        prop_assert_eq!(index.lookup(&Hash::ZERO), None);
    }

    #[test]
    fn a_response_comes_back_however_it_is_cut_into_pieces(frames in frames(), piece in 1usize..5000) {
        let mut w = ResponseEncoder::new(Vec::new()).unwrap();
        let mut sent = Vec::new();
        for (i, (kind, seeds)) in frames.iter().enumerate() {
            let items: Vec<_> = seeds.iter().map(|&n| item(*kind, n)).collect();
            let hashes: Vec<_> = items.iter().map(|i| Hash::of(i)).collect();
            let refs: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
            if i % 2 == 0 {
                w.frame(*kind, &hashes, Encoding::Zstd, &compress_frame(*kind, &refs, 1)).unwrap();
            } else {
                w.frame(*kind, &hashes, Encoding::Raw, &items.concat()).unwrap();
            }
            sent.push(Record::Frame { kind: *kind, hashes, data: items.concat() });
        }
        let bytes = w.finish().unwrap();
        let mut decoder = ResponseDecoder::new(frames.len());
        let mut got = Vec::new();
        for part in bytes.chunks(piece) {
            prop_assert!(!decoder.is_complete());
            decoder.feed(part);
            while let Some(record) = decoder.next_record().unwrap() {
                got.push(record);
            }
        }
        prop_assert!(decoder.is_complete());
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn a_trace_comes_back_and_goes_on_after_a_cut(steps in vec(access(), 0..40), cut in any::<prop::sample::Index>()) {
        let mut t = 0u64;
        let accesses: Vec<_> = steps.into_iter().map(|mut a| { t = t.saturating_add(a.t_us); a.t_us = t; a }).collect();
        let header = TraceHeader { image: Hash::of(b"i"), machine: "m-1".into(), start_unix_us: 7 };
        let mut w = TraceWriter::new(Vec::new(), &header).unwrap();
        let head = w.get_mut().len();
        accesses.iter().for_each(|a| w.push(*a).unwrap());
        let bytes = w.into_inner();
        let cut = head + cut.index(bytes.len() - head + 1);
        let mut reader = TraceReader::new(&bytes[..cut]).unwrap();
        let before: Vec<_> = reader.by_ref().collect();
        prop_assert_eq!(&before[..], &accesses[..before.len()]);
        prop_assert_eq!(reader.end() == Some(TraceEnd::Clean), reader.valid_bytes() == cut);
        let mut resumed = TraceWriter::resume(bytes[..reader.valid_bytes()].to_vec(), &reader);
        accesses[before.len()..].iter().for_each(|a| resumed.push(*a).unwrap());
        prop_assert_eq!(resumed.into_inner(), bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000)) {
        decode_all(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_right_magic_never_panic(which in 0usize..6, version in 0u32..3, rest in vec(any::<u8>(), 0..400)) {
        let magics = [b"FLOEIMAG", b"FLOEPIDX", b"FLOELAYO", b"FLOEWANT", b"FLOEGIVE", b"FLOETRCE"];
        let mut bytes = magics[which].to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&rest);
        decode_all(&bytes);
    }

    #[test]
    fn damaged_manifests_never_panic(m in manifest(), (edits, cut, tail) in damages()) {
        decode_all(&damage(m.encode(), &edits, cut, &tail));
    }

    #[test]
    fn damaged_packs_never_panic(frames in frames(), (edits, cut, tail) in damages()) {
        let (file, pack) = build(&frames);
        decode_all(&damage(file[pack.index_offset as usize..][..pack.index_bytes as usize].to_vec(), &edits, cut, &tail));
        decode_all(&damage(file[file.len() - PACK_FOOTER_BYTES as usize..].to_vec(), &edits, cut, &tail));
    }

    #[test]
    fn damaged_frames_never_panic(seeds in vec(any::<u8>(), 1..=16), (edits, cut, tail) in damages()) {
        let items: Vec<_> = seeds.iter().map(|&n| item(Kind::Chunk, n)).collect();
        let refs: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
        let bytes = damage(compress_frame(Kind::Chunk, &refs, 3), &edits, cut, &tail);
        if let Ok(out) = decompress_frame(Kind::Chunk, &bytes, items.len()) {
            prop_assert_eq!(out.len(), items.len() * CHUNK_SIZE);
        }
    }

    #[test]
    fn damaged_layouts_requests_and_responses_never_panic(
        wants in vec(hash(), 0..5), root in proptest::option::of(hash()), (edits, cut, tail) in damages(),
    ) {
        let pack = |id: &Hash| PackRef { id: *id, file_bytes: 200 + PACK_FOOTER_BYTES, index_offset: 100, index_bytes: 100, root };
        decode_all(&damage(Layout { packs: wants.iter().map(pack).collect() }.encode(), &edits, cut, &tail));
        let request = ReadRequest { wants: wants.iter().map(|h| (Kind::Chunk, *h)).collect() };
        decode_all(&damage(request.encode(), &edits, cut, &tail));
        let mut w = ResponseEncoder::new(Vec::new()).unwrap();
        for hash in &wants {
            w.missing(Kind::Segment, hash).unwrap();
            w.frame(Kind::Chunk, &[*hash], Encoding::Zstd, &compress_frame(Kind::Chunk, &[&[5; CHUNK_SIZE]], 1)).unwrap();
        }
        decode_all(&damage(w.finish().unwrap(), &edits, cut, &tail));
    }

    #[test]
    fn zeros_are_told_from_the_rest(len in 0usize..5000, at in any::<prop::sample::Index>(), value in 1u8..) {
        let mut bytes = vec![0; len];
        prop_assert!(is_zero(&bytes));
        if len > 0 {
            bytes[at.index(len)] = value;
            prop_assert!(!is_zero(&bytes));
        }
    }

    #[test]
    fn names_never_leave_their_directory(text in "[a-z./:A-Z_-]{0,20}") {
        decode_all(text.as_bytes());
    }
}
