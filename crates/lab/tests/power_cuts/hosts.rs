//! A node and a hub as processes, with all of their state in one directory.
use floe_api::client::Client;
use floe_torture::hammer::world;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process of floe-lab that serves until its input ends.
struct Served(Child);

impl Served {
    /// Starts the process with its own log. Returns the rest of the line in which it reports that it is ready.
    fn start(arguments: &[&std::ffi::OsStr], log: &Path) -> Result<(Served, String), String> {
        let _ = std::fs::remove_file(log);
        let log_file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
            .args(arguments)
            .env("RUST_LOG", "info")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let served = Served(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        match line.trim().strip_prefix("ready") {
            Some(rest) => Ok((served, rest.trim().to_owned())),
            None => Err(format!(
                "it did not start:\n{}",
                std::fs::read_to_string(log).unwrap_or_default()
            )),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A node and a hub that run until this is dropped.
pub struct Hosts {
    pub home: PathBuf,
    pub hub_url: String,
    pub token: String,
    node: Option<Served>,
    hub: Option<Served>,
}

impl Hosts {
    /// Starts both with their state in `dir`. The error says which did not start, and why.
    pub fn start(dir: &Path, logs: &Path) -> Result<Hosts, String> {
        use std::os::unix::fs::PermissionsExt;
        let (home, hub_dir) = (dir.join("node"), dir.join("hub"));
        for dir in [dir, &home, &hub_dir] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)).unwrap();
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap().to_string();
        drop(free);
        let arguments = ["serve-hub".as_ref(), hub_dir.as_os_str(), listen.as_ref()];
        let (hub, token) = Served::start(&arguments, &logs.join("hub.log"))
            .map_err(|why| format!("hub: {why}"))?;
        let arguments = ["serve-node".as_ref(), home.as_os_str()];
        let (node, _) = Served::start(&arguments, &logs.join("node.log"))
            .map_err(|why| format!("node: {why}"))?;
        Ok(Hosts {
            home,
            hub_url: format!("http://{listen}"),
            token,
            node: Some(node),
            hub: Some(hub),
        })
    }

    pub fn client(&self) -> Client {
        Client::connect(self.home.join("node.sock")).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Ok(client) = Client::connect(self.home.join("node.sock")) {
            let machines = client.machines().map(|list| list.machines);
            for machine in machines.unwrap_or_default() {
                let _ = client.remove_machine(&machine.name, true);
            }
        }
        drop(self.node.take());
        drop(self.hub.take());
    }
}

/// Ends what still runs with its state in a directory (a node that did not start leaves its supervisor), and unmounts what is
/// mounted below, so that the disk can be unmounted.
pub fn end_leftovers(dir: &Path) {
    for (pid, _) in world::processes_with(dir) {
        world::kill(pid);
    }
    let until = Instant::now() + Duration::from_secs(20);
    while !world::processes_with(dir).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    for mount in world::mounts_under(dir) {
        if mount == dir {
            continue;
        }
        let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Returns what keeps the file system at a directory in use: descriptors and directories of processes, and mounts.
pub fn users_of(dir: &Path) -> Vec<String> {
    let mut users: Vec<String> = world::mounts_under(dir)
        .into_iter()
        .map(|mount| format!("mount at {}", mount.display()))
        .collect();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = process.path();
        let files = std::fs::read_dir(process.join("fd"));
        let files = files.into_iter().flatten().flatten();
        let all = ["cwd", "root", "exe"].map(|name| process.join(name));
        for link in files.map(|file| file.path()).chain(all) {
            if let Ok(path) = std::fs::read_link(&link)
                && path.starts_with(dir)
            {
                users.push(format!("{} -> {}", link.display(), path.display()));
            }
        }
    }
    users
}
