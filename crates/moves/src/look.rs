//! What a machine shows that a member has lent to this node, to that member: see [`LookAsked`]. Who has ordered a clone here may have
//! processes in it.

use super::{Moves, check_key};
use floe_api::{ErrorCode, PortForward, Protocol};
use floe_fork::is_ordered_by;
use floe_ground::{
    caller::FromMember,
    error::{NodeError, at, not_found},
    logs,
};
use floe_inputs::{Look, LookAsked};
use floe_inventory::inventory::Entry;
use floe_machine::console::ConsoleLog;
use floe_machines::{agents::Process, machines::launch::machine_forward};
use futures::StreamExt;
use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::{sleep, timeout},
};

/// How often it is looked whether who looks has the machine lent still: a console's log goes on for ever, and nobody says its end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a port of a machine that is just being parked or woken may take to be its own again, and how long it may take to answer.
const PORT_LIMIT: Duration = Duration::from_secs(5);
/// How often such a port is looked at.
const PORT_EVERY: Duration = Duration::from_millis(50);

/// What is sent to who has asked.
pub enum Shown {
    Screen(UnixStream),
    Console(ConsoleLog),
    Log(ConsoleLog, bool),
    Picture(Vec<u8>),
    Process(Process),
    Port(TcpStream),
}

impl Moves {
    /// Finds the machine that a member asks for, if that has lent it to this node, or has ordered it here and asks for a process.
    fn seen_by(&self, asked: &LookAsked, by: &FromMember) -> Result<Option<Arc<Entry>>, NodeError> {
        let Some(clone) = &asked.clone else {
            check_key(&asked.key)?;
            return self.borrowed(&asked.key, by);
        };
        let found = match self.inventory.get(clone) {
            Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
            found => found.ok(),
        };
        let is_process = matches!(asked.what, Look::Process(_));
        Ok(found.filter(|entry| is_process && is_ordered_by(&entry.record(), by)))
    }

    /// Returns what is shown of a machine to the member that has lent it to this node.
    pub fn shown_to(&self, asked: &LookAsked, by: &FromMember) -> Result<Shown, NodeError> {
        let entry = self.seen_by(asked, by)?;
        let entry = entry.ok_or_else(|| not_found("there is no such machine of yours", ""))?;
        let name = entry.name.as_str();
        let log = |tail_bytes| self.machines.console_history(name, tail_bytes);
        Ok(match &asked.what {
            Look::Screen => Shown::Screen(self.machines.vnc(name)?),
            Look::Console => Shown::Console(log(Some(logs::EARLIER_BYTES))?),
            Look::Log { tail_bytes, follow } => Shown::Log(log(*tail_bytes)?, *follow),
            Look::Picture => Shown::Picture(self.machines.screenshot(name)?),
            Look::Process(request) => Shown::Process(self.resizes.agents.exec(name, request)?),
            Look::Port(port) => Shown::Port(connect(&entry, *port)?),
        })
    }

    /// Whether a machine is still shown to that member, as far as is known. One that is a member no more sees nothing more.
    pub fn shows(&self, asked: &LookAsked, by: &FromMember) -> bool {
        let is_member = self.cluster.find(&by.address.to_string()).is_some();
        is_member
            && match self.seen_by(asked, by) {
                Ok(found) => found.is_some(),
                // it may be one whose record can't be read
                Err(error) => error.code() == ErrorCode::Busy,
            }
    }
}

impl Shown {
    /// Sends it until it ends, who has asked is gone, or `goes_on` says that it is not shown any more.
    pub async fn send(
        self,
        mut there: impl AsyncRead + AsyncWrite + Unpin,
        goes_on: impl Fn() -> bool,
    ) {
        let over = async {
            while goes_on() {
                sleep(LOOK_EVERY).await;
            }
        };
        if let Shown::Process(process) = self {
            tokio::select! {
                () = process.relay(&mut there) => {}
                () = over => return,
            }
            // what is unread when it is closed would take the process's last words with it
            let unread = &mut tokio::io::sink();
            let _ = timeout(floe_http::LAST_WORDS, tokio::io::copy(&mut there, unread)).await;
            return;
        }
        if let Shown::Port(guest) = self {
            let guest = guest.set_nonblocking(true).map(|()| guest);
            match guest.and_then(tokio::net::TcpStream::from_std) {
                Ok(guest) => tokio::select! {
                    () = floe_http::carry(&mut there, guest) => {}
                    () = over => {}
                },
                Err(error) => tracing::warn!(%error, "a port does not lead to its guest"),
            }
            return;
        }
        let (mut from_there, mut to_there) = tokio::io::split(there);
        if let Shown::Screen(qemu) = self {
            let qemu = qemu.set_nonblocking(true).map(|()| qemu);
            let qemu = qemu.and_then(tokio::net::UnixStream::from_std);
            match qemu.map_err(at("a screen can't be shown")) {
                Ok(qemu) => {
                    let (mut from_qemu, mut to_qemu) = qemu.into_split();
                    tokio::select! {
                        _ = tokio::io::copy(&mut from_qemu, &mut to_there) => {}
                        _ = tokio::io::copy(&mut from_there, &mut to_qemu) => {}
                        () = over => {}
                    }
                }
                Err(error) => tracing::warn!(%error, "a member sees nothing"),
            }
        } else {
            // nothing is said there
            let mut nothing = tokio::io::sink();
            tokio::select! {
                sent = self.write(&mut to_there) => if let Err(error) = sent {
                    tracing::debug!(%error, "a member has stopped looking");
                },
                _ = tokio::io::copy(&mut from_there, &mut nothing) => {}
                () = over => {}
            }
        }
        let _ = to_there.shutdown().await; // it may be gone
    }

    async fn write(self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let (log, follow) = match self {
            Shown::Screen(_) | Shown::Process(_) | Shown::Port(_) => return Ok(()),
            Shown::Picture(png) => {
                to.write_u64(png.len() as u64).await?;
                return to.write_all(&png).await;
            }
            Shown::Log(log, follow) => (log, follow),
            Shown::Console(mut log) => {
                let earlier = logs::earlier(&mut log);
                to.write_u64(earlier.len() as u64).await?;
                to.write_all(&earlier).await?;
                to.flush().await?;
                (log, true)
            }
        };
        let mut pieces = std::pin::pin!(logs::stream(log, follow));
        while let Some(piece) = pieces.next().await {
            to.write_all(&piece?).await?;
            to.flush().await?;
        }
        Ok(())
    }
}

/// Connects to the port of this host that leads to a TCP port of a guest. Where its record says that such a port is, its lender has chosen:
/// so it is used only while this machine itself listens there.
fn connect(entry: &Entry, guest_port: u16) -> Result<TcpStream, NodeError> {
    let forwards = &entry.record().forwards;
    let mut tcp = forwards.iter().filter(|of| of.protocol == Protocol::Tcp);
    let forward = tcp.find(|forward| forward.guest_port == guest_port);
    let forward = forward.ok_or_else(|| {
        not_found(
            format!("nothing leads to its port {guest_port}"),
            "floe ps there shows its ports",
        )
    })?;
    let until = Instant::now() + PORT_LIMIT;
    loop {
        // asked first: what it does may be over, and the port open, in between
        let is_free = entry.task().is_none();
        if listens(entry, forward) {
            break;
        }
        if is_free || Instant::now() >= until {
            return Err(not_found(
                format!("{forward} does not lead to it now"),
                "floe ps there shows how it stands",
            ));
        }
        // neither QEMU nor whoever wakes the machine tells when the port is open
        std::thread::sleep(PORT_EVERY);
    }
    let port = machine_forward(forward)?;
    let address = SocketAddr::new(port.host_address, port.host_port);
    let connected = TcpStream::connect_timeout(&address, PORT_LIMIT);
    connected.map_err(at(format!("{forward} does not answer")))
}

/// Whether a machine that is this node's listens at a port: its QEMU, or this node while it is parked.
fn listens(entry: &Entry, forward: &PortForward) -> bool {
    if !entry.may_run() {
        return false;
    }
    let is_held = entry
        .state()
        .held
        .iter()
        .any(|held| held.forward == *forward);
    is_held
        || entry.vm().is_ok_and(|vm| {
            machine_forward(forward).is_ok_and(|port| vm.forwards().contains(&port))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_inventory::inventory::{HeldPort, Inventory, sample_record as record};
    use std::io::Write;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn a_console_says_how_much_of_it_is_earlier_and_goes_on_until_nobody_looks() {
        let dir = tempfile::tempdir().unwrap();
        let mut guest = std::fs::File::create(dir.path().join("console.log")).unwrap();
        guest.write_all(b"login: ").unwrap();
        let log = || ConsoleLog::open(dir.path(), None);
        let (mut lender, borrower) = tokio::io::duplex(1 << 10);
        let sent = tokio::spawn(Shown::Console(log()).send(borrower, || true));
        assert_eq!(lender.read_u64().await.unwrap(), 7);
        let mut got = [0; 7];
        lender.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"login: ");
        guest.write_all(b"root").unwrap();
        let mut got = [0; 4];
        lender.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"root");
        drop(lender);
        sent.await.unwrap();
        // a log ends by itself
        let (mut lender, borrower) = tokio::io::duplex(1 << 10);
        let sent = tokio::spawn(Shown::Log(log(), false).send(borrower, || true));
        let mut all = String::new();
        lender.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "login: root");
        sent.await.unwrap();
        // and one that is followed when the machine is no longer lent
        let (mut lender, borrower) = tokio::io::duplex(1 << 10);
        let (end, is_lent) = tokio::sync::watch::channel(true);
        let goes_on = move || *is_lent.borrow();
        let sent = tokio::spawn(Shown::Log(log(), true).send(borrower, goes_on));
        let mut got = [0; 11];
        lender.read_exact(&mut got).await.unwrap();
        end.send(false).unwrap();
        assert_eq!(lender.read(&mut got).await.unwrap(), 0);
        sent.await.unwrap();
    }

    /// A machine with this one port.
    fn with_port(forward: &PortForward) -> Arc<Entry> {
        let inventory = Inventory::new(Arc::default(), Default::default(), Arc::new(|_, _| ()));
        let mut record = record();
        record.forwards = vec![forward.clone()];
        (record.turn, record.uid) = (None, None);
        inventory.insert("web".parse().unwrap(), "machines/web".into(), record)
    }

    #[test]
    fn a_port_that_its_lender_has_only_named_is_not_connected_to() {
        // somebody else listens there
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let host_port = other.local_addr().unwrap().port();
        let forward: PortForward = format!("{host_port}:80").parse().unwrap();
        let error = connect(&with_port(&forward), 80).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert_eq!(
            other.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[tokio::test]
    async fn a_port_leads_to_its_guest_and_hears_the_answer_of_who_has_said_all() {
        let guest = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host_port = guest.local_addr().unwrap().port();
        let forward: PortForward = format!("{host_port}:80").parse().unwrap();
        let socket = guest.try_clone().unwrap().into();
        let entry = with_port(&forward);
        entry.holds_ports(vec![HeldPort { forward, socket }]);
        std::thread::spawn(move || {
            let (client, _) = guest.accept().unwrap();
            let mut asked = String::new();
            io::Read::read_to_string(&mut &client, &mut asked).unwrap();
            (&client)
                .write_all(asked.to_uppercase().as_bytes())
                .unwrap();
        });
        assert!(connect(&entry, 81).is_err());
        let port = Shown::Port(connect(&entry, 80).unwrap());
        let (mut lender, borrower) = tokio::io::duplex(1 << 10);
        let sent = tokio::spawn(port.send(borrower, || true));
        AsyncWriteExt::write_all(&mut lender, b"all").await.unwrap();
        AsyncWriteExt::shutdown(&mut lender).await.unwrap();
        let mut all = String::new();
        lender.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "ALL");
        sent.await.unwrap();
    }
}
