//! A node of its own for a test: a state directory, a process that can be killed, and a client.

use floe_api::client::{Client, ClientError, Events};
use floe_api::{ClusterInit, ClusterJoin, Event, ImportRequest, Outcome, RunRequest, Wait};
use floe_machine::qmp::Qmp;
pub use rustix::process::Signal;
use std::{
    fs,
    io::Read,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Long enough for the slowest thing that a test waits for: a guest that boots without KVM on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A file of a test guest.
pub fn guest(file: &str) -> String {
    let dir = std::env::var_os("FLOE_GUESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/guests"),
        PathBuf::from,
    );
    let path = dir.join(file);
    assert!(
        path.exists(),
        "{} is missing: make guest-tiny guest-mpi guest-stock",
        path.display()
    );
    path.display().to_string()
}

/// What a node of a test is like.
#[derive(Default)]
pub struct Setup {
    /// Where its page is, if it has one.
    pub web: Option<String>,
    /// Where it answers the members of its cluster once it is in one.
    pub member: Option<String>,
    /// Whether it has a hub in its process, as `floe up` has.
    pub hub: bool,
    /// What else is in its environment.
    pub env: Vec<(String, String)>,
    /// More arguments.
    pub args: Vec<String>,
    /// The network namespace that it runs in, if not ours.
    pub namespace: Option<String>,
    /// Whether its log takes nothing, as one on a full disk.
    pub log_is_full: bool,
    /// Size of the disk that its state directory is on, if that is one of its own.
    pub disk_bytes: Option<u64>,
    /// Whether its state directory's path is longer than what a socket's address has room for.
    pub deep: bool,
}

impl Setup {
    #[allow(
        dead_code,
        reason = "not every file of tests has nodes that speak with each other"
    )]
    /// A node that can be put into a [`cluster`].
    pub fn on_the_network() -> Setup {
        Setup {
            member: Some(free_address()),
            ..Default::default()
        }
    }
}

/// A node process with a state directory that goes away with it.
pub struct TestNode {
    dir: Option<tempfile::TempDir>,
    /// What it logs; not in its directory, whose disk some tests fill.
    log: tempfile::NamedTempFile,
    process: Option<Child>,
    setup: Setup,
}

/// Token of the pages of tests' nodes.
pub const WEB_TOKEN: &str = "0123456789abcdef";

/// An address of this host that nobody listens on.
pub fn free_address() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().to_string()
}

#[allow(
    dead_code,
    reason = "not every file of tests has nodes that speak with each other"
)]
/// Puts nodes into one cluster, as node-0, node-1 ...; the first one is its authority.
pub fn cluster(nodes: &[&TestNode]) {
    for (n, node) in nodes.iter().enumerate() {
        let (name, listen) = (Some(format!("node-{n}")), node.member_address());
        if n == 0 {
            let request = ClusterInit {
                name,
                listen,
                ..Default::default()
            };
            node.client().cluster_init(&request).unwrap();
            continue;
        }
        let invited = nodes[0].client().cluster_invite(&Default::default());
        let invited = invited.unwrap();
        let request = ClusterJoin {
            url: invited.url,
            invitation: invited.invitation,
            name,
            listen,
        };
        let joined = node.client().cluster_join(&request);
        joined.unwrap_or_else(|error| panic!("{error}\n{}\n{}", node.log(), nodes[0].log()));
    }
}

impl TestNode {
    #[allow(
        dead_code,
        reason = "not every file of tests has a node without a page"
    )]
    /// Starts a node in a directory of its own.
    pub fn start() -> TestNode {
        TestNode::with(Setup::default())
    }

    #[allow(
        dead_code,
        reason = "not every file of tests has nodes that speak with each other"
    )]
    /// The same of one that can be put into a [`cluster`].
    pub fn on_the_network() -> TestNode {
        TestNode::with(Setup::on_the_network())
    }

    /// Starts a node that is like this.
    pub fn with(setup: Setup) -> TestNode {
        use std::os::unix::fs::PermissionsExt;
        let deep = if setup.deep { 120 } else { 0 };
        let dir = tempfile::Builder::new()
            .prefix(&format!("floe-node-{}", "d".repeat(deep)))
            .tempdir()
            .unwrap();
        if let Some(bytes) = setup.disk_bytes {
            let flags = rustix::mount::MountFlags::empty();
            let size = std::ffi::CString::new(format!("size={bytes}")).unwrap();
            rustix::mount::mount("floe-test", dir.path(), "tmpfs", flags, size.as_c_str()).unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let mut node = TestNode {
            dir: Some(dir),
            log: tempfile::NamedTempFile::new().unwrap(),
            process: None,
            setup,
        };
        node.start_again();
        node
    }

    #[allow(dead_code, reason = "as above")]
    /// A node in a network namespace, with a page at an address there, that can be put into a [`cluster`]. We speak with it through
    /// its socket.
    pub fn in_namespace(namespace: &str, web: &str) -> TestNode {
        let (host, _) = web.rsplit_once(':').unwrap();
        TestNode::with(Setup {
            web: Some(web.into()),
            member: Some(format!("{host}:7071")),
            namespace: Some(namespace.into()),
            ..Default::default()
        })
    }

    #[allow(dead_code, reason = "as above")]
    /// Its address in its cluster.
    pub fn url(&self) -> String {
        format!("https://{}", self.setup.member.as_deref().unwrap())
    }

    #[allow(dead_code, reason = "as above")]
    /// The address of its page.
    pub fn page_url(&self) -> String {
        format!("http://{}", self.setup.web.as_deref().unwrap())
    }

    #[allow(dead_code, reason = "as above")]
    /// Where it answers the members of its cluster.
    pub fn member_address(&self) -> Option<std::net::SocketAddr> {
        self.setup.member.as_ref().map(|at| at.parse().unwrap())
    }

    /// The state directory.
    pub fn home(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// Starts the process, and waits until it answers.
    pub fn start_again(&mut self) {
        self.process = Some(self.spawn());
        let until = Instant::now() + PATIENCE;
        while self.try_client().is_err() {
            if let Some(status) = self.process.as_mut().unwrap().try_wait().unwrap() {
                panic!("the node ended at once: {status}\n{}", self.log());
            }
            assert!(
                Instant::now() < until,
                "the node does not answer\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[allow(dead_code, reason = "not every file of tests has nodes that change")]
    /// The same with other arguments.
    pub fn start_as(&mut self, args: &[&str]) {
        self.setup.args = args.iter().map(ToString::to_string).collect();
        self.start_again();
    }

    #[allow(dead_code, reason = "not every file of tests has a start that fails")]
    /// Starts a process that is to end at once because of an error.
    pub fn fails_to_start(&self) {
        let mut process = self.spawn();
        let mut status = None;
        eventually("the node ends", || {
            status = process.try_wait().unwrap();
            status.is_some()
        });
        assert!(!status.unwrap().success(), "{}", self.log());
    }

    fn spawn(&self) -> Child {
        let log = match self.setup.log_is_full {
            true => Path::new("/dev/full"),
            false => self.log.path(),
        };
        let log = fs::File::options().append(true).open(log).unwrap();
        let program = env!("CARGO_BIN_EXE_floe");
        let mut command = match &self.setup.namespace {
            None => Command::new(program),
            Some(name) => {
                // it becomes the node: the process that we hold is that
                let mut command = Command::new("nsenter");
                command.args([&format!("--net=/run/netns/{name}"), program]);
                command
            }
        };
        command
            .args(match self.setup.hub {
                false => &["node"][..],
                true => &["up", "--listen", "127.0.0.1:0"],
            })
            .args(self.setup.web.iter().flat_map(|web| ["--web", web]))
            .args(&self.setup.args)
            .env("FLOE_WEB_TOKEN", WEB_TOKEN)
            .env("FLOE_HOME", self.home())
            .env_remove("FLOE_SOCKET")
            .env("FLOE_LOG", "info")
            .envs(self.setup.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    #[allow(dead_code, reason = "as above")]
    /// Bounds the memory that its process can have from now on: its heap and all else that is writable and its own (RLIMIT_DATA).
    pub fn limit_memory(&self, bytes: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_child(self.process.as_ref().unwrap());
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        prlimit(Some(pid), Resource::Data, limit).unwrap();
    }

    #[allow(dead_code, reason = "as above")]
    /// Bounds how many more descriptors its process can have from now on.
    pub fn limit_descriptors(&self, more: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_child(self.process.as_ref().unwrap());
        let limit = Rlimit {
            current: Some(self.descriptors() + more),
            maximum: Some(self.descriptors() + more),
        };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    }

    #[allow(dead_code, reason = "as above")]
    /// How many descriptors its process has.
    pub fn descriptors(&self) -> u64 {
        let pid = self.process.as_ref().unwrap().id();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
    }

    #[allow(dead_code, reason = "as above")]
    /// How many images its repository has, those that no list shows among them.
    pub fn images_stored(&self) -> usize {
        let images = fs::read_dir(self.home().join("repo/images")).unwrap();
        let manifests = images.filter(|image| {
            let name = image.as_ref().unwrap().file_name();
            name.to_str().unwrap().parse::<floe_image::Hash>().is_ok()
        });
        manifests.count()
    }

    #[allow(dead_code, reason = "not every file of tests ends a node")]
    /// Ends the process: `KILL` as a crash would, `TERM` as systemd does.
    pub fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().unwrap();
        let pid = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(pid, signal).unwrap();
        process.wait().unwrap();
    }

    #[allow(dead_code, reason = "as above")]
    /// Sends the process a signal; it is still to be [ended](Self::end).
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(self.process.as_ref().unwrap());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn try_client(&self) -> Result<Client, ClientError> {
        Client::connect(self.home().join("node.sock"))
    }

    /// A client.
    pub fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    /// What the node logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    #[allow(dead_code, reason = "as above")]
    /// Fills the disk of its state directory but for so many bytes; removing the file makes room again.
    pub fn fill_disk(&self, left: u64) -> PathBuf {
        let path = self.home().join("filler");
        let disk = rustix::fs::statvfs(self.home()).unwrap();
        let bytes = (disk.f_bavail * disk.f_frsize).saturating_sub(left);
        let file = fs::File::create(&path).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
        path
    }

    #[allow(dead_code, reason = "not every file of tests has guests with a disk")]
    /// A disk of 64 MiB without anything on it.
    pub fn blank_disk(&self) -> PathBuf {
        let disk = self.home().join("disk.raw");
        fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        disk
    }

    #[allow(dead_code, reason = "not every file of tests has this guest")]
    /// Imports the tiny guest under a name.
    pub fn import_tiny(&self, name: &str, disk: Option<&Path>) -> Outcome {
        self.import_guest("tiny", name, disk)
    }

    /// Imports a guest without a disk of its own.
    pub fn import_guest(&self, kind: &str, name: &str, disk: Option<&Path>) -> Outcome {
        let request = ImportRequest {
            disks: disk
                .map(|path| path.display().to_string())
                .into_iter()
                .collect(),
            kernel: Some(guest(&format!("{kind}/vmlinuz"))),
            initrd: Some(guest(&format!("{kind}/initrd"))),
            cmdline: Some(
                fs::read_to_string(guest(&format!("{kind}/cmdline")))
                    .unwrap()
                    .trim()
                    .into(),
            ),
            name: Some(name.into()),
            memory_bytes: Some(256 << 20),
            cpus: Some(1),
            ..Default::default()
        };
        finish(self.client().import(&request).unwrap())
    }

    /// Runs a machine; asserts that the stages sum to the total.
    pub fn run(&self, request: &RunRequest) -> Outcome {
        let mut sum = 0.0;
        let mut shown = String::new();
        let outcome = self.client().run(request).unwrap().finish(|event| {
            if let Event::Stage { name, ms } = event {
                sum += ms;
                shown += &format!(" {name} {ms}");
            }
        });
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{shown}\n{}", self.log()));
        assert!(
            (sum - outcome.total_ms).abs() < 0.1,
            "{sum} is not {}:{shown}",
            outcome.total_ms
        );
        eprintln!("run {}: {} ms:{shown}", request.image, outcome.total_ms);
        outcome
    }

    #[allow(dead_code, reason = "not every file of tests needs nothing else")]
    /// Runs an image under a name and waits for its console.
    pub fn run_named(&self, image: &str, name: &str) -> Outcome {
        self.run(&RunRequest {
            image: image.into(),
            name: Some(name.into()),
            wait: Wait::None,
            ..Default::default()
        })
    }

    #[allow(dead_code, reason = "not every file of tests needs nothing else")]
    /// Imports the tiny guest as `tiny` and boots it under a name.
    pub fn boot_tiny(&self, name: &str) {
        self.import_tiny("tiny", None);
        self.run_named("tiny", name);
        self.wait_console(name, "floe-guest ready");
    }

    /// What the guest has written so far.
    pub fn console(&self, name: &str) -> String {
        let mut bytes = Vec::new();
        self.client()
            .logs(name, &Default::default())
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the guest has written something.
    pub fn wait_console(&self, name: &str, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.console(name).contains(text) {
            assert!(
                Instant::now() < until,
                "{name} never wrote {text:?}:\n{}\n{}\n{}",
                self.console(name),
                self.cpus(name),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[allow(dead_code, reason = "as above")]
    /// Has a machine's QEMU do something, whether a node is there or not.
    pub fn qmp(
        &self,
        name: &str,
        command: &str,
        arguments: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let record = self.home().join("machines").join(name).join("machine.json");
        let record = fs::read(&record).map_err(|error| format!("{}: {error}", record.display()))?;
        let record: serde_json::Value =
            serde_json::from_slice(&record).map_err(|e| e.to_string())?;
        let place = record["place"].as_str().ok_or("it has no place")?;
        let spare = self.home().join(place).join("vm/run/qmp-spare.sock");
        let spare = UnixStream::connect(spare).map_err(|error| error.to_string())?;
        let spare = Qmp::over(spare, |_| {}).map_err(|error| error.to_string())?;
        let answer = spare.execute(command, arguments);
        answer.map_err(|error| error.to_string())
    }

    /// What a guest's processors are at.
    fn cpus(&self, name: &str) -> String {
        let registers = serde_json::json!({ "command-line": "info registers -a" });
        match self.qmp(name, "human-monitor-command", registers) {
            Ok(told) => told.as_str().unwrap_or_default().to_owned(),
            Err(error) => format!("its QEMU does not tell its registers: {error}"),
        }
    }

    #[allow(dead_code, reason = "not every file of tests speaks with its guests")]
    /// Types a command into the guest's shell and waits for what it prints.
    pub fn type_and_wait(&self, name: &str, command: &str, answer: &str) {
        let _console = self.type_line(name, command);
        self.wait_console(name, answer);
    }

    #[allow(dead_code, reason = "as above")]
    /// Types a command into the guest's shell. The client must stay until the guest has read the line.
    pub fn type_line(&self, name: &str, command: &str) -> Typist {
        use std::io::Write;
        let mut console = self.client().attach(name).unwrap();
        // a client that doesn't read stops the guest's output after some 300 bytes: QEMU sends them one by one, and each
        // takes a whole buffer of the socket
        let mut screen = console.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut screen, &mut std::io::sink()));
        console
            .write_all(format!("{command}\n").as_bytes())
            .unwrap();
        Typist(console)
    }
}

/// A client of a guest's console, until it is dropped.
pub struct Typist(UnixStream);

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both); // ends the reading thread
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if self.process.is_none() && self.dir.is_some() {
            self.start_again(); // machines of a killed node must not outlive the test
        }
        if let Ok(client) = self.try_client() {
            let machines = || client.machines().map_or(vec![], |list| list.machines);
            // what is left would wait for a node for ever, and whoever removes the directory for it
            let until = Instant::now() + PATIENCE;
            while let machines = machines()
                && !machines.is_empty()
                && Instant::now() < until
            {
                for machine in machines {
                    if let Err(error) = client.remove_machine(&machine.name, true) {
                        eprintln!("{} is not removed yet: {error}", machine.name);
                        std::thread::sleep(Duration::from_millis(200));
                    }
                }
            }
            let _ = client.shutdown(&Default::default());
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("the node's log:\n{}", self.log());
            // one that did not start leaves it to a next one, and whoever looks into it waits for that
            let mount = self.home().join("mnt");
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        if self.setup.disk_bytes.is_some() {
            let _ = rustix::mount::unmount(self.home(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Waits for a long call's end.
pub fn finish(events: Events) -> Outcome {
    events.finish(|_| ()).unwrap()
}

#[allow(dead_code, reason = "not every file of tests waits for something")]
/// Waits until something is so.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < until, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has the host forget what it has in memory of the files below a directory.
#[allow(dead_code, reason = "as above")]
pub fn forget(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "mnt" {
            forget(&entry.path());
        } else if kind.is_file()
            && let Ok(file) = std::fs::File::open(entry.path())
        {
            let _ = rustix::fs::fsync(&file);
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}
