//! Why there is no answer, and what an error with its causes says.

/// Why there is no answer, or only a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no connection, so nothing was sent.
    NotAsked(String),
    /// The server doesn't accept the client's certificate, or requires one. It has not handled the request.
    Refused(String),
    /// The connection ended before an answer began; the server may have handled the request or not.
    NoAnswer(String),
    /// The answer ended too early.
    CutOff(String),
    /// The time was over.
    Late {
        /// Whether the server may have received the request.
        asked: bool,
    },
}

impl Fault {
    /// Returns whether the server may have received the request.
    pub fn was_asked(&self) -> bool {
        match self {
            Fault::NotAsked(_) | Fault::Refused(_) => false,
            Fault::NoAnswer(_) | Fault::CutOff(_) => true,
            Fault::Late { asked } => *asked,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::NotAsked(why) | Fault::Refused(why) | Fault::NoAnswer(why) => f.write_str(why),
            Fault::CutOff(why) => write!(f, "answer broken off: {why}"),
            Fault::Late { asked: false } => f.write_str("no connection in time"),
            Fault::Late { asked: true } => f.write_str("no answer in time"),
        }
    }
}

/// Returns an error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
