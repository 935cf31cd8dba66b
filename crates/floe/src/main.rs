//! The `floe` command.

use floe::{
    node::{self, NodeOptions},
    paths::Home,
};
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = node::helpers::dispatch(&args) {
        return code;
    }
    floe::telemetry::init_logs(&floe::telemetry::LogOptions {
        json: false,
        verbosity: 1,
    });
    if args.first().is_some_and(|arg| arg == "node") {
        let started = NodeOptions::new(Home::from_env())
            .map_err(|error| error.to_string())
            .and_then(|options| node::serve(options).map_err(|error| error.to_string()));
        return match started {
            Ok(node) => {
                node.wait_or_signal();
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("floe node: {error}");
                ExitCode::FAILURE
            }
        };
    }
    eprintln!("usage: floe node");
    ExitCode::from(2)
}
