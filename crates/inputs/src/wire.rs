//! What two members of a cluster say to each other about the inputs of a machine that has moved, over the port for members.

use floe_ground::error::{NodeError, usage};
use floe_guest::input::{Input, Inputs, NoInput};
use floe_hosts::cluster::{Ask, Cluster, ask};
use floe_http::Method;
use floe_inventory::inventory::turn::Peer;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where a member is told of inputs.
const PATH: &str = "/v1/moves/inputs";
/// How long an answer may take: as long as the agent has to answer, and some for the way.
const LIMIT: Duration = Duration::from_secs(15);

/// Inputs for a machine that has come from the node that says this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForMachine {
    /// The machine's name.
    pub name: String,
    /// When it was made, Unix time in seconds.
    pub machine: u64,
    /// The source.
    pub from: u64,
    /// The number of the first input.
    pub first: u64,
    /// The inputs, as agents are told of them.
    pub events: Vec<String>,
    /// Gives them through QEMU and not by the agent: these were the pointer's buttons that QEMU was told of last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plainly: Option<u8>,
}

/// What has become of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fate {
    /// The guest has got those up to this number.
    Taken {
        /// The number.
        number: u64,
        /// Why it can't get the next one, if that is for more than a moment.
        why: Option<String>,
    },
    /// Nobody was told of them yet: the machine stands still.
    Waits,
    /// Nobody was told of them yet: it runs, and no agent answers.
    Silent,
    /// The same, and nobody in the guest has the agent's port open.
    Ended,
    /// Nobody is told of them: its agent takes none, or it can't have one.
    Old,
    /// They were said, and there is no answer.
    Unheard,
    /// The machine is on another node now.
    Moved {
        /// That node.
        to: Peer,
    },
    /// No such machine is there, nor was it moved from there.
    Gone,
}

impl ForMachine {
    /// Returns the message about these inputs.
    pub fn of(name: &str, machine: u64, inputs: &Inputs) -> ForMachine {
        ForMachine {
            name: name.to_owned(),
            machine,
            from: inputs.from,
            first: inputs.first,
            events: inputs.events.iter().map(Input::to_string).collect(),
            plainly: None,
        }
    }

    /// Returns the inputs, or an error if they are beyond the bounds: they come from another host.
    pub fn inputs(&self) -> Result<Inputs, NodeError> {
        let events: Result<Vec<Input>, NoInput> = self.events.iter().map(|e| e.parse()).collect();
        let inputs = events.and_then(|events| {
            let inputs = Inputs {
                from: self.from,
                first: self.first,
                events,
            };
            inputs.check().map(|()| inputs)
        });
        inputs.map_err(|error| usage(error.to_string(), ""))
    }
}

/// Tells a member of inputs. `Err` says why nobody knows what has become of them.
pub(super) fn say(cluster: &Cluster, to: &Peer, inputs: &ForMachine) -> Result<Fate, String> {
    let tls = cluster.tls().ok_or("this node is in no cluster any more")?;
    let body = serde_json::to_vec(inputs).map_err(|error| error.to_string())?;
    let address = to.address.to_string();
    let asked = Ask {
        to: &address,
        method: Method::POST,
        path: PATH,
        body,
        limit: LIMIT,
    };
    let (status, bytes) = ask(tls, asked).map_err(|fault| fault.to_string())?;
    if !(200..300).contains(&status) {
        return Err(format!("{} answered {status}", to.name));
    }
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_come_as_they_were_sent_and_strange_ones_are_refused() {
        let inputs = Inputs {
            from: u64::MAX,
            first: 3,
            events: vec![Input::Text(b"ls\n".to_vec())],
        };
        let sent = ForMachine::of("web", 5, &inputs);
        let text = serde_json::to_string(&sent).unwrap();
        let come: ForMachine = serde_json::from_str(&text).unwrap();
        assert_eq!(come.inputs().unwrap(), inputs);
        for events in [vec![], vec!["k0+".to_owned()], vec!["k30+".to_owned(); 65]] {
            let strange = ForMachine {
                events,
                ..sent.clone()
            };
            assert!(strange.inputs().is_err());
        }
        let fate = serde_json::to_string(&Fate::Waits).unwrap();
        assert_eq!(fate, r#""waits""#);
    }
}
