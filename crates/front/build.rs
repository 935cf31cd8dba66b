//! Checks that the page which this crate embeds has been built. The Makefile builds it, which needs Node.js.

use std::path::Path;

fn main() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
    println!("cargo::rerun-if-changed={}", page.display());
    for file in ["index.html", "hub.html"] {
        if std::fs::metadata(page.join(file)).is_err() {
            println!(
                "cargo::error=web/dist/{file} is missing: the page is built from web/ by `make web`"
            );
        }
    }
}
