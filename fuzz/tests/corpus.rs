//! Every target has a seed corpus and survives it, and survives it damaged: the part of fuzzing that needs no nightly compiler.

use std::path::{Path, PathBuf};

use floe_fuzz::TARGETS;

/// Damaged copies tried for each corpus entry.
const DAMAGED_COPIES: u32 = 2000;
/// Entries above this are damaged less often, in proportion (each try reads it all).
const ENTRY_BYTES_SMALL: usize = 4096;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn entries(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(list) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut out: Vec<_> = list
        .map(|e| e.expect("the directory can be listed").path())
        .map(|p| (p.clone(), std::fs::read(&p).expect("the entry can be read")))
        .collect();
    out.sort();
    out
}

/// xorshift64*: the same damage in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n.max(1)
    }
}

fn damage(random: &mut Random, entry: &[u8]) -> Vec<u8> {
    const LOUD: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
    let mut out = entry.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(out.len());
        match random.below(6) {
            0 => out.truncate(at),
            1 => out.insert(at.min(out.len()), LOUD[random.below(6)]),
            // Lengths, counts and versions lie near the start: aim there half of the time.
            2 | 3 if !out.is_empty() => {
                let at = random.below(out.len().min(80));
                out[at] = LOUD[random.below(6)];
            }
            _ if !out.is_empty() => out[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    out
}

#[test]
fn every_target_survives_its_corpus_and_the_corpus_damaged() {
    for (name, target) in TARGETS {
        let corpus = entries(&root().join("corpus").join(name));
        assert!(!corpus.is_empty(), "corpus/{name} holds no input");
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        for (path, entry) in corpus {
            println!("{}", path.display());
            target(&entry);
            let tries =
                DAMAGED_COPIES as usize * ENTRY_BYTES_SMALL / entry.len().max(ENTRY_BYTES_SMALL);
            for _ in 0..tries {
                target(&damage(&mut random, &entry));
            }
        }
    }
}

#[test]
fn every_target_has_a_binary() {
    let manifest =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml can be read");
    for (name, _) in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "Cargo.toml has no [[bin]] {name}"
        );
        let source = root().join(format!("fuzz_targets/{name}.rs"));
        let text = std::fs::read_to_string(&source)
            .unwrap_or_else(|e| panic!("{}: {e}", source.display()));
        assert!(
            text.contains(&format!("floe_fuzz::{name}(data)")),
            "{} calls another target",
            source.display()
        );
    }
}
