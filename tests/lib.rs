//! Tests of the whole tree live beside this file: [`house_rules`](../house_rules.rs) holds the source to its own rules,
//! [`end_to_end`](../end_to_end.rs) drives the `floe` command on real guests.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ stands in the root of the checkout")
        .to_path_buf()
}
