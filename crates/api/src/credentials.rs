//! Tokens of hubs, each for one hub only.
//!
//! A token gives access to everything that its user has on a hub, so no other server may get it, whatever address a command
//! names. Every token is bound to a [`HubAddress`]: scheme, host and port. [`Credentials`] is a user's file of tokens
//! (`floe login`); [`OwnHub`] is the node's record of the hub in its own process (`floe up`). A redirect to another server is followed
//! without the token, so none can carry it away.

use floe_http::{Host, Url};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Tokens, each for one hub.
pub type Tokens = BTreeMap<HubAddress, String>;

/// Paths of PEM files with certificate authorities, each for one hub or web server.
pub type Authorities = BTreeMap<HubAddress, String>;

/// Format version of the credentials file.
const VERSION: u32 = 1;
/// Largest credentials file that is read, in bytes: enough for thousands of hubs.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest token that is kept, in characters; a hub's tokens have 69.
pub const TOKEN_CHARACTERS_MAX: usize = 256;

/// Scheme, host and port of a hub or web server, such as `https://hub.example:443`. A token and a certificate authority are each
/// valid for one such address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HubAddress(String);

impl HubAddress {
    /// Returns the hub of an image's or hub's address; `None` if the address is not on a hub: a name, a path, `s3://`.
    pub fn of(address: &str) -> Option<HubAddress> {
        // parsed by the same parser as the address of the connection, so that both mean the same host
        let url = floe_http::web(&Url::parse(address).ok()?)?;
        let host = url.host_str()?.trim_end_matches('.');
        let port = url.port_or_known_default()?;
        Some(HubAddress(format!("{}://{host}:{port}", url.scheme())))
    }

    /// Returns whether data sent there stays on this host or is encrypted.
    pub fn is_safe(&self) -> bool {
        let Ok(url) = Url::parse(&self.0) else {
            return false;
        };
        match url.host() {
            _ if url.scheme() == "https" => true,
            // `localhost` is this host by RFC 6761
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        }
    }

    /// Returns the address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HubAddress {
    type Error = String;
    fn try_from(text: String) -> Result<HubAddress, String> {
        HubAddress::of(&text)
            .filter(|hub| hub.0 == text)
            .ok_or_else(|| format!("{text:?} is no hub's scheme, host and port"))
    }
}

impl From<HubAddress> for String {
    fn from(hub: HubAddress) -> String {
        hub.0
    }
}

/// Checks that a token fits into a header line of a request; otherwise returns what is wrong with it.
pub fn check_token(token: &str) -> Result<(), String> {
    match token {
        "" => Err("the token is empty".into()),
        long if long.len() > TOKEN_CHARACTERS_MAX => Err(format!(
            "the token has {} characters, the longest have {TOKEN_CHARACTERS_MAX}",
            long.len()
        )),
        text if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("the token has a space or a character that no token has".into())
        }
        _ => Ok(()),
    }
}

/// A token in a user's [`Credentials`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The token.
    pub token: String,
    /// Whether the user has allowed sending it over a network without encryption.
    #[serde(default)]
    pub insecure: bool,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

/// A user's tokens, by hub.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    version: u32,
    hubs: BTreeMap<HubAddress, Kept>,
}

impl Credentials {
    /// Returns the file's path: `floe/credentials.json` in `$XDG_CONFIG_HOME` or `~/.config`; `None` if neither
    /// directory is known.
    pub fn file() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
        Some(config.join("floe/credentials.json"))
    }

    /// Reads the file. A missing file yields no tokens.
    pub fn load(file: &Path) -> io::Result<Credentials> {
        let bytes = match read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Credentials::default());
            }
            bytes => bytes?,
        };
        let found: Credentials = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
        match found.version {
            VERSION => Ok(found),
            other => Err(io::Error::other(format!(
                "it is of version {other}, this floe knows {VERSION}"
            ))),
        }
    }

    /// Writes the file atomically, readable by this user only.
    pub fn save(&mut self, file: &Path) -> io::Result<()> {
        self.version = VERSION;
        if let Some(dir) = file.parent() {
            floe_store::private::make_dirs(dir)?;
        }
        replace(file, &serde_json::to_vec_pretty(self)?)
    }

    /// Returns the token for a hub.
    pub fn get(&self, hub: &HubAddress) -> Option<&Kept> {
        self.hubs.get(hub)
    }

    /// Stores a token for a hub in place of an earlier one.
    pub fn put(&mut self, hub: HubAddress, kept: Kept) {
        self.hubs.insert(hub, kept);
    }

    /// Removes a hub's token. Returns whether there was one.
    pub fn remove(&mut self, hub: &HubAddress) -> bool {
        self.hubs.remove(hub).is_some()
    }

    /// Returns the hubs that have tokens, with those.
    pub fn hubs(&self) -> impl Iterator<Item = (&HubAddress, &Kept)> {
        self.hubs.iter()
    }
}

/// The hub of `floe up` and the token of its user.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnHub {
    /// The hub's address, now or at its last start.
    pub hub: HubAddress,
    /// The token, which is valid only there.
    pub token: String,
}

impl fmt::Debug for OwnHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnHub")
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

impl OwnHub {
    /// Reads the file. Returns `None` if it is missing or damaged; a new token is made then.
    pub fn load(file: &Path) -> Option<OwnHub> {
        serde_json::from_slice(&read(file).ok()?).ok()
    }

    /// Writes the file atomically, readable by this user only.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        replace(file, &serde_json::to_vec(self)?)
    }

    /// Returns the hub's token if `address` is on this hub.
    pub fn token_for(&self, address: &str) -> Option<&str> {
        (HubAddress::of(address)? == self.hub).then_some(&*self.token)
    }

    /// Returns the address that logs a browser in.
    pub fn login_url(&self) -> String {
        format!("{}/login?token={}", self.hub, self.token)
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // tempfile makes it readable by this user only
    let mut new = tempfile::Builder::new().prefix(".floe-").tempfile_in(dir)?;
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    new.persist(file).map_err(|error| error.error)?;
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Option<String> {
        HubAddress::of(address).map(String::from)
    }

    #[test]
    fn an_address_is_scheme_host_and_port_however_the_address_is_written() {
        for (address, origin) in [
            ("https://hub.example", "https://hub.example:443"),
            (
                "https://HUB.example./team/web:v2",
                "https://hub.example:443",
            ),
            ("floe://hub.example:4500/x#abc", "https://hub.example:4500"),
            ("floe+http://hub", "http://hub:80"),
            ("http://[::1]:4500/x", "http://[::1]:4500"),
            // the text before an @ is a user name, even if it looks like a hub
            (
                "https://hub.example@evil.example/x",
                "https://evil.example:443",
            ),
            (
                "https://hub.example:443@evil.example:1/x",
                "https://evil.example:1",
            ),
        ] {
            assert_eq!(of(address).as_deref(), Some(origin), "{address}");
            assert_eq!(of(origin).as_deref(), Some(origin), "it is its own");
        }
        for none in [
            "debian:12",
            "/srv/images",
            "s3://bucket/x",
            "file:///x",
            "https://",
            "://x",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn only_loopback_is_safe_without_encryption() {
        for (address, safe) in [
            ("https://hub.example", true),
            ("http://127.0.0.1:4500", true),
            ("http://[::1]:4500", true),
            ("http://localhost:4500", true),
            ("http://hub.example", false),
            ("http://10.0.2.2:4500", false),
            ("http://127.0.0.1.evil.example", false),
            ("http://localhost.evil.example", false),
        ] {
            assert_eq!(
                HubAddress::of(address).unwrap().is_safe(),
                safe,
                "{address}"
            );
        }
    }

    #[test]
    fn credentials_are_kept_for_one_hub_each_and_for_nobody_else_to_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config/floe/credentials.json");
        let mut credentials = Credentials::load(&file).unwrap();
        let (hub, other) = (
            HubAddress::of("https://hub").unwrap(),
            HubAddress::of("http://hub").unwrap(),
        );
        let kept = Kept {
            token: "floe_t".into(),
            insecure: false,
        };
        credentials.put(hub.clone(), kept.clone());
        credentials.save(&file).unwrap();
        let again = Credentials::load(&file).unwrap();
        assert_eq!((again.get(&hub), again.get(&other)), (Some(&kept), None));
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&file, b"{").unwrap();
        assert!(
            Credentials::load(&file).is_err(),
            "damage is told, not overwritten"
        );
        assert!(!format!("{credentials:?}").contains("floe_t"));
    }

    #[test]
    fn a_token_that_can_not_be_one_is_told() {
        for bad in ["", " ", "a b", "a\nb", &"x".repeat(300)] {
            assert!(check_token(bad).is_err(), "{bad:?}");
        }
        assert!(check_token("floe_0123").is_ok());
    }
}
