//! Machines whose whole image is brought to their host.

use super::*;

/// Default rate, in raw bytes a second: it leaves most of a disk and of a gigabit link to others.
pub const INDEPENDENT_RATE_DEFAULT: u64 = 50 << 20;
/// The slowest rate that can be asked for, in bytes a second.
pub const INDEPENDENT_RATE_MIN: u64 = 64 << 10;

/// A request to bring all of a machine's image to its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Independent {
    /// The most that is brought here in a second, in raw bytes; by default [`INDEPENDENT_RATE_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_s: Option<u64>,
}

/// Body of `POST /v1/machines/{name}/independent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IndependentRequest {
    /// As in [`Independent::rate_bytes_s`]; absent, a rate that was given before stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_s: Option<u64>,
    /// Give up making it independent. What is here by then stays until it is needed elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop: bool,
    /// Answer only when all is here and what the machine had written is merged into an image of its own, or can't be yet. It goes on if
    /// the client hangs up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

/// How far a machine's image is brought to its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Independence {
    /// What is being done.
    pub state: IndependenceState,
    /// Raw bytes of the image that are on this host for good.
    pub done_bytes: u64,
    /// Raw bytes of the image that are not zero; 0 until that is known.
    pub total_bytes: u64,
    /// Raw bytes that are still needed from elsewhere; 0 also before `total_bytes` is known.
    pub left_bytes: u64,
    /// The most that is brought here in a second, in raw bytes.
    pub rate_bytes_s: u64,
    /// What it waits for, in words; of a machine that is [`IndependenceState::Whole`] why what it has written is not merged yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// What is being done for a machine's independence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndependenceState {
    /// It waits for its turn behind other machines.
    #[default]
    Queued,
    /// The rest is being brought here.
    Copying,
    /// A source does not give what is missing; it is asked again by itself.
    SourceAway,
    /// This host's disk has too little room for the rest; it goes on by itself once there is.
    NoRoom,
    /// All is here. The machine needs nothing from elsewhere.
    Whole,
}

impl Independence {
    /// Returns how much is here, in hundredths, rounded down: 100 only if all is.
    pub fn percent(&self) -> u64 {
        match (self.state, self.total_bytes) {
            (IndependenceState::Whole, _) => 100,
            (_, 0) => 0,
            (_, total) => {
                let done = u128::from(self.done_bytes.min(total)) * 100 / u128::from(total);
                (done as u64).min(99)
            }
        }
    }
}

impl std::fmt::Display for Independence {
    /// Writes it in a few words, such as `independent 43 %`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.state {
            IndependenceState::Whole => f.write_str("independent"),
            _ => write!(f, "independent {} %", self.percent()),
        }?;
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, ", waits: {}", self.why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_percent_is_said_only_of_what_is_whole() {
        let mut now = Independence {
            state: IndependenceState::Copying,
            ..Default::default()
        };
        assert_eq!(now.to_string(), "independent 0 %");
        (now.done_bytes, now.total_bytes) = (43, 100);
        assert_eq!(now.to_string(), "independent 43 %");
        now.done_bytes = 100;
        now.why = "the hub is away".into();
        assert_eq!(now.to_string(), "independent 99 %, waits: the hub is away");
        now = Independence {
            state: IndependenceState::Whole,
            ..Default::default()
        };
        assert_eq!(now.to_string(), "independent");
    }
}
