//! Ctrl-C ends a command that waits for the node at once. The connection closes with the process, and the node cancels
//! the operation and cleans up.

use std::sync::Mutex;
use tokio::signal::unix::{SignalKind, signal};

/// What to do before the process ends; returns its exit code.
type Last = Box<dyn FnOnce() -> i32 + Send>;
static LAST: Mutex<Option<Last>> = Mutex::new(None);

/// Makes an interrupt the ordinary end of the command from now on: `last` is called and returns the exit code.
pub fn ends_with(last: impl FnOnce() -> i32 + Send + 'static) {
    *LAST.lock().unwrap_or_else(|e| e.into_inner()) = Some(Box::new(last));
}

/// The exit code that a shell expects of a process that Ctrl-C ended.
pub const EXIT_INTERRUPTED: i32 = 130;
/// The same for SIGTERM.
const EXIT_TERMINATED: i32 = 143;
/// The same for SIGHUP.
const EXIT_HUNG_UP: i32 = 129;

/// Ends the process cleanly on a signal: no progress bar stays on the screen, and the terminal gets its old mode.
pub fn exit_on_signals() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let Ok(runtime) = runtime else { return }; // without it, a signal ends the process without cleanup
    let watch = async move || -> std::io::Result<i32> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        Ok(tokio::select! {
            _ = interrupt.recv() => EXIT_INTERRUPTED,
            _ = terminate.recv() => EXIT_TERMINATED,
            _ = hang_up.recv() => EXIT_HUNG_UP,
        })
    };
    let spawned = floe_threads::spawn("signals", move || {
        if let Ok(code) = runtime.block_on(watch()) {
            super::progress::clear();
            super::terminal::restore();
            let last = LAST.lock().unwrap_or_else(|e| e.into_inner()).take();
            if let Some(last) = last {
                std::process::exit(last());
            }
            if code == EXIT_INTERRUPTED {
                eprintln!("interrupted");
            }
            std::process::exit(code);
        }
    });
    drop(spawned); // as above: nothing else is lost
}

/// Blocks until the process is asked to stop (Ctrl-C or SIGTERM), for commands that serve.
pub fn wait_for_stop() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}
