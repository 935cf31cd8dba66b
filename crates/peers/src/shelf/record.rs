//! The record of what a shelf has: a file `have` that is replaced as a whole (docs/format.md, "Pieces of a swarm"). It names packs by their
//! roots, so that what is here outlives a content that lists them in another order, or with others.
use crate::content::Content;
use crate::tree::{PIECE_BYTES, Pack};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub(super) const NAME: &str = "have";
const MAGIC: &[u8; 8] = b"FLOEHAVE";
const VERSION: u32 = 2;

/// Reads the record, as words of 64 pieces. One that is not there or not whole says that nothing is here; of packs that the content does
/// not have it is passed over what it says.
pub(super) fn load(dir: &Path, content: &Content) -> io::Result<Vec<u64>> {
    let bytes = match std::fs::read(dir.join(NAME)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        bytes => bytes?,
    };
    let nothing = || vec![0; content.pieces().div_ceil(64) as usize];
    Ok(parse(&bytes, content).unwrap_or_else(nothing))
}

fn parse(bytes: &[u8], content: &Content) -> Option<Vec<u64>> {
    let (body, hash) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(body) != blake3::Hash::from_bytes(*hash) {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?;
    let mut rest = rest.strip_prefix(&VERSION.to_le_bytes())?;
    let numbers = content.packs().iter().enumerate();
    let numbers: HashMap<Pack, usize> = numbers.map(|(number, pack)| (*pack, number)).collect();
    let mut words = vec![0; content.pieces().div_ceil(64) as usize];
    while !rest.is_empty() {
        let (root, after) = rest.split_first_chunk::<32>()?;
        let (bytes, after) = after.split_first_chunk::<8>()?;
        let bytes = u64::from_le_bytes(*bytes);
        let length = usize::try_from(bytes.div_ceil(PIECE_BYTES).div_ceil(8)).ok()?;
        let (bits, after) = after.split_at_checked(length)?;
        rest = after;
        let pack = Pack { root: *root, bytes };
        let Some(number) = numbers.get(&pack) else {
            continue;
        };
        for (at, piece) in content.pieces_of(*number, 0..bytes).enumerate() {
            if bits[at / 8] >> (at % 8) & 1 == 1 {
                words[(piece / 64) as usize] |= 1 << (piece % 64);
            }
        }
    }
    Some(words)
}

/// Replaces the record, for good.
pub(super) fn store(dir: &Path, content: &Content, words: &[u64]) -> io::Result<()> {
    let has = |piece: u32| words[(piece / 64) as usize] >> (piece % 64) & 1 == 1;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for (number, pack) in content.packs().iter().enumerate() {
        let pieces = content.pieces_of(number, 0..pack.bytes);
        if !pieces.clone().any(has) {
            continue;
        }
        bytes.extend_from_slice(&pack.root);
        bytes.extend_from_slice(&pack.bytes.to_le_bytes());
        let mut bits = vec![0u8; pieces.len().div_ceil(8)];
        for (at, _) in pieces.enumerate().filter(|(_, piece)| has(*piece)) {
            bits[at / 8] |= 1 << (at % 8);
        }
        bytes.extend_from_slice(&bits);
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    file.persist(dir.join(NAME)).map_err(|e| e.error)?;
    File::open(dir)?.sync_all()
}
