//! Runs unmodified MPI programs on clones of the machine in which they are started (SnowFlock, section 4.2: there, the
//! part of MPICH that starts tasks is replaced by one that clones).
//!
//! ```text
//! floe-mpirun --- request_ticket, clone --> agent              in each clone: the same process, which goes on as a
//!    |                                                         [`member`] and dials back
//!    +-- mpiexec (MPICH's own)                                    |
//!          +-- floe-mpi-launcher HOST hydra_pmi_proxy ...         |
//!                 +-- unix socket --> floe-mpirun <-- TCP --------+-- sh -c "hydra_pmi_proxy ..." --> ranks
//! ```
//! MPICH is unmodified: its process manager Hydra starts one proxy per host with a program that it calls like ssh. floe's
//! launcher passes the command to floe-mpirun, which sends it to the clone. [`plan`] decides without I/O how many clones
//! there must be and what runs where; [`wire`] defines the messages between the three.
//!
//! The secret is drawn before the machine is cloned, so it is in the memory of every clone and of nobody else:
//! floe-mpirun recognizes its clones by it. In the family's network nobody can use the address of another machine, so the
//! clones need no proof that they talk to floe-mpirun.

mod launcher;
mod member;
mod members;
pub mod options;
pub mod plan;
mod run;
mod sys;
pub mod wire;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The name of the command.
pub const RUN_NAME: &str = "floe-mpirun";
/// The name of the program that Hydra calls for each host.
pub const LAUNCHER_NAME: &str = "floe-mpi-launcher";
/// The exit status for failures of floe-mpirun itself; other values are mpiexec's.
pub const OWN_FAILURE: u8 = 125;
/// How long one side may send nothing, not even as its kernel's keepalives, until the other considers it dead. A clone on
/// another host is paused while its parent's node is restarted.
const SILENCE: Duration = Duration::from_secs(120);

/// Runs the MPI command whose name `program` was called by; returns `None` if it is not one.
pub fn run_as(program: &Path, args: &[String]) -> Option<ExitCode> {
    let name = program.file_name()?.to_str()?;
    match name {
        RUN_NAME => Some(mpirun(args)),
        LAUNCHER_NAME => Some(launcher::main(program.parent()?, args)),
        _ => None,
    }
}

/// The command `floe-mpirun`.
pub fn mpirun(args: &[String]) -> ExitCode {
    let parsed = match options::parse(args) {
        Ok(options::Parsed::Help) => {
            print!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Ok(options::Parsed::Run(options)) => run::run(&options),
        Err(why) => Err(format!("{why}; see {RUN_NAME} --help")),
    };
    parsed.unwrap_or_else(|why| {
        say(RUN_NAME, &why);
        let signal = sys::asked_to_end().map(|signal| 128 + signal as u8);
        ExitCode::from(signal.unwrap_or(OWN_FAILURE))
    })
}

/// Prints a message for the user. If nobody reads it, that must not end a run.
fn say(who: &str, what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{who}: {what}");
}

/// Returns the address that this machine uses to reach another one; nothing is sent.
fn own_address(towards: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match towards {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(towards)?;
    Ok(socket.local_addr()?.ip())
}
