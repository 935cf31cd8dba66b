//! Keys with which a machine shows SSH clients who it is: each is replaced by a new one of the same kind. A new key is complete before it
//! takes the place of the old one, so that a machine that is cut off meanwhile has one, and is asked again.

use super::{Forgotten, entries, is_file, leads_to_file, remove, said, text};
use crate::files::if_there;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server of SSH.
struct Server {
    /// Where its keys are, and how their names begin and end.
    dir: &'static str,
    begin: &'static str,
    end: &'static str,
    /// The program that makes keys.
    makes: [&'static str; 2],
    /// Its arguments but for `-t KIND -f FILE`.
    arguments: &'static [&'static str],
}

const SERVERS: [Server; 2] = [
    Server {
        dir: "etc/ssh",
        begin: "ssh_host_",
        end: "_key",
        makes: ["usr/bin/ssh-keygen", "usr/local/bin/ssh-keygen"],
        arguments: &["-q", "-N", ""],
    },
    Server {
        dir: "etc/dropbear",
        begin: "dropbear_",
        end: "_host_key",
        makes: ["usr/bin/dropbearkey", "usr/local/bin/dropbearkey"],
        arguments: &[],
    },
];
/// Configuration of OpenSSH's server, which may name further keys.
const SSHD: [&str; 2] = ["etc/ssh/sshd_config", "etc/ssh/sshd_config.d"];
/// Largest file of that, and of a public key, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Kinds of keys that newer versions of the servers no longer know: such a key is removed.
const FORMER_KINDS: [&str; 2] = ["dsa", "dss"];

/// Replaces all keys of servers. Where the program that makes keys is missing, no server is installed that needs them: they are removed.
pub(super) fn renew(root: &Path, done: &mut Forgotten) -> Result<(), String> {
    for server in &SERVERS {
        let mut makes = None;
        for place in server.makes.map(|place| root.join(place)) {
            if makes.is_none() && place.try_exists().map_err(said(&place))? {
                makes = Some(place);
            }
        }
        for (key, kind) in keys(root, server)? {
            match &makes {
                Some(makes) => replace_key(server, makes, &key, &kind, done)?,
                None => remove(&key, done)?,
            }
            // signed for the old key
            for rest in [beside(&key, "-cert.pub"), beside(&key, ".pub")] {
                if makes.is_none() || rest.ends_with("-cert.pub") {
                    remove_if_there(&rest, done)?;
                }
            }
        }
        // halves without the other half, and certificates of such
        for left in entries(&root.join(server.dir))? {
            let name = text(left.file_name().unwrap_or_default());
            let private = name.strip_suffix(".pub");
            let private = private.map(|name| name.strip_suffix("-cert").unwrap_or(name));
            let is_key = |name: &&str| kind_of(name, server).is_some();
            if let Some(other) = private.filter(is_key).map(|name| left.with_file_name(name))
                && !other.try_exists().map_err(said(&other))?
            {
                remove_if_there(&left, done)?;
            }
        }
    }
    Ok(())
}

/// Returns a server's private keys with their kinds, in order.
fn keys(root: &Path, server: &Server) -> Result<Vec<(PathBuf, String)>, String> {
    let mut keys = Vec::new();
    for key in entries(&root.join(server.dir))? {
        let name = text(key.file_name().unwrap_or_default());
        // also if it is a link: the new key takes its place
        if let Some(kind) = kind_of(&name, server)
            && leads_to_file(&key)?
        {
            keys.push((key.clone(), kind.to_owned()));
        }
    }
    if server.dir == "etc/ssh" {
        for key in configured(root)? {
            if leads_to_file(&key)? && !keys.iter().any(|(known, _)| *known == key) {
                let kind = kind_by_public_half(&key)?;
                keys.push((key, kind));
            }
        }
    }
    Ok(keys)
}

fn kind_of<'a>(name: &'a str, server: &Server) -> Option<&'a str> {
    let kind = name.strip_prefix(server.begin)?.strip_suffix(server.end)?;
    let plain = kind.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain && !kind.is_empty()).then_some(kind)
}

/// Returns the files that OpenSSH's configuration names as keys.
fn configured(root: &Path) -> Result<Vec<PathBuf>, String> {
    let [main, more] = SSHD.map(|place| root.join(place));
    let mut keys = Vec::new();
    for file in entries(&more)?.into_iter().chain([main]) {
        let known = if_there(&file, fs::metadata(&file))?;
        if !known.is_some_and(|known| known.is_file() && known.len() <= BYTES_MAX) {
            continue;
        }
        let bytes = fs::read(&file).map_err(said(&file))?;
        for line in String::from_utf8_lossy(&bytes).lines() {
            let mut words = line
                .split([' ', '\t', '=', '"'])
                .filter(|word| !word.is_empty());
            let is_key = words
                .next()
                .is_some_and(|word| word.eq_ignore_ascii_case("HostKey"));
            if let Some(path) = words.next().filter(|_| is_key) {
                keys.push(root.join(path.trim_start_matches('/')));
            }
        }
    }
    Ok(keys)
}

/// Returns the kind of a key whose name does not tell it.
fn kind_by_public_half(key: &Path) -> Result<String, String> {
    let public = beside(key, ".pub");
    let known = if_there(&public, fs::metadata(&public))?;
    let known = known.is_some_and(|known| known.len() <= BYTES_MAX);
    let words = known.then(|| fs::read(&public)).transpose();
    let words = words.map_err(said(&public))?.unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let word = words.split_whitespace().next().unwrap_or_default();
    let kinds = [
        ("ssh-ed25519", "ed25519"),
        ("ssh-rsa", "rsa"),
        ("ecdsa-sha2-", "ecdsa"),
        ("ssh-dss", "dsa"),
    ];
    let kind = kinds.iter().find(|(begin, _)| word.starts_with(begin));
    kind.map(|(_, kind)| (*kind).to_owned()).ok_or_else(|| {
        format!(
            "the SSH server's key {key} can't be replaced: {public} does not tell its kind; write its public half there in the machine \
             that is docked (ssh-keygen -y -f {key}), and dock it again",
            key = key.display(),
            public = public.display()
        )
    })
}

fn replace_key(
    server: &Server,
    makes: &Path,
    key: &Path,
    kind: &str,
    done: &mut Forgotten,
) -> Result<(), String> {
    let new = beside(key, ".floe");
    let halves = [new.clone(), beside(&new, ".pub")];
    // of a call that was cut off
    for half in &halves {
        match fs::remove_file(half) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(said(half)(error));
            }
            _ => {}
        }
    }
    let made = Command::new(makes)
        .args(server.arguments)
        .args(["-t", kind, "-f"])
        .arg(&new)
        .stdin(Stdio::null())
        .output()
        .map_err(said(makes))?;
    if !made.status.success() {
        if FORMER_KINDS.contains(&kind) {
            remove(key, done)?;
            return remove_if_there(&beside(key, ".pub"), done);
        }
        let (makes, why) = (makes.display(), String::from_utf8_lossy(&made.stderr));
        return Err(format!("{makes} -t {kind}: {}", why.trim()));
    }
    let places = [key.to_owned(), beside(key, ".pub")];
    for (half, place) in halves.iter().zip(places) {
        if half.try_exists().map_err(said(half))? {
            fs::rename(half, &place).map_err(said(&place))?;
            done.add(&place);
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path, done: &mut Forgotten) -> Result<(), String> {
    match is_file(path)? {
        true => remove(path, done),
        false => Ok(()),
    }
}

/// Returns a path with something behind its name.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}
