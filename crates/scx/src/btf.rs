//! The kernel's own description of its types (BTF), as far as it is needed: where fields are, and which number a function has.

use crate::ScxError;
use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNC: u32 = 12;
/// How deep structures without a name may lie in one another, and how many names one type may have.
const DEPTH: usize = 16;
/// Most members that are looked at for one field: structures without a name that are in each other would have any number.
const LOOKS_MAX: u32 = 1 << 20;

/// The types of a kernel.
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type is described; the first has the number 1.
    types: Vec<usize>,
    strings: usize,
    /// Structures and functions by kind and name.
    named: HashMap<(u32, Vec<u8>), u32>,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its number in the structure.
    pub number: u32,
    /// Where it is, in bytes.
    pub offset: u32,
    /// The number of its type.
    pub kind: u32,
}

fn bad(why: &'static str) -> ScxError {
    ScxError::Btf(why)
}

impl Btf {
    /// Reads a description.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, ScxError> {
        let mut btf = Btf {
            bytes,
            types: Vec::new(),
            strings: 0,
            named: HashMap::new(),
        };
        let magic = btf.bytes.get(..2).ok_or(bad("it is cut"))?;
        if magic != MAGIC.to_le_bytes() {
            return Err(bad("it is no BTF of this kind of processor"));
        }
        let header = btf.number(4).ok_or(bad("it is cut"))? as usize;
        let part = |at| btf.number(at).map(|number| number as usize);
        let parts = part(8).zip(part(12)).zip(part(16));
        let ((from, length), strings) = parts.ok_or(bad("it is cut"))?;
        let mut at = header.saturating_add(from);
        let end = at.saturating_add(length);
        let strings = header.saturating_add(strings);
        let mut types = Vec::new();
        while at < end {
            types.push(at);
            let info = btf.number(at + 4).ok_or(bad("it is cut"))?;
            let count = (info & 0xffff) as usize;
            at += 12
                + match info >> 24 & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => count * 12,
                    6 | 13 => count * 8,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return Err(bad("a kind of type that floe does not know")),
                };
        }
        (btf.types, btf.strings) = (types, strings);
        btf.index();
        Ok(btf)
    }

    fn number(&self, at: usize) -> Option<u32> {
        let four = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.types.get((id as usize).checked_sub(1)?).copied()
    }

    fn kind(&self, id: u32) -> Option<u32> {
        Some(self.number(self.at(id)? + 4)? >> 24 & 0x1f)
    }

    fn name(&self, at: u32) -> Option<&[u8]> {
        let from = self.bytes.get(self.strings.checked_add(at as usize)?..)?;
        from.split(|byte| *byte == 0).next()
    }

    /// Notes structures and functions by their names; of several with one name the first.
    fn index(&mut self) {
        let mut named = HashMap::new();
        for id in (1..=self.types.len() as u32).rev() {
            let kind = self.kind(id);
            let (Some(kind @ (STRUCT | FUNC)), Some(at)) = (kind, self.at(id)) else {
                continue;
            };
            if let Some(name) = self.number(at).and_then(|text| self.name(text)) {
                named.insert((kind, name.to_vec()), id);
            }
        }
        self.named = named;
    }

    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        self.named.get(&(kind, name.as_bytes().to_vec())).copied()
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNC, name)
    }

    /// The number of a structure.
    pub fn structure(&self, name: &str) -> Option<u32> {
        self.find(STRUCT, name)
    }

    /// How many bytes a structure has.
    pub fn size(&self, id: u32) -> Option<u32> {
        self.number(self.at(id)? + 8)
    }

    /// The structure that a type is by another name, or itself.
    fn plain(&self, mut id: u32) -> Option<u32> {
        for _ in 0..DEPTH {
            match self.kind(id)? {
                STRUCT | UNION => return Some(id),
                8..=11 | 18 => id = self.number(self.at(id)? + 8)?,
                _ => return None,
            }
        }
        None
    }

    /// A field of a structure, also of one without a name in it.
    pub fn field(&self, structure: u32, name: &str) -> Option<Field> {
        self.field_within(structure, name, DEPTH, &mut { LOOKS_MAX })
    }

    fn field_within(
        &self,
        structure: u32,
        name: &str,
        depth: usize,
        looks: &mut u32,
    ) -> Option<Field> {
        let at = self.at(structure)?;
        let info = self.number(at + 4)?;
        for number in 0..info & 0xffff {
            *looks = looks.checked_sub(1)?;
            let member = at + 12 + number as usize * 12;
            let (text, kind) = (self.number(member)?, self.number(member + 4)?);
            // in structures with bit fields the upper byte is a width
            let bits = match info >> 31 {
                1 => self.number(member + 8)? & 0x00ff_ffff,
                _ => self.number(member + 8)?,
            };
            let offset = bits / 8;
            if self.name(text) == Some(name.as_bytes()) {
                return Some(Field {
                    number,
                    offset,
                    kind,
                });
            }
            if text != 0 || depth == 0 {
                continue;
            }
            let inner = self.plain(kind);
            let found = inner.and_then(|inner| self.field_within(inner, name, depth - 1, looks));
            if let Some(found) = found {
                return Some(Field {
                    number,
                    offset: offset.checked_add(found.offset)?,
                    kind: found.kind,
                });
            }
        }
        None
    }

    /// The offset of `STRUCT__FIELD__FIELD`, in bytes.
    pub fn offset(&self, path: &str) -> Option<u32> {
        let mut parts = path.split("__");
        let mut structure = self.structure(parts.next()?);
        let mut offset = 0u32;
        for name in parts {
            let field = self.field(structure?, name)?;
            offset = offset.checked_add(field.offset)?;
            structure = self.plain(field.kind);
        }
        Some(offset)
    }
}
