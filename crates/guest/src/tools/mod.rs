//! What the agent's program does when a node asks for it instead of a command of the guest: it reads and writes files, connects to
//! a port, and lets a key in. Each is a process of its own, so that a slow disk delays nobody else.

use crate::copy::{self, Form, Place};
use crate::files::replace;
use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How much of its input `receive` takes at a time, in bytes: the agent hands over as much at once.
const INPUT_BYTES: usize = 128 << 10;
/// Largest file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// The names of the tools.
pub const NAMES: [&str; 4] = ["send", "receive", "dial", "authorize"];

/// Runs a tool with its arguments; its streams are standard input and output.
pub fn run(name: &str, arguments: &[String]) -> Result<(), String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match (name, &arguments[..]) {
        ("send", [form, path]) => send(form_of(form)?, Path::new(path)),
        ("receive", [form, target, name]) => receive(form_of(form)?, Path::new(target), name),
        ("dial", [port]) => dial(port.parse().map_err(|_| format!("{port:?} is no port"))?),
        ("authorize", [key]) => authorize(key),
        _ => {
            return Err(format!(
                "{name} is called by the node, with other arguments"
            ));
        }
    };
    done.map_err(|error| error.to_string())
}

fn form_of(word: &str) -> Result<Form, String> {
    match word {
        "archive" => Ok(Form::Archive),
        "sparse" => Ok(Form::Sparse),
        "bytes" => Ok(Form::Bytes),
        other => Err(format!(
            "{other:?} {}; is the node newer?",
            copy::UNKNOWN_FORM
        )),
    }
}

fn send(form: Form, path: &Path) -> io::Result<()> {
    let skipped = &mut |path: &Path| {
        eprintln!(
            "{} is no file, directory or symbolic link, and is left out",
            path.display()
        );
    };
    // not the standard library's output, which looks for lines and cuts what is written at them
    let out = fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    copy::send(path, form, out, skipped, &mut |_, _| ())
}

fn receive(form: Form, target: &Path, name: &str) -> io::Result<()> {
    let place = Place {
        target,
        name,
        // root of the host is root of the guest
        special_bits: true,
    };
    let input = fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let input = BufReader::with_capacity(INPUT_BYTES, input);
    copy::receive(input, form, &place, &mut |_, _| ()).map(drop)
}

/// Connects input and output to a port of this machine until both are over.
fn dial(port: u16) -> io::Result<()> {
    let connect = |address: SocketAddr| TcpStream::connect(address);
    let stream = connect((Ipv4Addr::LOCALHOST, port).into())
        .or_else(|error| connect((Ipv6Addr::LOCALHOST, port).into()).map_err(|_| error))
        .map_err(|error| io::Error::new(error.kind(), format!("port {port}: {error}")))?;
    stream.set_nodelay(true)?;
    let mut up = stream.try_clone()?;
    std::thread::spawn(move || {
        let _ = carry(&mut io::stdin().lock(), &mut up);
        let _ = up.shutdown(Shutdown::Write);
    });
    let mut down = stream;
    carry(&mut down, &mut io::stdout().lock())
}

fn carry(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                to.flush()?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Adds a public key to those with which this user may log in over SSH, unless it is there.
fn authorize(key: &str) -> io::Result<()> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.ok_or_else(|| io::Error::other("the user has no home directory"))?;
    authorize_in(&home.join(".ssh"), key)
}

fn authorize_in(dir: &Path, key: &str) -> io::Result<()> {
    if key.is_empty() || key.contains(['\n', '\r']) {
        return Err(io::Error::other("a key is one line"));
    }
    if !dir.try_exists()? {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    let path = dir.join("authorized_keys");
    let mut keys = match fs::metadata(&path) {
        Ok(found) if found.len() > KEYS_BYTES_MAX => {
            return Err(io::Error::other(format!("{} is too large", path.display())));
        }
        Ok(_) => fs::read_to_string(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    if keys.lines().any(|line| line == key) {
        return Ok(());
    }
    if !keys.is_empty() && !keys.ends_with('\n') {
        keys.push('\n');
    }
    keys += key;
    keys.push('\n');
    replace(&path, keys.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_added_once_and_others_stay() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join(".ssh");
        authorize_in(&dir, "ssh-ed25519 AAAA floe").unwrap();
        fs::write(dir.join("authorized_keys"), "ssh-rsa BBBB old").unwrap();
        for _ in 0..2 {
            authorize_in(&dir, "ssh-ed25519 AAAA floe").unwrap();
        }
        let path = dir.join("authorized_keys");
        let keys = fs::read_to_string(&path).unwrap();
        assert_eq!(keys, "ssh-rsa BBBB old\nssh-ed25519 AAAA floe\n");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        assert!(authorize_in(&dir, "two\nlines").is_err());
    }
}
