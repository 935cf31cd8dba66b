//! What has to be changed in a system's file system so that floe's agent starts with it. No I/O: what is there in, changes out.
//! The texts are a stranger's.
//!
//! Only names that stand in this file are ever changed, so that no name of the stranger's becomes a word of a command.

use super::stat::{Entry, Kind};
use floe_api::AgentStarter;
use std::collections::BTreeMap;

/// The agent's program.
pub const PROGRAM: &str = "/usr/local/bin/floe-guest";
const LAUNCHER: &str = "/usr/local/bin/floe-mpirun";
const UNIT: &str = "/etc/systemd/system/floe-guest.service";
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/floe-guest.service";
const WANTED_TARGET: &str = "../floe-guest.service";
const INIT: &str = "/sbin/init";
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
const INITTAB: &str = "/etc/inittab";
const FSTAB: &str = "/etc/fstab";
const SELINUX: &str = "/etc/selinux/config";
/// Directories that are followed if they are links, each after the one that it is in.
pub const DIRECTORIES: [&str; 7] = [
    "/etc",
    "/usr",
    "/usr/local",
    "/usr/local/bin",
    "/etc/systemd",
    "/etc/systemd/system",
    "/etc/systemd/system/multi-user.target.wants",
];
/// Other names that are looked at, and not followed.
pub const NAMES: [&str; 10] = [
    INIT, SYSTEMD[0], SYSTEMD[1], PROGRAM, LAUNCHER, UNIT, WANTED, INITTAB, FSTAB, SELINUX,
];
/// Those of them that are read, and how many bytes long such a file may be.
pub const READ: [(&str, u64); 5] = [
    (PROGRAM, 64 << 20),
    (UNIT, TEXT_BYTES_MAX),
    (INITTAB, TEXT_BYTES_MAX),
    (FSTAB, TEXT_BYTES_MAX),
    (SELINUX, TEXT_BYTES_MAX),
];
const TEXT_BYTES_MAX: u64 = 256 << 10;
/// Directories with which the agent would be hidden if another file system were mounted there.
const HIDING: [&str; 4] = ["/etc", "/usr", "/usr/local", "/usr/local/bin"];

/// What a file system has of the names in this file.
#[derive(Debug, Default)]
pub struct Tree {
    /// By name.
    pub entries: BTreeMap<&'static str, Entry>,
    /// The content of those that are read.
    pub files: BTreeMap<&'static str, Vec<u8>>,
}

/// The changes that are missing. Where there are none, the agent is installed.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// What starts the agent at each boot.
    pub starter: AgentStarter,
    directories: Vec<&'static str>,
    /// Entries that are in the way.
    obstacles: Vec<&'static str>,
    /// Files to write: name, permissions, content.
    pub files: Vec<(&'static str, u32, Vec<u8>)>,
    links: Vec<(&'static str, &'static str)>,
}

/// Why the agent can't be put into a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing that is known starts it.
    Starter,
    /// Another file system is mounted where it would be.
    Hidden(&'static str),
    /// SELinux would not let it start.
    Selinux,
    /// Something else has the name of a file or directory that is needed.
    Taken(&'static str),
}

impl Refusal {
    /// Says it in words.
    pub fn text(&self) -> String {
        match self {
            Refusal::Starter => {
                "what starts this system is neither systemd nor an init with an /etc/inittab".into()
            }
            Refusal::Hidden(path) => {
                format!("the system mounts another file system at {path} (/etc/fstab)")
            }
            Refusal::Selinux => {
                "SELinux is enforced in this system, and files that are put in from outside have no label".into()
            }
            Refusal::Taken(path) => format!("{path} is not what it is in other systems"),
        }
    }
}

impl Tree {
    /// Whether this looks like the root of a system.
    pub fn is_root(&self) -> bool {
        self.is_directory("/etc") && (self.entries.contains_key(INIT) || self.has_systemd())
    }

    fn has_systemd(&self) -> bool {
        SYSTEMD.iter().any(|name| self.is_file(name))
    }

    fn is_directory(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(entry) if entry.kind == Kind::Directory)
    }

    fn is_file(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(entry) if entry.kind == Kind::File)
    }

    fn text(&self, name: &str) -> String {
        let bytes = self.files.get(name).map(Vec::as_slice).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn starter(&self) -> Option<AgentStarter> {
        let systemd = match self.entries.get(INIT).map(|entry| &entry.kind) {
            None => self.has_systemd(),
            Some(Kind::Link(Some(target))) => {
                target.rsplit(|b| *b == b'/').next() == Some(b"systemd")
            }
            Some(_) => false,
        };
        if systemd {
            return Some(AgentStarter::Systemd);
        }
        // System V's lines have a name and run levels, busybox's have neither
        let inittab = self.text(INITTAB);
        let lines = || {
            let lines = inittab.lines().map(str::trim_start);
            lines
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.splitn(4, ':').collect::<Vec<_>>())
        };
        let action = |line: &Vec<&str>, action: &[&str]| {
            line.get(2).is_some_and(|word| action.contains(word))
        };
        if lines().any(|line| action(&line, &["initdefault"])) {
            return Some(AgentStarter::Sysvinit);
        }
        let busybox = lines().any(|line| {
            line.get(1) == Some(&"") && action(&line, &["sysinit", "respawn", "askfirst"])
        });
        busybox.then_some(AgentStarter::Busybox)
    }

    /// Says what has to be changed so that this program is the agent, and starts at each boot.
    pub fn plan(&self, program: &[u8]) -> Result<Plan, Refusal> {
        let starter = self.starter().ok_or(Refusal::Starter)?;
        if let Some(path) = mounted(&self.text(FSTAB)) {
            return Err(Refusal::Hidden(path));
        }
        if is_enforced(&self.text(SELINUX)) {
            return Err(Refusal::Selinux);
        }
        let mut plan = Plan {
            starter,
            directories: Vec::new(),
            obstacles: Vec::new(),
            files: Vec::new(),
            links: Vec::new(),
        };
        let needed = match starter {
            AgentStarter::Systemd => DIRECTORIES.len(),
            _ => 4,
        };
        for name in &DIRECTORIES[..needed] {
            match self.entries.get(name) {
                None => plan.directories.push(name),
                Some(_) if self.is_directory(name) => {}
                Some(_) => return Err(Refusal::Taken(name)),
            }
        }
        self.want_file(&mut plan, PROGRAM, 0o755, program.to_vec())?;
        self.want_link(&mut plan, LAUNCHER, "floe-guest")?;
        match starter {
            AgentStarter::Systemd => {
                let unit = floe_guest::unit("/usr/local").into_bytes();
                self.want_file(&mut plan, UNIT, 0o644, unit)?;
                self.want_link(&mut plan, WANTED, WANTED_TARGET)?;
            }
            AgentStarter::Sysvinit => self.want_line(&mut plan, "floe:2345:respawn:")?,
            AgentStarter::Busybox => self.want_line(&mut plan, "::respawn:")?,
        }
        Ok(plan)
    }

    fn want_file(
        &self,
        plan: &mut Plan,
        name: &'static str,
        mode: u32,
        content: Vec<u8>,
    ) -> Result<(), Refusal> {
        let as_it_is = self.files.get(name) == Some(&content);
        match self.entries.get(name) {
            Some(entry) if entry.kind == Kind::Directory => return Err(Refusal::Taken(name)),
            Some(entry) if as_it_is && entry.kind == Kind::File && entry.mode == mode => {
                return Ok(());
            }
            Some(_) => plan.obstacles.push(name),
            None => {}
        }
        plan.files.push((name, mode, content));
        Ok(())
    }

    fn want_link(
        &self,
        plan: &mut Plan,
        name: &'static str,
        target: &'static str,
    ) -> Result<(), Refusal> {
        let same = |found: &[u8]| {
            // systemctl writes the whole path
            found == target.as_bytes() || name == WANTED && found == UNIT.as_bytes()
        };
        match self.entries.get(name).map(|entry| &entry.kind) {
            Some(Kind::Directory) => return Err(Refusal::Taken(name)),
            Some(Kind::Link(Some(found))) if same(found) => return Ok(()),
            Some(_) => plan.obstacles.push(name),
            None => {}
        }
        plan.links.push((name, target));
        Ok(())
    }

    /// Adds a line to the inittab, whose other bytes stay as they are.
    fn want_line(&self, plan: &mut Plan, start: &str) -> Result<(), Refusal> {
        let (Some(entry), Some(inittab)) = (self.entries.get(INITTAB), self.files.get(INITTAB))
        else {
            return Err(Refusal::Starter);
        };
        let text = String::from_utf8_lossy(inittab);
        let is_there = |line: &str| !line.trim_start().starts_with('#') && line.contains(PROGRAM);
        if text.lines().any(is_there) {
            return Ok(());
        }
        let mut content = inittab.clone();
        if content.last().is_some_and(|last| *last != b'\n') {
            content.push(b'\n');
        }
        content.extend(format!("{start}{PROGRAM} serve\n").bytes());
        self.want_file(plan, INITTAB, entry.mode, content)
    }
}

impl Plan {
    /// Whether nothing has to be changed.
    pub fn is_done(&self) -> bool {
        let Plan {
            directories,
            obstacles,
            files,
            links,
            ..
        } = self;
        directories.is_empty() && obstacles.is_empty() && files.is_empty() && links.is_empty()
    }

    /// debugfs's commands for what comes before the files.
    pub fn before(&self) -> String {
        let removed = self.obstacles.iter().map(|name| format!("rm {name}\n"));
        let made = self
            .directories
            .iter()
            .map(|name| format!("mkdir {name}\n"));
        removed.chain(made).collect()
    }

    /// debugfs's commands for what comes after the files.
    pub fn after(&self) -> String {
        let modes = self.files.iter().map(|(name, mode, _)| {
            format!(
                "sif {name} mode 0{:o}\nsif {name} uid 0\nsif {name} gid 0\n",
                0o100_000 | mode
            )
        });
        let links = self
            .links
            .iter()
            .map(|(name, target)| format!("symlink {name} {target}\n"));
        modes.chain(links).collect()
    }
}

/// Returns the first directory that matters here at which an fstab mounts something.
fn mounted(fstab: &str) -> Option<&'static str> {
    let lines = fstab.lines().map(str::trim_start);
    let mut places = lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().nth(1));
    places.find_map(|place| {
        let place = place.trim_end_matches('/');
        HIDING.into_iter().find(|hiding| *hiding == place)
    })
}

fn is_enforced(config: &str) -> bool {
    let mut lines = config.lines().map(str::trim);
    lines.any(|line| line.strip_prefix("SELINUX=").map(str::trim) == Some("enforcing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &[u8] = b"\x7fELF agent";

    fn put(tree: &mut Tree, name: &'static str, kind: Kind) {
        let (mode, bytes) = (0o644, 0);
        tree.entries.insert(name, Entry { kind, mode, bytes });
    }

    fn file(tree: &mut Tree, name: &'static str, content: &str) {
        put(tree, name, Kind::File);
        tree.files.insert(name, content.into());
    }

    fn system(init: Kind) -> Tree {
        let mut tree = Tree::default();
        for name in DIRECTORIES {
            put(&mut tree, name, Kind::Directory);
        }
        put(&mut tree, INIT, init);
        tree
    }

    fn debian() -> Tree {
        let mut tree = system(Kind::Link(Some(b"../lib/systemd/systemd".to_vec())));
        put(&mut tree, SYSTEMD[0], Kind::File);
        file(
            &mut tree,
            FSTAB,
            "# /usr was on sda2\nUUID=1 / ext4 defaults 0 1\n\nUUID=2 /boot/efi vfat\n",
        );
        tree
    }

    /// What is there once a plan has been carried out.
    fn carry_out(tree: &mut Tree, plan: &Plan) {
        for name in &plan.obstacles {
            tree.entries.remove(name);
            tree.files.remove(name);
        }
        for name in &plan.directories {
            put(tree, name, Kind::Directory);
        }
        for (name, mode, content) in &plan.files {
            let (kind, mode, bytes) = (Kind::File, *mode, content.len() as u64);
            tree.entries.insert(name, Entry { kind, mode, bytes });
            tree.files.insert(name, content.clone());
        }
        for (name, target) in &plan.links {
            put(tree, name, Kind::Link(Some(target.as_bytes().to_vec())));
        }
    }

    fn after(mut tree: Tree, program: &[u8]) -> (AgentStarter, Tree) {
        let plan = tree.plan(program).unwrap();
        assert!(!plan.is_done());
        carry_out(&mut tree, &plan);
        assert!(tree.plan(program).unwrap().is_done(), "done twice");
        (plan.starter, tree)
    }

    #[test]
    fn systemd_gets_a_unit_that_is_wanted() {
        let mut bare = debian();
        for name in ["/usr/local/bin", DIRECTORIES[6]] {
            bare.entries.remove(name);
        }
        let plan = bare.plan(AGENT).unwrap();
        assert_eq!(
            plan.before(),
            format!("mkdir /usr/local/bin\nmkdir {}\n", DIRECTORIES[6])
        );
        assert!(
            plan.after()
                .contains("sif /usr/local/bin/floe-guest mode 0100755\n"),
            "{}",
            plan.after()
        );
        let (starter, mut there) = after(bare, AGENT);
        assert_eq!(starter, AgentStarter::Systemd);
        // as systemctl and an older floe leave it
        put(&mut there, WANTED, Kind::Link(Some(UNIT.into())));
        assert!(there.plan(AGENT).unwrap().is_done());
        let newer = there.plan(b"\x7fELF newer").unwrap();
        assert_eq!(newer.before(), format!("rm {PROGRAM}\n"));
        // a unit that is masked
        there.files.remove(UNIT);
        put(&mut there, UNIT, Kind::Link(Some(b"/dev/null".to_vec())));
        assert_eq!(there.plan(AGENT).unwrap().before(), format!("rm {UNIT}\n"));
    }

    #[test]
    fn an_inittab_gets_a_line_in_the_form_of_its_init() {
        let of = |text: &str| {
            let mut tree = system(Kind::Link(Some(b"/bin/busybox".to_vec())));
            file(&mut tree, INITTAB, text);
            let (starter, tree) = after(tree, AGENT);
            (starter, tree.text(INITTAB))
        };
        let (starter, text) = of(
            "# x\n::sysinit:/sbin/openrc sysinit\n#::respawn:/usr/local/bin/floe-guest serve\nlast",
        );
        assert_eq!(starter, AgentStarter::Busybox);
        assert!(
            text.ends_with("\nlast\n::respawn:/usr/local/bin/floe-guest serve\n"),
            "{text}"
        );
        let (starter, text) = of("id:2:initdefault:\n1:2345:respawn:/sbin/getty tty1\n");
        assert_eq!(starter, AgentStarter::Sysvinit);
        assert!(
            text.ends_with("\nfloe:2345:respawn:/usr/local/bin/floe-guest serve\n"),
            "{text}"
        );
    }

    #[test]
    fn a_system_in_which_the_agent_would_not_start_is_refused() {
        let refusal = |change: &dyn Fn(&mut Tree)| {
            let mut tree = debian();
            change(&mut tree);
            tree.plan(AGENT).unwrap_err()
        };
        let found = refusal(&|tree| put(tree, INIT, Kind::Link(Some(b"/bin/runit".to_vec()))));
        assert_eq!(found, Refusal::Starter);
        let found = refusal(&|tree| file(tree, FSTAB, "LABEL=u\t/usr/local/ xfs\n"));
        assert_eq!(found, Refusal::Hidden("/usr/local"));
        let found = refusal(&|tree| file(tree, SELINUX, "# SELINUX=disabled\nSELINUX=enforcing\n"));
        assert_eq!(found, Refusal::Selinux);
        let found = refusal(&|tree| put(tree, "/usr/local", Kind::File));
        assert_eq!(found, Refusal::Taken("/usr/local"));
        let found = refusal(&|tree| put(tree, PROGRAM, Kind::Directory));
        assert_eq!(found, Refusal::Taken(PROGRAM));
        assert!(!Tree::default().is_root());
        assert!(debian().is_root());
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_files_of_a_system_say_a_plan_ends_the_work(
            inittab in "([a-z#: /]{0,9}:){0,4}[a-z/\\n]{0,9}(:sysinit:)?|\\PC{0,60}", fstab in "[#/ a-z\\n]{0,40}|\\PC{0,60}",
        ) {
            let mut tree = system(Kind::Other);
            file(&mut tree, INITTAB, &inittab);
            file(&mut tree, FSTAB, &fstab);
            if let Ok(plan) = tree.plan(AGENT) {
                carry_out(&mut tree, &plan);
                assert!(tree.plan(AGENT).unwrap().is_done());
            }
        }
    }

    #[test]
    fn what_a_stranger_wrote_never_becomes_a_command() {
        let mut tree = system(Kind::Link(Some(b"x\nrm /\n".to_vec())));
        put(
            &mut tree,
            WANTED,
            Kind::Link(Some(b"\"\nrm /etc/passwd\n".to_vec())),
        );
        file(&mut tree, INITTAB, "id:2:initdefault:\nrm /etc/passwd\n");
        let plan = tree.plan(AGENT).unwrap();
        let commands = plan.before() + &plan.after();
        assert!(!commands.contains("passwd"), "{commands}");
        let known = [
            "rm /etc/inittab",
            "sif /usr/local/bin/floe-",
            "sif /etc/inittab ",
            "symlink /usr/local/bin/floe-mpirun floe-guest",
        ];
        for line in commands.lines() {
            assert!(known.iter().any(|start| line.starts_with(start)), "{line}");
        }
    }
}
