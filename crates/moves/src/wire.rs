//! What two members of a cluster say to each other about a machine that moves, over the port for members.

use super::{check_key, check_lease};
use floe_api::{
    ApiError, ErrorCode, Limits, PortForward, ResizeReport, RestartPolicy, Size, SizeRequest,
};
use floe_ground::{
    error::{NodeError, usage},
    plan::FORWARDS_MAX,
};
use floe_hosts::cluster::{self, Ask, Cluster};
use floe_http::Method;
use floe_image::{Hash, MachineConfig, RestKey};
use floe_inventory::inventory::{
    record::Record,
    turn::{Answer, Peer},
};
use floe_machines::machines::limits::check_park_after;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{fmt, time::Duration};

/// Where a member is told of a machine that is to come.
const ORDERS: &str = "/v1/moves";
/// Where a member is asked about one that came from it.
const QUESTIONS: &str = "/v1/moves/question";
/// Where a member is asked to give one back.
const RECALLS: &str = "/v1/moves/recall";
/// Where a member is asked to give one that came from here another size.
const SIZES: &str = "/v1/moves/size";
/// Where a member is asked to tell what one is that it has borrowed.
const SYNCS: &str = "/v1/moves/sync";
/// Where a member is asked for a lease.
const LEASES: &str = "/v1/moves/lease";
/// Where a member is asked for files of one that it has borrowed.
const RESULTS: &str = "/v1/moves/results";
/// Where a member is told that a loan is over.
const ENDS: &str = "/v1/moves/end";
/// Where a member is asked how fast its host is.
const SPEED: &str = "/v1/moves/speed";
/// Most bytes of what a user called the image of a machine, which may be an address or a path.
const IMAGE_NAME_BYTES_MAX: usize = 4096;
/// How long a simple word may take to be answered.
const WORD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to see whether a machine could come: at first a QEMU is started to ask what it can load.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to let a guest go on: as long as a clone may take to start.
const GO_TIMEOUT: Duration = Duration::from_secs(130);
/// How long it may take to give a machine another size: its guest is waited for at each of the steps.
const SIZE_TIMEOUT: Duration = Duration::from_secs(240);

/// What the node that gives a machine says to the one that takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The machine's key.
    pub key: String,
    /// The number of the hand-over.
    pub number: u64,
    /// What is said.
    pub word: Word,
    /// What the machine is there beside its state.
    pub machine: Travels,
}

/// What is said of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    /// Could it come? Nothing is kept of that.
    Asked {
        /// Its configuration as it runs.
        config: Box<MachineConfig>,
    },
    /// Its present state is to be brought while it goes on, so that less is left once it stands still.
    Ahead {
        /// The image that is its state of a moment ago.
        image: Hash,
        /// The token with which it is read at the sender's node.
        token: String,
        /// Whether it is kept for long, because no hand-over follows soon.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
    },
    /// It is offered: it is to be brought.
    Offered {
        /// The image that is all of its state.
        image: Hash,
        /// The token with which it is read at the sender's node.
        token: String,
        /// What opens what was told of it sealed, if anything was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<SealKey>,
    },
    /// It is given.
    Given,
}

/// What opens what was told, sealed, of one machine. The node that is told this never writes it down.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SealKey(Hash);

impl SealKey {
    /// Returns the key for the machine of this key, of all those that a node keeps secret by `own`.
    pub(super) fn of(own: &str, machine: &str) -> SealKey {
        SealKey(Hash::of(
            format!("floe machine synced sealed 1 {machine} {own}").as_bytes(),
        ))
    }

    /// Returns what seals and opens.
    pub(super) fn rest(&self) -> RestKey {
        RestKey::of(&self.0.to_string())
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// What goes with a machine and is not in its image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Travels {
    /// Its name.
    pub name: String,
    /// The image that its user made it from, as that was named.
    pub image_name: String,
    /// Ports of its host that lead to it.
    pub forwards: Vec<PortForward>,
    /// How much of its host it may use.
    pub limits: Limits,
    /// When it is started again once it has ended.
    pub restart: RestartPolicy,
    /// Whether it is removed then.
    pub remove: bool,
    /// After how many seconds of idleness it is parked, if ever.
    pub park_after_s: Option<u64>,
    /// Whether its guest is left alone with what it deletes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_trim: bool,
    /// When it was created, Unix time in seconds.
    pub created_unix_s: u64,
    /// The node that it comes from, if that is not the one that gives it.
    #[serde(default)]
    pub home: Option<Peer>,
    /// Whether it was parked, and is to be.
    #[serde(default)]
    pub parked: bool,
    /// Whether it is lent by the node that gives it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lends: bool,
    /// For how many seconds it runs there without a word of its lender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u64>,
    /// Whether what other nodes keep of it while it does not run there is to be sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

/// What the node that takes a machine answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// It could come.
    Could,
    /// It is being brought.
    Bringing {
        /// Raw bytes that are there.
        done: u64,
        /// Raw bytes of all of it; 0 while that is not known.
        total: u64,
    },
    /// All of it is there.
    Ready {
        /// Bytes that crossed the network for it, as far as is known.
        wire_bytes: u64,
    },
    /// It is that node's, and runs there.
    Runs {
        /// Why its guest could not go on; empty if it does.
        trouble: String,
    },
    /// There is nothing there that is meant.
    Stale,
}

/// What the node that takes a machine asks the one that it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The machine's key.
    pub key: String,
    /// The number of the hand-over.
    pub number: u64,
}

/// What the node that gave a machine asks the one that has it: to give it back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recall {
    /// The machine's name.
    pub name: String,
    /// The size that it is to have before, if the node that asks has no room for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// What the node that gave a machine asks the one that has it: to give it another size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherSize {
    /// The machine's key.
    pub key: String,
    /// The size.
    pub size: SizeRequest,
}

/// What the node that has lent a machine asks the one that has it: to tell what it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncAsked {
    /// The machine's key.
    pub key: String,
    /// After how many bytes of changes only.
    #[serde(default)]
    pub at_least_bytes: u64,
}

/// What the node that has lent a machine asks the one that has it: for a file or directory of its guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultsAsked {
    /// The machine's key.
    pub key: String,
    /// The path of the file or directory.
    pub path: String,
}

/// What that node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Results {
    /// The guest is asked for it.
    UnderWay,
    /// It is in an image.
    Ready {
        /// The image.
        image: Hash,
        /// The token with which it is read at the sender's node.
        token: String,
    },
}

impl Results {
    /// How that goes.
    pub fn how(&self) -> Recalled {
        match self {
            Results::UnderWay => Recalled::UnderWay,
            Results::Ready { .. } => Recalled::Given,
        }
    }
}

/// What the node that has lent a machine says to the one that has it: the loan is over, and the machine goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndAsked {
    /// The machine's key.
    pub key: String,
}

/// What the node that has borrowed a machine asks the one that has lent it: whether it may run on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseAsked {
    /// The machine's key.
    pub key: String,
}

/// What that node answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granted {
    /// For another lease from when it was asked on.
    Yes,
    /// It goes on itself, or the machine comes back, or nobody knows.
    No,
    /// It has nothing of that machine that could go on.
    Gone,
}

/// How fast a node's host is, as that node tells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// How many bytes one core hashes in a second of its time.
    pub hashed_bytes_s: f64,
    /// How many CPUs are promised to nobody.
    pub free_cpus: u32,
}

/// What that node answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recalled {
    /// It is on its way.
    UnderWay,
    /// It was given.
    Given,
}

/// Why a word has no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// The other node refused, and said why.
    Refused(ApiError),
    /// It was not reached, or nobody knows what it did.
    Unheard(String),
}

impl Silence {
    /// Whether the same word may be answered in a moment.
    pub fn passes(&self) -> bool {
        match self {
            Silence::Refused(error) => error.code == ErrorCode::Busy,
            Silence::Unheard(_) => true,
        }
    }
}

impl From<Silence> for NodeError {
    fn from(silence: Silence) -> NodeError {
        NodeError::Api(match silence {
            Silence::Refused(error) => error,
            Silence::Unheard(message) => ApiError {
                code: ErrorCode::Unreachable,
                message,
                fix: "check that its node runs and can be reached: floe cluster members".into(),
            },
        })
    }
}

impl Travels {
    /// Returns what goes with a machine.
    pub fn of(record: &Record) -> Travels {
        Travels {
            name: record.name.clone(),
            image_name: record.image_name.clone(),
            forwards: record.forwards.clone(),
            limits: record.limits,
            restart: record.afterwards.restart,
            remove: record.afterwards.remove,
            park_after_s: record.park_after_s,
            no_trim: record.no_trim,
            created_unix_s: record.created_unix_s,
            home: record.turn.as_ref().and_then(|turn| turn.home.clone()),
            parked: record.turn.as_ref().is_some_and(|turn| turn.parked),
            lends: record.turn.as_ref().is_some_and(|turn| turn.lends),
            lease_s: record.turn.as_ref().and_then(|turn| turn.lease_s),
            sealed: record.turn.as_ref().is_some_and(|turn| turn.sealed),
        }
    }
}

impl Order {
    /// Returns an error unless this could be an order: it comes from another host.
    pub fn check(&self) -> Result<(), NodeError> {
        check_key(&self.key)?;
        let machine = &self.machine;
        if machine.image_name.len() > IMAGE_NAME_BYTES_MAX {
            return Err(usage(
                "the name of its image is too long",
                format!("it has at most {IMAGE_NAME_BYTES_MAX} bytes"),
            ));
        }
        if machine.forwards.len() > FORWARDS_MAX {
            return Err(usage(
                "too many port forwards",
                format!("a machine has at most {FORWARDS_MAX}"),
            ));
        }
        for forward in &machine.forwards {
            forward
                .check()
                .map_err(|error| usage(error.to_string(), ""))?;
        }
        if let Some(home) = &machine.home {
            cluster::check_name(&home.name).map_err(|why| usage(why, ""))?;
        }
        // what is given back says nothing of a lease
        check_lease(machine.lease_s.filter(|_| machine.lends), machine.lends)?;
        check_park_after(machine.park_after_s)
    }
}

impl Question {
    /// Returns an error unless this could be a question.
    pub fn check(&self) -> Result<(), NodeError> {
        check_key(&self.key)
    }
}

/// Says something to the node that is to have a machine.
pub(super) fn order(cluster: &Cluster, to: &Peer, order: &Order) -> Result<Reply, Silence> {
    let limit = match order.word {
        Word::Given => GO_TIMEOUT,
        Word::Asked { .. } => LOOK_TIMEOUT,
        Word::Ahead { .. } | Word::Offered { .. } => WORD_TIMEOUT,
    };
    say(cluster, to, ORDERS, order, limit)
}

/// Asks the node that a machine comes from.
pub(super) fn question(cluster: &Cluster, to: &Peer, asked: &Question) -> Result<Answer, Silence> {
    say(cluster, to, QUESTIONS, asked, WORD_TIMEOUT)
}

/// Asks the node that has a machine to give it back.
pub(super) fn recall(cluster: &Cluster, from: &Peer, asked: &Recall) -> Result<Recalled, Silence> {
    say(cluster, from, RECALLS, asked, WORD_TIMEOUT)
}

/// Asks the node that has a machine to give it another size.
pub(super) fn resize(
    cluster: &Cluster,
    at: &Peer,
    asked: &OtherSize,
) -> Result<ResizeReport, Silence> {
    say(cluster, at, SIZES, asked, SIZE_TIMEOUT)
}

/// Asks the node that has lent a machine whether it may run on.
pub(super) fn lease(cluster: &Cluster, at: &Peer, asked: &LeaseAsked) -> Result<Granted, Silence> {
    say(cluster, at, LEASES, asked, WORD_TIMEOUT)
}

/// Asks the node that has borrowed a machine for a file or directory of its guest.
pub(super) fn results(
    cluster: &Cluster,
    at: &Peer,
    asked: &ResultsAsked,
) -> Result<Results, Silence> {
    say(cluster, at, RESULTS, asked, WORD_TIMEOUT)
}

/// Has the node that has borrowed a machine throw it away.
pub(super) fn end(cluster: &Cluster, at: &Peer, asked: &EndAsked) -> Result<Recalled, Silence> {
    say(cluster, at, ENDS, asked, GO_TIMEOUT)
}

/// Asks a node how fast its host is.
pub(super) fn speed(cluster: &Cluster, at: &Peer) -> Result<Speed, Silence> {
    say(cluster, at, SPEED, &(), WORD_TIMEOUT)
}

/// Asks the node that has borrowed a machine to tell what it is.
pub(super) fn sync(cluster: &Cluster, at: &Peer, asked: &SyncAsked) -> Result<Recalled, Silence> {
    say(cluster, at, SYNCS, asked, WORD_TIMEOUT)
}

fn say<T: DeserializeOwned>(
    cluster: &Cluster,
    to: &Peer,
    path: &str,
    body: &impl Serialize,
    limit: Duration,
) -> Result<T, Silence> {
    let name = &to.name;
    let unheard = |why: String| Silence::Unheard(format!("{name}: {why}"));
    let Some(tls) = cluster.tls() else {
        return Err(unheard("this node is in no cluster any more".into()));
    };
    let body = serde_json::to_vec(body).map_err(|error| unheard(error.to_string()))?;
    let address = to.address.to_string();
    let ask = Ask {
        to: &address,
        method: Method::POST,
        path,
        body,
        limit,
    };
    let asked = cluster::ask(tls, ask);
    let (status, bytes) = asked.map_err(|fault| unheard(fault.to_string()))?;
    if (200..300).contains(&status) {
        let read = serde_json::from_slice::<T>(&bytes);
        return read.map_err(|error| unheard(format!("its answer makes no sense: {error}")));
    }
    let mut said = serde_json::from_slice(&bytes).unwrap_or_else(|_| ApiError {
        code: ErrorCode::Refused,
        message: format!("it answered {status}"),
        fix: "check that it is a floe node of the same version".into(),
    });
    said.message = format!("{name}: {}", said.message);
    Err(Silence::Refused(said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_inventory::inventory::sample_record as record;

    fn order(word: Word) -> Order {
        Order {
            key: "00112233445566aa".into(),
            number: 1,
            word,
            machine: Travels::of(&record()),
        }
    }

    #[test]
    fn an_order_is_read_as_it_was_written_and_a_strange_one_is_refused() {
        let offered = Word::Offered {
            image: Hash::of(b"image"),
            token: "t".into(),
            key: None,
        };
        let sealed = Word::Offered {
            image: Hash::of(b"image"),
            token: "t".into(),
            key: Some(SealKey::of("a secret", "00112233445566aa")),
        };
        let ahead = Word::Ahead {
            image: Hash::of(b"earlier"),
            token: "t".into(),
            kept: true,
        };
        let asked = Word::Asked {
            config: Box::default(),
        };
        for word in [asked, ahead, offered, sealed, Word::Given] {
            let order = order(word);
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
            order.check().unwrap();
        }
        let refused = |change: &dyn Fn(&mut Order)| {
            let mut order = order(Word::Given);
            change(&mut order);
            order.check().is_err()
        };
        assert!(refused(&|order| order.key = "../../etc".into()));
        assert!(refused(&|order| order.machine.park_after_s = Some(0)));
        let home = Peer {
            name: "no name".into(),
            address: "10.0.0.1:7071".parse().unwrap(),
        };
        assert!(refused(&|order| order.machine.home = Some(home.clone())));
        let long = "a".repeat(IMAGE_NAME_BYTES_MAX + 1);
        assert!(refused(&|order| order.machine.image_name = long.clone()));
        let forward: PortForward = "8080:80".parse().unwrap();
        let many = vec![forward; FORWARDS_MAX + 1];
        assert!(refused(&|order| order.machine.forwards = many.clone()));
        let more = r#"{"key":"00112233445566aa","number":1,"more":1}"#;
        assert!(serde_json::from_str::<Question>(more).is_err());
        // what an earlier node says, and what it understands
        let asked = Recall {
            name: "web".into(),
            size: None,
        };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(text, r#"{"name":"web"}"#);
        assert_eq!(serde_json::from_str::<Recall>(&text).unwrap(), asked);
    }

    #[test]
    fn each_machine_has_a_key_of_its_own_which_no_log_shows() {
        let key = SealKey::of("a secret", "00112233445566aa");
        assert_ne!(key, SealKey::of("a secret", "00112233445566ab"));
        assert_ne!(key, SealKey::of("another secret", "00112233445566aa"));
        let shown = format!("{key:?}");
        assert!(!shown.contains(&key.0.to_string()), "{shown}");
    }

    #[test]
    fn an_answer_is_one_word() {
        let text = serde_json::to_string(&Answer::Given).unwrap();
        assert_eq!(text, r#""given""#);
        let text = serde_json::to_string(&Reply::Stale).unwrap();
        assert_eq!(text, r#""stale""#);
    }
}
