//! Which forks there are and which clones they still have: a small file for each fork that has any.
//!
//! A clone on this host is a machine like any other, and its record names its fork. The fork's file adds the numbers that
//! were assigned, the clones on other hosts, and the token with which those read the parent's state.

use super::record::{CloneRecord, FORK_VERSION, ForkRecord};
use floe_api::{CloneInfo, CloneState, Limits, paths::Home};
use floe_ground::{
    error::{NodeError, failed, usage},
    files::{load_kept, replace_file},
    names::MachineName,
};
use floe_image::Hash;
use floe_inventory::resources::household;
use floe_source::multicast::MulticastServer;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fs,
    path::PathBuf,
};

/// Largest file of a fork that is read, in bytes: [`CLONES_MAX`](floe_api::CLONES_MAX) clones with the longest names and
/// reasons.
const FORK_BYTES_MAX: u64 = 4 << 20;

/// Of how many parents it is known which clones of their last forks did not come to be.
const MISSING_MAX: usize = 64;

/// All forks that have clones.
pub struct Records {
    dir: PathBuf,
    all: RwLock<BTreeMap<String, ForkRecord>>,
    /// Held while a record is changed, written and synced, since several clones may end at once. It only orders changes: who
    /// reads takes `all`, which is free meanwhile.
    writing: Mutex<()>,
    /// Ids of the forks whose clones are still being started.
    starting: Mutex<BTreeSet<String>>,
    servers: Mutex<HashMap<String, MulticastServer>>,
    /// Clones of parents' last forks that did not come to be, the latest fork last. They are in no record: nothing is owed to them.
    missing: Mutex<VecDeque<(String, Vec<CloneInfo>)>>,
}

impl Records {
    /// Reads the records that an earlier node left.
    pub fn open(home: &Home) -> Result<Records, NodeError> {
        let dir = home.forks();
        let kept = load_kept(
            &dir,
            FORK_BYTES_MAX,
            ForkRecord::parse,
            "is no fork's record; its clones are not known as such",
        )?;
        let by_id = |record: ForkRecord| (record.id.clone(), record);
        let all = kept.into_values().map(by_id).collect();
        Ok(Records {
            dir,
            all: RwLock::new(all),
            writing: Mutex::default(),
            starting: Mutex::default(),
            servers: Mutex::default(),
            missing: Mutex::default(),
        })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Begins a fork of `parent` into `count` clones: assigns an id unless one is given, a token, and names, which continue
    /// after the highest number in use. The record is on the disk only after [`Records::save`] or [`Records::finish`].
    pub fn begin(
        &self,
        id: Option<&str>,
        parent: &MachineName,
        image: Hash,
        count: u32,
        created_unix_s: u64,
        taken: impl Iterator<Item = String>,
    ) -> Result<ForkRecord, NodeError> {
        let mut all = self.all.write();
        let known = all
            .values()
            .flat_map(|fork| fork.clones.iter().chain(&fork.unended));
        let numbers = known.map(|clone| clone.name.clone()).chain(taken);
        let last = numbers.filter_map(|name| parent.number_of(&name)).max();
        let first = last.unwrap_or(0) + 1;
        let mut clones = Vec::new();
        for index in 0..count {
            let name = parent.clone_name(first + index).ok_or_else(|| {
                usage(
                    format!("clones of {parent} would have names that are too long"),
                    "fork a machine with a shorter name",
                )
            })?;
            clones.push(CloneRecord {
                number: index + 1,
                name: name.to_string(),
                host: None,
            });
        }
        let record = ForkRecord {
            version: FORK_VERSION,
            id: id.map_or_else(|| format!("{:016x}", rand::random::<u64>()), str::to_owned),
            parent: parent.to_string(),
            image,
            token: format!(
                "{:032x}{:032x}",
                rand::random::<u128>(),
                rand::random::<u128>()
            ),
            hosts_token: None,
            multicast: None,
            household: None,
            share: Limits::default(),
            created_unix_s,
            clones,
            unended: Vec::new(),
        };
        self.starting.lock().insert(record.id.clone());
        // added at once, so that another fork of this parent uses other numbers
        all.insert(record.id.clone(), record.clone());
        Ok(record)
    }

    /// Gives the clones of a fork that was just begun other names, as far as there are some.
    pub fn call(&self, record: &mut ForkRecord, names: impl Iterator<Item = String>) {
        for (clone, name) in record.clones.iter_mut().zip(names) {
            clone.name = name;
        }
        self.all.write().insert(record.id.clone(), record.clone());
    }

    /// Notes on which host a clone is being started, in memory only.
    pub fn place(&self, id: &str, number: u32, host: Option<&str>) {
        let mut all = self.all.write();
        let clones = all.get_mut(id).into_iter();
        let mut clones = clones.flat_map(|fork| &mut fork.clones);
        if let Some(clone) = clones.find(|clone| clone.number == number) {
            clone.host = host.map(str::to_owned);
        }
    }

    /// Returns what the clones of a household on other hosts have of its limits.
    pub fn given_away(&self, household: &str) -> Limits {
        let all = self.all.read();
        let of = |fork: &&ForkRecord| fork.household.as_deref() == Some(household);
        let forks = all.values().filter(of);
        let shares = forks.flat_map(|fork| std::iter::repeat_n(fork.share, fork.count_away()));
        shares.fold(Limits::default(), |given, share| {
            household::plus(&given, &share)
        })
    }

    /// Writes a fork to the disk while its clones are being started.
    pub fn save(&self, record: ForkRecord) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        self.write(record)
    }

    /// Writes a fork whose clones have been started, without clones that ended meanwhile.
    pub fn finish(&self, mut record: ForkRecord) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        self.starting.lock().remove(&record.id);
        let left = self.get(&record.id);
        record.unended = left
            .as_ref()
            .map_or(Vec::new(), |fork| fork.unended.clone());
        let left = left.map_or(Vec::new(), |fork| fork.clones);
        let is_left = |clone: &CloneRecord| left.iter().any(|left| left.name == clone.name);
        record.clones.retain(is_left);
        if !record.has_clones_away() {
            self.end_server(&record.id);
        }
        self.write(record)
    }

    /// Stores a fork in memory and on the disk, or removes it if nothing is left of it. The caller holds `writing`.
    fn write(&self, record: ForkRecord) -> Result<(), NodeError> {
        if record.is_over() {
            self.remove(&record.id);
            return Ok(());
        }
        let path = self.path(&record.id);
        let bytes = serde_json::to_vec_pretty(&record)
            .map_err(|error| failed(format!("a fork's record: {error}"), "report this"))?;
        // kept in memory even if the write fails, so that a full disk does not lose clones
        self.all.write().insert(record.id.clone(), record);
        replace_file(&path, &bytes)
    }

    /// Notes which clones of a parent's last fork did not come to be, for those who have missed its answer; of none if there are none.
    pub fn note_missing(&self, parent: &str, clones: &[CloneInfo]) {
        let mut missing = clones.to_vec();
        missing.retain(|clone| clone.state != CloneState::Running);
        let mut all = self.missing.lock();
        all.retain(|(name, _)| name != parent);
        if !missing.is_empty() {
            all.push_back((parent.to_owned(), missing));
        }
        if all.len() > MISSING_MAX {
            all.pop_front();
        }
    }

    /// Returns them.
    pub fn missing(&self, parent: &str) -> Vec<CloneInfo> {
        let all = self.missing.lock();
        let of = all.iter().find(|(name, _)| name == parent);
        of.map_or_else(Vec::new, |(_, clones)| clones.clone())
    }

    /// Keeps a fork's multicast server until the fork has no clones on other hosts any more.
    pub fn serve(&self, id: &str, server: MulticastServer) {
        self.servers.lock().insert(id.to_owned(), server);
    }

    /// Ends a fork's multicast server, if it has one.
    pub fn end_server(&self, id: &str) {
        let server = self.servers.lock().remove(id);
        if let Some(server) = server {
            let stats = server.stats();
            tracing::info!(fork = id, ?stats, "its multicast ends");
        }
    }

    /// Removes a fork that has no clones, except for those that are still to be ended.
    pub fn forget(&self, id: &str) {
        let _writing = self.writing.lock();
        self.starting.lock().remove(id);
        self.end_server(id);
        let Some(mut record) = self.get(id) else {
            return;
        };
        record.clones.clear();
        if let Err(error) = self.write(record) {
            tracing::error!(fork = id, %error, "a node that starts here later will not end what is left of it");
        }
    }

    /// Notes that a clone may run on a host that does not answer, and is to be ended.
    pub fn owe(&self, id: &str, clone: CloneRecord) {
        let _writing = self.writing.lock();
        let Some(mut record) = self.get(id) else {
            return;
        };
        let name = clone.name.clone();
        record.unended.push(clone);
        if let Err(error) = self.write(record) {
            tracing::error!(machine = name, %error, "a node that starts here later will not end it");
        }
    }

    /// Notes that such a clone is no more.
    pub fn is_ended(&self, id: &str, name: &str) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        let Some(mut record) = self.get(id) else {
            return Ok(());
        };
        record.unended.retain(|clone| clone.name != name);
        match self.starting.lock().contains(id) {
            // its clones' record must stay until they all have started
            true => {
                self.all.write().insert(record.id.clone(), record);
                Ok(())
            }
            false => self.write(record),
        }
    }

    /// Removes a fork. The caller holds `writing`.
    fn remove(&self, id: &str) {
        self.end_server(id);
        self.all.write().remove(id);
        if let Err(error) = fs::remove_file(self.path(id))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(fork = id, %error, "a fork's record stays");
        }
    }

    /// Returns the fork with this id.
    pub fn get(&self, id: &str) -> Option<ForkRecord> {
        self.all.read().get(id).cloned()
    }

    /// Returns all forks.
    pub fn all(&self) -> Vec<ForkRecord> {
        self.all.read().values().cloned().collect()
    }

    /// Returns the forks of a parent, the first one first.
    pub fn of(&self, parent: &str) -> Vec<ForkRecord> {
        let mut forks = self.all();
        forks.retain(|fork| fork.parent == parent);
        // forks of the same second are ordered by their clones' names, which get longer or greater
        let name = |fork: &ForkRecord| fork.clones.first().map(|clone| clone.name.clone());
        let name = |fork: &ForkRecord| name(fork).map(|name| (name.len(), name));
        forks.sort_by_cached_key(|fork| (fork.created_unix_s, name(fork)));
        forks
    }

    /// Removes a clone that has ended from its fork. Returns whether it was in one.
    pub fn strike(&self, name: &str) -> Result<bool, NodeError> {
        let _writing = self.writing.lock();
        let has = |fork: &&ForkRecord| fork.clones.iter().any(|clone| clone.name == name);
        let changed = self.all.read().values().find(has).cloned();
        let Some(mut record) = changed else {
            return Ok(false);
        };
        record.clones.retain(|clone| clone.name != name);
        // while a fork is starting, its clones' hosts are not known yet
        if !record.has_clones_away() && !self.starting.lock().contains(&record.id) {
            self.end_server(&record.id);
        }
        self.write(record).map(|()| true)
    }

    /// Whether a token belongs to a fork of this image. In clear text only forks are opened that were requested with such
    /// hosts.
    pub fn opens(&self, token: &str, image: &Hash, in_clear_text: bool) -> bool {
        let given = Hash::of(token.as_bytes());
        let all = self.all.read();
        // comparing hashes takes the same time whatever the token, so it reveals nothing
        all.values().any(|fork| {
            fork.image == *image
                && Hash::of(fork.token.as_bytes()) == given
                && (!in_clear_text || fork.hosts_token.is_some())
        })
    }

    /// Returns the fork and the host of a clone that runs elsewhere.
    pub fn away(&self, name: &str) -> Option<(ForkRecord, String)> {
        let all = self.all.read();
        all.values().find_map(|fork| {
            let clone = fork.clones.iter().find(|clone| clone.name == name)?;
            Some((fork.clone(), clone.host.clone()?))
        })
    }

    /// Returns in words which fork's clones on other hosts need an image, if any do.
    pub fn user_of(&self, image: &Hash) -> Option<String> {
        let all = self.all.read();
        let away = |fork: &&ForkRecord| {
            fork.image == *image && fork.clones.iter().any(|clone| clone.host.is_some())
        };
        let fork = all.values().find(away)?;
        Some(format!("clones of {} on other hosts", fork.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(record: &ForkRecord) -> Vec<&str> {
        record
            .clones
            .iter()
            .map(|clone| clone.name.as_str())
            .collect()
    }

    /// Begins a fork of `web`; `taken` are names of other machines.
    fn begin(forks: &Records, id: Option<&str>, count: u32, taken: &[&str]) -> ForkRecord {
        let web: MachineName = "web".parse().unwrap();
        let taken = taken.iter().map(|name| (*name).to_owned());
        forks
            .begin(id, &web, Hash::of(b"image"), count, 7, taken)
            .unwrap()
    }

    #[test]
    fn two_forks_at_a_time_give_different_names_and_both_number_from_one() {
        let dir = tempfile::tempdir().unwrap();
        let forks = Records::open(&Home::at(dir.path())).unwrap();
        let first = begin(&forks, None, 2, &[]);
        let second = begin(&forks, None, 2, &["web.9.1", "webber.12"]);
        assert_eq!(names(&first), ["web.1", "web.2"]);
        assert_eq!(names(&second), ["web.3", "web.4"]);
        assert_eq!(second.clones[0].number, 1);
        assert_ne!(first.token, second.token);
        assert_eq!(
            names(&begin(&forks, None, 2, &["web.7"])),
            ["web.8", "web.9"]
        );
    }

    #[test]
    fn forks_come_back_after_a_restart_until_their_last_clone_is_struck_off() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let forks = Records::open(&home).unwrap();
        let image = Hash::of(b"image");
        let mut record = begin(&forks, Some("00ff"), 2, &[]);
        assert_eq!(record.id, "00ff");
        record.clones[1].host = Some("http://other:7070".into());
        forks.finish(record.clone()).unwrap();
        let again = Records::open(&home).unwrap();
        assert_eq!(again.of("web"), [record]);
        assert!(again.user_of(&image).unwrap().contains("web"));
        let (fork, host) = again.away("web.2").unwrap();
        assert_eq!(
            (fork.parent.as_str(), host.as_str()),
            ("web", "http://other:7070")
        );
        assert!(again.away("web.1").is_none());
        assert!(again.opens(&fork.token, &image, false));
        // nothing of it is sent in clear text, because nobody requested that
        assert!(!again.opens(&fork.token, &image, true));
        assert!(
            !again.opens(&fork.token, &Hash::of(b"another"), false)
                && !again.opens("", &image, false)
        );
        again.strike("web.2").unwrap();
        assert_eq!(again.user_of(&image), None);
        again.strike("web.1").unwrap();
        assert_eq!(Records::open(&home).unwrap().all(), []);
    }

    #[test]
    fn what_clones_on_other_hosts_have_is_known_from_before_they_start_until_they_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let forks = Records::open(&home).unwrap();
        let mut record = begin(&forks, Some("00ff"), 3, &[]);
        record.household = Some("aa".into());
        record.share.cpu_millicores = Some(100);
        forks.call(&mut record, std::iter::empty());
        let given = |forks: &Records| forks.given_away("aa").cpu_millicores;
        assert_eq!(given(&forks), None, "all are here");
        forks.place("00ff", 1, Some("https://b"));
        forks.place("00ff", 2, Some("https://b"));
        forks.place("00ff", 3, Some("https://b"));
        assert_eq!(given(&forks), Some(300));
        // one comes back, and one falls silent
        forks.place("00ff", 3, None);
        let host = Some("https://b".to_owned());
        let silent = CloneRecord {
            host: host.clone(),
            ..record.clones[1].clone()
        };
        forks.owe("00ff", silent);
        record.clones[0].host = host;
        record.clones.remove(1);
        forks.finish(record).unwrap();
        assert_eq!(
            (given(&forks), forks.given_away("bb")),
            (Some(200), Limits::default())
        );
        let again = Records::open(&home).unwrap();
        assert_eq!(given(&again), Some(200));
        again.strike("web.1").unwrap();
        again.is_ended("00ff", "web.2").unwrap();
        assert_eq!(given(&again), None);
    }

    #[test]
    fn what_did_not_come_to_be_is_known_of_a_parents_last_fork_and_of_so_many_parents() {
        let dir = tempfile::tempdir().unwrap();
        let forks = Records::open(&Home::at(dir.path())).unwrap();
        let clone = |number, state| CloneInfo {
            number,
            name: format!("web.{number}"),
            host: None,
            state,
            detail: "why".into(),
            address: None,
            running_ms: None,
            ends_unix_s: None,
        };
        let one = [
            clone(1, CloneState::Running),
            clone(2, CloneState::Failed),
            clone(3, CloneState::NotGranted),
        ];
        forks.note_missing("web", &one);
        assert_eq!(forks.missing("web"), one[1..]);
        assert_eq!(forks.missing("web.1"), []);
        // the next fork of it is another matter, and so are those of others
        for number in 1..MISSING_MAX {
            forks.note_missing(&format!("other.{number}"), &one);
        }
        forks.note_missing("web", &one[..2]);
        assert_eq!(forks.missing("web"), one[1..2]);
        forks.note_missing("one-more", &one);
        assert_eq!(forks.missing("other.1"), []);
        assert_eq!(forks.missing("web"), one[1..2]);
        forks.note_missing("web", &one[..1]);
        assert_eq!(forks.missing("web"), []);
    }

    #[test]
    fn clones_that_end_at_the_same_time_are_all_struck_off() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let forks = Records::open(&home).unwrap();
        let record = begin(&forks, None, 16, &[]);
        forks.finish(record.clone()).unwrap();
        std::thread::scope(|scope| {
            for clone in &record.clones {
                scope.spawn(|| assert!(forks.strike(&clone.name).unwrap()));
            }
        });
        assert_eq!(forks.all(), []);
        assert_eq!(Records::open(&home).unwrap().all(), []);
        assert!(!forks.strike("web.1").unwrap());
    }

    #[test]
    fn a_clone_that_ends_while_others_start_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let forks = Records::open(&Home::at(dir.path())).unwrap();
        let record = begin(&forks, None, 2, &[]);
        assert!(forks.strike("web.1").unwrap());
        forks.finish(record).unwrap();
        assert_eq!(names(&forks.of("web")[0]), ["web.2"]);
        let record = begin(&forks, None, 2, &[]);
        for name in ["web.3", "web.4"] {
            assert!(forks.strike(name).unwrap());
        }
        forks.finish(record).unwrap();
        assert_eq!(forks.all().len(), 1);
    }

    #[test]
    fn what_is_still_to_be_ended_outlives_its_fork_and_its_node_and_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let forks = Records::open(&home).unwrap();
        let owed = |record: &ForkRecord, index: usize| CloneRecord {
            host: Some("https://b".into()),
            ..record.clones[index].clone()
        };
        // one of two clones falls silent; the other runs, and ends
        let first = begin(&forks, Some("0a"), 2, &[]);
        forks.save(first.clone()).unwrap();
        forks.owe("0a", owed(&first, 1));
        let mut ran = first.clone();
        ran.clones.truncate(1);
        forks.finish(ran).unwrap();
        assert!(forks.strike("web.1").unwrap());
        // all of another fork's are taken back
        let second = begin(&forks, Some("0b"), 1, &[]);
        assert_eq!(names(&second), ["web.3"]);
        forks.owe("0b", owed(&second, 0));
        forks.forget("0b");
        let again = Records::open(&home).unwrap();
        let left = |forks: &Records| -> Vec<String> {
            let all = forks.all().into_iter();
            all.flat_map(|fork| fork.unended)
                .map(|clone| clone.name)
                .collect()
        };
        assert_eq!(left(&again), ["web.2", "web.3"]);
        assert!(again.opens(&first.token, &first.image, false));
        again.is_ended("0a", "web.2").unwrap();
        again.is_ended("0b", "web.3").unwrap();
        assert_eq!(again.all(), []);
        assert_eq!(Records::open(&home).unwrap().all(), []);
    }
}
