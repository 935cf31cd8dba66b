//! Reads an image out of packs whose bytes the test brings.

mod common;

use common::*;
use floe_image::{Hash, Kind, PACK_HEADER_BYTES};
use floe_source::{PackBytes, PackReader, Request, SourceError};
use floe_store::Repository;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Packs of a repository, and what was asked of them.
struct Brought {
    repository: Repository,
    announced: Mutex<Vec<(Hash, Range<u64>)>>,
    asked: Mutex<Vec<(Hash, Range<u64>)>>,
    /// Whether wrong bytes come.
    wrong: AtomicBool,
    /// Whether nothing can be brought.
    gone: AtomicBool,
}

impl PackBytes for Brought {
    fn at(&self) -> &str {
        "the test"
    }

    fn about_to_read(&self, ranges: &[(Hash, Range<u64>)], _: &Request) -> Result<(), SourceError> {
        self.announced.lock().unwrap().extend_from_slice(ranges);
        match self.gone.load(SeqCst) {
            false => Ok(()),
            true => Err(SourceError::Unreachable {
                at: self.at().into(),
                what: "packs".into(),
                reason: "all have left".into(),
            }),
        }
    }

    fn pack_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        _: &str,
        _: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        self.asked.lock().unwrap().push((*pack, range.clone()));
        let file = std::fs::File::open(self.repository.pack_path(pack)).unwrap();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).unwrap();
        if self.wrong.load(SeqCst) {
            bytes.iter_mut().for_each(|byte| *byte ^= 1);
        }
        Ok(bytes)
    }
}

fn reader(fixture: &Fixture) -> PackReader<Brought> {
    let brought = Brought {
        repository: fixture.repository.clone(),
        announced: Mutex::default(),
        asked: Mutex::default(),
        wrong: AtomicBool::new(false),
        gone: AtomicBool::new(false),
    };
    let layout = fixture.repository.layout(&fixture.image).unwrap();
    PackReader::new(brought, layout, None)
}

fn read(
    reader: &PackReader<Brought>,
    wants: &[(Kind, Hash)],
) -> (Result<(), SourceError>, HashMap<Hash, Vec<u8>>) {
    let mut got = HashMap::new();
    let read = reader.read(wants, &Request::demand(LIMIT), &mut |_, hash, bytes| {
        got.insert(hash, bytes.to_vec());
    });
    (read, got)
}

#[test]
fn an_image_is_read_out_of_packs_that_the_caller_brings_and_is_told_of_beforehand() {
    let fixture = Fixture::new();
    let reader = reader(&fixture);
    let numbers = [5, 150, 299, 6];
    let mut wants: Vec<_> = numbers.iter().map(|number| fixture.want(*number)).collect();
    wants.push((Kind::Segment, fixture.segment.0));
    let (done, got) = read(&reader, &wants);
    done.unwrap();
    for number in numbers {
        let (hash, bytes) = &fixture.chunks[number];
        assert_eq!(got[hash], *bytes);
    }
    assert_eq!(got[&fixture.segment.0], fixture.segment.1);
    // but for the packs' indices, everything that was read had been announced
    let announced = reader.bytes().announced.lock().unwrap().clone();
    let asked = reader.bytes().asked.lock().unwrap().clone();
    let layout = reader.layout();
    let is_index = |(pack, range): &(Hash, Range<u64>)| {
        let mut packs = layout.packs.iter();
        packs.any(|known| known.id == *pack && known.index_offset == range.start)
    };
    let frames: Vec<_> = asked.into_iter().filter(|one| !is_index(one)).collect();
    assert_eq!(frames, announced);
    assert!(!frames.is_empty());

    // what is in no pack is missing, and the rest comes
    let nothing = (Kind::Chunk, Hash::of(b"nothing"));
    let (done, got) = read(&reader, &[nothing, fixture.want(7)]);
    assert!(matches!(done, Err(SourceError::Missing { .. })), "{done:?}");
    assert!(got.contains_key(&fixture.chunks[7].0));
}

#[test]
fn nothing_wrong_and_nothing_that_is_gone_reaches_who_reads() {
    let fixture = Fixture::new();
    let reader = reader(&fixture);
    read(&reader, &[fixture.want(0)]).0.unwrap();
    reader.bytes().wrong.store(true, SeqCst);
    let (done, got) = read(&reader, &[fixture.want(40)]);
    assert!(matches!(done, Err(SourceError::Invalid { .. })), "{done:?}");
    assert!(got.is_empty());
    reader.bytes().gone.store(true, SeqCst);
    let (done, _) = read(&reader, &[fixture.want(40)]);
    assert!(
        matches!(done, Err(SourceError::Unreachable { .. })),
        "{done:?}"
    );
}

#[test]
fn bytes_that_are_no_frames_of_a_pack_are_found_out_once_its_index_is_here() {
    let fixture = Fixture::new();
    let reader = reader(&fixture);
    let pack = &reader.layout().packs[0];
    let bytes = std::fs::read(fixture.repository.pack_path(&pack.id)).unwrap();
    let range = 0..bytes.len() as u64;
    let mut wrong = bytes.clone();
    let frames = PACK_HEADER_BYTES as usize..pack.index_offset as usize;
    wrong[frames].iter_mut().for_each(|byte| *byte ^= 1);
    assert!(reader.fits(&pack.id, &range, &wrong), "nobody knows yet");
    // what is in no pack is looked for in all indices
    let nothing = (Kind::Chunk, Hash::of(b"nothing"));
    let (done, _) = read(&reader, &[nothing]);
    assert!(matches!(done, Err(SourceError::Missing { .. })), "{done:?}");
    assert!(reader.fits(&pack.id, &range, &bytes));
    assert!(!reader.fits(&pack.id, &range, &wrong));
    // of a frame that is cut nobody can say anything
    let cut = 0..PACK_HEADER_BYTES + 1;
    assert!(reader.fits(&pack.id, &cut, &wrong[..cut.end as usize]));
}

#[test]
fn where_items_lie_is_told_in_their_order() {
    let fixture = Fixture::new();
    let reader = reader(&fixture);
    // the last pack, the first, a neighbour in the same frame as the first of these, and nothing
    let wants = [299, 0, 298, 1].map(|number| fixture.want(number));
    let wants = [&wants[..], &[(Kind::Chunk, Hash::of(b"nothing"))]].concat();
    let places = reader.places(&wants, &Request::prefetch(LIMIT)).unwrap();
    let packs = &reader.layout().packs;
    assert_eq!(places.len(), 2);
    assert_eq!((places[0].0, places[1].0), (packs[2].id, packs[0].id));
    let each: HashSet<_> = places.iter().map(|(_, range)| range.clone()).collect();
    assert!(each.iter().all(|range| range.start < range.end));
}
