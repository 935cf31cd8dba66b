//! Keeps account of how much of this host was promised to whom: reserve, commit, release. No I/O, no clock.
//!
//! ```text
//! reserve -> Claim<Reserved> -> commit -> Claim<Committed> -> release
//!                  '------------ drop ------------'
//! ```
//! A claim is a value. Its owner has the resources, and dropping it gives them back. Nobody can give them back twice, because
//! that consumes the value.
//!
//! Memory is refused for one of three reasons, which [`Shortage`] tells apart:
//! 1. The machine could never fit, even alone ([`Ask::peak_bytes`]).
//! 2. The sum of all promises would be more than the host has ([`Capacity`]).
//! 3. Less is free at the moment ([`Sight`]), since other programs need memory, too. What was promised but is not used yet
//!    does not count as free.
//!
//! Two more things are counted as they are at the moment, and not promised: the node's descriptors, and what a kernel that lends no
//! memory ([`Sight::commit_bytes`]) still hands out.

use parking_lot::Mutex;
use std::{collections::BTreeMap, marker::PhantomData, sync::Arc};

/// How many holders an error names, the largest first.
const HOLDERS_TOLD: usize = 5;

/// What the host can promise. `None` means unlimited: virtual CPUs and the network are shared over time, so they are only counted
/// unless an operator limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes a second of the host's network.
    pub network_bytes_per_s: Option<u64>,
    /// What each QEMU takes beside its guest's memory where the kernel lends none, in bytes.
    pub commit_each_bytes: u64,
}

/// Amounts of all resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Bytes a second of the host's network.
    pub network_bytes_per_s: u64,
    /// Descriptors of the node's process.
    pub descriptors: u64,
}

impl Amount {
    fn plus(self, other: Amount) -> Amount {
        Amount {
            vcpus: self.vcpus.saturating_add(other.vcpus),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            network_bytes_per_s: self
                .network_bytes_per_s
                .saturating_add(other.network_bytes_per_s),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// What is promised to the holder.
    pub amount: Amount,
    /// The most memory that the holder could ever use, in bytes: it must fit into the whole host.
    pub peak_bytes: u64,
    /// Whether it is granted even if there is too little.
    pub overcommit: bool,
}

/// The host at the moment of a reservation.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// Free memory in bytes; `None` if unknown.
    pub free_bytes: Option<u64>,
    /// Memory in bytes that holders use already, by their claims' numbers. Who isn't named has not been started yet.
    pub used_bytes: BTreeMap<ClaimId, u64>,
    /// How many descriptors the node may still open; `None` if unknown.
    pub free_descriptors: Option<u64>,
    /// How much memory in bytes the kernel still hands out, used or not; `None` if it lends more than it has (vm.overcommit_memory
    /// is not 2).
    pub commit_bytes: Option<u64>,
}

/// A claim's number, unique as long as the ledger lives.
pub type ClaimId = u64;

/// Why a reservation was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The resource of which there is too little.
    pub of: Resource,
    /// How much was asked for.
    pub asked: u64,
    /// How much a new claim could get.
    pub left: u64,
    /// How much there is altogether.
    pub all: u64,
    /// The holders with the largest amounts.
    pub holders: Vec<(String, u64)>,
    /// How many further holders have some.
    pub more_holders: usize,
}

impl Shortage {
    /// Returns how many bytes of memory have to be given back before `count` such asks fit; `None` if that would not help.
    pub fn lacking_bytes(&self, count: u32) -> Option<u64> {
        match self.of {
            Resource::Memory | Resource::FreeMemory => {
                let asked = self.asked.saturating_mul(count.into());
                Some(asked.saturating_sub(self.left))
            }
            Resource::WholeMemory | Resource::Vcpus | Resource::Network => None,
            Resource::Descriptors | Resource::Commit => None,
        }
    }
}

/// Resources that can be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Virtual CPUs.
    Vcpus,
    /// Memory that is not promised to anybody.
    Memory,
    /// All of the host's memory: the machine would not even fit alone.
    WholeMemory,
    /// Memory that is free right now.
    FreeMemory,
    /// Bytes a second of the host's network.
    Network,
    /// Descriptors of the node's process.
    Descriptors,
    /// Memory that the kernel hands out only if it has it.
    Commit,
}

/// The stage of a claim whose holder is being started.
#[derive(Debug)]
pub enum Reserved {}
/// The stage of a claim whose holder runs.
#[derive(Debug)]
pub enum Committed {}

/// The right to use resources; dropping it gives them back.
#[derive(Debug)]
pub struct Claim<Stage> {
    entry: Held,
    _stage: PhantomData<Stage>,
}

impl<Stage> Claim<Stage> {
    fn new(entry: Held) -> Claim<Stage> {
        Claim {
            entry,
            _stage: PhantomData,
        }
    }

    /// Returns its number.
    pub fn id(&self) -> ClaimId {
        self.entry.id
    }

    /// Changes who holds it.
    pub fn hand_to(&self, holder: &str) {
        let mut books = self.entry.ledger.0.lock();
        if let Some(entry) = books.claims.get_mut(&self.entry.id) {
            entry.holder = holder.to_owned();
        }
    }
}

impl Claim<Committed> {
    /// Changes how much it is of, even if there is too little: whoever asks for more has reserved that.
    pub fn becomes(&self, ask: &Ask) {
        let mut books = self.entry.ledger.0.lock();
        if let Some(entry) = books.claims.get_mut(&self.entry.id) {
            (entry.amount, entry.peak_bytes) = (ask.amount, ask.peak_bytes);
        }
    }
}

impl Claim<Reserved> {
    /// Notes that its holder runs now.
    pub fn commit(self) -> Claim<Committed> {
        Claim::new(self.entry)
    }
}

impl Claim<Committed> {
    /// Gives the resources back because the holder has ended.
    pub fn release(self) {}
}

/// An entry of the books; dropping this removes it.
#[derive(Debug)]
struct Held {
    ledger: Ledger,
    id: ClaimId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.0.lock().claims.remove(&self.id);
    }
}

#[derive(Debug)]
struct Entry {
    holder: String,
    amount: Amount,
    peak_bytes: u64,
}

#[derive(Debug)]
struct Books {
    capacity: Capacity,
    claims: BTreeMap<ClaimId, Entry>,
    next: ClaimId,
}

/// The promises of one host. Clones of this value share one ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<Books>>);

impl Ledger {
    /// Returns the ledger of a host that has promised nothing yet.
    pub fn new(capacity: Capacity) -> Ledger {
        Ledger(Arc::new(Mutex::new(Books {
            capacity,
            claims: BTreeMap::new(),
            next: 0,
        })))
    }

    /// Returns what the host can promise.
    pub fn capacity(&self) -> Capacity {
        self.0.lock().capacity
    }

    /// Returns the sum of all promises.
    pub fn promised(&self) -> Amount {
        self.0.lock().promised()
    }

    /// Returns how many bytes of memory a claim is of.
    pub fn bytes_of<Stage>(&self, claim: &Claim<Stage>) -> u64 {
        let books = self.0.lock();
        let entry = books.claims.get(&claim.id());
        entry.map_or(0, |entry| entry.amount.memory_bytes)
    }

    /// Promises an amount to a holder, or returns what is short and who has it. `look` is called while nobody else can
    /// reserve.
    pub fn reserve(
        &self,
        holder: &str,
        ask: &Ask,
        look: impl FnOnce() -> Sight,
    ) -> Result<Claim<Reserved>, Shortage> {
        let (mut claims, short) = self.reserve_up_to(1, holder, ask, look);
        match (claims.pop(), short) {
            (Some(claim), _) => Ok(claim),
            (None, short) => Err(short.expect("one that got nothing is told why")),
        }
    }

    /// Promises the same amount `count` times, or as often as possible; then also returns why there are not more.
    pub fn reserve_up_to(
        &self,
        count: u32,
        holder: &str,
        ask: &Ask,
        look: impl FnOnce() -> Sight,
    ) -> (Vec<Claim<Reserved>>, Option<Shortage>) {
        let mut books = self.0.lock();
        let sight = look();
        let mut claims = Vec::new();
        for _ in 0..count {
            if !ask.overcommit
                && let Some(short) = books.short(ask, &sight)
            {
                return (claims, Some(short));
            }
            let id = books.enter(holder, ask.amount, ask.peak_bytes);
            let ledger = self.clone();
            claims.push(Claim::new(Held { ledger, id }));
        }
        (claims, None)
    }

    /// Promises a holder as much of `want_bytes` of memory as a new claim could get; also returns how much that is.
    pub fn reserve_what_is_free(
        &self,
        holder: &str,
        want_bytes: u64,
        look: impl FnOnce() -> Sight,
    ) -> (Claim<Reserved>, u64) {
        let mut books = self.0.lock();
        let free = books.free_bytes(&look());
        let memory_bytes = free.map_or(want_bytes, |free| free.min(want_bytes));
        let amount = Amount {
            memory_bytes,
            ..Default::default()
        };
        let id = books.enter(holder, amount, 0);
        let ledger = self.clone();
        (Claim::new(Held { ledger, id }), memory_bytes)
    }

    /// Returns the most memory in bytes that all holders together could ever use.
    pub fn peak_bytes(&self) -> u64 {
        let books = self.0.lock();
        let peaks = books.claims.values().map(|entry| entry.peak_bytes);
        peaks.fold(0, u64::saturating_add)
    }

    /// Returns how many bytes of memory a new claim could get; `None` if that is not limited.
    pub fn free_memory_bytes(&self, look: impl FnOnce() -> Sight) -> Option<u64> {
        let books = self.0.lock();
        books.free_bytes(&look())
    }
}

impl Books {
    fn enter(&mut self, holder: &str, amount: Amount, peak_bytes: u64) -> ClaimId {
        let id = self.next;
        self.next += 1;
        let entry = Entry {
            holder: holder.to_owned(),
            amount,
            peak_bytes,
        };
        self.claims.insert(id, entry);
        id
    }

    /// Returns how many bytes of memory a new claim could get; `None` if that is not limited.
    fn free_bytes(&self, sight: &Sight) -> Option<u64> {
        let all = self.capacity.memory_bytes;
        let unpromised = all.map(|all| all.saturating_sub(self.promised().memory_bytes));
        let free = sight.free_bytes.map(|_| self.spare_bytes(sight));
        unpromised.into_iter().chain(free).min()
    }

    fn promised(&self) -> Amount {
        let amounts = self.claims.values().map(|entry| entry.amount);
        amounts.fold(Amount::default(), Amount::plus)
    }

    /// Returns free memory in bytes less what was promised but is not used yet.
    fn spare_bytes(&self, sight: &Sight) -> u64 {
        let unused = self.claims.iter().map(|(id, entry)| {
            let used = sight.used_bytes.get(id).copied().unwrap_or(0);
            entry.amount.memory_bytes.saturating_sub(used)
        });
        let unused = unused.fold(0, u64::saturating_add);
        sight.free_bytes.unwrap_or(0).saturating_sub(unused)
    }

    /// Returns what there is too little of, if anything.
    fn short(&self, ask: &Ask, sight: &Sight) -> Option<Shortage> {
        let (capacity, promised, amount) = (self.capacity, self.promised(), ask.amount);
        let shortage = |of, asked, left, all| self.shortage(of, asked, left, all);
        let left = |all: u64, promised: u64| all.saturating_sub(promised);
        if let Some(all) = capacity.memory_bytes {
            if ask.peak_bytes > all {
                return Some(shortage(Resource::WholeMemory, ask.peak_bytes, all, all));
            }
            let left = left(all, promised.memory_bytes);
            if amount.memory_bytes > left {
                return Some(shortage(Resource::Memory, amount.memory_bytes, left, all));
            }
            let spare = self.spare_bytes(sight);
            if sight.free_bytes.is_some() && amount.memory_bytes > spare {
                let asked = amount.memory_bytes;
                return Some(shortage(Resource::FreeMemory, asked, spare, all));
            }
        }
        let whole = |peak: u64| match peak {
            0 => 0, // no QEMU's
            peak => peak.saturating_add(capacity.commit_each_bytes),
        };
        let to_come = |of: &dyn Fn(&Entry) -> u64| self.to_come(sight, of);
        let (vcpus, promised_vcpus) = (amount.vcpus.into(), promised.vcpus.into());
        let (network, promised_network) =
            (amount.network_bytes_per_s, promised.network_bytes_per_s);
        let (files, commit) = (amount.descriptors, whole(ask.peak_bytes));
        let files_to_come = to_come(&|entry| entry.amount.descriptors);
        let commit_to_come = to_come(&|entry| whole(entry.peak_bytes));
        let all_vcpus = capacity.vcpus.map(u64::from);
        let rest = [
            (Resource::Vcpus, vcpus, promised_vcpus, all_vcpus),
            (
                Resource::Network,
                network,
                promised_network,
                capacity.network_bytes_per_s,
            ),
            (
                Resource::Descriptors,
                files,
                files_to_come,
                sight.free_descriptors,
            ),
            (Resource::Commit, commit, commit_to_come, sight.commit_bytes),
        ];
        rest.into_iter().find_map(|(of, asked, promised, all)| {
            let (left, all) = (left(all?, promised), all?);
            (asked > left).then(|| shortage(of, asked, left, all))
        })
    }

    /// Returns what those will take who were promised something and have not been started yet.
    fn to_come(&self, sight: &Sight, of: &dyn Fn(&Entry) -> u64) -> u64 {
        let claims = self.claims.iter();
        let waiting = claims.filter(|claim| !sight.used_bytes.contains_key(claim.0));
        waiting.fold(0, |sum, (_, entry)| sum.saturating_add(of(entry)))
    }

    fn shortage(&self, of: Resource, asked: u64, left: u64, all: u64) -> Shortage {
        let mut by_holder: BTreeMap<&str, u64> = BTreeMap::new();
        for entry in self.claims.values() {
            let has = match of {
                Resource::Vcpus => entry.amount.vcpus.into(),
                Resource::Network => entry.amount.network_bytes_per_s,
                Resource::Memory | Resource::WholeMemory | Resource::FreeMemory => {
                    entry.amount.memory_bytes
                }
                // it is the limit that is too low, whoever has most of it
                Resource::Descriptors | Resource::Commit => 0,
            };
            let sum = by_holder.entry(&entry.holder).or_default();
            *sum = sum.saturating_add(has);
        }
        let mut holders: Vec<(String, u64)> = by_holder
            .into_iter()
            .filter(|(_, has)| *has > 0)
            .map(|(holder, has)| (holder.to_owned(), has))
            .collect();
        holders.sort_by_key(|(_, has)| std::cmp::Reverse(*has));
        let more_holders = holders.len().saturating_sub(HOLDERS_TOLD);
        holders.truncate(HOLDERS_TOLD);
        Shortage {
            of,
            asked,
            left,
            all,
            holders,
            more_holders,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(bytes: u64) -> Ask {
        Ask {
            amount: Amount {
                memory_bytes: bytes,
                ..Default::default()
            },
            peak_bytes: bytes,
            overcommit: false,
        }
    }

    fn ledger(memory_bytes: u64) -> Ledger {
        Ledger::new(Capacity {
            vcpus: None,
            memory_bytes: Some(memory_bytes),
            network_bytes_per_s: None,
            commit_each_bytes: 5,
        })
    }

    #[test]
    fn a_refusal_says_what_there_is_and_who_has_the_rest() {
        let ledger = ledger(100);
        let web = ledger.reserve("web", &memory(60), Sight::default).unwrap();
        let db = ledger.reserve("db", &memory(30), Sight::default).unwrap();
        let short = ledger.reserve("third", &memory(11), Sight::default);
        let expected = Shortage {
            of: Resource::Memory,
            asked: 11,
            left: 10,
            all: 100,
            holders: vec![("web".into(), 60), ("db".into(), 30)],
            more_holders: 0,
        };
        assert_eq!(short.err(), Some(expected));
        drop(db);
        web.hand_to("www");
        let web = web.commit();
        let third = ledger.reserve("third", &memory(41), Sight::default);
        assert_eq!(third.err().unwrap().holders, [("www".to_owned(), 60)]);
        web.release();
        assert!(
            ledger
                .reserve("third", &memory(100), Sight::default)
                .is_ok()
        );
    }

    #[test]
    fn what_could_never_fit_is_refused_on_an_empty_host_unless_somebody_insists() {
        let ledger = ledger(100);
        let mut large = memory(10);
        large.peak_bytes = 101;
        let short = ledger.reserve("web", &large, Sight::default).err().unwrap();
        assert_eq!((short.of, short.asked), (Resource::WholeMemory, 101));
        large.overcommit = true;
        let _web = ledger.reserve("web", &large, Sight::default).unwrap();
        assert_eq!(ledger.promised().memory_bytes, 10);
    }

    #[test]
    fn memory_that_was_promised_and_is_not_used_yet_is_not_free() {
        let ledger = ledger(100);
        let first = ledger.reserve("web", &memory(30), Sight::default).unwrap();
        let sight = |used: u64| Sight {
            free_bytes: Some(40),
            used_bytes: [(first.id(), used)].into(),
            ..Default::default()
        };
        assert_eq!(ledger.free_memory_bytes(|| sight(0)), Some(10));
        let short = ledger
            .reserve("db", &memory(11), || sight(0))
            .err()
            .unwrap();
        assert_eq!((short.of, short.left), (Resource::FreeMemory, 10));
        assert!(ledger.reserve("db", &memory(11), || sight(29)).is_ok());
        assert_eq!(ledger.free_memory_bytes(|| sight(35)), Some(40));
        assert_eq!(ledger.free_memory_bytes(Sight::default), Some(70));
    }

    #[test]
    fn clones_get_what_the_nodes_descriptors_and_a_kernel_that_lends_no_memory_have_left() {
        let ledger = ledger(1000);
        let mut ask = memory(10);
        (ask.amount.descriptors, ask.peak_bytes) = (20, 45);
        let runs = ledger
            .reserve("web", &ask, Sight::default)
            .unwrap()
            .commit();
        let sight = |free_descriptors, commit_bytes| Sight {
            used_bytes: [(runs.id(), 10)].into(),
            free_descriptors,
            commit_bytes,
            ..Default::default()
        };
        let look = || sight(Some(70), None);
        let (clones, short) = ledger.reserve_up_to(5, "fork", &ask, look);
        let short = short.unwrap();
        assert_eq!((clones.len(), short.of), (3, Resource::Descriptors));
        assert_eq!((short.asked, short.left, short.all), (20, 10, 70));
        assert!(short.holders.is_empty());
        drop(clones);
        let look = || sight(None, Some(249));
        let (clones, short) = ledger.reserve_up_to(5, "fork", &ask, look);
        let short = short.unwrap();
        assert_eq!((clones.len(), short.of), (4, Resource::Commit));
        assert_eq!((short.asked, short.left, short.all), (50, 49, 249));
        // what clones were promised that have not been started yet is not there for others
        assert!(ledger.reserve("db", &ask, look).is_err());
        let look = || sight(Some(100), Some(250));
        assert!(ledger.reserve("db", &ask, look).is_ok());
    }

    #[test]
    fn a_fork_gets_as_many_as_fit() {
        let ledger = ledger(100);
        let (claims, short) = ledger.reserve_up_to(5, "fork", &memory(30), Sight::default);
        assert_eq!((claims.len(), short.unwrap().left), (3, 10));
        drop(claims);
        assert_eq!(ledger.promised(), Amount::default());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(Ask, Option<u64>),
        Several(u32, Ask),
        Commit(usize),
        Drop(usize),
        Release(usize),
        Becomes(usize, Ask),
    }

    fn ask() -> impl Strategy<Value = Ask> {
        (
            0..6u32,
            0..60u64,
            0..30u64,
            0..80u64,
            prop::bool::weighted(0.1),
        )
            .prop_map(
                |(vcpus, memory_bytes, network_bytes_per_s, more, overcommit)| Ask {
                    amount: Amount {
                        vcpus,
                        memory_bytes,
                        network_bytes_per_s,
                        descriptors: 0,
                    },
                    peak_bytes: memory_bytes + more,
                    overcommit,
                },
            )
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (ask(), prop::option::of(0..200u64)).prop_map(|(ask, free)| Step::Reserve(ask, free)),
            1 => (0..5u32, ask()).prop_map(|(count, ask)| Step::Several(count, ask)),
            3 => any::<usize>().prop_map(Step::Commit),
            1 => any::<usize>().prop_map(Step::Drop),
            2 => any::<usize>().prop_map(Step::Release),
            2 => (any::<usize>(), ask()).prop_map(|(at, ask)| Step::Becomes(at, ask)),
        ]
    }

    /// Returns the sum of a list of claims.
    fn sum<'a>(amounts: impl Iterator<Item = &'a (Amount, bool)>) -> Amount {
        amounts.fold(Amount::default(), |sum, (amount, _)| sum.plus(*amount))
    }

    proptest! {
        #[test]
        fn promises_are_what_is_held_and_never_more_than_the_host_has_unless_somebody_insists(
            steps in prop::collection::vec(step(), 0..80)
        ) {
            let capacity = Capacity { vcpus: Some(12), memory_bytes: Some(150), network_bytes_per_s: Some(70), commit_each_bytes: 0 };
            let ledger = Ledger::new(capacity);
            let mut reserved: Vec<(Claim<Reserved>, (Amount, bool))> = Vec::new();
            let mut committed: Vec<(Claim<Committed>, (Amount, bool))> = Vec::new();
            for step in steps {
                let before = ledger.promised();
                match step {
                    Step::Reserve(ask, free) => {
                        let sight = Sight { free_bytes: free, ..Default::default() };
                        match ledger.reserve("one", &ask, || sight) {
                            Ok(claim) => {
                                let fits = free.is_none_or(|free| ledger.promised().memory_bytes <= free);
                                let none = ask.amount.memory_bytes == 0;
                                prop_assert!(ask.overcommit || none || fits);
                                reserved.push((claim, (ask.amount, ask.overcommit)));
                            }
                            Err(short) => {
                                prop_assert!(!ask.overcommit && short.asked > short.left);
                                prop_assert_eq!(ledger.promised(), before);
                            }
                        }
                    }
                    Step::Several(count, ask) => {
                        let (claims, short) = ledger.reserve_up_to(count, "many", &ask, Sight::default);
                        prop_assert_eq!(claims.len() < count as usize, short.is_some());
                        reserved.extend(claims.into_iter().map(|claim| (claim, (ask.amount, ask.overcommit))));
                    }
                    Step::Commit(at) if !reserved.is_empty() => {
                        let (claim, amount) = reserved.swap_remove(at % reserved.len());
                        committed.push((claim.commit(), amount));
                        prop_assert_eq!(ledger.promised(), before, "the same is promised to the one who runs");
                    }
                    Step::Drop(at) if !reserved.is_empty() => drop(reserved.swap_remove(at % reserved.len())),
                    Step::Release(at) if !committed.is_empty() => {
                        committed.swap_remove(at % committed.len()).0.release();
                    }
                    Step::Becomes(at, ask) if !committed.is_empty() => {
                        let at = at % committed.len();
                        committed[at].0.becomes(&ask);
                        committed[at].1 = (ask.amount, true);
                    }
                    Step::Commit(_) | Step::Drop(_) | Step::Release(_) | Step::Becomes(..) => {}
                }
                let held = reserved.iter().map(|(_, amount)| amount);
                let held: Vec<_> = held.chain(committed.iter().map(|(_, amount)| amount)).copied().collect();
                let promised = ledger.promised();
                prop_assert_eq!(promised, sum(held.iter()));
                if !held.iter().any(|(_, insisted)| *insisted) {
                    prop_assert!(promised.vcpus <= 12 && promised.memory_bytes <= 150 && promised.network_bytes_per_s <= 70);
                }
            }
            drop((reserved, committed));
            prop_assert_eq!(ledger.promised(), Amount::default());
        }
    }
}
