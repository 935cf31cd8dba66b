//! Unmodified MPI programs on clones of the machine that they are started in (SnowFlock, section 4.2: the part of MPICH that
//! starts tasks is replaced by one that clones).
//!
//! ```text
//! floe-mpirun --- request_ticket, clone --> agent              in each clone: the same process, which goes on as a
//!    |                                                         [`member`] and dials back
//!    +-- mpiexec (MPICH's own)                                    |
//!          +-- floe-mpi-launcher HOST hydra_pmi_proxy ...         |
//!                 +-- unix socket --> floe-mpirun <-- TCP --------+-- sh -c "hydra_pmi_proxy ..." --> ranks
//! ```
//! MPICH is as it comes: its process manager Hydra starts one proxy a host by a program that it calls like ssh. Ours hands
//! the command to floe-mpirun, which passes it to the clone. Which clones there must be and what runs where is decided
//! in [`plan`], without I/O; [`wire`] is what is said between the three.
//!
//! A secret that is drawn before the machine is cloned is in the memory of every clone and of nobody else: it is how
//! floe-mpirun knows its clones. The family's network lets nobody speak with the address of another one, so the clones
//! need no proof of who floe-mpirun is.

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

/// The command by its own name.
pub const RUN_NAME: &str = "floe-mpirun";
/// What Hydra calls for each host.
pub const LAUNCHER_NAME: &str = "floe-mpi-launcher";
/// The exit status of whatever fails here; others are mpiexec's.
pub const OWN_FAILURE: u8 = 125;
/// How long one side may be silent, as far as its kernel goes, until the other takes it for dead. A clone on another host is
/// paused while its parent's node is restarted.
const SILENCE: Duration = Duration::from_secs(120);

/// Runs as what `program` (the name that it was called by) says, if that is one of MPI's.
pub fn run_as(program: &Path, args: &[String]) -> Option<ExitCode> {
    let name = program.file_name()?.to_str()?;
    match name {
        RUN_NAME => Some(mpirun(args)),
        LAUNCHER_NAME => Some(launcher::main(program.parent()?, args)),
        _ => None,
    }
}

/// `floe-mpirun`.
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

/// Tells the user, who may not listen any more: that must not end a run in the middle.
fn say(who: &str, what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{who}: {what}");
}

/// The address that this machine has towards another one; nothing is sent.
fn own_address(towards: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match towards {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(towards)?;
    Ok(socket.local_addr()?.ip())
}
