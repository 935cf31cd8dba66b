//! `pool`: machines that stand still in memory as substrates, docked and activated again.
//!
//! ```text
//! dock      a capture's pause -> image (the backup) -> record -> own chunks into memory
//! activate  record -> image; its chunks come from memory (`stock`), then from the backup -> run or clones
//! ```
//! A substrate is an image and a record of who may see it. Its bytes in the repository are complete, so that memory may lose it at
//! any time: to the budget, or with this node, after which a thread brings substrates back into memory (`warm`) while they are
//! activated from their backups. What is its own is found by content (`made_of`).
//!
//! Locks: `admitting`, held while one substrate is read and compressed, so that memory for that is needed once; then `records`,
//! `writing` (a record is written), `docking`, `activating` and the stock's own, none of which is held while another is taken, except the stock's.

mod activate;
mod dispatch;
mod expand;
mod made_of;
mod member;
mod moving;
mod record;
mod seen;
mod stock;
mod verify;
mod warm;

pub(crate) use member::Basis;
pub use stock::Stock;

use floe_api::{
    DockRequest, FreedReport, MadeOf, Outcome, PoolResizeRequest, PoolStatus, SUBSTRATE_LABEL,
    SubstrateInfo, SubstrateList, Visibility, check_users, paths::Home, size_text,
};
use floe_fork::Forks;
use floe_ground::{
    caller::Caller,
    error::{NodeError, busy, failed, not_found, refused, usage},
    files::{load_kept, make_private_dir, read_bounded, replace_file, replace_file_soon},
    names::{MachineName, similar},
    news::News,
    report::Report,
    time::unix_now,
};
use floe_guest::chores::FORGOTTEN;
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Inventory, Operation, lifecycle::Task},
    resources::host,
};
use floe_library::images::{FORK_LABEL, ImageUser, Images, PARK_LABEL};
use floe_machine::MEMORY_BYTES_DEFAULT;
use floe_machines::{
    capture::{Captures, Taking, check_rehearsal},
    machines::Machines,
    resize::Resizes,
    run::Runs,
    shrink::Shrinks,
};
use made_of::{Own, own_part};
use parking_lot::{Mutex, RwLock};
use record::{SUBSTRATE_VERSION, SubstrateRecord};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};
use warm::Warmth;

/// Part of the host's memory that substrates may take unless `floe pool resize` says otherwise: an eighth.
const BUDGET_PART: u64 = 8;
/// The budget where the host's memory is unknown, in bytes.
const BUDGET_UNKNOWN: u64 = 1 << 30;
/// Name of the file with the budget.
const BUDGET_FILE: &str = "budget";
/// Longest file with a budget, in bytes.
const BUDGET_FILE_BYTES_MAX: u64 = 32;
/// Largest record of a substrate that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// How many ancestors of an image are looked at for its base.
const ANCESTORS_MAX: usize = 256;

/// How a machine is docked.
#[derive(Clone, Debug)]
pub struct DockOptions {
    /// The substrate's name.
    pub name: MachineName,
    /// Who may see it.
    pub visibility: Visibility,
    /// The users of a restricted one.
    pub users: Vec<String>,
    /// Who docks it.
    pub owner_uid: u32,
    /// What its machines forget of whom it was docked from, before they get a network.
    pub reset: Vec<String>,
    /// Whether the machine ends with it. It is stopped then, with its disks.
    pub stop: bool,
    /// For how many seconds a copy runs, to learn what is touched first.
    pub rehearse_s: u32,
}

impl DockOptions {
    /// Returns the options that a caller asks for.
    pub fn asked(request: &DockRequest, caller: &Caller) -> Result<DockOptions, NodeError> {
        let name: MachineName = request
            .name
            .parse()
            .map_err(|error: floe_ground::names::NameError| usage(error.to_string(), ""))?;
        check_users(request.visibility, &request.users)
            .map_err(|why| usage(why, "name users with --restricted anna,berta"))?;
        let rehearse_s = request.rehearse_s.unwrap_or(0);
        check_rehearsal(rehearse_s)?;
        Ok(DockOptions {
            name,
            visibility: request.visibility,
            users: request.users.clone(),
            owner_uid: caller.uid(),
            reset: match request.visibility {
                Visibility::Private => Vec::new(),
                Visibility::Restricted | Visibility::Public => {
                    FORGOTTEN.map(str::to_owned).to_vec()
                }
            },
            stop: request.convert,
            rehearse_s,
        })
    }
}

/// The service that docks and activates machines.
pub struct Pool {
    core: Arc<Core>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    captures: Arc<Captures>,
    runs: Arc<Runs>,
    forks: Arc<Forks>,
    shrinks: Arc<Shrinks>,
    resizes: Arc<Resizes>,
    stock: Stock,
    records: RwLock<BTreeMap<String, SubstrateRecord>>,
    /// Held while a record is written, so that nothing else is locked during the write.
    writing: Mutex<()>,
    /// Names of substrates that are being docked.
    docking: Mutex<BTreeSet<String>>,
    /// Images that are being activated, and how often.
    activating: Mutex<BTreeMap<Hash, usize>>,
    /// Held while a substrate is taken into memory.
    admitting: Mutex<()>,
    warmth: Mutex<Warmth>,
}

/// A name that nobody else docks under. Dropping this gives it back.
struct Taken<'a> {
    pool: &'a Pool,
    name: String,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.pool.docking.lock().remove(&self.name);
    }
}

impl ImageUser for Pool {
    fn user_of(&self, image: &Hash) -> Option<String> {
        if self.activating.lock().contains_key(image) {
            return Some("a substrate that is being activated".to_owned());
        }
        let records = self.records.read();
        let record = records.values().find(|record| record.image == *image)?;
        Some(format!("substrate {}", record.name))
    }

    fn needs_shown(&self, _: &Hash) -> bool {
        false // machines that run from it have it shown
    }

    fn images(&self) -> Vec<Hash> {
        let activating: Vec<Hash> = self.activating.lock().keys().copied().collect();
        let records = self.records.read();
        let known = records.values().map(|record| record.image);
        known.chain(activating).collect()
    }
}

impl Pool {
    /// Opens the service, over what captures need too, with the records that an earlier node left.
    pub fn open(
        captures: Arc<Captures>,
        runs: Arc<Runs>,
        forks: Arc<Forks>,
        shrinks: Arc<Shrinks>,
        resizes: Arc<Resizes>,
        stock: Stock,
    ) -> Result<Arc<Pool>, NodeError> {
        let kept = load_kept(
            &captures.core.home.pool(),
            RECORD_BYTES_MAX,
            SubstrateRecord::parse,
            "is no substrate's record; the substrate is not known any more",
        )?;
        let by_name = |record: SubstrateRecord| (record.name.clone(), record);
        let pool = Arc::new(Pool {
            records: RwLock::new(kept.into_values().map(by_name).collect()),
            core: captures.core.clone(),
            images: captures.images.clone(),
            inventory: captures.inventory.clone(),
            machines: captures.machines.clone(),
            captures,
            runs,
            forks,
            shrinks,
            resizes,
            stock,
            writing: Mutex::default(),
            docking: Mutex::default(),
            activating: Mutex::default(),
            admitting: Mutex::default(),
            warmth: Mutex::default(),
        });
        let user: Weak<Pool> = Arc::downgrade(&pool);
        pool.images.ask_too(user);
        Ok(pool)
    }

    /// Docks a machine, which goes on.
    pub fn dock_machine(
        &self,
        machine: &str,
        request: &DockRequest,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let options = DockOptions::asked(request, caller)?;
        let entry = self.inventory.get(machine)?;
        entry.wait_for_identity()?;
        let operation = entry.begin(Task::Dock)?;
        if !options.reset.is_empty() && !operation.state().guest.agent {
            return Err(refused(
                format!(
                    "no agent answers in {machine}, so machines of the substrate would never forget who they are"
                ),
                format!("floe agent install {machine}, or dock it as a private one"),
            ));
        }
        if !request.convert {
            return self.dock(&operation, &options, report);
        }
        let small = self.shrinks.shrink(&operation, report)?;
        let outcome = self.dock(&operation, &options, report)?;
        small.gone();
        drop(operation);
        if let Err(error) = self.machines.remove_machine(machine, false) {
            let error = error.to_api();
            report.note(format!(
                "{machine} is stopped and still there, remove it with floe rm {machine}: {error}"
            ));
        }
        report.stage("remove")?;
        Ok(Outcome {
            machine: None,
            ..outcome
        })
    }

    /// Docks the machine of an operation. If that fails nothing of it is left, and the machine is as it was.
    pub fn dock(
        &self,
        operation: &Operation,
        options: &DockOptions,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let _name = self.take_name(&options.name)?;
        let labels = moving::labels(operation.name.as_str(), options);
        let published = Cell::new(None);
        let own = Cell::new(None);
        let taking = Taking {
            stop: options.stop,
            rehearse_s: options.rehearse_s,
            // a dock has hooks of its own
            hooks_s: Some(0),
            picture: false,
            labels: &labels,
            keep: &|id, stored| {
                published.set(Some(*id));
                let (machine, bytes) = (operation.name.as_str(), stored.new_bytes_compressed);
                let (record, found) = self.describe(machine, options, id, bytes)?;
                own.set(Some(found));
                self.write(record)
            },
        };
        let taken = self
            .captures
            .take(operation, &taking, report)
            .inspect_err(|_| self.take_back(&options.name, published.get()))?;
        let info = self.put_in_memory(&options.name, own.take(), report)?;
        let news = News::Docked(operation.name.to_string());
        self.core.tell(options.name.as_str(), &news);
        Ok(Outcome {
            machine: Some(self.machines.info_of(operation)),
            stored: Some(taken.stored),
            pause_ms: Some(taken.pause_ms),
            substrate: Some(info),
            ..Default::default()
        })
    }

    /// Takes a new substrate's own part into memory, and tells if that can't be.
    fn put_in_memory(
        &self,
        name: &MachineName,
        own: Option<Own>,
        report: &mut Report,
    ) -> Result<SubstrateInfo, NodeError> {
        let image = self.record(name.as_str())?.image;
        if let Some(own) = own
            && let Err(error) = self.take_in(name.as_str(), &image, own)
        {
            report.note(format!("the substrate is not in memory: {error}"));
        }
        report.stage("memory")?;
        let info = self.info(&self.record(name.as_str())?);
        if !info.in_memory {
            report.note(self.too_small(&info));
        }
        Ok(info)
    }

    fn too_small(&self, info: &SubstrateInfo) -> String {
        let budget = self.stock.with(|stock| stock.budget_bytes());
        let name = &info.name;
        match self.stock.host_bytes().filter(|host| *host < budget) {
            Some(host) => format!(
                "{name} is not in memory: {} of this host's memory are left for the pool, machines have the rest; it is activated from \
                 its backup on the disk",
                size_text(host)
            ),
            None => format!(
                "{name} is not in memory: the pool's budget of {} is too small for it; it is activated from its backup on the disk \
                 (floe pool resize SIZE changes the budget)",
                size_text(budget)
            ),
        }
    }

    /// Takes back what a failed dock has left.
    fn take_back(&self, name: &MachineName, image: Option<Hash>) {
        let Some(image) = image else { return };
        let known = |record: &SubstrateRecord| record.image == image;
        if self.records.read().get(name.as_str()).is_some_and(known) {
            let _ = self.forget(name.as_str(), &image);
        }
        if self.images.user_of(&image).is_none()
            && let Err(error) = self.images.discard(&image)
        {
            tracing::warn!(image = image.short(), %error, "the image of a failed dock stays until floe prune");
        }
    }

    fn take_name(&self, name: &MachineName) -> Result<Taken<'_>, NodeError> {
        let fix = "choose another name, or floe pool rm it";
        let name = name.to_string();
        if !self.docking.lock().insert(name.clone()) {
            return Err(busy(format!("a machine is being docked as {name}"), fix));
        }
        let taken = Taken { pool: self, name };
        if self.records.read().contains_key(&taken.name) {
            return Err(busy(
                format!("there is a substrate {} already", taken.name),
                fix,
            ));
        }
        Ok(taken)
    }

    /// Returns the record of a substrate that was just published, and its own part.
    fn describe(
        &self,
        machine: &str,
        options: &DockOptions,
        id: &Hash,
        backup_bytes: u64,
    ) -> Result<(SubstrateRecord, Own), NodeError> {
        let base = self.base_of(id)?;
        let own = own_part(&self.images.repo, id, base.as_ref())?;
        let config = self.images.repo.manifest(id)?.config;
        let record = SubstrateRecord {
            version: SUBSTRATE_VERSION,
            name: options.name.to_string(),
            visibility: options.visibility,
            users: options.users.clone(),
            owner_uid: options.owner_uid,
            docked_unix_s: unix_now(),
            activated_unix_s: None,
            machine: machine.to_owned(),
            cpus: config.cpus_now().unwrap_or(1),
            memory_bytes: config.memory_bytes_now().unwrap_or(MEMORY_BYTES_DEFAULT),
            image: *id,
            base,
            made_of: MadeOf {
                backup_bytes,
                ..own.made_of
            },
            reset: options.reset.clone(),
            pool_bytes: 0,
        };
        Ok((record, own))
    }

    /// Returns the base of a substrate's image: its nearest ancestor that is no substrate's, no fork's and no machine's own, and so stays
    /// when those go.
    fn base_of(&self, id: &Hash) -> Result<Option<Hash>, NodeError> {
        let mut at = self.images.repo.manifest(id)?.parent;
        for _ in 0..ANCESTORS_MAX {
            let Some(id) = at else { return Ok(None) };
            // an ancestor may be gone: its packs are kept by those who need them
            let Ok(manifest) = self.images.repo.manifest(&id) else {
                return Ok(None);
            };
            let labels = &manifest.config.labels;
            let goes = [FORK_LABEL, SUBSTRATE_LABEL, PARK_LABEL];
            if !goes.iter().any(|label| labels.contains_key(*label)) {
                return Ok(Some(id));
            }
            at = manifest.parent;
        }
        Ok(None)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.core.home.pool().join(format!("{name}.json"))
    }

    /// Writes a record, and then knows it.
    fn write(&self, record: SubstrateRecord) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        let bytes =
            serde_json::to_vec_pretty(&record).expect("a record has only strings and numbers");
        replace_file(&self.path(&record.name), &bytes)?;
        self.records.write().insert(record.name.clone(), record);
        Ok(())
    }

    /// Changes a record. What is lost of that with a power cut is only when it was used and what it takes.
    fn change(&self, name: &str, change: impl FnOnce(&mut SubstrateRecord)) {
        let _writing = self.writing.lock();
        let Some(mut record) = self.records.read().get(name).cloned() else {
            return;
        };
        change(&mut record);
        let bytes =
            serde_json::to_vec_pretty(&record).expect("a record has only strings and numbers");
        if let Err(error) = replace_file_soon(&self.path(name), &bytes) {
            tracing::warn!(substrate = name, %error, "its record on the disk stays as it was");
        }
        self.records.write().insert(name.to_owned(), record);
    }

    /// Removes the record of the substrate with this name and image.
    fn forget(&self, name: &str, image: &Hash) -> Result<(), NodeError> {
        let _writing = self.writing.lock();
        let is_it = |record: &SubstrateRecord| record.image == *image;
        if !self.records.read().get(name).is_some_and(is_it) {
            return Err(not_found(
                format!("there is no substrate {name}"),
                "see `floe pool ls`",
            ));
        }
        let path = self.path(name);
        std::fs::remove_file(&path).map_err(floe_ground::error::at(format!(
            "cannot remove {}",
            path.display()
        )))?;
        self.records.write().remove(name);
        Ok(())
    }

    fn record(&self, name: &str) -> Result<SubstrateRecord, NodeError> {
        self.visible(name, &Caller::Node)
    }

    /// Returns a substrate that exists for this caller.
    fn visible(&self, name: &str, caller: &Caller) -> Result<SubstrateRecord, NodeError> {
        let records = self.records.read();
        let mut seen = records.values().filter(|record| record.is_seen_by(caller));
        if let Some(record) = records.get(name).filter(|record| record.is_seen_by(caller)) {
            return Ok(record.clone());
        }
        let near = similar(name, seen.by_ref().map(|record| record.name.as_str()));
        let fix = near.map_or_else(
            || "see `floe pool ls`".to_owned(),
            |near| format!("did you mean {near}? `floe pool ls` lists all"),
        );
        Err(not_found(format!("there is no substrate {name}"), fix))
    }

    fn info(&self, record: &SubstrateRecord) -> SubstrateInfo {
        record.info(self.stock.with(|stock| stock.holds(&record.image)))
    }

    /// Returns one substrate.
    pub fn substrate(&self, name: &str, caller: &Caller) -> Result<SubstrateInfo, NodeError> {
        Ok(self.info(&self.visible(name, caller)?))
    }

    /// Returns the substrates that this caller may see, by name.
    pub fn substrates(&self, caller: &Caller) -> SubstrateList {
        let records = self.records.read();
        let seen = records.values().filter(|record| record.is_seen_by(caller));
        let seen: Vec<SubstrateRecord> = seen.cloned().collect();
        drop(records);
        SubstrateList {
            substrates: seen.iter().map(|record| self.info(record)).collect(),
        }
    }

    /// Returns how full the pool is, and how many substrates in it this caller may see.
    pub fn status(&self, caller: &Caller) -> PoolStatus {
        let seen = self.substrates(caller).substrates;
        let (budget_bytes, usage) = self
            .stock
            .with(|stock| (stock.budget_bytes(), stock.usage()));
        let warmth = self.warmth.lock().clone();
        PoolStatus {
            budget_bytes,
            used_bytes: usage.bytes,
            compressed_bytes: usage.compressed_bytes,
            raw_bytes: usage.raw_bytes,
            referred_bytes: usage.referred_bytes,
            substrates: seen.len() as u64,
            in_memory: seen.iter().filter(|one| one.in_memory).count() as u64,
            host_bytes: self.stock.host_bytes(),
            gave_way: self.stock.gave_way(),
            warming: warmth.is_under_way(),
            warm_ms: warmth.took_ms(),
        }
    }

    /// Removes a substrate, and its image if nothing else uses that.
    pub fn remove(&self, name: &str, caller: &Caller) -> Result<FreedReport, NodeError> {
        let record = self.visible(name, caller)?;
        if !record.is_of(caller) {
            return Err(refused(
                format!("substrate {name} is another user's"),
                "ask its owner, or the node's user",
            ));
        }
        let _admitting = self.admitting.lock();
        self.forget(name, &record.image)?;
        self.stock.with(|stock| stock.release(&record.image));
        self.stock.settle();
        self.core.tell(name, &News::Undocked);
        let named = self.images.may_have_name(&record.image);
        // a machine that stands on it keeps it; it goes with the next prune after that machine
        let freed_bytes = match named || self.images.user_of(&record.image).is_some() {
            true => 0,
            false => self.images.discard(&record.image)?,
        };
        Ok(FreedReport {
            freed_bytes,
            names: vec![name.to_owned()],
        })
    }

    /// Changes the budget. What does not fit goes at once; what fits again is brought back in the background. A larger budget than
    /// this host has room for is refused, unless somebody insists: substrates never take more than is free anyway.
    pub fn resize(
        self: &Arc<Self>,
        request: &PoolResizeRequest,
        caller: &Caller,
    ) -> Result<PoolStatus, NodeError> {
        let budget_bytes = self.stock.with(|stock| stock.budget_bytes());
        let host = self.stock.host_bytes().unwrap_or(u64::MAX);
        if request.budget_bytes > host.max(budget_bytes) && !request.overcommit {
            return Err(refused(
                format!(
                    "{} for the pool, and this host has {} for it beside its machines",
                    size_text(request.budget_bytes),
                    size_text(host)
                ),
                "choose less, end machines that are no longer needed, or insist with --overcommit: substrates then come into memory \
                 as it gets free",
            ));
        }
        let text = format!("{}\n", request.budget_bytes);
        replace_file(&self.core.home.pool().join(BUDGET_FILE), text.as_bytes())?;
        let evicted = self.stock.with(|stock| stock.resize(request.budget_bytes));
        self.stock.settle();
        if !evicted.is_empty() {
            tracing::info!(
                count = evicted.len(),
                "substrates left the memory for a smaller budget"
            );
        }
        self.start_warming();
        Ok(self.status(caller))
    }
}

/// Returns the budget that the last node of this state directory had, or the default.
pub fn budget(home: &Home) -> Result<u64, NodeError> {
    let dir = home.pool();
    make_private_dir(&dir)?;
    let path = dir.join(BUDGET_FILE);
    match read_bounded(&path, BUDGET_FILE_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            text.parse().map_err(|_| {
                failed(
                    format!(
                        "{} says {text:?}, which is no number of bytes",
                        path.display()
                    ),
                    "remove the file; floe pool resize writes it anew",
                )
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let total = host::memory().map(|memory| memory.total_bytes / BUDGET_PART);
            Ok(total.unwrap_or(BUDGET_UNKNOWN))
        }
        Err(error) => Err(floe_ground::error::at(format!(
            "cannot read {}",
            path.display()
        ))(error)),
    }
}
