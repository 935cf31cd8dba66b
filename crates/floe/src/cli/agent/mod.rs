//! `floe agent install`: puts floe's agent into a running guest, through the shell on its serial console, or through the agent that it
//! has, which it replaces.

mod pieces;
mod replace;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use super::error::CliError;
use super::session::Session;
use super::{Context, visible};
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest, Program};
use pieces::{Sending, Step};

/// How long a shell has to answer a line; emulated guests start programs slowly.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// The same while it installs the agent.
const INSTALL_WAIT: Duration = Duration::from_secs(120);
/// How long until a piece that nobody has acknowledged is sent again.
const PIECE_WAIT: Duration = Duration::from_secs(10);
/// How long a console must be silent before what it shows is taken for a prompt.
const QUIET: Duration = Duration::from_millis(1500);
/// How often a shell is asked whether it is one.
const ASK_MAX: u32 = 3;
/// How long the new agent may take to answer the node.
const AGENT_WAIT: Duration = Duration::from_secs(60);
/// Time between two tries to start a program with an agent that has just been installed.
const ANSWER_AGAIN: Duration = Duration::from_millis(300);
/// How much of what the console says is kept, in bytes.
const SAID_BYTES_MAX: usize = 64 << 10;
/// What the guest runs once it has the program.
const SCRIPT: &str = include_str!("install.sh");

/// The agent in a guest, which floe exec, cp and ssh need
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  floe agent install web")]
pub enum Agent {
    Install(Install),
}

impl Agent {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Agent::Install(install) => install.run(cx),
        }
    }
}

/// Install floe's agent in a running guest over its serial console, or replace the one that it has
#[derive(Debug, Args)]
#[command(after_help = "\
Example: root is logged in at the console (floe console web)
  floe agent install web
Example: the console asks for a login; the password is read from a variable, so that no list of processes shows it
  FLOE_GUEST_PASSWORD=secret floe agent install web --user root

The program, some 600 KB, is sent through the console in pieces, each with a checksum, and takes about a minute in an emulated
guest. It is then in /usr/local/bin, runs, and is started at each boot by systemd or busybox's init. The guest needs sh, base64,
sha256sum and gzip, which Debian and busybox have. Nobody else may use the console meanwhile.

An agent that answers is replaced within seconds and without the console, where it stands. If the new one does not run or does not
answer, the old one is put back. What runs in the guest goes on; floe exec, cp and ssh to it lose their connections.")]
pub struct Install {
    /// The machine
    machine: String,
    /// Log in as this user, who must be root, if the console asks for one
    #[arg(long, short)]
    user: Option<String>,
    /// The user's password
    #[arg(
        long,
        env = "FLOE_GUEST_PASSWORD",
        hide_env_values = true,
        requires = "user"
    )]
    password: Option<String>,
    /// The agent's program; by default floe-guest beside floe's own, or in /usr/lib/floe
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

impl Install {
    fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let path = program(self.agent.as_deref())?;
        let program = std::fs::read(&path).map_err(|e| CliError::file("read", &path, e))?;
        let checksum = pieces::checksum(&program);
        match replace::running(&client, &self.machine) {
            Some(found) if found.checksum == checksum => {
                let text = format!("{} has this agent, and it answers", self.machine);
                return cx.out.acknowledge(&text);
            }
            Some(replace::Running {
                path: Some(old), ..
            }) => {
                replace::replace(&client, &self.machine, &old, &path, &checksum)?;
                let text = format!("the agent of {} is replaced, and answers", self.machine);
                return cx.out.acknowledge(&text);
            }
            // none, or one that could not be put back, or that is too old to say
            _ => {}
        }
        let program = compressed(&program)?;
        let stream = client.attach(&self.machine)?;
        let mut console = Console::new(&self.machine, stream)?;
        let say = |text: String| {
            if !cx.out.json {
                eprintln!("{}", visible::message(&text));
            }
        };
        self.enter(&mut console)?;
        say(format!(
            "a shell answers; sending {} KB",
            program.len() >> 10
        ));
        console.make_receiver()?;
        let repeated = console.send("agent.gz", program, &say)?;
        console.send("install.sh", SCRIPT.into(), &|_| ())?;
        console.limit = INSTALL_WAIT;
        // its last word says what starts the agent at the next boot
        let how = console.ask("floe_h=$(sh ./install.sh 2>install.log)", "$floe_h")?;
        console.ask("cd /; rm -rf \"$floe_d\"; stty echo", "done")?;
        drop(console);
        await_agent(&client, &self.machine)?;
        let again = match repeated {
            0 => String::new(),
            n => format!(" ({n} pieces were sent again)"),
        };
        cx.out
            .acknowledge(&format!("the agent runs in {}{again}; {how}", self.machine))
    }

    /// Gets to root's shell.
    fn enter(&self, console: &mut Console) -> Result<(), CliError> {
        console.write("\n")?;
        let prompt = console.quiet()?;
        if prompt.trim_end().ends_with("login:") {
            let Some(user) = &self.user else {
                return Err(CliError::usage(
                    format!("the console of {} asks for a login", self.machine),
                    "log in as root with floe console, or give --user and --password",
                ));
            };
            console.write(&format!("{user}\n"))?;
            let prompt = console.quiet()?;
            if prompt.trim_end().ends_with("assword:") {
                let password = self.password.as_deref().unwrap_or_default();
                console.write(&format!("{password}\n"))?;
                console.quiet()?;
            }
        }
        for _ in 0..ASK_MAX {
            // a line that somebody has begun ends with Ctrl-C
            console.write("\u{3}")?;
            match console.ask("floe_u=$(id -u)", "uid-$floe_u") {
                Ok(said) if said == "uid-0" => return Ok(()),
                // a number that is missing was lost with the first half of the line: a login has just begun
                Ok(said) if said.len() > "uid-".len() && said.starts_with("uid-") => {
                    let text =
                        format!("the shell at the console of {} is not root's", self.machine);
                    return Err(CliError::new(
                        ErrorCode::Refused,
                        text,
                        "log in as root with floe console",
                    ));
                }
                _ => {}
            }
        }
        Err(CliError::new(
            ErrorCode::Refused,
            format!("no shell answers at the console of {}", self.machine),
            "look with floe console; log in there as root, or give --user and --password",
        ))
    }
}

/// Returns where the agent's program is: the given place, or where it is installed.
pub(super) fn program(given: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    floe_node::installed_agent().map_err(|error| CliError(error.to_api()))
}

fn compressed(bytes: &[u8]) -> Result<Vec<u8>, CliError> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let done = out.write_all(bytes).and_then(|()| out.finish());
    done.map_err(|e| CliError::failed("cannot compress the agent", e))
}

/// Waits until the agent answers the node.
fn await_agent(client: &Client, machine: &str) -> Result<(), CliError> {
    let until = Instant::now() + AGENT_WAIT;
    let request = ExecRequest::new(Program::Command(vec!["true".into()]));
    loop {
        let answered = Session::start(client, machine, &request)
            .and_then(|session| session.conclude(Vec::new()));
        match answered {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= until => {
                let text = format!(
                    "the agent is installed, but does not answer: {}",
                    error.0.message
                );
                let fix = "look in the guest: floe-guest serve";
                return Err(CliError::new(ErrorCode::Failed, text, fix));
            }
            // the node opens a session when it hears of the agent, and nothing tells this command of that
            Err(_) => std::thread::sleep(ANSWER_AGAIN),
        }
    }
}

/// A machine's serial console.
struct Console {
    machine: String,
    stream: UnixStream,
    /// What it has said and nobody has looked at.
    said: Vec<u8>,
    asked: u32,
    /// How long its shell has to answer.
    limit: Duration,
}

impl Console {
    fn new(machine: &str, stream: UnixStream) -> Result<Console, CliError> {
        Ok(Console {
            machine: machine.into(),
            stream,
            said: Vec::new(),
            asked: 0,
            limit: ANSWER_WAIT,
        })
    }

    fn broke(&self, error: std::io::Error) -> CliError {
        CliError::failed(&format!("the console of {} broke off", self.machine), error)
    }

    fn write(&mut self, text: &str) -> Result<(), CliError> {
        let written = self.stream.write_all(text.as_bytes());
        written.map_err(|error| self.broke(error))
    }

    /// Reads for at most so long. Returns whether anything came.
    fn read(&mut self, limit: Duration) -> Result<bool, CliError> {
        let mut buffer = [0; 4096];
        let limit = Some(limit.max(Duration::from_millis(1)));
        let read = self.stream.set_read_timeout(limit);
        match read.and_then(|()| self.stream.read(&mut buffer)) {
            Ok(0) => Err(self.broke(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.said.extend_from_slice(&buffer[..count]);
                let surplus = self.said.len().saturating_sub(SAID_BYTES_MAX);
                self.said.drain(..surplus);
                Ok(true)
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(false),
            Err(e) => Err(self.broke(e)),
        }
    }

    /// Waits until the console says nothing more. Returns what it has said.
    fn quiet(&mut self) -> Result<String, CliError> {
        let until = Instant::now() + ANSWER_WAIT;
        while Instant::now() < until && self.read(QUIET)? {}
        let said = std::mem::take(&mut self.said);
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Returns the next whole line, without waiting.
    fn line(&mut self) -> Option<String> {
        let end = self.said.iter().position(|&b| b == b'\n')?;
        let line: Vec<u8> = self.said.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }

    /// Has the shell run a command, and then print a word. Returns that word as the shell has printed it; an error if it does not
    /// in time, or the command fails.
    fn ask(&mut self, command: &str, word: &str) -> Result<String, CliError> {
        self.asked += 1;
        // the mark that is looked for does not stand in what is typed, which the console may show
        let mark = format!("floe={}=", self.asked);
        let number = self.asked;
        self.write(&format!(
            "{command} && printf '\\nfloe=%s=%s=\\n' {number} \"{word}\" || printf '\\nfloe=%s=%s=\\n' {number} no\n"
        ))?;
        let until = floe_threads::from_now(self.limit);
        loop {
            while let Some(line) = self.line() {
                let answer = line.split_once(&mark).map(|(_, rest)| rest);
                match answer.and_then(|rest| rest.strip_suffix('=')) {
                    Some("no") => {
                        let text = format!("the shell of {} failed at: {command}", self.machine);
                        return Err(CliError::new(
                            ErrorCode::Failed,
                            text,
                            "try that in floe console",
                        ));
                    }
                    Some(word) => return Ok(word.to_owned()),
                    None => {}
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("the shell of {} does not answer", self.machine);
                return Err(CliError::new(
                    ErrorCode::Failed,
                    text,
                    "look with floe console",
                ));
            }
            self.read(left)?;
        }
    }

    /// Makes the function that takes a file's pieces. Each line is short: some shells take no more than a kilobyte.
    fn make_receiver(&mut self) -> Result<(), CliError> {
        self.ask(
            "stty -echo; floe_d=$(mktemp -d) && cd \"$floe_d\"",
            "directory",
        )?;
        self.ask(
            "command -v base64 >f && command -v sha256sum >f && command -v gzip >f",
            "tools",
        )?;
        self.write(
            "floe_p() { printf %s \"$3\" | base64 -d >p 2>/dev/null; set -- $1 $2 $(sha256sum <p); [ \"$3\" = \"$2\" ]; }\n",
        )?;
        self.write(concat!(
            "floe_r() { n=0; : >\"$1\"; while IFS=' ' read -r k i s b; do case $k in ",
            "P) if [ \"$i\" -lt $n ]; then echo \"floe-ok $i\"; ",
            "elif [ \"$i\" -eq $n ] && floe_p $i \"$s\" \"$b\"; ",
            "then cat p >>\"$1\"; n=$((n+1)); echo \"floe-ok $i\"; else echo \"floe-no $n\"; fi;; ",
            "E) return 0;; '') ;; *) echo \"floe-no $n\";; esac; done 2>/dev/null; }\n"
        ))?;
        self.ask("true", "ready").map(drop)
    }

    /// Sends a file. Returns how many of its pieces were sent more than once.
    fn send(&mut self, name: &str, bytes: Vec<u8>, say: &dyn Fn(String)) -> Result<u32, CliError> {
        let whole = pieces::checksum(&bytes);
        let mut sending = Sending::new(bytes);
        self.write(&format!("floe_r {name}\n"))?;
        let mut step = sending.begin();
        let mut tenth = 0;
        loop {
            match step {
                Step::Write(line) => self.write(&line)?,
                Step::Wait => {}
                Step::Done => break,
                Step::GiveUp => {
                    let text = format!("the console of {} loses what is sent", self.machine);
                    let fix = "end what else writes there, and try again";
                    return Err(CliError::new(ErrorCode::Failed, text, fix));
                }
            }
            let done = sending.arrived() * 10 / sending.len().max(1);
            if done > tenth {
                tenth = done;
                say(format!("{} %", done * 10));
            }
            step = self.answer(&mut sending)?;
        }
        self.write("\nE\n")?;
        match self.ask(&format!("floe_c=$(sha256sum <{name})"), "${floe_c%% *}")? {
            said if said == whole => Ok(sending.repeated),
            said => Err(CliError::new(
                ErrorCode::Failed,
                format!("{name} arrived as {said}, not {whole}"),
                "try again",
            )),
        }
    }

    fn answer(&mut self, sending: &mut Sending) -> Result<Step, CliError> {
        let until = Instant::now() + PIECE_WAIT;
        loop {
            while let Some(line) = self.line() {
                match sending.heard(&line) {
                    Step::Wait => {}
                    step => return Ok(step),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(sending.silent());
            }
            self.read(left)?;
        }
    }
}
