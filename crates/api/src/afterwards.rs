//! What becomes of a machine once it has ended.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use utoipa::ToSchema;

/// When a node starts a machine again that has ended. A machine that ends repeatedly is started again after 1, 2, 4 ... 60 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// If its QEMU failed, or its host went down under it, but not if its guest powered down.
    OnFailure {
        /// How often in a row; without it, for ever.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    },
    /// Whenever it has ended, unless its user stopped it; and one that its user stopped, as soon as another node starts.
    Always,
    /// Whenever it has ended, unless its user stopped it.
    UnlessStopped,
}

impl RestartPolicy {
    /// Whether it is [`RestartPolicy::No`].
    pub fn is_no(&self) -> bool {
        *self == RestartPolicy::No
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestartPolicy::No => f.write_str("no"),
            RestartPolicy::OnFailure { max: None } => f.write_str("on-failure"),
            RestartPolicy::OnFailure { max: Some(max) } => write!(f, "on-failure:{max}"),
            RestartPolicy::Always => f.write_str("always"),
            RestartPolicy::UnlessStopped => f.write_str("unless-stopped"),
        }
    }
}

impl FromStr for RestartPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<RestartPolicy, String> {
        Ok(match text {
            "no" => RestartPolicy::No,
            "on-failure" => RestartPolicy::OnFailure { max: None },
            "always" => RestartPolicy::Always,
            "unless-stopped" => RestartPolicy::UnlessStopped,
            _ => {
                let max = text.strip_prefix("on-failure:");
                let max = max.and_then(|max| max.parse().ok()).filter(|max| *max > 0);
                RestartPolicy::OnFailure {
                    max: Some(
                        max.ok_or("write no, on-failure, on-failure:3, always or unless-stopped")?,
                    ),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for text in [
            "no",
            "on-failure",
            "on-failure:3",
            "always",
            "unless-stopped",
        ] {
            assert_eq!(text.parse::<RestartPolicy>().unwrap().to_string(), text);
        }
        for bad in ["", "on-failure:", "on-failure:0", "on-failure:x", "never"] {
            assert!(bad.parse::<RestartPolicy>().is_err(), "{bad}");
        }
    }
}
