//! Substrates on their way between hosts: as images to hubs, buckets and directories, or as one file.
//!
//! What travels is the substrate's image, by the ways that images have. Its labels carry the rest of the record: the machine that it
//! was docked from, what its machines forget, and who may see it. One file is an archive (tar) of a directory of images with this one
//! in it. It is unpacked beside the node's state and then read like any other directory: every chunk is verified, and nothing is
//! here before all of it is.

use super::{DockOptions, Pool};
use floe_api::{
    Outcome, PushRequest, SUBSTRATE_LABEL, SubstrateExportRequest, SubstrateImportRequest,
    VISIBLE_LABEL, Visibility, check_users, label_of_visibility, visibility_of_label,
};
use floe_ground::{
    caller::{Caller, Visible},
    error::{NodeError, at, at_named, busy, refused, usage},
    files::{beside, put_in_place},
    names::MachineName,
    news::News,
    report::Report,
};
use floe_guest::chores::FORGOTTEN;
use floe_image::{Hash, MachineConfig};
use floe_inventory::inventory::small::{FORGETS_LABEL, Fresh};
use floe_store::Repository;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Component, Path, PathBuf},
};

/// Ending of a file with a substrate.
const FILE_ENDING: &str = "floe";
/// Beginning of the names of directories into which files are unpacked.
const SCRATCH_PREFIX: &str = "substrate";
/// Most files in an archive: a manifest, a layout, and packs of 16 MiB and more.
const MEMBERS_MAX: usize = 100_000;
/// How many bytes are copied at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Free space in bytes that unpacking leaves on the disk: machines write there too.
const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// Returns the labels of a substrate's image.
pub(super) fn labels(machine: &str, options: &DockOptions) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (SUBSTRATE_LABEL.to_owned(), machine.to_owned()),
        (
            VISIBLE_LABEL.to_owned(),
            label_of_visibility(options.visibility, &options.users),
        ),
    ]);
    if !options.reset.is_empty() {
        labels.extend([Fresh::label()]);
    }
    labels
}

/// Returns how a substrate is known here whose image has this configuration, and the machine that it was docked from.
fn options_of(
    config: &MachineConfig,
    name: MachineName,
    request: &SubstrateImportRequest,
    caller: &Caller,
) -> Result<(DockOptions, String), NodeError> {
    let labels = &config.labels;
    let Some(machine) = labels.get(SUBSTRATE_LABEL) else {
        return Err(refused(
            format!("{} is no substrate", request.from),
            "floe run starts machines of an image; floe dock makes a substrate of one",
        ));
    };
    let bad = |why: String| usage(why, "name users with --restricted anna,berta");
    let (visibility, users) = match request.visibility {
        Some(visibility) => (visibility, request.users.clone()),
        None => match labels.get(VISIBLE_LABEL) {
            Some(label) => visibility_of_label(label).map_err(|why| {
                refused(
                    format!("its list of who may see it can't be read: {why}"),
                    "say who may: --private, --restricted or --public",
                )
            })?,
            None => Default::default(),
        },
    };
    check_users(visibility, &users).map_err(bad)?;
    let forgets = labels.contains_key(FORGETS_LABEL);
    if visibility != Visibility::Private && !forgets {
        return Err(refused(
            "its machines do not forget the machine that it was docked from",
            "import it with --private, or dock the machine again with --public",
        ));
    }
    let reset = match forgets {
        true => FORGOTTEN.map(str::to_owned).to_vec(),
        false => Vec::new(),
    };
    let options = DockOptions {
        name,
        visibility,
        users,
        owner_uid: caller.uid(),
        reset,
        stop: false,
        rehearse_s: 0,
    };
    Ok((options, machine.chars().take(64).collect()))
}

impl Pool {
    /// Sends a substrate to a hub, a bucket or a directory, or writes it to a file.
    pub fn export(
        &self,
        name: &str,
        request: &SubstrateExportRequest,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let record = self.visible(name, caller)?;
        let push = PushRequest {
            image: record.image.to_string(),
            to: request.to.clone(),
            name: Some(record.name.clone()),
            token: request.token.clone(),
            ca: request.ca.clone(),
            public: record.visibility == Visibility::Public,
            seed: false,
            seed_until: None,
        };
        let path = Path::new(&request.to);
        if path.extension().is_none_or(|ending| ending != FILE_ENDING) || !path.is_absolute() {
            let push = self.visible_image(push, caller)?;
            let outcome = self.images.push(&push, report)?;
            return Ok(Outcome {
                substrate: Some(self.info(&record)),
                ..outcome
            });
        }
        let file = beside(path, request.force)?;
        let scratch = self.scratch_dir()?;
        let dir = scratch.path();
        let transfer = self.images.write_into(&record.image, dir, report)?;
        report.stage("push")?;
        let packed = pack(dir, file.as_file(), report);
        report.check()?;
        packed.map_err(at_named(format!("cannot write {}", request.to)))?;
        put_in_place(file, path)?;
        report.stage("write")?;
        Ok(Outcome {
            substrate: Some(self.info(&record)),
            path: Some(request.to.clone()),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// Brings a substrate here, from a hub, a bucket, a directory or a file. If that fails, nothing of it is left.
    pub fn import(
        &self,
        request: &Visible<SubstrateImportRequest>,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let name: MachineName = request
            .name
            .parse()
            .map_err(|error: floe_ground::names::NameError| usage(error.to_string(), ""))?;
        let _name = self.take_name(&name)?;
        let (mut from, mut scratch) = (request.from.clone(), None);
        // what is no file here is an address, whose source says what is wrong with it
        if std::fs::metadata(&from).is_ok_and(|meta| meta.is_file()) {
            let dir = self.scratch_dir()?;
            from = self.unpacked(Path::new(&from), dir.path(), report)?;
            scratch = Some(dir);
        }
        let (token, ca) = (request.token.as_deref(), request.ca.as_deref());
        let found = self
            .images
            .sources
            .find(&from, token, ca, |step| report.step(step))?;
        let (options, machine) = options_of(&found.manifest.config, name, request, caller)?;
        if !floe_ground::plan::is_live(&found.manifest) {
            return Err(refused(
                format!("{} holds no machine that stands still", request.from),
                "it was damaged, or made by something else than floe dock",
            ));
        }
        self.images.check_trusted(&found, request.trust)?;
        let was_here = self.images.repo.contains(&found.id)?;
        let transfer = self.images.bring_here(&found, report)?;
        drop(scratch);
        report.stage("pull")?;
        let written = self.backup_bytes(&found.id);
        let written = written.and_then(|bytes| self.describe(&machine, &options, &found.id, bytes));
        let written = written.and_then(|(mut record, own)| {
            record.docked_unix_s = found.manifest.created_unix_s;
            self.write(record)?;
            // from now on nobody removes its image; before that somebody may have
            match self.images.repo.contains(&found.id)? {
                true => Ok(own),
                false => self
                    .forget(options.name.as_str(), &found.id)
                    .and_then(|()| {
                        let what = "its image was removed before it was complete here";
                        Err(busy(what, "import it again"))
                    }),
            }
        });
        let own = written.inspect_err(|_| {
            if !was_here {
                self.take_back(&options.name, Some(found.id));
            }
        })?;
        let info = self.put_in_memory(&options.name, Some(own), report)?;
        let news = News::Docked(request.from.clone());
        self.core.tell(options.name.as_str(), &news);
        Ok(Outcome {
            substrate: Some(info),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// Returns how many bytes of an image's packs no other image needs.
    fn backup_bytes(&self, id: &Hash) -> Result<u64, NodeError> {
        let repo = &self.images.repo;
        Ok(repo
            .inspect(id)?
            .pack_bytes
            .saturating_sub(repo.shared_bytes(id)?))
    }

    fn scratch_dir(&self) -> Result<tempfile::TempDir, NodeError> {
        let dir = self.core.home.tmp();
        tempfile::Builder::new()
            .prefix(SCRATCH_PREFIX)
            .tempdir_in(&dir)
            .map_err(at(format!("cannot make a directory in {}", dir.display())))
    }

    /// Unpacks a file into a directory; returns the address of the one image in it.
    fn unpacked(&self, file: &Path, dir: &Path, report: &Report) -> Result<String, NodeError> {
        let shown = file.display().to_string();
        let broken = |why: String| {
            refused(
                format!("{shown} is no substrate's file: {why}"),
                "export it again: floe pool export NAME FILE.floe",
            )
        };
        let open = File::open(file).map_err(at_named(format!("cannot open {shown}")))?;
        let total = open.metadata().map_or(0, |meta| meta.len());
        let line = report.progress_line("unpack", "bytes");
        let mut room = |done: u64| -> io::Result<()> {
            line.at(done, total);
            report.check().map_err(|_| io::ErrorKind::Interrupted)?;
            let stat = rustix::fs::statvfs(dir)?;
            match stat.f_bavail.saturating_mul(stat.f_frsize) < DISK_RESERVE_BYTES {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        };
        // made here, so that of the archive only packs and what belongs to an image are taken
        Repository::create(dir)?;
        let unpacked = unpack(BufReader::with_capacity(BLOCK_BYTES, open), dir, &mut room);
        report.check()?;
        unpacked.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => at(format!("cannot unpack {shown}"))(error),
            _ => broken(error.to_string()),
        })?;
        let ids: Vec<Hash> = Repository::open(dir)?
            .list()
            .map_err(|error| broken(error.to_string()))?
            .into_iter()
            .map(|entry| entry.id)
            .collect();
        match ids[..] {
            [id] => Ok(dir.join(id.to_string()).display().to_string()),
            _ => Err(broken(format!("it has {} images", ids.len()))),
        }
    }
}

/// The files of a directory of images that belong into an archive, relative to it.
fn members(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![dir.join("images"), dir.join("packs")]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => open.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    let relative = |path: PathBuf| path.strip_prefix(dir).map(Path::to_owned);
    let relative = found.into_iter().map(relative).collect::<Result<_, _>>();
    relative.map_err(io::Error::other)
}

/// Writes an archive of a directory of images.
fn pack(dir: &Path, to: &File, report: &Report) -> io::Result<()> {
    let mut archive = tar::Builder::new(BufWriter::with_capacity(BLOCK_BYTES, to));
    archive.mode(tar::HeaderMode::Deterministic);
    for member in members(dir)? {
        report.check().map_err(|_| io::ErrorKind::Interrupted)?;
        archive.append_path_with_name(dir.join(&member), &member)?;
    }
    archive.into_inner()?.flush()
}

/// Whether an archive's file may be taken: `images/NAME` or `packs/XX/NAME`, and names are of the kind that directories of images have.
fn is_member(path: &Path) -> bool {
    let parts: Vec<&str> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str().unwrap_or_default(),
            _ => "",
        })
        .collect();
    let plain = |name: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '.';
        !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(allowed)
    };
    let depth = match parts.first() {
        Some(&"images") => 2,
        Some(&"packs") => 3,
        _ => return false,
    };
    parts.len() == depth && parts.iter().all(plain)
}

/// Unpacks an archive into a directory of images that is there. `room` is called with the number of bytes that were written, and may end it.
fn unpack(
    from: impl Read,
    dir: &Path,
    room: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut archive = tar::Archive::new(from);
    let mut block = vec![0; BLOCK_BYTES];
    let (mut count, mut done) = (0, 0);
    // raw: names that other entries say, which may be of any length, are not read
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let shown = path.display().to_string().escape_default().to_string();
        count += 1;
        if count > MEMBERS_MAX {
            return Err(io::Error::other(format!(
                "it has more than {MEMBERS_MAX} files"
            )));
        }
        if entry.header().entry_type() != tar::EntryType::Regular || !is_member(&path) {
            return Err(io::Error::other(format!("{shown} does not belong there")));
        }
        let to = dir.join(&path);
        if let Some(above) = to.parent() {
            std::fs::create_dir_all(above)?;
        }
        let mut file = File::create_new(&to)?;
        loop {
            room(done)?;
            let bytes = entry.read(&mut block)?;
            if bytes == 0 {
                break;
            }
            file.write_all(&block[..bytes])?;
            done += bytes as u64;
        }
    }
    match count {
        0 => Err(io::Error::other("it is empty")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_store::{Ingest, IngestOptions};

    fn taken(bytes: &[u8]) -> (tempfile::TempDir, io::Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        Repository::create(&dir.path().join("in")).unwrap();
        let done = unpack(bytes, &dir.path().join("in"), &mut |_| Ok(()));
        (dir, done)
    }

    #[test]
    fn an_archive_brings_its_image_and_nothing_to_any_other_place() {
        let from = tempfile::tempdir().unwrap();
        let repo = Repository::create(from.path()).unwrap();
        let mut ingest = Ingest::new(&repo, IngestOptions::default()).unwrap();
        ingest.region_bytes("ram", &[7; 8192]).unwrap();
        let id = ingest.finish(Default::default()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        pack(from.path(), file.as_file(), &Report::new().0).unwrap();
        let good = std::fs::read(file.path()).unwrap();
        let (dir, done) = taken(&good);
        done.unwrap();
        let there = Repository::open(&dir.path().join("in")).unwrap();
        assert!(there.verify(&id, &|_, _| true).unwrap().damage.is_empty());

        let one = |name: &str, kind: tar::EntryType| {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_size(4);
            header.set_cksum();
            let mut archive = tar::Builder::new(Vec::new());
            archive.append(&header, &b"evil"[..]).unwrap();
            archive.into_inner().unwrap()
        };
        let hostile = [
            ("../evil", tar::EntryType::Regular),
            ("/etc/evil", tar::EntryType::Regular),
            ("images/../../evil", tar::EntryType::Regular),
            ("images/.evil", tar::EntryType::Regular),
            ("tags/evil", tar::EntryType::Regular),
            ("version", tar::EntryType::Regular),
            ("images/evil", tar::EntryType::Symlink),
            ("images/evil", tar::EntryType::GNULongName),
            ("packs/00/evil", tar::EntryType::GNUSparse),
            ("packs/00", tar::EntryType::Directory),
        ];
        for (name, kind) in hostile {
            let (dir, done) = taken(&one(name, kind));
            assert!(done.is_err(), "{name} {kind:?}");
            assert!(!dir.path().join("evil").exists(), "{name}");
        }
        assert!(taken(&one("images/a", tar::EntryType::Regular)).1.is_ok());
        assert!(taken(b"").1.is_err());
        let (_, twice) = taken(&[good[..good.len() - 1024].to_vec(), good].concat());
        assert!(twice.is_err(), "a file that is there already");
    }

    #[test]
    fn what_an_image_says_of_itself_decides_who_may_see_it_unless_the_user_does() {
        let request = |visibility| SubstrateImportRequest {
            name: "shop".into(),
            from: "x".into(),
            visibility,
            ..Default::default()
        };
        let asked = |labels: &[(&str, &str)], visibility| {
            let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let config = MachineConfig {
                labels: labels.iter().map(label).collect(),
                ..Default::default()
            };
            let name = "shop".parse().unwrap();
            options_of(&config, name, &request(visibility), &Caller::Node)
                .map(|(options, machine)| (options.visibility, options.users, machine))
                .map_err(|error| error.to_api().message)
        };
        let docked = (SUBSTRATE_LABEL, "web");
        let forgets = (FORGETS_LABEL, "1");
        let visible = |text| (VISIBLE_LABEL, text);
        let web = || "web".to_owned();
        assert_eq!(
            asked(&[docked], None),
            Ok((Visibility::Private, vec![], web()))
        );
        let restricted = asked(&[docked, forgets, visible("restricted anna,berta")], None);
        let users = vec!["anna".to_owned(), "berta".to_owned()];
        assert_eq!(restricted, Ok((Visibility::Restricted, users, web())));
        let told = asked(
            &[docked, forgets, visible("nonsense")],
            Some(Visibility::Public),
        );
        assert_eq!(told, Ok((Visibility::Public, vec![], web())));
        for bad in [
            "nonsense",
            "restricted",
            "restricted a:b",
            "restricted ",
            "",
        ] {
            let why = asked(&[docked, forgets, visible(bad)], None).unwrap_err();
            assert!(why.contains("can't be read"), "{bad}: {why}");
        }
        // nobody else gets machines that keep the keys of the one that was docked
        for (labels, visibility) in [
            (&[docked][..], Some(Visibility::Public)),
            (&[docked, visible("public")][..], None),
        ] {
            let why = asked(labels, visibility).unwrap_err();
            assert!(why.contains("do not forget"), "{why}");
        }
        assert!(
            asked(&[forgets], None)
                .unwrap_err()
                .contains("no substrate")
        );
    }
}
