//! Asks before something is lost.

use std::io::{IsTerminal, Write};

use super::error::CliError;
use super::visible;

/// Returns whether the user agrees; anything but a yes is a no. Without a terminal nobody can be asked, which is an error.
pub fn agrees(question: &str) -> Result<bool, CliError> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(CliError::usage(
            format!("nobody is there to be asked: {question}"),
            "say --force if it is to be done, or run it at a terminal",
        ));
    }
    // standard output may be a file
    let mut out = std::io::stderr();
    let asked = write!(out, "{} [y/N] ", visible::message(question)).and_then(|()| out.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| stdin.read_line(&mut answer))
        .map_err(|error| CliError::failed("cannot ask", error))?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_a_yes_is_a_yes() {
        assert!(["y\n", "Yes", " YES "].into_iter().all(super::is_yes));
        assert!(
            ["", "\n", "n", "yo", "yes no"]
                .into_iter()
                .all(|a| !super::is_yes(a))
        );
    }
}
