//! The `floe` command.

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod names;

fn main() -> std::process::ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    names::ask_files_and_dns_only();
    floe::cli::main()
}
