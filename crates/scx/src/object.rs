//! What clang has made of `bpf/floe.bpf.c`: programs, and the places in them that are filled in when they are loaded.

use crate::ScxError;
use std::collections::BTreeMap;

/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// Kinds of places: a 64-bit constant, and the number of a function.
const R_BPF_64_64: u32 = 1;
const R_BPF_64_32: u32 = 10;
const MACHINE_BPF: u16 = 247;
/// Bytes of a symbol, and the section whose symbols are maps.
const SYMBOL: usize = 24;
const MAPS: &str = ".maps";
const SYMTAB: u32 = 2;
const REL: u32 = 9;

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its section: what it is for, as `struct_ops/enqueue`.
    pub section: String,
    /// Its instructions, 8 bytes each.
    pub code: Vec<u8>,
    /// What is to be filled in.
    pub places: Vec<Place>,
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the instruction.
    pub at: usize,
    /// What belongs there.
    pub what: What,
}

/// What belongs to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The descriptor of the map with this name.
    Map(String),
    /// The offset of a field, `STRUCT__FIELD__FIELD`.
    Field(String),
    /// The number of the kernel's function with this name.
    Function(String),
}

struct Section<'a> {
    name: String,
    kind: u32,
    bytes: &'a [u8],
    link: usize,
    info: usize,
}

fn bad(why: &'static str) -> ScxError {
    ScxError::Object(why)
}

fn part(bytes: &[u8], from: u64, length: u64) -> Result<&[u8], ScxError> {
    let end = from.checked_add(length).ok_or(bad("a length"))?;
    let range = usize::try_from(from).ok().zip(usize::try_from(end).ok());
    range
        .and_then(|(from, end)| bytes.get(from..end))
        .ok_or(bad("it is cut"))
}

fn u16_at(bytes: &[u8], at: u64) -> Result<u16, ScxError> {
    let two = part(bytes, at, 2)?;
    Ok(u16::from_le_bytes([two[0], two[1]]))
}

fn u32_at(bytes: &[u8], at: u64) -> Result<u32, ScxError> {
    let four = part(bytes, at, 4)?;
    Ok(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn u64_at(bytes: &[u8], at: u64) -> Result<u64, ScxError> {
    let (low, high) = (u32_at(bytes, at)?, u32_at(bytes, at.saturating_add(4))?);
    Ok(u64::from(high) << 32 | u64::from(low))
}

fn text_at(bytes: &[u8], at: u32) -> Result<String, ScxError> {
    let from = bytes.get(at as usize..).ok_or(bad("a name's place"))?;
    let end = from.iter().position(|byte| *byte == 0);
    let text = end.map(|end| String::from_utf8_lossy(&from[..end]).into_owned());
    text.ok_or(bad("a name without an end"))
}

fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>, ScxError> {
    // 64 bits, little-endian
    if part(bytes, 0, 6)? != b"\x7fELF\x02\x01" || u16_at(bytes, 18)? != MACHINE_BPF {
        return Err(bad("it is no object for BPF"));
    }
    let (table, count, names) = (u64_at(bytes, 40)?, u16_at(bytes, 60)?, u16_at(bytes, 62)?);
    let mut raw = Vec::new();
    for number in 0..u64::from(count) {
        let header = part(bytes, table.saturating_add(number * 64), 64)?;
        let kind = u32_at(header, 4)?;
        let content = match kind {
            // a section without content in the file
            8 => &[][..],
            _ => part(bytes, u64_at(header, 24)?, u64_at(header, 32)?)?,
        };
        let (link, info) = (u32_at(header, 40)?, u32_at(header, 44)?);
        raw.push((u32_at(header, 0)?, kind, content, link, info));
    }
    let texts = raw.get(usize::from(names)).ok_or(bad("no names"))?.2;
    let section = |(name, kind, bytes, link, info)| {
        Ok(Section {
            name: text_at(texts, name)?,
            kind,
            bytes,
            link: link as usize,
            info: info as usize,
        })
    };
    raw.into_iter().map(section).collect()
}

/// What an object file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its programs.
    pub programs: Vec<Program>,
    /// Its maps, by name, with the bytes of an entry.
    pub maps: BTreeMap<String, u32>,
}

/// Reads an object file.
pub fn parse(bytes: &[u8]) -> Result<Object, ScxError> {
    let all = sections(bytes)?;
    let symbols = all.iter().find(|section| section.kind == SYMTAB);
    let symbols = symbols.ok_or(bad("no symbols"))?;
    let names = all.get(symbols.link).ok_or(bad("no symbols' names"))?.bytes;
    let is_code =
        |section: &Section<'_>| section.name.starts_with("struct_ops") || section.name == "syscall";
    let mut programs = Vec::new();
    let maps = maps(symbols.bytes, names, &all)?;
    for (number, section) in all.iter().enumerate() {
        if !is_code(section) {
            continue;
        }
        if section.bytes.is_empty() || section.bytes.len() % INSTRUCTION != 0 {
            return Err(bad("half an instruction"));
        }
        let mut places = Vec::new();
        let relocations = all
            .iter()
            .filter(|other| other.kind == REL && other.info == number);
        for entry in relocations.flat_map(|other| other.bytes.chunks_exact(16)) {
            let at = u64_at(entry, 0)? as usize / INSTRUCTION;
            let info = u64_at(entry, 8)?;
            let what = place(info as u32, info >> 32, symbols.bytes, names, &all)?;
            let width = if matches!(what, What::Function(_)) {
                1
            } else {
                2
            };
            if at.saturating_add(width) > section.bytes.len() / INSTRUCTION {
                return Err(bad("a place outside of its program"));
            }
            places.push(Place { at, what });
        }
        programs.push(Program {
            section: section.name.clone(),
            code: section.bytes.to_vec(),
            places,
        });
    }
    Ok(Object { programs, maps })
}

fn maps(
    symbols: &[u8],
    names: &[u8],
    all: &[Section<'_>],
) -> Result<BTreeMap<String, u32>, ScxError> {
    let mut maps = BTreeMap::new();
    for symbol in symbols.chunks_exact(SYMBOL) {
        let section = all.get(usize::from(u16_at(symbol, 6)?));
        let size = u32::try_from(u64_at(symbol, 16)?).map_err(|_| bad("a map's size"))?;
        if section.is_some_and(|section| section.name == MAPS) && size > 0 {
            maps.insert(text_at(names, u32_at(symbol, 0)?)?, size);
        }
    }
    Ok(maps)
}

fn place(
    kind: u32,
    symbol: u64,
    symbols: &[u8],
    names: &[u8],
    all: &[Section<'_>],
) -> Result<What, ScxError> {
    let symbol = part(symbols, symbol.saturating_mul(SYMBOL as u64), SYMBOL as u64)?;
    let name = text_at(names, u32_at(symbol, 0)?)?;
    let section = all.get(usize::from(u16_at(symbol, 6)?));
    let in_maps = section.is_some_and(|section| section.name == MAPS);
    match (kind, name.strip_prefix("at__")) {
        (R_BPF_64_64, _) if in_maps => Ok(What::Map(name)),
        (R_BPF_64_64, Some(field)) => Ok(What::Field(field.to_owned())),
        (R_BPF_64_32, _) if !name.is_empty() => Ok(What::Function(name)),
        _ => Err(bad("a place for something unknown")),
    }
}

impl Program {
    /// Fills a place in: a number for what belongs there. A map's number is its descriptor, a function's that of its type.
    pub fn fill(&mut self, place: &Place, number: u32) {
        let from = place.at * INSTRUCTION;
        let destination = self.code[from + 1] & 0x0f;
        let source = match place.what {
            What::Map(_) => 1,
            What::Field(_) => 0,
            What::Function(_) => 2,
        };
        self.code[from + 1] = destination | source << 4;
        self.code[from + 4..from + 8].copy_from_slice(&number.to_le_bytes());
        match place.what {
            What::Function(_) => self.code[from + 2..from + 4].fill(0),
            // the upper half of a 64-bit constant is in the next instruction
            What::Map(_) | What::Field(_) => self.code[from + 12..from + 16].fill(0),
        }
    }
}
