//! The content of a ticket's file: what was granted, by which plug-in, for which fork. No I/O.

use serde::{Deserialize, Serialize};

/// Version of a ticket's file.
pub(crate) const TICKET_VERSION: u32 = 1;

/// A ticket that a plug-in has granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// `TICKET_VERSION`.
    pub version: u32,
    /// The plug-in's name.
    pub placement: String,
    /// The plug-in's name for the ticket.
    pub ticket: String,
    /// The fork that uses it; `None` if the fork was never made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
}

impl Ticket {
    /// Decodes a file's content, or returns why that is impossible.
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
