//! A ticket's file: what was granted, by whom, for which fork. No I/O.

use serde::{Deserialize, Serialize};

/// Version of a ticket's file.
pub(crate) const TICKET_VERSION: u32 = 1;

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ticket {
    /// [`TICKET_VERSION`].
    pub version: u32,
    /// The plug-in.
    pub placement: String,
    /// What that calls it.
    pub ticket: String,
    /// The fork that has it; `None` if it was never made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
}

impl Ticket {
    /// Understands a file's bytes, or says why not.
    pub fn parse(bytes: &[u8]) -> Result<Ticket, String> {
        let ticket: Ticket = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match ticket.version {
            TICKET_VERSION => Ok(ticket),
            other => Err(format!(
                "it has version {other}, this floe knows version {TICKET_VERSION}"
            )),
        }
    }
}
