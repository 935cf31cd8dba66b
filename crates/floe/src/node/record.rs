//! What a machine is, in a file: enough for a node that starts after a crash to take the machine over.
//!
//! `machines/NAME/machine.json` is replaced atomically (write, fsync, rename, fsync of the directory), so a reader finds
//! the old state or the new one. Unknown versions are refused: a node must not run a machine that it half understands.

use crate::{
    api::{Identity, MulticastGroup, PortForward},
    node::error::{NodeError, at, failed},
};
use floe_image::{Hash, MachineConfig, Manifest};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Version of the file. A field that an older node must not ignore raises it.
pub const RECORD_VERSION: u32 = 1;
/// The file's name in the machine's directory.
pub const RECORD_FILE: &str = "machine.json";
/// Largest record that is read: a hundred times what one with the longest lists takes.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A machine as it was meant, and how it last was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// Its name.
    pub name: String,
    /// The image as the user named it.
    pub image_name: String,
    /// The image that it was started from: its `ram` is what QEMU maps.
    pub image: Hash,
    /// The image that its disks stand on: [`Record::image`], or the last capture.
    pub disk_base: Hash,
    /// Where the image's missing chunks come from.
    pub origin: Origin,
    /// What QEMU needs.
    pub config: MachineConfig,
    /// Ports.
    pub forwards: Vec<PortForward>,
    /// Whether the running QEMU was restored (false after a cold start).
    pub restored: bool,
    /// Whether a QEMU should be running.
    pub wanted: Wanted,
    /// Something worth telling (`the guest was reset and started cold from its disks`).
    pub detail: String,
    /// Creation, Unix time.
    pub created_unix_s: u64,
    /// User id that its QEMU runs as; `None` is the node's own.
    pub uid: Option<u32>,
    /// Directory of its QEMU and disks, relative to the state directory: `machines/NAME`, or `standby/N` for a machine
    /// that waited in the pool (its files can't move while QEMU has them open).
    pub place: String,
    /// Its directory's name on the mount.
    pub mount_name: String,
    /// Whether what it touches is kept and sent.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub traced: bool,
    /// Whether the node itself has paused it, so that what it needs next can arrive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub buffering: bool,
    /// Of a clone: the fork that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Its place in its family's network; `None` is QEMU's user network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Attachment>,
}

/// A place in a family's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// The network's id.
    pub network: String,
    /// The member's number in it, from which its addresses follow; 0 is the parent.
    pub number: u32,
}

/// What a clone knows of its fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// The fork's id.
    pub fork: String,
    /// The machine or image that was forked, on its own node.
    pub parent: String,
    /// The clone's number in the fork, from 1.
    pub number: u32,
    /// Whether nothing of it is on its parent's node only, or in that node's memory only.
    pub settled: bool,
    /// Whether its guest knows who it is.
    #[serde(default, skip_serializing_if = "Identity::is_foreign")]
    pub identity: Identity,
}

fn yes() -> bool {
    true
}

/// What the node is to make of a machine that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Being made: a node that finds this removes the machine.
    Starting,
    /// There should be a QEMU.
    Running,
    /// There should be none.
    Stopped,
    /// On its way out: a node that finds this goes on removing it.
    Removing,
}

/// Where an image's chunks come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Base addresses of sources, the preferred first. Empty: the node's own repository.
    pub urls: Vec<String>,
    /// Token for them. The file is readable by the node's user only.
    pub token: Option<String>,
    /// File with their certificate authority.
    pub ca: Option<String>,
    /// Of a clone: where its parent's state comes by multicast, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
}

impl Record {
    /// Reads the record in a machine's directory.
    pub fn load(dir: &Path) -> Result<Record, NodeError> {
        let path = dir.join(RECORD_FILE);
        let shown = path.display();
        let bytes =
            read_bounded(&path, RECORD_BYTES_MAX).map_err(at(format!("cannot read {shown}")))?;
        Record::parse(&bytes).map_err(|why| {
            failed(
                format!("{shown} is no machine's record: {why}"),
                "restore the file from a backup, or remove the machine's directory",
            )
        })
    }

    /// Understands a record's bytes, or says why not.
    pub fn parse(bytes: &[u8]) -> Result<Record, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if version != RECORD_VERSION {
            return Err(format!(
                "it has version {version}, this floe knows version {RECORD_VERSION}"
            ));
        }
        let record: Record = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        record
            .name
            .parse::<super::MachineName>()
            .map_err(|e| e.to_string())?;
        let inside = |part: std::path::Component| matches!(part, std::path::Component::Normal(_));
        if record.place.is_empty() || !Path::new(&record.place).components().all(inside) {
            return Err(format!(
                "its place {:?} is not inside of the state directory",
                record.place
            ));
        }
        Ok(record)
    }

    /// Writes the record, all or nothing.
    pub fn save(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file(&dir.join(RECORD_FILE), &self.bytes())
    }

    /// The same without waiting for the disk: for a machine of which nothing has to be left after a power cut yet.
    pub fn save_soon(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file_soon(&dir.join(RECORD_FILE), &self.bytes())
    }

    /// Whether it is a clone on its parent's host whose memory is on no disk yet.
    pub fn rests_on_this_node(&self) -> bool {
        let family = self.family.as_ref();
        family.is_some_and(|family| !family.settled) && self.origin.urls.is_empty()
    }

    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a record has only strings, numbers and lists")
    }
}

/// Keeps a remote image's manifest beside the machine: a restarted node needs it before it can reach anybody.
pub fn save_manifest(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// The same without waiting for the disk, of an image that is in the repository soon.
pub fn save_manifest_soon(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file_soon(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// The manifest that was kept, checked against its id.
pub fn load_manifest(dir: &Path, id: &Hash) -> Result<Manifest, NodeError> {
    let path = dir.join(format!("{id}.manifest"));
    let bytes = fs::read(&path).map_err(at(format!("cannot read {}", path.display())))?;
    let damaged = |why: String| {
        failed(
            format!("{} is damaged: {why}", path.display()),
            "pull the image again, or remove the machine",
        )
    };
    if Hash::of(&bytes) != *id {
        return Err(damaged("its hash is not its name".into()));
    }
    Manifest::decode(&bytes).map_err(|error| damaged(error.to_string()))
}

/// File of the times at which a machine was paused for buffering.
const PAUSES_FILE: &str = "pauses.json";

/// Keeps when a machine was paused for buffering: from and to, Unix time in microseconds.
pub(crate) fn save_pauses(dir: &Path, pauses: &[(u64, u64)]) -> Result<(), NodeError> {
    let bytes = serde_json::to_vec(pauses).expect("numbers");
    replace_file(&dir.join(PAUSES_FILE), &bytes)
}

/// What was kept; nothing if it can't be read, which costs a trace some of its worth.
pub(crate) fn load_pauses(dir: &Path) -> Vec<(u64, u64)> {
    let read = read_bounded(&dir.join(PAUSES_FILE), RECORD_BYTES_MAX);
    read.ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// A file's first `bytes_max` bytes: what a larger one holds is cut off there, and its parser refuses it.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What an earlier node kept in a private directory, which is made if there is none: each `NAME.json` by its NAME. Of one
/// that is not understood is told with `lost`, what it is not and what that costs; it stays.
pub(crate) fn load_kept<T>(
    dir: &Path,
    bytes_max: u64,
    parse: impl Fn(&[u8]) -> Result<T, String>,
    lost: &str,
) -> Result<BTreeMap<String, T>, NodeError> {
    make_private_dir(dir)?;
    let mut kept = BTreeMap::new();
    let entries = fs::read_dir(dir).map_err(at(format!("cannot list {}", dir.display())))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let bytes = read_bounded(&path, bytes_max).map_err(|error| error.to_string());
        match bytes.and_then(|bytes| parse(&bytes)) {
            Ok(one) => {
                kept.insert(name.to_owned(), one);
            }
            Err(why) => tracing::error!(path = %path.display(), why, "{lost}"),
        }
    }
    Ok(kept)
}

/// Makes a directory that only this user may look into.
pub fn make_private_dir(dir: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(at(format!("cannot make {}", dir.display())))
}

/// The files of a directory, those that were written first before the others; none if it can't be listed.
pub fn oldest_first(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = files
        .map(|file| (file.metadata().and_then(|m| m.modified()).ok(), file.path()))
        .collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// Replaces a file by one with these bytes, readable by this user only; after a crash it is the old or the new one.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let shown = path.display().to_string();
    write_replacing(path, bytes, true).map_err(at(format!("cannot write {shown}")))
}

/// The same, but after a power cut it may be the old one, the new one or damaged.
fn replace_file_soon(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let shown = path.display().to_string();
    write_replacing(path, bytes, false).map_err(at(format!("cannot write {shown}")))
}

fn write_replacing(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = path.with_extension("tmp");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    if sync {
        file.sync_all()?;
    }
    fs::rename(&temporary, path)?;
    match sync {
        true => File::open(dir)?.sync_all(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            version: RECORD_VERSION,
            name: "web".into(),
            image_name: "debian:12".into(),
            image: Hash::of(b"a"),
            disk_base: Hash::of(b"b"),
            origin: Origin {
                urls: vec!["https://hub".into()],
                token: Some("t".into()),
                ca: None,
                multicast: None,
            },
            config: MachineConfig {
                cpus: Some(2),
                ..Default::default()
            },
            forwards: vec!["8080:80".parse().unwrap()],
            restored: true,
            wanted: Wanted::Running,
            detail: String::new(),
            created_unix_s: 7,
            uid: Some(1),
            place: "machines/web".into(),
            mount_name: "web".into(),
            traced: true,
            buffering: false,
            family: None,
            network: None,
        }
    }

    #[test]
    fn a_record_of_a_node_that_knew_no_traces_is_read() {
        let text = serde_json::to_string(&record()).unwrap();
        assert!(!text.contains("traced") && !text.contains("buffering"));
        let odd = Record {
            traced: false,
            buffering: true,
            ..record()
        };
        let text = serde_json::to_string(&odd).unwrap();
        assert_eq!(Record::parse(text.as_bytes()).unwrap(), odd);
    }

    #[test]
    fn pauses_come_back_and_damaged_ones_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load_pauses(dir.path()), []);
        save_pauses(dir.path(), &[(1, 2), (3, 4)]).unwrap();
        assert_eq!(load_pauses(dir.path()), [(1, 2), (3, 4)]);
        fs::write(dir.path().join(PAUSES_FILE), b"[[1").unwrap();
        assert_eq!(load_pauses(dir.path()), []);
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
        let mode = fs::metadata(dir.path().join(RECORD_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!dir.path().join("machine.tmp").exists());
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_record() {
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        fs::write(dir.path().join("machine.tmp"), b"{\"versi").unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
    }

    #[test]
    fn a_record_of_another_version_or_with_a_strange_name_is_refused_with_the_reason() {
        let text = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(record()).unwrap();
            change(&mut value);
            Record::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert!(text(&|v| v["version"] = 2.into()).contains("version 2"));
        assert!(text(&|v| v["name"] = "../../etc".into()).contains("not allowed"));
        assert!(text(&|v| v["more"] = 1.into()).contains("more"));
        assert!(text(&|v| v["place"] = "../../etc".into()).contains("place"));
        for cut in [0, 1, 20] {
            assert!(Record::parse(&serde_json::to_vec(&record()).unwrap()[..cut]).is_err());
        }
    }

    #[test]
    fn a_manifest_that_is_not_what_its_name_says_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            created_unix_s: 1,
            ..Default::default()
        };
        let id = manifest.id();
        save_manifest(dir.path(), &id, &manifest).unwrap();
        assert_eq!(load_manifest(dir.path(), &id).unwrap(), manifest);
        let other = Manifest {
            created_unix_s: 2,
            ..Default::default()
        };
        fs::write(dir.path().join(format!("{id}.manifest")), other.encode()).unwrap();
        assert!(
            load_manifest(dir.path(), &id)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}
