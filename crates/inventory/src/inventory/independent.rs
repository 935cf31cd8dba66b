//! What is asked for of a machine's independence, checked once.

use super::{Entry, record::Independent};
use floe_api::{INDEPENDENT_RATE_DEFAULT, INDEPENDENT_RATE_MIN, size_text};
use floe_ground::error::{NodeError, usage};

impl Independent {
    /// Returns what the record of a machine that is about to run says of its independence.
    pub fn asked(
        request: Option<&floe_api::Independent>,
    ) -> Result<Option<Independent>, NodeError> {
        let Some(request) = request else {
            return Ok(None);
        };
        let rate = checked_rate(request.rate_bytes_s)?;
        Ok(Some(Independent {
            rate_bytes_s: rate.unwrap_or(INDEPENDENT_RATE_DEFAULT),
            whole: false,
            merged: false,
        }))
    }
}

impl Entry {
    /// Has what its disks have over its image merged again, if it is an independent machine.
    pub fn merges_again(&self) -> Result<(), NodeError> {
        self.update(|record| {
            if let Some(asked) = &mut record.independence {
                asked.merged = false;
            }
        })
    }
}

/// Returns a rate that was asked for, or an error if it is too low to be meant.
pub fn checked_rate(rate: Option<u64>) -> Result<Option<u64>, NodeError> {
    match rate {
        Some(rate) if rate < INDEPENDENT_RATE_MIN => Err(usage(
            format!("{} a second would never come to an end", size_text(rate)),
            format!("give at least {}", size_text(INDEPENDENT_RATE_MIN)),
        )),
        rate => Ok(rate),
    }
}
