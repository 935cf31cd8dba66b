//! Tests that bad input is refused, with a message that says what is wrong.

use floe_image::*;

fn error<T: std::fmt::Debug>(r: Result<T, FormatError>) -> String {
    r.expect_err("it must be refused").to_string()
}

fn manifest(name: &str, size: u64, segments: usize) -> Manifest {
    let segments = vec![Hash::ZERO; segments];
    Manifest {
        regions: vec![Region {
            name: name.into(),
            size,
            segments,
            ..Default::default()
        }],
        ..Manifest::default()
    }
}

#[test]
fn patches_out_of_order_or_place_are_refused() {
    let patched = |chunks: &[u32]| {
        let mut m = manifest("ram", SEGMENT_SPAN + 1, 2);
        let patch = |chunk: &u32| Patch {
            chunk: *chunk,
            hash: Hash::ZERO,
        };
        m.regions[0].patches = chunks.iter().map(patch).collect();
        Manifest::decode(&m.encode())
    };
    patched(&[0, 5, 1024]).unwrap();
    for wrong in [&[5, 5][..], &[5, 4], &[1025]] {
        assert!(error(patched(wrong)).contains("ascending order within its 1025 chunks"));
    }
    // The version of patched manifests without any patch would be a second encoding of the same image.
    let mut bytes = manifest("ram", 0, 0).encode();
    bytes[8] = 2;
    bytes.extend_from_slice(&[0; 4]);
    assert!(error(Manifest::decode(&bytes)).contains("no patch"));
}

#[test]
fn how_a_machine_can_grow_is_told_in_one_way() {
    let with = |change: &dyn Fn(&mut MachineConfig)| {
        let mut m = manifest("ram", 0, 0);
        change(&mut m.config);
        m
    };
    let good = with(&|c| c.profile = Some(2));
    assert_eq!(Manifest::decode(&good.encode()).unwrap(), good);
    // Only a later version of floe can run a later profile; storing and serving the image doesn't need to know it.
    let later = with(&|c| c.profile = Some(77));
    assert_eq!(Manifest::decode(&later.encode()).unwrap(), later);
    let one = with(&|c| c.profile = Some(1));
    assert!(
        error(Manifest::decode(&one.encode())).contains("profile 1 is written by leaving it out")
    );
    let unnamed = with(&|c| c.cpus_max = Some(8));
    assert!(error(Manifest::decode(&unnamed.encode())).contains("names no hardware profile"));
    let idle = with(&|c| c.cpus = Some(0));
    assert!(error(Manifest::decode(&idle.encode())).contains("no vCPU"));
    // The version must fit whether there is a profile.
    let mut bytes = good.encode();
    bytes[8] = 2;
    assert!(error(Manifest::decode(&bytes)).contains("needs version 3"));
    let mut plain = manifest("ram", 0, 0).encode();
    plain[8] = 3;
    plain.extend_from_slice(&[0; 4]);
    assert!(error(Manifest::decode(&plain)).contains("no hardware profile"));
}

#[test]
fn a_state_without_all_of_its_memory_is_refused() {
    let mut m = manifest("ram", 0, 0);
    m.config.profile = Some(2);
    m.config.memory_blocks = vec![SEGMENT_SPAN];
    assert!(error(Manifest::decode(&m.encode())).contains("no region \"ram1\" of that size"));
    m.regions.push(Region {
        name: "ram1".into(),
        size: SEGMENT_SPAN,
        segments: vec![Hash::ZERO],
        ..Default::default()
    });
    Manifest::decode(&m.encode()).unwrap();
    m.regions[1].size -= 1;
    assert!(error(Manifest::decode(&m.encode())).contains("ram1"));
}

#[test]
fn a_memory_block_has_one_name() {
    for block in [0, 1, 9, 63] {
        assert_eq!(memory_block(&memory_region(block)), Some(block));
    }
    for other in ["ram0", "ram01", "ram+1", "ramdisk", "vram", "disk1", ""] {
        assert_eq!(memory_block(other), None, "{other}");
    }
}

#[test]
fn a_later_version_is_refused_with_the_reason() {
    let mut bytes = Manifest::default().encode();
    bytes[8] = 9;
    let text = error(Manifest::decode(&bytes));
    assert_eq!(
        text,
        "image manifest has version 9, this floe knows version 3; update floe, or publish the image with this one"
    );
}

#[test]
fn something_else_is_named_as_such() {
    assert!(
        error(Manifest::decode(b"<html>not found"))
            .starts_with("this is no image manifest: it starts with [3c, 68")
    );
}

#[test]
fn region_names_cannot_be_paths() {
    for name in [
        "",
        "..",
        "../x",
        "a/b",
        "RAM",
        "a.b",
        "a\0",
        &"a".repeat(33),
    ] {
        let bytes = manifest(name, 0, 0).encode();
        assert!(
            error(Manifest::decode(&bytes)).contains("is not 1 to 32 of a-z, 0-9 and -"),
            "{name:?}"
        );
    }
}

#[test]
fn two_regions_of_one_name_are_refused() {
    let mut m = manifest("ram", 0, 0);
    m.regions.push(m.regions[0].clone());
    assert!(error(Manifest::decode(&m.encode())).contains("two regions are called \"ram\""));
}

#[test]
fn a_region_has_one_segment_for_each_4_mib_begun() {
    for (size, segments) in [(0, 0), (1, 1), (SEGMENT_SPAN, 1), (SEGMENT_SPAN + 1, 2)] {
        Manifest::decode(&manifest("ram", size, segments).encode()).unwrap();
        let text = error(Manifest::decode(
            &manifest("ram", size, segments + 1).encode(),
        ));
        assert!(
            text.contains(&format!(
                "has {} segments, {segments} are needed",
                segments + 1
            )),
            "{text}"
        );
    }
}

#[test]
fn a_size_that_no_chunk_index_reaches_is_refused() {
    let text = error(Manifest::decode(&manifest("ram", u64::MAX, 0).encode()));
    assert!(
        text.contains("size of all regions in bytes is 18446744073709551615"),
        "{text}"
    );
}

#[test]
fn a_huge_count_allocates_nothing() {
    let mut bytes = manifest("ram", 1, 1).encode();
    let at = bytes.len() - 36;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        Manifest::decode(&bytes),
        Err(FormatError::Truncated { .. })
    ));
    let mut bytes = Layout::default().encode();
    bytes[12..16].copy_from_slice(&LAYOUT_PACKS_MAX.to_le_bytes());
    assert!(matches!(
        Layout::decode(&bytes),
        Err(FormatError::Truncated { .. })
    ));
}

#[test]
fn an_unknown_field_of_the_configuration_is_refused() {
    let mut bytes = Manifest::default().encode();
    let json = br#"{"gpu":1}"#;
    bytes.truncate(64);
    bytes[56..60].copy_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(json);
    let text = error(Manifest::decode(&bytes));
    assert!(text.contains("unknown field `gpu`"), "{text}");
}

#[test]
fn a_second_spelling_of_the_configuration_is_refused() {
    let mut bytes = Manifest::default().encode();
    let json = br#"{ }"#;
    bytes.truncate(64);
    bytes[56..60].copy_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(json);
    assert!(error(Manifest::decode(&bytes)).contains("canonical"));
}

#[test]
fn deeply_nested_json_is_refused() {
    let mut bytes = Manifest::default().encode();
    let json = "[".repeat(CONFIG_BYTES_MAX);
    bytes.truncate(64);
    bytes[56..60].copy_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(json.as_bytes());
    error(Manifest::decode(&bytes));
}

#[test]
fn a_string_above_its_limit_is_refused() {
    let mut m = Manifest::default();
    m.config.cmdline = Some("x".repeat(CONFIG_STRING_MAX + 1));
    assert!(error(Manifest::decode(&m.encode())).contains("at most 8192"));
}

#[test]
fn wrong_bytes_under_a_name_are_a_mismatch() {
    let bytes = Manifest::default().encode();
    let text = error(Manifest::decode_verified(&bytes, &Hash::of(b"other")));
    assert!(text.contains("use another source"), "{text}");
    let chunk = [7; CHUNK_SIZE];
    Kind::Chunk.verify(&Hash::of(&chunk), &chunk).unwrap();
    Kind::Chunk.verify(&Hash::ZERO, &[0; CHUNK_SIZE]).unwrap();
    assert!(matches!(
        Kind::Chunk.verify(&Hash::ZERO, &chunk),
        Err(FormatError::Mismatch { .. })
    ));
    assert!(matches!(
        Kind::Chunk.verify(&Hash::of(&chunk[1..]), &chunk[1..]),
        Err(FormatError::Invalid { .. })
    ));
}

#[test]
fn a_decompression_bomb_is_refused_before_it_is_unpacked() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
    assert!(bomb.len() < 16 << 10);
    let text = error(decompress_frame(Kind::Chunk, &bomb, 16));
    assert!(text.contains("unpacks to 67108864 bytes"), "{text}");
    // The same without its size in the head.
    let mut streamed = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    std::io::Write::write_all(&mut streamed, &vec![0; 64 << 20]).unwrap();
    let streamed = streamed.finish().unwrap();
    assert!(
        error(decompress_frame(Kind::Chunk, &streamed, 16))
            .contains("no zstd frame that tells its size")
    );
}

#[test]
fn a_frame_of_the_wrong_size_is_refused() {
    let chunk = [3; CHUNK_SIZE];
    let frame = compress_frame(Kind::Chunk, &[&chunk, &chunk], 3);
    for items in [1, 3, 16] {
        assert!(
            error(decompress_frame(Kind::Chunk, &frame, items)).contains("unpacks to 8192 bytes")
        );
    }
    assert!(error(decompress_frame(Kind::Chunk, &frame, 17)).contains("at most 16"));
    assert!(error(decompress_frame(Kind::Chunk, &frame, 0)).contains("without items"));
    let twice = [frame.clone(), frame.clone()].concat();
    assert!(error(decompress_frame(Kind::Chunk, &twice, 2)).contains("does not end where"));
    assert_eq!(
        decompress_frame(Kind::Chunk, &frame, 2).unwrap(),
        [chunk, chunk].concat()
    );
}

#[test]
fn content_that_does_not_compress_still_fits_a_frame() {
    let mut state = 1u64;
    let noise: Vec<u8> = (0..FRAME_MAX_CHUNKS * CHUNK_SIZE)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let items: Vec<&[u8]> = noise.chunks(CHUNK_SIZE).collect();
    let frame = compress_frame(Kind::Chunk, &items, 3);
    assert!(
        frame.len() > noise.len() && frame.len() <= FRAME_BYTES_MAX as usize,
        "{}",
        frame.len()
    );
    assert_eq!(decompress_frame(Kind::Chunk, &frame, 16).unwrap(), noise);
}

fn pack() -> (Vec<u8>, PackRef) {
    let chunk = [3; CHUNK_SIZE];
    let mut w = PackWriter::new(Vec::new()).unwrap();
    w.push_frame(
        Kind::Chunk,
        &[Hash::of(&chunk)],
        &compress_frame(Kind::Chunk, &[&chunk], 3),
    )
    .unwrap();
    w.finish().unwrap()
}

/// Decodes the pack's index after `edit`, with the id of the edited index.
fn forged(edit: impl FnOnce(&mut Vec<u8>)) -> Result<PackIndex, FormatError> {
    let (file, mut pack) = pack();
    let mut index = file[pack.index_offset as usize..][..pack.index_bytes as usize].to_vec();
    edit(&mut index);
    pack.id = Hash::of(&index);
    PackIndex::decode(&index, &pack)
}

#[test]
fn a_forged_pack_index_is_refused() {
    forged(|_| ()).unwrap();
    assert!(error(forged(|i| i[24 + 8] += 1)).contains("the one before ends at 16"));
    assert!(error(forged(|i| i[24 + 4] += 1)).contains("its frames hold 1 items and end at"));
    assert!(error(forged(|i| i[24 + 2] = 2)).contains("1 items and an end at"));
    assert!(error(forged(|i| i[24 + 2] = 17)).contains("at most 16"));
    assert!(error(forged(|i| i[24] = 2)).contains("item kind 2 is unknown"));
    assert!(error(forged(|i| i[40..].fill(0))).contains("zero hash"));
    assert!(error(forged(|i| i[16..20].fill(0xff))).contains("number of items in a pack"));
    assert!(error(forged(|i| i.push(0))).contains("follow its end"));
    let (file, pack) = pack();
    let damaged = file[pack.index_offset as usize + 1..][..pack.index_bytes as usize].to_vec();
    assert!(matches!(
        PackIndex::decode(&damaged, &pack),
        Err(FormatError::Mismatch { .. })
    ));
}

#[test]
fn a_pack_that_was_cut_off_is_told_from_one_that_was_never_one() {
    let (file, pack) = pack();
    let footer = |file: &[u8]| {
        PackRef::from_footer(
            &file[file.len() - PACK_FOOTER_BYTES as usize..],
            file.len() as u64,
        )
    };
    assert_eq!(footer(&file).unwrap(), pack);
    assert!(error(footer(&file[..file.len() - 1])).contains("its end is missing"));
    let longer = [&[0; 8][..], &file].concat();
    assert!(error(footer(&longer)).contains("do not make a file of"));
    assert!(check_pack_header(&file[1..17]).is_err());
}

#[test]
fn a_writer_refuses_what_no_reader_accepts() {
    let mut w = PackWriter::new(Vec::new()).unwrap();
    let h = Hash::of(b"x");
    assert!(w.push_frame(Kind::Chunk, &[h; 17], &[1]).is_err());
    assert!(w.push_frame(Kind::Segment, &[h; 2], &[1]).is_err());
    assert!(w.push_frame(Kind::Chunk, &[], &[1]).is_err());
    assert!(w.push_frame(Kind::Chunk, &[Hash::ZERO], &[1]).is_err());
    assert!(w.push_frame(Kind::Chunk, &[h], &[]).is_err());
    assert!(
        w.push_frame(Kind::Chunk, &[h], &vec![0; FRAME_BYTES_MAX as usize + 1])
            .is_err()
    );
    assert_eq!(w.bytes_written(), PACK_HEADER_BYTES);
}

#[test]
fn a_layout_lists_a_pack_once() {
    let (_, pack) = pack();
    let text = error(Layout::decode(
        &Layout {
            packs: vec![pack, pack],
        }
        .encode(),
    ));
    assert!(text.contains("is listed twice"), "{text}");
}

#[test]
fn a_layout_has_one_encoding() {
    let (file, mut pack) = pack();
    assert_eq!(pack.root, Some(Hash::of(&file)));
    let with = Layout { packs: vec![pack] }.encode();
    pack.root = None;
    let without = Layout { packs: vec![pack] }.encode();
    assert_eq!((with[8], without[8]), (2, 1));
    let mut rootless = with.clone();
    rootless[72..].fill(0);
    let text = error(Layout::decode(&rootless));
    assert!(text.contains("no root"), "{text}");
    for (bytes, other) in [(with, 1), (without, 2), (Layout::default().encode(), 2)] {
        let mut wrong = bytes.clone();
        wrong[8] = other;
        assert!(Layout::decode(&wrong).is_err());
        wrong[8] = 3;
        let text = error(Layout::decode(&wrong));
        assert!(text.contains('3'), "{text}");
        assert!(Layout::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn a_response_cut_off_anywhere_is_an_error() {
    let chunk = [3; CHUNK_SIZE];
    let mut w = ResponseEncoder::new(Vec::new()).unwrap();
    w.frame(Kind::Chunk, &[Hash::of(&chunk)], Encoding::Raw, &chunk)
        .unwrap();
    w.missing(Kind::Chunk, &Hash::of(b"y")).unwrap();
    let bytes = w.finish().unwrap();
    for len in 0..bytes.len() {
        let got = read_response(&bytes[..len], 2, |_| Ok(()));
        assert!(
            matches!(
                got,
                Err(ResponseError::Format(FormatError::Truncated { .. }))
            ),
            "{len}: {got:?}"
        );
    }
    read_response(&bytes[..], 2, |_| Ok(())).unwrap();
    let more = [&bytes[..], &[0]].concat();
    assert!(read_response(&more[..], 2, |_| Ok(())).is_err());
}

#[test]
fn a_server_cannot_send_more_records_than_were_asked_for() {
    let mut w = ResponseEncoder::new(Vec::new()).unwrap();
    for _ in 0..3 {
        w.missing(Kind::Chunk, &Hash::of(b"y")).unwrap();
    }
    let bytes = w.finish().unwrap();
    let got = read_response(&bytes[..], 2, |_| Ok(()));
    assert!(
        matches!(
            got,
            Err(ResponseError::Format(FormatError::Limit { max: 2, .. }))
        ),
        "{got:?}"
    );
}

#[test]
fn a_lineage_that_loops_is_refused() {
    let [a, b, c] = [b"a", b"b", b"c"].map(|n| Hash::of(n));
    let looping = |h: &Hash| {
        Ok::<_, ()>(Some(if *h == a {
            b
        } else if *h == b {
            c
        } else {
            b
        }))
    };
    assert_eq!(lineage(a, looping), Err(LineageError::Loop(b)));
    assert_eq!(
        lineage(a, |_| Ok::<_, ()>(Some(a))),
        Err(LineageError::Loop(a))
    );
    assert_eq!(
        lineage(a, |h| Ok::<_, ()>((*h == a).then_some(b))),
        Ok(vec![a, b])
    );
    assert_eq!(
        lineage(a, |_| Err("gone")),
        Err(LineageError::Lookup(a, "gone"))
    );
}

#[test]
fn a_lineage_without_end_is_refused() {
    let endless = |h: &Hash| Ok::<_, ()>(Some(Hash::of(&h.0)));
    let a = Hash::of(b"a");
    assert_eq!(lineage(a, endless), Err(LineageError::TooDeep(a)));
    let mut left = LINEAGE_DEPTH_MAX;
    let deepest = |h: &Hash| {
        left = left.saturating_sub(1);
        Ok::<_, ()>((left > 0).then(|| Hash::of(&h.0)))
    };
    assert_eq!(lineage(a, deepest).unwrap().len(), LINEAGE_DEPTH_MAX);
}

#[test]
fn names_say_what_is_wrong_with_them() {
    for (text, why) in [
        ("", "0 bytes"),
        ("Debian", "'D' is not allowed"),
        ("../etc", "the part \"..\" of the name does not begin"),
        ("a/../b", "does not begin"),
        ("/etc", "the part \"\""),
        ("a//b", "the part \"\""),
        ("a/", "the part \"\""),
        ("a..b", "contains .."),
        ("a:", "the tag has 0 bytes"),
        ("a:b:c", "':' is not allowed in the tag"),
        ("a:.b", "the tag begins with"),
        ("a:b/c", "'/' is not allowed in the tag"),
        ("a\n", "'\\n' is not allowed"),
    ] {
        let text_of = ImageName::parse(text).expect_err(text).to_string();
        assert!(text_of.contains(why), "{text:?}: {text_of}");
    }
    assert_eq!(
        ImageName::parse("debian").unwrap().to_string(),
        "debian:latest"
    );
    assert_eq!(ImageName::parse("team/web-1.2:V2").unwrap().tag(), "V2");
    assert!(ImageName::parse(&"a".repeat(129)).is_err());
}

#[test]
fn a_hash_is_64_small_hex_digits() {
    let hash = Hash::of(b"x");
    assert_eq!(hash.to_string().parse::<Hash>().unwrap(), hash);
    assert!(hash.to_string().to_uppercase().parse::<Hash>().is_err());
    assert!(
        "ab".parse::<Hash>()
            .unwrap_err()
            .to_string()
            .contains("64 hexadecimal digits")
    );
    let json = serde_json::to_string(&hash).unwrap();
    assert_eq!(serde_json::from_str::<Hash>(&json).unwrap(), hash);
    assert!(serde_json::from_str::<Hash>("\"xy\"").is_err());
}

#[test]
fn a_damaged_trace_keeps_what_came_before() {
    let header = TraceHeader {
        image: Hash::of(b"i"),
        machine: "m".into(),
        start_unix_us: 0,
    };
    let mut w = TraceWriter::new(Vec::new(), &header).unwrap();
    let access = Access {
        region: 1,
        chunk: 9,
        t_us: 4,
        wait_us: 2,
    };
    w.push(access).unwrap();
    let good = w.into_inner();
    for (tail, end) in [
        (&[64u8, 0, 0, 0][..], TraceEnd::Damaged),
        (&[0, 0x80, 0x00, 0, 0], TraceEnd::Damaged),
        (&[0, 0x13, 0, 0], TraceEnd::Damaged), // chunk 9 - 10
        (&[0, 0xff, 0xff], TraceEnd::CutOff),
        (&[0], TraceEnd::CutOff),
    ] {
        let bytes = [&good[..], tail].concat();
        let mut reader = TraceReader::new(&bytes).unwrap();
        assert_eq!(reader.by_ref().collect::<Vec<_>>(), [access]);
        assert_eq!(
            (reader.end(), reader.valid_bytes()),
            (Some(end), good.len()),
            "{tail:?}"
        );
    }
    assert!(TraceReader::new(&good[..20]).is_err());
    let long = TraceHeader {
        machine: "m".repeat(65),
        ..header
    };
    assert!(TraceWriter::new(Vec::new(), &long).is_err());
}
