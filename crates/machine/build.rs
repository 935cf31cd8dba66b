//! Compiles the guard (`src/guard/preload.rs`) into a separate shared library, so that it can be embedded.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    for source in ["preload", "passed", "rules", "said", "watch"] {
        println!("cargo::rerun-if-changed=src/guard/{source}.rs");
    }
    let var = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(var("OUT_DIR")).join("guard.so");
    let mut rustc = Command::new(var("RUSTC"));
    rustc.args(["--crate-name", "floe_guard", "--crate-type", "cdylib"]);
    rustc.args(["--edition", "2024", "--target", &var("TARGET")]);
    // link nothing of the C library of this build: the guard uses the C library of the program that it is loaded into
    rustc.args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"]);
    rustc.args(["-C", "target-feature=-crt-static", "-C", "panic=abort"]);
    rustc.args(["-C", "opt-level=s", "-C", "strip=symbols", "-C", "lto=fat"]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    rustc.arg("-o").arg(&out).arg("src/guard/preload.rs");
    let done = rustc.status().expect("rustc runs, as it does for cargo");
    assert!(
        done.success(),
        "the guard is not compiled; rustc says why above"
    );
}
