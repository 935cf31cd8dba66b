//! The `floe` command.

fn main() -> std::process::ExitCode {
    floe::cli::main()
}
