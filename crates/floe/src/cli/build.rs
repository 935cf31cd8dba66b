//! `floe image build`: a first image, made here of a distribution's packages.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use clap::{Args, Subcommand};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

use super::error::CliError;
use super::outcome::stored;
use super::output::seconds;
use super::{Context, agent, args, interrupt, progress};
use crate::debian::{self, BuildError, Progress, Recipe, Stop};
use floe_api::client::Client;
use floe_api::{ErrorCode, Event, ImportRequest, Outcome};

/// How the names of directories begin in which something is built.
const PREFIX: &str = "build-";
/// Largest file of public keys in bytes.
const KEYS_BYTES_MAX: u64 = 64 << 10;

/// Build an image from packages, with floe's agent in it
///
/// For a system that is not here, import its disk: most distributions publish one for clouds.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: a small Debian; two minutes with a fast mirror
  floe image build debian
  floe run debian --name web --wait agent && floe exec -it web -- bash
Example: any other system, from the disk that its makers publish
  floe image import debian-12-genericcloud-amd64.qcow2 --name cloud")]
pub enum Build {
    Debian(Debian),
}

impl Build {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Build::Debian(debian) => debian.run(cx),
        }
    }
}

/// Build a Debian from its packages
#[derive(Debug, Args)]
#[command(after_help = "\
Example: two minutes with a fast mirror
  floe image build debian
Example: a web server that takes my key
  floe image build debian --name web --packages nginx,curl --ssh-key ~/.ssh/id_ed25519.pub
Example: one that is told who it is when it starts
  floe image build debian --name cloud --packages cloud-init,openssh-server
Example: only the files, for any VMM; no node is needed
  floe image build debian --suite trixie --output ./trixie

What is in it: systemd, apt, floe's agent (floe exec, cp and ssh work at once), DHCP on each card, nothing that fetches
updates by itself. root is logged in on the serial console (floe console), which only users of the node reach; root has no
password, so that nobody logs in over the network except with --ssh-key. Each machine makes its own ssh host keys and
machine id at its first boot. The machine boots the kernel of the image: `apt install linux-image-...` in the guest does
not change it; build anew for a new one. Packages come without what they only recommend, and without manuals.

Needs mmdebstrap and e2fsprogs (floe doctor tells). Users other than root need uidmap too, and ids
for the files of the new system in /etc/subuid and /etc/subgid; Debian gives some to each user that it makes.")]
pub struct Debian {
    /// Debian's release: bookworm, trixie, ...
    #[arg(long, default_value = "bookworm")]
    suite: String,
    /// More packages, with commas between them (repeatable)
    #[arg(long, value_delimiter = ',', value_name = "PACKAGE,...")]
    packages: Vec<String>,
    /// Size of the disk; room that is not used costs nothing
    #[arg(long, value_parser = args::size, default_value = "4G")]
    size: u64,
    /// Name of the image, NAME or NAME:TAG
    #[arg(long, short, default_value = "debian", conflicts_with = "output")]
    name: String,
    /// Where Debian's packages are
    #[arg(long, env = "FLOE_DEBIAN_MIRROR", default_value = debian::MIRROR, value_name = "URL")]
    mirror: String,
    /// A file with public keys that may log in as root; brings openssh-server
    #[arg(long, value_name = "FILE")]
    ssh_key: Option<PathBuf>,
    /// The machine's name for itself
    #[arg(long, default_value = "debian")]
    hostname: String,
    /// Make this directory with vmlinuz, initrd, disk.raw and cmdline instead of an image
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// The agent's program; by default floe-guest beside floe's own, or in /usr/lib/floe
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

impl Debian {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let began = Instant::now();
        let recipe = self.recipe()?;
        recipe.check()?;
        match &self.output {
            Some(output) => {
                interrupt::exit_on_signals();
                let work = self.make(cx, &recipe, Place::beside(output)?)?;
                // Nobody may see a directory in which something is missing.
                std::fs::rename(work.files(), output)
                    .map_err(|e| CliError::file("make", output, e))?;
                work.remove();
                let path = args::absolute(output)?;
                let done = Outcome {
                    total_ms: began.elapsed().as_secs_f64() * 1000.0,
                    path: Some(path.clone()),
                    ..Outcome::default()
                };
                let took = seconds(done.total_ms);
                cx.out
                    .value(&Event::Done(done), |_| format!("built {path} in {took}\n"))
            }
            None => {
                // a node that is not there is to be missed before the work, not after it
                drop(cx.client()?);
                let work = self.make(cx, &recipe, Place::of_node(&cx.home.tmp())?)?;
                let request = self.request(work.files())?;
                let done =
                    progress::follow(cx.out, Client::connect(&cx.socket)?.import(&request)?)?;
                work.remove();
                let took = seconds(began.elapsed().as_secs_f64() * 1000.0);
                cx.out.text(&stored(&done.outcome, "built"))?;
                let name = &self.name;
                cx.out.text(&format!(
                    "  {took} in all; start it: floe run {name} --name web\n"
                ))
            }
        }
    }

    fn recipe(&self) -> Result<Recipe, CliError> {
        let ssh_keys = self.ssh_key.as_deref().map(read_keys).transpose()?;
        Ok(Recipe {
            suite: self.suite.clone(),
            packages: self
                .packages
                .iter()
                .filter(|name| !name.is_empty())
                .cloned()
                .collect(),
            disk_bytes: self.size,
            mirror: self.mirror.clone(),
            hostname: self.hostname.clone(),
            ssh_keys,
            agent: agent::program(self.agent.as_deref())?,
        })
    }

    /// Makes the files in a place of their own. An interrupt removes all of it, now and later.
    fn make(&self, cx: &Context, recipe: &Recipe, place: Place) -> Result<Work, CliError> {
        let stop = Arc::new(Stop::default());
        let work = Work::new(place)?;
        let removed = work.removed_on_interrupt(&stop);
        let mut view = progress::View::new();
        let build = debian::Build {
            recipe,
            out: work.files(),
            tree_in: work.tree_in(),
            stop: &stop,
        };
        let built = build.run(&mut |news| show(cx, &mut view, news));
        progress::clear();
        match built {
            Ok(()) => {
                drop(removed);
                Ok(work)
            }
            Err(BuildError::Interrupted) => {
                work.remove();
                drop(removed);
                // the thread that took the signal ends the process
                loop {
                    std::thread::park();
                }
            }
            Err(error) => {
                work.remove();
                Err(error.into())
            }
        }
    }

    fn request(&self, files: &Path) -> Result<ImportRequest, CliError> {
        let path = |name: &str| args::existing(&files.join(name));
        let cmdline = files.join("cmdline");
        let cmdline =
            std::fs::read_to_string(&cmdline).map_err(|e| CliError::file("read", &cmdline, e))?;
        let labels = [("os", "debian"), ("suite", &self.suite)];
        Ok(ImportRequest {
            disks: vec![path("disk.raw")?],
            kernel: Some(path("vmlinuz")?),
            initrd: Some(path("initrd")?),
            cmdline: Some(cmdline.trim().to_owned()),
            name: Some(self.name.clone()),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..ImportRequest::default()
        })
    }
}

fn read_keys(path: &Path) -> Result<String, CliError> {
    let unreadable = |e| CliError::file("read", path, e);
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > KEYS_BYTES_MAX {
        let text = format!(
            "{} has {length} bytes, which is no file of public keys",
            path.display()
        );
        return Err(CliError::usage(text, "give the file that ends in .pub"));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn show(cx: &Context, view: &mut progress::View, news: Progress) {
    let event = match news {
        Progress::Step(name) => Event::Note {
            message: name.to_owned(),
        },
        Progress::Packages { done, total } => Event::Progress {
            name: "install".into(),
            done,
            total,
            unit: "packages".into(),
        },
    };
    if cx.out.json {
        cx.out.announcement(&event, |_| String::new());
        return;
    }
    match event {
        Event::Progress {
            name,
            done,
            total,
            unit,
        } => view.progress(&name, done, total, &unit),
        Event::Note { message } => view.line(&format!("building: {message}")),
        _ => {}
    }
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> CliError {
        let code = match &error {
            BuildError::Recipe(_) => ErrorCode::Usage,
            BuildError::Host { .. } => ErrorCode::Refused,
            BuildError::Interrupted => ErrorCode::Cancelled,
            _ => ErrorCode::Failed,
        };
        let fix = match &error {
            BuildError::Host { fix, .. } => fix,
            BuildError::Program { said, .. } if said.contains("Unable to locate package") => {
                "check the names of --packages"
            }
            BuildError::Program {
                program: "mmdebstrap",
                ..
            } => "check --suite and --mirror, and the network",
            BuildError::Program { .. } => {
                "give it more room with --size, or make some on this disk"
            }
            _ => "",
        };
        CliError::new(code, error.to_string(), fix)
    }
}

/// Where a build's directory is made.
struct Place {
    dir: PathBuf,
    prefix: String,
}

impl Place {
    /// Beside a directory that is to be made.
    fn beside(output: &Path) -> Result<Place, CliError> {
        if output.symlink_metadata().is_ok() {
            let text = format!("{} is there already", output.display());
            return Err(CliError::usage(
                text,
                "remove it, or name another directory",
            ));
        }
        let output =
            std::path::absolute(output).map_err(|e| CliError::file("resolve", output, e))?;
        match (output.parent(), output.file_name()) {
            (Some(dir), Some(name)) if !matches!(dir.try_exists(), Ok(false)) => Ok(Place {
                dir: dir.to_owned(),
                prefix: format!(".{}.{PREFIX}", name.to_string_lossy()),
            }),
            _ => {
                let text = format!("the directory of {} does not exist", output.display());
                Err(CliError::new(ErrorCode::NotFound, text, "check the path"))
            }
        }
    }

    /// Among the node's temporary files.
    fn of_node(tmp: &Path) -> Result<Place, CliError> {
        std::fs::create_dir_all(tmp).map_err(|e| CliError::file("make", tmp, e))?;
        Ok(Place {
            dir: tmp.to_owned(),
            prefix: PREFIX.to_owned(),
        })
    }

    /// Removes what this user's killed builds have left here: nobody holds their locks.
    fn tidy(&self) {
        use std::os::unix::fs::MetadataExt;
        let me = rustix::process::geteuid().as_raw();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let named = entry
                .file_name()
                .to_string_lossy()
                .starts_with(&self.prefix);
            let ours = named && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == me);
            let locked = File::open(entry.path()).is_ok_and(|dir| {
                rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()
            });
            if ours && !locked {
                let _ = debian::remove(&entry.path()); // the next build tries again
            }
        }
    }

    fn make(&self) -> Result<(TempDir, File), CliError> {
        let failed = |e| CliError::file("make a directory in", &self.dir, e);
        let dir = tempfile::Builder::new()
            .prefix(&self.prefix)
            .tempdir_in(&self.dir)
            .map_err(failed)?;
        let lock = File::open(dir.path()).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| failed(e.into()))?;
        // apt's own user, and the ids of a build without root, pass through it
        std::fs::set_permissions(
            dir.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o711),
        )
        .map_err(failed)?;
        Ok((dir, lock))
    }
}

/// The directories of a build. They go with it.
struct Work {
    files: PathBuf,
    tree_in: PathBuf,
    dirs: Arc<Mutex<Vec<(TempDir, File)>>>,
}

impl Work {
    fn new(place: Place) -> Result<Work, CliError> {
        place.tidy();
        let mut dirs = vec![place.make()?];
        let base = dirs[0].0.path().to_owned();
        let files = base.join("files");
        std::fs::create_dir(&files).map_err(|e| CliError::file("make", &files, e))?;
        let mut tree_in = base;
        if !rustix::process::geteuid().is_root() {
            // The ids that own the tree can't pass through a user's own directories.
            let dir = std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
            let place = Place {
                dir,
                prefix: format!("floe-{PREFIX}"),
            };
            place.tidy();
            let tree = place.make()?;
            tree_in = tree.0.path().to_owned();
            dirs.push(tree);
        }
        Ok(Work {
            files,
            tree_in,
            dirs: Arc::new(Mutex::new(dirs)),
        })
    }

    fn files(&self) -> &Path {
        &self.files
    }

    fn tree_in(&self) -> &Path {
        &self.tree_in
    }

    fn remove(&self) {
        remove(&self.dirs);
    }

    /// Lets an interrupt end the build, wait until what is returned is dropped, and remove what is left.
    fn removed_on_interrupt(&self, stop: &Arc<Stop>) -> Sender<()> {
        let (building, built): (Sender<()>, Receiver<()>) = channel();
        let (stop, dirs) = (stop.clone(), self.dirs.clone());
        interrupt::ends_with(move || {
            eprintln!("interrupted; removing what was built");
            stop.stop();
            let _ = built.recv(); // ends with the sender
            remove(&dirs);
            interrupt::EXIT_INTERRUPTED
        });
        building
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.remove(); // what an interrupt would remove holds on to them
    }
}

fn remove(dirs: &Mutex<Vec<(TempDir, File)>>) {
    dirs.lock().unwrap_or_else(|e| e.into_inner()).clear();
}
