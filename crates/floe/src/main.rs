//! The `floe` command.
fn main() {}
