//! The disk from which cloud-init in a guest reads what it is to set up (its data source NoCloud): a small FAT file system called
//! CIDATA with the files `meta-data`, `user-data` and, if given, `network-config`. No I/O.

use floe_api::SeedRequest;
use floe_ground::error::{NodeError, failed, refused, usage};
use std::io::{Cursor, Write};

/// Most bytes of user data. Clouds allow 16 to 64 KiB; a guest keeps several copies of it.
pub const USER_DATA_BYTES_MAX: usize = 512 << 10;
/// Most bytes of a `meta-data` or `network-config` file.
pub const OTHER_BYTES_MAX: usize = 64 << 10;
/// Most public keys.
pub const SSH_KEYS_MAX: usize = 64;
/// Most bytes of one public key: an RSA key of 16384 bits has 2.8 KB.
const SSH_KEY_BYTES_MAX: usize = 8 << 10;
/// Size of the disk in bytes: room for the largest files, and a multiple of what disks of machines are made of.
pub const SEED_BYTES: u64 = 2 << 20;
/// Sectors of the file system: those of a CD-ROM, as which guests without VirtIO drivers get the disk. Others take any size from
/// their disk's own on.
const SECTOR_BYTES: u16 = 2048;
/// Most bytes of a host name: Linux's own limit.
const HOST_NAME_BYTES_MAX: usize = 64;
/// Most bytes of a part of a host name.
const LABEL_BYTES_MAX: usize = 63;

const LABEL: [u8; 11] = *b"CIDATA     ";
/// What user data is if none is given.
const NO_USER_DATA: &str = "#cloud-config\n{}\n";
/// How user data begins that cloud-init understands.
const USER_DATA_KINDS: [&str; 12] = [
    "#cloud-config",
    "#cloud-boothook",
    "#cloud-config-archive",
    "#cloud-config-jsonp",
    "#include",
    "#include-once",
    "#part-handler",
    "#!",
    "## template: jinja",
    "Content-Type:",
    "MIME-Version:",
    "From ",
];
/// The types of public keys that sshd knows.
const SSH_KEY_TYPES: [&str; 8] = [
    "ssh-ed25519",
    "ssh-rsa",
    "ssh-dss",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];
/// Keys of `meta-data` that floe writes.
const INSTANCE_ID: &str = "instance-id";
const LOCAL_HOSTNAME: &str = "local-hostname";
const PUBLIC_KEYS: &str = "public-keys";

/// What cloud-init is to set up, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    user_data: String,
    meta_data: MetaData,
    network_config: Option<String>,
    ssh_keys: Vec<String>,
    hostname: Option<String>,
}

/// What the user's `meta-data` says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MetaData {
    Json(serde_json::Map<String, serde_json::Value>),
    Yaml(String),
}

impl MetaData {
    fn parse(text: &str) -> Result<MetaData, NodeError> {
        if !text.trim_start().starts_with('{') {
            return Ok(MetaData::Yaml(text.to_owned()));
        }
        serde_json::from_str(text)
            .map(MetaData::Json)
            .map_err(|error| {
                usage(
                    format!("the meta-data begins like JSON and is none: {error}"),
                    "write lines such as `local-hostname: web`",
                )
            })
    }

    /// Whether it has this key. Of YAML only keys at the beginning of a line are: those of the outermost mapping.
    fn has(&self, key: &str) -> bool {
        match self {
            MetaData::Json(map) => map.contains_key(key),
            MetaData::Yaml(text) => text.lines().any(|line| {
                let name = line.split_once(':').map(|(name, _)| name.trim_end());
                name.is_some_and(|name| name.trim_matches(['"', '\'']) == key)
            }),
        }
    }

    /// Adds a key that it does not have.
    fn add(&mut self, key: &str, value: serde_json::Value) {
        if self.has(key) {
            return;
        }
        match self {
            MetaData::Json(map) => {
                map.insert(key.into(), value);
            }
            // JSON is YAML
            MetaData::Yaml(text) => {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                *text += &format!("{key}: {value}\n");
            }
        }
    }

    fn text(&self) -> String {
        match self {
            MetaData::Json(map) => serde_json::Value::Object(map.clone()).to_string(),
            MetaData::Yaml(text) => text.clone(),
        }
    }
}

impl Seed {
    /// Checks what a user wants to be set up.
    pub fn check(request: &SeedRequest) -> Result<Seed, NodeError> {
        let user_data = request.user_data.as_deref().unwrap_or(NO_USER_DATA);
        check_user_data(user_data)?;
        for (what, text) in [
            ("meta-data", &request.meta_data),
            ("network-config", &request.network_config),
        ] {
            check_size(what, text.as_deref().unwrap_or_default(), OTHER_BYTES_MAX)?;
        }
        let meta_data = MetaData::parse(request.meta_data.as_deref().unwrap_or_default())?;
        let twice = |given: bool, key: &str, option: &str| match given && meta_data.has(key) {
            true => Err(usage(
                format!("{option} and the meta-data both say what {key} is"),
                format!("leave {option} away, or {key} out of the meta-data"),
            )),
            false => Ok(()),
        };
        twice(request.hostname.is_some(), LOCAL_HOSTNAME, "--hostname")?;
        twice(!request.ssh_keys.is_empty(), PUBLIC_KEYS, "--ssh-key")?;
        if let Some(name) = &request.hostname {
            check_hostname(name)?;
        }
        if request.ssh_keys.len() > SSH_KEYS_MAX {
            return Err(usage(
                format!("{} public keys", request.ssh_keys.len()),
                format!("give at most {SSH_KEYS_MAX}"),
            ));
        }
        let ssh_keys = request.ssh_keys.iter().map(|text| ssh_key(text));
        Ok(Seed {
            user_data: user_data.to_owned(),
            network_config: request.network_config.clone(),
            ssh_keys: ssh_keys.collect::<Result<_, _>>()?,
            hostname: request.hostname.clone(),
            meta_data,
        })
    }

    /// Returns the disk's bytes. cloud-init sets a guest up once for each `instance`.
    pub fn disk(&self, machine: &str, instance: &str) -> Result<Vec<u8>, NodeError> {
        let mut meta_data = self.meta_data.clone();
        meta_data.add(INSTANCE_ID, instance.into());
        let hostname = self.hostname.clone();
        meta_data.add(
            LOCAL_HOSTNAME,
            hostname.unwrap_or_else(|| hostname_of(machine)).into(),
        );
        if !self.ssh_keys.is_empty() {
            meta_data.add(PUBLIC_KEYS, self.ssh_keys.clone().into());
        }
        let meta_data = meta_data.text();
        let mut files = vec![("meta-data", &meta_data), ("user-data", &self.user_data)];
        files.extend(
            self.network_config
                .iter()
                .map(|text| ("network-config", text)),
        );
        write(&files)
            .map_err(|error| failed(format!("cannot make the seed: {error}"), "report this"))
    }
}

fn write(files: &[(&str, &String)]) -> std::io::Result<Vec<u8>> {
    let mut disk = Cursor::new(vec![0; SEED_BYTES as usize]);
    let options = fatfs::FormatVolumeOptions::new()
        .volume_label(LABEL)
        .bytes_per_sector(SECTOR_BYTES);
    fatfs::format_volume(&mut disk, options)?;
    {
        let volume = fatfs::FileSystem::new(&mut disk, fatfs::FsOptions::new())?;
        for (name, text) in files {
            let mut file = volume.root_dir().create_file(name)?;
            file.write_all(text.as_bytes())?;
            file.flush()?;
        }
        volume.unmount()?;
    }
    Ok(disk.into_inner())
}

fn check_size(what: &str, text: &str, bytes_max: usize) -> Result<(), NodeError> {
    if text.len() > bytes_max {
        return Err(usage(
            format!(
                "the {what} has {} bytes, at most {bytes_max} are possible",
                text.len()
            ),
            "have it fetch what is large: `#include` and a URL, or a command",
        ));
    }
    if text.contains('\0') {
        return Err(usage(format!("the {what} is no text"), "check the file"));
    }
    Ok(())
}

fn check_user_data(text: &str) -> Result<(), NodeError> {
    check_size("user-data", text, USER_DATA_BYTES_MAX)?;
    let first = text.lines().next().unwrap_or_default();
    if USER_DATA_KINDS.iter().any(|kind| first.starts_with(kind)) {
        return Ok(());
    }
    let shown: String = first.chars().take(60).collect();
    Err(refused(
        format!("cloud-init would ignore this user-data: its first line is {shown:?}"),
        "begin it with #cloud-config, or with #! for a script",
    ))
}

/// Checks the text of a file with one public key.
fn ssh_key(text: &str) -> Result<String, NodeError> {
    let text = text.trim();
    if text.contains("PRIVATE KEY") || text.starts_with("PuTTY-User-Key-File") {
        return Err(refused(
            "this is a private SSH key, which must not leave its owner",
            "give the public key beside it: the file whose name ends with .pub",
        ));
    }
    let shown: String = text.chars().take(30).collect();
    let bad = |why: &str| {
        Err(usage(
            format!("{shown:?} is no public SSH key: {why}"),
            "give a file such as ~/.ssh/id_ed25519.pub, one key for each --ssh-key",
        ))
    };
    if text.len() > SSH_KEY_BYTES_MAX {
        return bad("it is too long");
    }
    if text.chars().any(char::is_control) {
        return bad("it has several lines");
    }
    let mut words = text.split(' ');
    let kind = words.next().unwrap_or_default();
    if !SSH_KEY_TYPES.contains(&kind) {
        return bad("it begins with no type such as ssh-ed25519");
    }
    let data = words.next().unwrap_or_default();
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    // the data begins with the length of the type's name, which is less than 256
    if !data.starts_with("AAAA") || !data.len().is_multiple_of(4) || !data.bytes().all(is_base64) {
        return bad("what follows its type is not the key's data");
    }
    Ok(text.to_owned())
}

fn check_hostname(name: &str) -> Result<(), NodeError> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let good = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= HOST_NAME_BYTES_MAX && name.split('.').all(good) {
        return Ok(());
    }
    Err(usage(
        format!("{name:?} is no host name"),
        format!(
            "use letters, digits and - in parts with dots between, at most {HOST_NAME_BYTES_MAX} characters: web, web.example.org"
        ),
    ))
}

/// Returns a host name that is like a machine's name.
fn hostname_of(machine: &str) -> String {
    let name: String = machine
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(LABEL_BYTES_MAX)
        .collect();
    match name.trim_matches('-') {
        "" => "floe".into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::ErrorCode;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEj0gzsWZqRvmBQzIJ4ZT9YVs+7iQdLyMXEO9jTfT6mX me@here";

    fn files(disk: &[u8]) -> BTreeMap<String, String> {
        let volume = fatfs::FileSystem::new(Cursor::new(disk.to_vec()), fatfs::FsOptions::new());
        let volume = volume.unwrap();
        assert_eq!(volume.volume_label(), "CIDATA");
        assert_eq!(
            volume.read_volume_label_from_root_dir().unwrap().as_deref(),
            Some("CIDATA")
        );
        let read = |entry: fatfs::DirEntry<'_, _>| {
            let mut text = String::new();
            entry.to_file().read_to_string(&mut text).unwrap();
            (entry.file_name(), text)
        };
        let entries = volume.root_dir().iter().map(|entry| read(entry.unwrap()));
        entries.collect()
    }

    fn made(request: &SeedRequest) -> BTreeMap<String, String> {
        let disk = Seed::check(request).unwrap().disk("my_web.1", "floe-1");
        let disk = disk.unwrap();
        assert_eq!(disk.len() as u64, SEED_BYTES);
        files(&disk)
    }

    fn refusal(request: SeedRequest) -> (ErrorCode, String) {
        let error = Seed::check(&request).unwrap_err().to_api();
        assert!(!error.fix.is_empty(), "{error}");
        (error.code, error.message)
    }

    #[test]
    fn a_key_and_a_host_name_need_no_user_data() {
        let files = made(&SeedRequest {
            ssh_keys: vec![format!("{KEY}\n")],
            hostname: Some("web.example.org".into()),
            ..Default::default()
        });
        assert_eq!(files.len(), 2);
        assert_eq!(files["user-data"], NO_USER_DATA);
        let expected = format!(
            "instance-id: \"floe-1\"\nlocal-hostname: \"web.example.org\"\npublic-keys: [\"{KEY}\"]\n"
        );
        assert_eq!(files["meta-data"], expected);
    }

    #[test]
    fn what_the_users_meta_data_says_stays_and_the_rest_is_added() {
        let with = |meta_data: &str| SeedRequest {
            meta_data: Some(meta_data.into()),
            network_config: Some("version: 2\n".into()),
            ..Default::default()
        };
        let files = made(&with("instance-id: mine\nplace:\n  local-hostname: inner"));
        assert_eq!(
            files["meta-data"],
            "instance-id: mine\nplace:\n  local-hostname: inner\nlocal-hostname: \"my-web-1\"\n"
        );
        assert_eq!(files["network-config"], "version: 2\n");
        let files = made(&with(r#"{"local-hostname": "db"}"#));
        let map: serde_json::Value = serde_json::from_str(&files["meta-data"]).unwrap();
        assert_eq!(
            (&map["local-hostname"], &map["instance-id"]),
            (&"db".into(), &"floe-1".into())
        );
        let twice = SeedRequest {
            hostname: Some("web".into()),
            ..with("local-hostname: db\n")
        };
        assert!(refusal(twice).1.contains("--hostname"));
        assert_eq!(refusal(with("{")).0, ErrorCode::Usage);
    }

    #[test]
    fn what_cloud_init_would_not_take_is_refused_with_words() {
        let data = |text: String| SeedRequest {
            user_data: Some(text),
            ..Default::default()
        };
        let (code, message) = refusal(data("packages: [vim]\n".into()));
        assert_eq!(code, ErrorCode::Refused);
        assert!(message.contains("packages: [vim]"), "{message}");
        let (_, message) = refusal(data(format!(
            "#!/bin/sh\n{}",
            "x".repeat(USER_DATA_BYTES_MAX)
        )));
        assert!(
            message.contains(&USER_DATA_BYTES_MAX.to_string()),
            "{message}"
        );
        refusal(data(String::new()));
        let key = |text: &str| SeedRequest {
            ssh_keys: vec![text.into()],
            ..Default::default()
        };
        let (code, message) = refusal(key("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1\n"));
        assert_eq!(code, ErrorCode::Refused);
        assert!(
            message.contains("private") && !message.contains("b3Blb"),
            "{message}"
        );
        refusal(key("PuTTY-User-Key-File-3: ssh-ed25519"));
        for bad in [
            "",
            "hello",
            "ssh-ed25519",
            "ssh-ed25519 AAAA!",
            &format!("{KEY}\n{KEY}"),
        ] {
            assert_eq!(refusal(key(bad)).0, ErrorCode::Usage, "{bad}");
        }
        for bad in [
            "",
            "-web",
            "web-",
            "a..b",
            "a b",
            "ä",
            "web\n",
            &"x".repeat(64),
            &"x.".repeat(33),
        ] {
            let hostname = Some(bad.to_owned());
            let request = SeedRequest {
                hostname,
                ..Default::default()
            };
            assert_eq!(refusal(request).0, ErrorCode::Usage, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn every_seed_that_is_accepted_holds_exactly_what_was_given(
            text in "#cloud-config\n(\\PC|\n){0,3000}", network in "(\\PC|\n){0,300}",
            machine in "[a-z0-9][a-z0-9._-]{0,62}",
        ) {
            let request = SeedRequest {
                user_data: Some(text.clone()),
                network_config: Some(network.clone()),
                ..Default::default()
            };
            let seed = Seed::check(&request).unwrap();
            let files = files(&seed.disk(&machine, "i").unwrap());
            prop_assert_eq!(&files["user-data"], &text);
            prop_assert_eq!(&files["network-config"], &network);
            check_hostname(&hostname_of(&machine)).unwrap();
        }

        #[test]
        fn no_request_makes_it_panic(user in ".{0,80}", meta in ".{0,80}", key in ".{0,80}", name in ".{0,80}") {
            let request = SeedRequest {
                user_data: Some(user),
                meta_data: Some(meta),
                ssh_keys: vec![key],
                hostname: Some(name),
                network_config: None,
            };
            if let Ok(seed) = Seed::check(&request) {
                seed.disk("web", "i").unwrap();
            }
        }
    }

    #[test]
    fn the_largest_seed_fits() {
        let files = made(&SeedRequest {
            user_data: Some(format!("#!{}", "x".repeat(USER_DATA_BYTES_MAX - 2))),
            meta_data: Some(format!("# {}", "x".repeat(OTHER_BYTES_MAX - 2))),
            network_config: Some("x".repeat(OTHER_BYTES_MAX)),
            ssh_keys: vec![
                format!("{KEY}{}", "x".repeat(SSH_KEY_BYTES_MAX - KEY.len()));
                SSH_KEYS_MAX
            ],
            hostname: None,
        });
        assert_eq!(files["user-data"].len(), USER_DATA_BYTES_MAX);
    }
}
