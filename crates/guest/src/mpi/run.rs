//! `floe-mpirun`: clones the machine, runs mpiexec, and ends the clones.

use super::member::{self, Home};
use super::members::{Event, Members};
use super::options::Options;
use super::plan::Spread;
use super::wire::SECRET_BYTES;
use super::{LAUNCHER_NAME, RUN_NAME, launcher, own_address, say, sys};
use crate::client;
use crate::message::{Answer, Call, codes};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest time for a call to the node.
const CALL: Duration = Duration::from_secs(180);
/// How often to check for signals, which wake nobody.
const LOOK: Duration = Duration::from_millis(50);
/// How often to ask whether the awaited clones have ended.
const ASK: Duration = Duration::from_secs(1);
/// How long clones may take to end by themselves.
const FAREWELL: Duration = Duration::from_secs(30);
/// How long mpiexec may take to end its ranks after it was asked to.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// An address outside of any network; nothing is sent to it (RFC 5737).
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The transports that UCX, which Debian's MPICH uses, may use between ranks of different clones. UCX takes machines with
/// the same boot id for one machine with shared memory, and clones have their parent's boot id.
const TRANSPORTS: (&str, &str) = ("UCX_TLS", "tcp,self");
/// The names of MPICH's mpiexec, in the order in which they are tried.
const MPIEXECS: [&str; 3] = ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"];

/// The clones of this machine in one run.
struct Run<'a> {
    options: &'a Options,
    ticket: String,
}

/// Runs the job. Returns mpiexec's exit status.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    let mpiexec = find_mpiexec(options)?;
    let address = match options.address {
        Some(address) => address,
        None => own_address((OUTSIDE, 9).into()).map_err(|error| {
            format!("this machine has no default route ({error}); --address tells its address in the family's network")
        })?,
    };
    sys::keep_signals();
    if let (0, Ok(spread)) = (options.job.clones(), options.job.spread(0)) {
        let (_nobody, heard) = channel();
        let command = command(options, &mpiexec, address, &[], spread, None);
        return watch(command, &heard);
    }

    let mut secret = [0; SECRET_BYTES];
    let drawn = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut secret));
    drawn.map_err(|error| format!("/dev/urandom: {error}"))?;
    let listener =
        TcpListener::bind((address, 0)).map_err(|error| format!("{address}: {error}"))?;
    let parent = listener
        .local_addr()
        .map_err(|error| format!("{address}: {error}"))?;

    let run = Run {
        options,
        ticket: ticket(options)?,
    };
    if sys::asked_to_end().is_some() {
        return run.give_up("it was interrupted".into());
    }
    // every process of this machine continues in each clone, including this one
    let cloned = call(
        options,
        &Call::Clone {
            ticket: run.ticket.clone(),
        },
    )?;
    let running = match cloned {
        Answer::Cloned { id: 0, clones } => clones.unwrap_or(0),
        Answer::Cloned { id, .. } => {
            drop(listener);
            let home = Home {
                parent,
                secret,
                id,
                timeout: options.timeout,
                socket: options.socket.clone(),
            };
            return Err(member::serve(&home));
        }
        other => return run.give_up(format!("the agent answered {other:?}")),
    };
    run.tell(&format!("{running} clones were started"));
    let spread = match options.job.spread(running) {
        Ok(spread) => spread,
        Err(few) => return run.give_up(too_few(running, few.needed, "were started")),
    };
    run.with_clones(&mpiexec, secret, listener, running, spread)
}

fn too_few(got: u32, needed: u32, what: &str) -> String {
    format!(
        "{got} clones {what}, and the ranks need {needed}; see --fewer and --ppn, the room of the hosts (floe hosts) and what its user allows (floe limit --clones)"
    )
}

fn call(options: &Options, call: &Call) -> Result<Answer, String> {
    match client::call(&options.socket, call, Some(CALL)) {
        Ok(Answer::Refused(refusal)) => Err(format!("{refusal} ({})", refusal.code)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.to_string()),
    }
}

/// Requests a ticket for enough clones.
fn ticket(options: &Options) -> Result<String, String> {
    let wanted = options.job.clones();
    let asked = Call::Ticket {
        clones: wanted.into(),
        hierarchical: false,
    };
    let (ticket, granted) = match call(options, &asked)? {
        Answer::Ticket { ticket, clones, .. } => (ticket, clones),
        other => return Err(format!("the agent answered {other:?}")),
    };
    if options.verbose {
        say(RUN_NAME, &format!("room for {granted} of {wanted} clones"));
    }
    match options.job.spread(granted) {
        Ok(_) => Ok(ticket),
        Err(few) => {
            // give the room back at once
            let _ = call(options, &Call::Kill { ticket });
            Err(too_few(granted, few.needed, "have room"))
        }
    }
}

impl Run<'_> {
    fn tell(&self, what: &str) {
        if self.options.verbose {
            say(RUN_NAME, what);
        }
    }

    fn kill(&self) {
        let kill = Call::Kill {
            ticket: self.ticket.clone(),
        };
        let why = match client::call(&self.options.socket, &kill, Some(CALL)) {
            // joined already, or ended by somebody else
            Ok(Answer::Refused(refusal)) if refusal.code == codes::UNKNOWN_TICKET => return,
            Ok(Answer::Refused(refusal)) => refusal.to_string(),
            Ok(_) => return,
            Err(error) => error.to_string(),
        };
        say(RUN_NAME, &format!("clones may be left: {why}"));
    }

    fn give_up<T>(&self, why: String) -> Result<T, String> {
        self.kill();
        Err(why)
    }

    fn with_clones(
        &self,
        mpiexec: &Path,
        secret: [u8; SECRET_BYTES],
        listener: TcpListener,
        running: u32,
        spread: Spread,
    ) -> Result<ExitCode, String> {
        let place = match Place::make() {
            Ok(place) => place,
            Err(error) => return self.give_up(format!("a directory for the launcher: {error}")),
        };
        let (events, heard) = channel();
        let launchers = match UnixListener::bind(place.dir.join(launcher::SOCKET_NAME)) {
            Ok(launchers) => launchers,
            Err(error) => return self.give_up(format!("{}: {error}", place.dir.display())),
        };
        let address = match listener.local_addr() {
            Ok(address) => address.ip(),
            Err(error) => return self.give_up(error.to_string()),
        };
        let most = self.options.job.clones();
        let members = Members::gather(secret, most, listener, launchers, events);
        let clones = match self.wait_for(running, &heard) {
            Ok(clones) => clones,
            Err(why) => return self.give_up(why),
        };
        self.tell(&format!("{} ranks on {clones:?}", spread.ranks));
        let launcher = place.dir.join(LAUNCHER_NAME);
        let command = command(
            self.options,
            mpiexec,
            address,
            &clones,
            spread,
            Some(&launcher),
        );
        let outcome = watch(command, &heard);
        members.dismiss();
        match (outcome, sys::asked_to_end()) {
            (Ok(code), None) => {
                self.join();
                Ok(code)
            }
            (Ok(code), Some(_)) => {
                self.kill();
                Ok(code)
            }
            (Err(why), _) => self.give_up(why),
        }
    }

    /// Waits until all clones have said hello. Returns their addresses, ordered by their numbers.
    fn wait_for(&self, running: u32, heard: &Receiver<Event>) -> Result<Vec<IpAddr>, String> {
        let until = Instant::now() + self.options.timeout;
        let mut asked = Instant::now();
        let mut hosts = BTreeMap::new();
        while hosts.len() < running as usize {
            match heard.recv_timeout(LOOK) {
                Ok(Event::Joined(id, host)) => drop(hosts.insert(id, host)),
                Ok(Event::Lost(id)) => {
                    return Err(format!("clone {id} ended before the run began"));
                }
                Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if sys::asked_to_end().is_some() {
                        return Err("it was interrupted".into());
                    }
                    if asked.elapsed() >= ASK {
                        asked = Instant::now();
                        if self.have_ended() {
                            return Err(
                                "the clones have ended without a word: they don't see this machine; was it started with a network (floe run IMAGE --network)?".into(),
                            );
                        }
                    }
                    if Instant::now() >= until {
                        return Err(format!(
                            "{} of {running} clones have not been heard of in {} seconds; does this machine have a network with them (floe run IMAGE --network)? --timeout sets how long they may take",
                            running as usize - hosts.len(),
                            self.options.timeout.as_secs()
                        ));
                    }
                }
            }
        }
        Ok(hosts.into_values().collect())
    }

    /// Returns whether no clone exists any more.
    fn have_ended(&self) -> bool {
        let join = Call::Join {
            ticket: self.ticket.clone(),
            timeout_ms: Some(1),
        };
        matches!(
            client::call(&self.options.socket, &join, Some(CALL)),
            Ok(Answer::Done { .. })
        )
    }

    /// Waits for dismissed clones to end.
    fn join(&self) {
        let join = Call::Join {
            ticket: self.ticket.clone(),
            timeout_ms: Some(FAREWELL.as_millis() as u64),
        };
        match client::call(&self.options.socket, &join, Some(CALL)) {
            Ok(Answer::Done { ended, lost }) => {
                self.tell(&format!("{ended} clones ended, {lost} of them lost"));
            }
            // somebody else has ended them already
            Ok(Answer::Refused(refusal)) if refusal.code == codes::UNKNOWN_TICKET => {}
            _ => self.kill(),
        }
    }
}

/// Returns mpiexec's command line.
fn command(
    options: &Options,
    mpiexec: &Path,
    address: IpAddr,
    clones: &[IpAddr],
    spread: Spread,
    launcher: Option<&Path>,
) -> Command {
    let here = options.job.here.then_some(&address);
    let hosts = here.into_iter().chain(clones);
    let hosts: Vec<String> = hosts
        .map(|host| format!("{host}:{}", spread.each))
        .collect();
    let mut command = Command::new(mpiexec);
    command.args(["-localhost", &address.to_string()]);
    if let Some(launcher) = launcher {
        command
            .args(["-launcher", "ssh", "-launcher-exec"])
            .arg(launcher);
    }
    command.args(["-hosts", &hosts.join(",")]);
    command.args(options.program(spread.ranks));
    if std::env::var_os(TRANSPORTS.0).is_none() {
        command.env(TRANSPORTS.0, TRANSPORTS.1);
    }
    command
}

/// Runs mpiexec until it ends, or must end because a clone is lost or this process was asked to end.
fn watch(mut command: Command, heard: &Receiver<Event>) -> Result<ExitCode, String> {
    let failed = |error: io::Error, command: &Command| {
        format!("{}: {error}", Path::new(command.get_program()).display())
    };
    let mut child = command.spawn().map_err(|error| failed(error, &command))?;
    let mut lost = None;
    let mut until: Option<Instant> = None;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(failed(error, &command)),
        }
        if let Ok(Event::Lost(id)) = heard.recv_timeout(LOOK) {
            lost = lost.or(Some(id));
        }
        let over = lost.is_some() || sys::asked_to_end().is_some();
        match until {
            None if over => {
                sys::terminate(&child);
                until = Some(Instant::now() + LAST_WORDS);
            }
            Some(until) if Instant::now() >= until => drop(child.kill()),
            _ => {}
        }
    };
    match (lost, sys::asked_to_end()) {
        (_, Some(signal)) => Ok(ExitCode::from(128 + signal as u8)),
        (Some(id), None) => Err(format!("clone {id} is gone: the run was ended")),
        (None, None) => Ok(ExitCode::from(member::code(status) as u8)),
    }
}

/// A directory of this run alone, which contains the launcher.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn make() -> io::Result<Place> {
        let mut number = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut number)?;
        let name = format!("floe-mpi-{:016x}", u64::from_le_bytes(number));
        let dir = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let place = Place { dir };
        std::os::unix::fs::symlink(std::env::current_exe()?, place.dir.join(LAUNCHER_NAME))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns MPICH's mpiexec: the given one, or the first in the PATH that reports to be Hydra.
fn find_mpiexec(options: &Options) -> Result<PathBuf, String> {
    let is_hydra = |program: &Path| {
        let output = Command::new(program).arg("--version").output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).contains("HYDRA"))
    };
    if let Some(named) = &options.mpiexec {
        return match is_hydra(named) {
            Ok(true) => Ok(named.clone()),
            Ok(false) => Err(format!(
                "{} is not MPICH's mpiexec (Hydra)",
                named.display()
            )),
            Err(error) => Err(format!("{}: {error}", named.display())),
        };
    }
    let found = MPIEXECS
        .iter()
        .map(PathBuf::from)
        .find(|name| is_hydra(name).unwrap_or(false));
    found.ok_or_else(|| "there is no mpiexec of MPICH in the PATH; install MPICH in the guest (Debian: mpich), or name it with --mpiexec".into())
}
