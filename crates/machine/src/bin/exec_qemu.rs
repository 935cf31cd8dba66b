//! `floe exec-qemu` on its own, so that the tests of this crate need no other crate's binary.

fn main() {
    std::process::exit(floe_machine::exec::run(std::env::args_os().skip(1)));
}
