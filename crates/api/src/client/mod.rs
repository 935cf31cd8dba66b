//! The node's interface as function calls, for the command line and for tests.
//!
//! Calls block, because a command does one thing at a time. Long calls return an [`Events`] iterator; dropping it (or
//! ending the process) closes the connection, and the node then cancels the operation and cleans up.
//!
//! ```no_run
//! # use floe_api::{RunRequest, client::{Client, ClientError}, paths::Home};
//! let client = Client::connect(Home::from_env().socket())?;
//! let request = RunRequest { image: "debian".into(), ..Default::default() };
//! for event in client.run(&request)? {
//!     println!("{:?}", event?);
//! }
//! # Ok::<(), ClientError>(())
//! ```

mod change;
mod cluster;
mod images;
mod moves;
mod pool;

use crate::*;
use bytes::{Buf, Bytes};
use floe_http::{Answer, Connection, Method, Server, Switched, escape, header};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest line of an event stream and longest answer of a short call, in bytes: longer than any list of machines.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Longest time to connect: a node that has no room for one more connection counts as absent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Advice for a user who may not connect to the node's socket.
const DENIED_FIX: &str = "run the command as the node's user, for instance with sudo, or let the node be started with --socket-group and the number of a group that you are in";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error(
        "no node answers on {socket}: {reason} (start one with `floe up` or `systemctl start floe-node`)"
    )]
    NoNode {
        /// The socket.
        socket: String,
        /// The operating system's reason.
        reason: String,
    },
    /// Somebody may listen on the socket, but this user may not connect to it.
    #[error("this user may not use the node's socket {socket} ({DENIED_FIX})")]
    Denied {
        /// The socket.
        socket: String,
    },
    /// The node refused the request or failed to do it.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The connection broke, or this version does not understand the answer.
    #[error(
        "the node's answer broke off: {0} (see the node's log; are both the same version of floe?)"
    )]
    Broken(String),
}

impl ClientError {
    /// Returns the exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            ClientError::NoNode { .. } => ErrorCode::Unreachable.exit_code(),
            ClientError::Denied { .. } => ErrorCode::Refused.exit_code(),
            ClientError::Api(error) => error.code.exit_code(),
            ClientError::Broken(_) => ErrorCode::Failed.exit_code(),
        }
    }

    /// Converts the error into an [`ApiError`], for `--json`.
    pub fn to_api(&self) -> ApiError {
        match self {
            ClientError::NoNode { socket, reason } => ApiError {
                code: ErrorCode::Unreachable,
                message: format!("no node answers on {socket}: {reason}"),
                fix: "start one with `floe up` or `systemctl start floe-node`".into(),
            },
            ClientError::Denied { socket } => ApiError {
                code: ErrorCode::Refused,
                message: format!("this user may not use the node's socket {socket}"),
                fix: DENIED_FIX.into(),
            },
            ClientError::Api(error) => error.clone(),
            ClientError::Broken(why) => ApiError {
                code: ErrorCode::Failed,
                message: format!("the node's answer broke off: {why}"),
                fix: "see the node's log".into(),
            },
        }
    }
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// A client of the node that listens on a socket. Every call opens a new connection (20 us on a unix socket).
#[derive(Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Checks that a node listens on the socket, and returns a client of it.
    pub fn connect(socket: impl Into<PathBuf>) -> Result<Client, ClientError> {
        let client = Client {
            socket: socket.into(),
        };
        client.dial()?;
        Ok(client)
    }

    /// Returns the node's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    // ------------------------------------------------------------------------------------------------------ node

    /// Returns what the node is and runs.
    pub fn node(&self) -> Result<NodeInfo, ClientError> {
        self.get("/v1/node")
    }
    /// Returns the address of the node's page.
    pub fn page(&self) -> Result<PageInfo, ClientError> {
        self.get("/v1/page")
    }
    /// Returns the checks that the node made of its host.
    pub fn doctor(&self) -> Result<DoctorReport, ClientError> {
        self.get("/v1/doctor")
    }
    /// Does the same for a QEMU of this version, such as `10.0`, in place of the one that is there.
    pub fn doctor_for_qemu(&self, version: &str) -> Result<DoctorReport, ClientError> {
        self.get(&format!("/v1/doctor?qemu={version}"))
    }
    /// Ends the node.
    pub fn shutdown(&self, request: &ShutdownRequest) -> Result<(), ClientError> {
        self.post_empty("/v1/shutdown", request)
    }
    /// Returns the node's events as they happen, after those since the query's time if it has one; with `once`, only what has happened.
    pub fn events(&self, query: &EventsQuery) -> Result<Lines<NodeEvent>, ClientError> {
        let since = query.since_unix_ms.map(|ms| format!("&since_unix_ms={ms}"));
        let since = since.unwrap_or_default();
        Ok(Lines {
            bytes: self.open_get(&format!("/v1/events?once={}{since}", query.once))?,
            buffer: Vec::new(),
            over: false,
            item: Default::default(),
        })
    }

    // -------------------------------------------------------------------------------------------------- machines

    /// Returns all machines.
    pub fn machines(&self) -> Result<MachineList, ClientError> {
        self.get("/v1/machines")
    }
    /// Returns one machine.
    pub fn machine(&self, name: &str) -> Result<MachineInfo, ClientError> {
        self.get(&machine_path(name, ""))
    }
    /// Makes a machine and starts it.
    pub fn run(&self, request: &RunRequest) -> Result<Events, ClientError> {
        self.stream("/v1/machines", request)
    }
    /// Captures a machine as an image.
    pub fn capture(&self, name: &str, request: &CaptureRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/capture"), request)
    }
    /// Forks a machine into clones.
    pub fn fork(&self, name: &str, request: &ForkRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/fork"), request)
    }
    /// Returns a machine with its parents and clones.
    pub fn family(&self, name: &str) -> Result<Family, ClientError> {
        self.get(&machine_path(name, "/family"))
    }
    /// Returns the hosts that are known by name, with their current room.
    pub fn hosts(&self) -> Result<HostList, ClientError> {
        self.get("/v1/hosts")
    }
    /// Ends a clone, or all clones of a machine.
    pub fn kill(&self, name: &str, request: &KillRequest) -> Result<KillReport, ClientError> {
        self.post(&machine_path(name, "/kill"), request)
    }
    /// Stops a machine; its disks are kept.
    pub fn stop(&self, name: &str, request: &StopRequest) -> Result<MachineInfo, ClientError> {
        self.post(&machine_path(name, "/stop"), request)
    }
    /// Pauses a machine until [`Client::resume`].
    pub fn pause(&self, name: &str) -> Result<MachineInfo, ClientError> {
        self.post(&machine_path(name, "/pause"), &())
    }
    /// Ends its user's pause of a machine. Other reasons may keep it standing: [`MachineInfo::paused_for`].
    pub fn resume(&self, name: &str) -> Result<MachineInfo, ClientError> {
        self.post(&machine_path(name, "/resume"), &())
    }
    /// Stores a machine's memory and ends its QEMU, until [`Client::wake`].
    pub fn park(&self, name: &str, query: &ParkQuery) -> Result<Events, ClientError> {
        let mut path = format!("/park?wait={}", query.wait);
        if let Some(hooks_s) = query.hooks_s {
            path += &format!("&hooks_s={hooks_s}");
        }
        self.stream(&machine_path(name, &path), &())
    }
    /// Lets a parked machine go on where it was.
    pub fn wake(&self, name: &str, request: &StartRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/wake"), request)
    }
    /// Keeps inputs for a machine, here or where it was moved to, and has them given to its guest.
    pub fn type_on(&self, name: &str, request: &TypeRequest) -> Result<TypeReport, ClientError> {
        self.post(&machine_path(name, "/type"), request)
    }
    /// Has a machine go back to an image that was captured from it, and go on there.
    pub fn rollback(&self, name: &str, request: &RollbackRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/rollback"), request)
    }
    /// Starts a stopped machine again.
    pub fn start(&self, name: &str, request: &StartRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/start"), request)
    }
    /// Has a machine's guest tell its disks what it does not use, so that the host gets it back.
    pub fn trim(&self, name: &str) -> Result<TrimReport, ClientError> {
        self.post(&machine_path(name, "/trim"), &())
    }
    /// Returns a machine's disks.
    pub fn disks(&self, name: &str) -> Result<DiskList, ClientError> {
        self.get(&machine_path(name, "/disks"))
    }
    /// Makes a disk of a machine larger, which runs or is stopped. Returns its disks.
    pub fn resize_disk(&self, name: &str, to: &ResizeRequest) -> Result<DiskList, ClientError> {
        self.post(&machine_path(name, "/disks"), to)
    }
    /// Gives a machine another name.
    pub fn rename(&self, name: &str, to: &str) -> Result<MachineInfo, ClientError> {
        let request = RenameRequest { name: to.into() };
        self.post(&machine_path(name, "/rename"), &request)
    }
    /// Stops a machine and starts it again from its disks.
    pub fn restart(&self, name: &str, request: &RestartRequest) -> Result<Events, ClientError> {
        self.stream(&machine_path(name, "/restart"), request)
    }
    /// Waits until a machine does something; returns it as it is then.
    pub fn wait(&self, name: &str, query: &WaitQuery) -> Result<MachineInfo, ClientError> {
        let what = serde_json::to_value(query.what).map_err(broken)?;
        let what = what.as_str().unwrap_or_default();
        let limit = query.timeout_s.map(|s| format!("&timeout_s={s}"));
        let rest = format!("/wait?what={what}{}", limit.unwrap_or_default());
        self.get(&machine_path(name, &rest))
    }
    /// Returns what the machines that run have used of their host.
    pub fn usage(&self, query: &UsageQuery) -> Result<UsageList, ClientError> {
        self.get(&format!("/v1/usage?network={}", query.network))
    }
    /// Removes a machine with its disks.
    pub fn remove_machine(&self, name: &str, force: bool) -> Result<(), ClientError> {
        self.send(
            Method::DELETE,
            &machine_path(name, &format!("?force={force}")),
            Bytes::new(),
        )?
        .discard()
    }
    /// Changes how much of its host a machine may use.
    pub fn limit(&self, name: &str, request: &LimitRequest) -> Result<MachineInfo, ClientError> {
        self.post(&machine_path(name, "/limits"), request)
    }

    /// Adds or removes a port forward. Returns it with the port that was chosen.
    pub fn forward(
        &self,
        name: &str,
        request: &ForwardRequest,
    ) -> Result<PortForward, ClientError> {
        self.post(&machine_path(name, "/forwards"), request)
    }
    /// Returns where the console is; [`Client::attach`] connects to it.
    pub fn console(&self, name: &str) -> Result<ConsoleInfo, ClientError> {
        self.get(&machine_path(name, "/console"))
    }
    /// Connects to the machine's serial console: reading returns what the guest writes, and what is written reaches
    /// the guest. Fails if another process than the machine's QEMU listens there.
    pub fn attach(&self, name: &str) -> Result<std::os::unix::net::UnixStream, ClientError> {
        let console = self.console(name)?;
        let at = |why: String| ClientError::Broken(format!("console {}: {why}", console.socket));
        let line = floe_threads::connect(Path::new(&console.socket))
            .map_err(|error| at(error.to_string()))?;
        let peer =
            rustix::net::sockopt::socket_peercred(&line).map_err(|error| at(error.to_string()))?;
        let peer = peer.pid.as_raw_nonzero().get();
        match console.pid {
            Some(pid) if u32::try_from(peer) == Ok(pid) => Ok(line),
            Some(pid) => Err(at(format!(
                "process {peer} listens there, not QEMU's process {pid}"
            ))),
            None => Err(at("the machine does not run".into())),
        }
    }
    /// Starts a process in the machine's guest. Returns the connection that carries its input and output as frames (see [`EXEC_PROTOCOL`]),
    /// and the bytes that have come on it already.
    pub fn exec(
        &self,
        name: &str,
        request: &ExecRequest,
    ) -> Result<(std::os::unix::net::UnixStream, Bytes), ClientError> {
        let (server, connection) = self.dial()?;
        let body = serde_json::to_vec(request).map_err(broken)?;
        let request = server
            .request(Method::POST, &machine_path(name, "/exec"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, EXEC_PROTOCOL)
            .body(body.into())
            .map_err(broken)?;
        match connection.switch(request).map_err(broken)? {
            Switched::Stream(stream, early) => Ok((stream, early)),
            Switched::Refused(answer) => Err(ByteStream {
                answer: *answer,
                ready: Bytes::new(),
            }
            .into_error()),
        }
    }
    /// Returns the machine's screen as the bytes of a PNG file.
    pub fn screenshot(&self, name: &str) -> Result<Vec<u8>, ClientError> {
        self.send(
            Method::POST,
            &machine_path(name, "/screenshot"),
            Bytes::new(),
        )?
        .collect()
    }
    /// Returns what the guest has written to its console.
    pub fn logs(&self, name: &str, query: &LogQuery) -> Result<ByteStream, ClientError> {
        let tail = query
            .tail_bytes
            .map(|bytes| format!("&tail_bytes={bytes}"))
            .unwrap_or_default();
        self.open_get(&machine_path(
            name,
            &format!("/logs?follow={}{tail}", query.follow),
        ))
    }

    /// Returns how a machine's image is streamed.
    pub fn stream_info(&self, name: &str) -> Result<StreamInfo, ClientError> {
        self.get(&machine_path(name, "/stream"))
    }

    // ---------------------------------------------------------------------------------------------------- traces

    /// Returns the traces of an image's machines, and the models made of them.
    pub fn traces(&self, of: &TracesRequest) -> Result<TraceList, ClientError> {
        self.post("/v1/traces/list", of)
    }
    /// Returns the summary of one trace.
    pub fn trace(&self, request: &TraceRequest) -> Result<TraceDetail, ClientError> {
        self.post("/v1/traces/show", request)
    }
    /// Writes a trace to a file.
    pub fn export_trace(&self, request: &TraceRequest) -> Result<TraceMoved, ClientError> {
        self.post("/v1/traces/export", request)
    }
    /// Reads a trace from a file.
    pub fn import_trace(&self, request: &TraceImportRequest) -> Result<TraceMoved, ClientError> {
        self.post("/v1/traces/import", request)
    }

    // ----------------------------------------------------------------------------------------------------- cache

    /// Returns how full the cache is.
    pub fn cache(&self) -> Result<CacheInfo, ClientError> {
        self.get("/v1/cache")
    }
    /// Removes from cache and repository what nothing needs.
    pub fn cache_gc(&self) -> Result<FreedReport, ClientError> {
        self.post("/v1/cache/gc", &())
    }
    /// Removes what nobody uses, or for a dry run only returns what that is.
    pub fn prune(&self, request: &PruneRequest) -> Result<PruneReport, ClientError> {
        self.post("/v1/prune", request)
    }
    /// Returns whose disk requests go first, and how they fare.
    pub fn io(&self) -> Result<IoReport, ClientError> {
        self.get("/v1/io")
    }
    /// Returns where vCPUs run, and how they fare.
    pub fn sched(&self) -> Result<SchedReport, ClientError> {
        self.get("/v1/sched")
    }
    /// Returns the swarms that the node takes part in, and how much each has brought.
    pub fn swarm(&self) -> Result<SwarmReport, ClientError> {
        self.get("/v1/swarm")
    }
    /// Lets the node listen for others of its swarms.
    pub fn swarm_listen(&self) -> Result<SwarmReport, ClientError> {
        self.post("/v1/swarm/listen", &())
    }
    /// Has the node bring all of an image here and give it to others.
    pub fn swarm_seed(&self, request: &SwarmSeed) -> Result<SwarmReport, ClientError> {
        self.post("/v1/swarm/seeds", request)
    }
    /// Takes the node out of an image's swarm.
    pub fn swarm_leave(&self, request: &SwarmLeave) -> Result<SwarmReport, ClientError> {
        self.post("/v1/swarm/leave", request)
    }
    /// Returns which programs of an image are interactive.
    pub fn io_list(&self, request: &IoListRequest) -> Result<IoList, ClientError> {
        self.post("/v1/io/list", request)
    }
    /// Says whether a program of an image is interactive.
    pub fn io_say(&self, request: &IoSayRequest) -> Result<IoList, ClientError> {
        self.post("/v1/io/say", request)
    }
    /// Tells the node that somebody types on a machine's console: it can't see that, since the console's bytes don't pass it. Returns
    /// what it says to that; an older node says nothing.
    pub fn has_input(&self, name: &str) -> Result<InputNoted, ClientError> {
        let noted: Option<InputNoted> = self.post(&machine_path(name, "/input"), &())?;
        Ok(noted.unwrap_or_default())
    }
    /// Reads and hashes all of the cache.
    pub fn cache_verify(&self) -> Result<Events, ClientError> {
        self.stream("/v1/cache/verify", &())
    }

    // ---------------------------------------------------------------------------------------------------- transport

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.open_get(path)?.json()
    }

    fn open_get(&self, path: &str) -> Result<ByteStream, ClientError> {
        self.send(Method::GET, path, Bytes::new())
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.open_post(path, body)?.json()
    }

    fn post_empty(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.open_post(path, body)?.discard()
    }

    fn open_post(&self, path: &str, body: &impl Serialize) -> Result<ByteStream, ClientError> {
        self.send(
            Method::POST,
            path,
            serde_json::to_vec(body).map_err(broken)?.into(),
        )
    }

    fn stream(&self, path: &str, body: &impl Serialize) -> Result<Events, ClientError> {
        let bytes = self.open_post(path, body)?;
        Ok(Lines {
            bytes,
            buffer: Vec::new(),
            over: false,
            item: Default::default(),
        })
    }

    fn dial(&self) -> Result<(Server, Connection), ClientError> {
        let server = Server::unix(&self.socket);
        match server.connect(CONNECT_TIMEOUT) {
            Ok(connection) => Ok((server, connection)),
            Err(_) if self.is_denied() => Err(ClientError::Denied {
                socket: self.socket.display().to_string(),
            }),
            Err(fault) => Err(ClientError::NoNode {
                socket: self.socket.display().to_string(),
                reason: fault.to_string(),
            }),
        }
    }

    /// Returns whether the socket is there, or may be, but not for this user.
    fn is_denied(&self) -> bool {
        floe_threads::connect(&self.socket)
            .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    fn send(&self, method: Method, path: &str, body: Bytes) -> Result<ByteStream, ClientError> {
        let (server, connection) = self.dial()?;
        let request = server
            .request(method, path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(broken)?;
        let answer = connection.open(request).map_err(broken)?;
        let ok = answer.head().status.is_success();
        let stream = ByteStream {
            answer,
            ready: Bytes::new(),
        };
        match ok {
            true => Ok(stream),
            false => Err(stream.into_error()),
        }
    }
}

fn machine_path(name: &str, rest: &str) -> String {
    format!("/v1/machines/{}{rest}", escape(name))
}

/// The bytes of an answer, as they arrive. Dropping it closes the connection.
pub struct ByteStream {
    answer: Answer,
    ready: Bytes,
}

impl ByteStream {
    /// Returns the next bytes; `None` at the end.
    fn next_piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        if !self.ready.is_empty() {
            return Ok(Some(std::mem::take(&mut self.ready)));
        }
        self.answer.next_piece().map_err(broken)
    }

    fn collect(mut self) -> Result<Vec<u8>, ClientError> {
        let mut all = Vec::new();
        while let Some(piece) = self.next_piece()? {
            if all.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::Broken(format!(
                    "more than {ANSWER_BYTES_MAX} bytes"
                )));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.collect()?).map_err(broken)
    }

    fn discard(self) -> Result<(), ClientError> {
        self.collect().map(drop)
    }

    fn into_error(self) -> ClientError {
        let status = self.answer.head().status;
        match self.collect() {
            Err(error) => error,
            Ok(body) => match serde_json::from_slice::<ApiError>(&body) {
                Ok(error) => ClientError::Api(error),
                Err(_) => {
                    ClientError::Broken(format!("{status} {}", String::from_utf8_lossy(&body)))
                }
            },
        }
    }
}

impl Read for ByteStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(mut piece) = self.next_piece().map_err(io::Error::other)? else {
            return Ok(0);
        };
        let len = piece.len().min(out.len());
        piece.copy_to_slice(&mut out[..len]);
        self.ready = piece;
        Ok(len)
    }
}

/// The events of a long call. An [`Event::Error`] is returned as `Err(ClientError::Api)`.
pub type Events = Lines<Event>;

/// JSON values, one per line, as they arrive. Dropping it closes the connection.
pub struct Lines<T> {
    bytes: ByteStream,
    buffer: Vec<u8>,
    over: bool,
    item: std::marker::PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    fn next_line(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.len() > 1 {
                    return serde_json::from_slice(&line).map(Some).map_err(broken);
                }
                continue; // an empty line keeps the connection alive
            }
            match self.bytes.next_piece()? {
                Some(piece) if self.buffer.len() + piece.len() <= ANSWER_BYTES_MAX => {
                    self.buffer.extend_from_slice(&piece)
                }
                Some(_) => return Err(ClientError::Broken("a line without end".into())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ClientError::Broken("half a line".into())),
            }
        }
    }
}

/// What one line of an answer of many lines stands for.
pub trait Line: DeserializeOwned {
    /// Returns the line and whether it is the last; an error if the line reports one.
    fn check(self) -> Result<(Self, bool), ClientError>;
    /// Whether an answer that ends without such a last line is an error.
    const NEEDS_END: bool;
}

impl Line for Event {
    fn check(self) -> Result<(Self, bool), ClientError> {
        match self {
            Event::Error(error) => Err(error.into()),
            event => {
                let last = matches!(event, Event::Done(_));
                Ok((event, last))
            }
        }
    }
    const NEEDS_END: bool = true;
}

impl Line for NodeEvent {
    fn check(self) -> Result<(Self, bool), ClientError> {
        Ok((self, false))
    }
    const NEEDS_END: bool = false;
}

impl<T: Line> Iterator for Lines<T> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let item = match self.next_line() {
            Ok(Some(line)) => line.check(),
            Ok(None) if T::NEEDS_END => {
                Err(ClientError::Broken("it ended without a result".into()))
            }
            Ok(None) => {
                self.over = true;
                return None;
            }
            Err(error) => Err(error),
        };
        Some(match item {
            Ok((line, last)) => {
                self.over = last;
                Ok(line)
            }
            Err(error) => {
                self.over = true;
                Err(error)
            }
        })
    }
}

impl Events {
    /// Waits for the end, showing every event to `each`.
    pub fn finish(self, mut each: impl FnMut(&Event)) -> Result<Outcome, ClientError> {
        for event in self {
            let event = event?;
            each(&event);
            if let Event::Done(outcome) = event {
                return Ok(outcome);
            }
        }
        Err(ClientError::Broken("it ended without a result".into()))
    }
}
