//! What is read of files: no bytes bring the loader down, and what it needs is found.

use floe_scx::btf::Btf;
use floe_scx::object::{self, Place, Program, What};
use floe_scx::{Fares, Host, file_beside};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn word(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// A kernel's types: `struct inner { u32 a; u32 b; }`, `struct outer { struct { struct inner in; }; }`, and a function.
fn types() -> Vec<u8> {
    let names = b"\0inner\0a\0b\0outer\0in\0call\0";
    let at = |name: &str| {
        let text = format!("\0{name}\0");
        let found = names
            .windows(text.len())
            .position(|part| part == text.as_bytes());
        found.expect("a name") as u32 + 1
    };
    let structure = |name, members: &[(u32, u32, u32)], size| {
        let mut bytes = [word(name), word(4 << 24 | members.len() as u32), word(size)].concat();
        for (name, kind, bits) in members {
            bytes.extend([word(*name), word(*kind), word(*bits)].concat());
        }
        bytes
    };
    // 1: u32; 2: inner; 3: without a name; 4: outer; 5: call
    let types = [
        [word(0), word(1 << 24), word(4), word(32)].concat(),
        structure(at("inner"), &[(at("a"), 1, 0), (at("b"), 1, 32)], 8),
        structure(0, &[(at("in"), 2, 64)], 16),
        structure(at("outer"), &[(0, 3, 64)], 24),
        [word(at("call")), word(12 << 24), word(1)].concat(),
    ]
    .concat();
    let length = types.len() as u32;
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    for number in [24, 0, length, length, names.len() as u32] {
        bytes.extend(word(number));
    }
    [bytes, types, names.to_vec()].concat()
}

#[test]
fn fields_are_found_in_structures_without_a_name_and_functions_by_theirs() {
    let types = Btf::parse(types()).expect("types");
    assert_eq!(types.offset("outer__in__b"), Some(20));
    assert_eq!(types.offset("inner__a"), Some(0));
    assert_eq!(types.offset("inner__c"), None);
    assert_eq!(types.offset("nobody__a"), None);
    assert_eq!(types.function("call"), Some(5));
    assert_eq!(types.function("inner"), None);
    let outer = types.structure("outer").expect("outer");
    assert_eq!(types.size(outer), Some(24));
    let field = types.field(outer, "in").expect("in");
    assert_eq!((field.number, field.offset), (0, 16));
}

#[test]
fn a_place_is_filled_in_as_the_kernel_wants_it() {
    // r3 = 64-bit constant; call
    let code = [0x18, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9];
    let call = [0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let mut program = Program {
        section: "struct_ops/x".into(),
        code: [&code[..], &call].concat(),
        places: Vec::new(),
    };
    let place = |at, what| Place { at, what };
    program.fill(&place(0, What::Map("m".into())), 7);
    program.fill(&place(2, What::Function("f".into())), 300);
    assert_eq!(program.code[..8], [0x18, 0x13, 0, 0, 7, 0, 0, 0]);
    assert_eq!(program.code[12..16], [0; 4]);
    assert_eq!(program.code[16..], [0x85, 0x20, 0, 0, 44, 1, 0, 0]);
    program.fill(&place(0, What::Field("a__b".into())), 8);
    assert_eq!(program.code[..8], [0x18, 0x03, 0, 0, 8, 0, 0, 0]);
}

#[test]
fn a_kernel_tells_whose_scheduler_it_has() {
    let dir = std::env::temp_dir().join(format!("floe-scx-{}", std::process::id()));
    fs::create_dir_all(dir.join("root")).expect("a directory");
    assert_eq!(Host::at(&dir).expect("an answer"), Host::Absent);
    fs::write(dir.join("state"), "disabled\n").expect("a file");
    assert_eq!(Host::at(&dir).expect("an answer"), Host::Free);
    fs::write(dir.join("state"), "enabled\n").expect("a file");
    fs::write(dir.join("root/ops"), "lavd\n").expect("a file");
    assert_eq!(
        Host::at(&dir).expect("an answer"),
        Host::Loaded("lavd".into())
    );
    fs::remove_dir_all(&dir).expect("it is ours");
}

#[test]
fn the_compiled_program_is_where_packages_and_a_build_have_it() {
    let debian = file_beside(Path::new("/usr/bin/floe"));
    assert_eq!(debian, Path::new("/usr/lib/floe/floe.bpf.o"));
    // a tarball that was unpacked anywhere
    let prefix = std::env::temp_dir().join(format!("floe-scx-prefix-{}", std::process::id()));
    let floe = prefix.join("bin/floe");
    fs::create_dir_all(prefix.join("bin")).expect("a directory");
    assert_eq!(file_beside(&floe), prefix.join("lib/floe/floe.bpf.o"));
    let built = prefix.join("bin/floe.bpf.o");
    fs::write(&built, "").expect("a file");
    assert_eq!(file_beside(&floe), built);
    fs::remove_dir_all(&prefix).expect("it is ours");
}

#[test]
fn figures_are_of_what_has_come_since_and_absent_where_nothing_has() {
    let now = Fares {
        runs: 30,
        stacked: 3,
        ran_ns: 300,
        waited_ns: 100,
        ..Fares::default()
    };
    let earlier = Fares {
        runs: 20,
        ..Fares::default()
    };
    assert_eq!(now.since(&earlier).stacking_pct(), Some(30.0));
    assert_eq!(now.steal_pct(), Some(25.0));
    assert_eq!(now.distance(), None);
    assert_eq!(now.since(&now).stacking_pct(), None);
}

proptest! {
    #[test]
    fn no_bytes_bring_the_loader_down(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..200, with in any::<u32>()) {
        _ = object::parse(&bytes);
        _ = Btf::parse(bytes.clone());
        // something that looks right at first
        let head = b"\x7fELF\x02\x01";
        for (to, from) in bytes.iter_mut().zip(head) {
            *to = *from;
        }
        _ = object::parse(&bytes);
        let mut changed = types();
        let at = at.min(changed.len() - 4);
        changed[at..at + 4].copy_from_slice(&word(with));
        if let Ok(types) = Btf::parse(changed) {
            _ = types.offset("outer__in__b");
            _ = types.function("call");
        }
    }
}
