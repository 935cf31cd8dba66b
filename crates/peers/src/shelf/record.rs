//! The record of what a shelf has: a file `have` that is replaced as a whole (docs/format.md, "Pieces of a swarm").
use crate::content::Content;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub(super) const NAME: &str = "have";
const MAGIC: &[u8; 8] = b"FLOEHAVE";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 44;

fn words(content: &Content) -> usize {
    content.pieces().div_ceil(64) as usize
}

/// Reads the record, as words of 64 pieces. One that is not there, not whole or not of this content says that nothing is here.
pub(super) fn load(dir: &Path, content: &Content) -> io::Result<Vec<u64>> {
    let bytes = match std::fs::read(dir.join(NAME)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        bytes => bytes?,
    };
    Ok(parse(&bytes, content).unwrap_or_else(|| vec![0; words(content)]))
}

fn parse(bytes: &[u8], content: &Content) -> Option<Vec<u64>> {
    let (body, hash) = bytes.split_last_chunk::<32>()?;
    let (head, bits) = body.split_at_checked(HEAD_BYTES)?;
    let fits = head[..8] == *MAGIC
        && head[8..12] == VERSION.to_le_bytes()
        && head[12..] == content.id()
        && bits.len() == 8 * words(content)
        && blake3::hash(body) == blake3::Hash::from_bytes(*hash);
    let word = |word: &[u8]| word.try_into().map(u64::from_le_bytes).ok();
    let mut words: Vec<u64> = bits.chunks(8).filter_map(word).collect();
    if let (Some(last), used @ 1..) = (words.last_mut(), content.pieces() % 64) {
        *last &= (1 << used) - 1;
    }
    fits.then_some(words)
}

/// Replaces the record, for good.
pub(super) fn store(dir: &Path, content: &Content, words: &[u64]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + 8 * words.len() + 32);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&content.id());
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    file.persist(dir.join(NAME)).map_err(|e| e.error)?;
    File::open(dir)?.sync_all()
}
