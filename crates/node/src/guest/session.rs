//! A conversation with a guest: one thread for each running machine that has the port.
//!
//! Everything that arrives is untrusted. What can't be understood is counted and dropped; a guest that sends too much of it
//! is disconnected for a while.

use super::{asked::Ear, calls, meter::Meter};
use crate::guest::Guests;
use floe_api::IoOrder;
use floe_ground::news::News;
use floe_guest::{
    exec::frame::{Message, Messages},
    input::Inputs,
    line::LineError,
    message::{Answer, Call, Place, Refusal, ToGuest, ToHost, VERSION, codes},
};
use floe_inventory::inventory::Entry;
use floe_machine::Machine;
use floe_machines::agents::{Say, Streams, Typed};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How often a thread that receives nothing checks whether its machine and its node still exist.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a guest may leave a message unread before it is disconnected.
const WRITE_WAIT: Duration = Duration::from_secs(10);
/// How long until a port is tried again that can't be reached or whose guest disconnected.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a guest that sends nonsense is disconnected.
const HUNG_UP: Duration = Duration::from_secs(2);
/// How long until a clone's agent that has not answered a greeting is greeted again: a message may be lost.
const AGAIN_HELLO: Duration = Duration::from_secs(10);
/// How long an agent that has answered has to give its clone an identity until it is sent that again: on a busy host that takes it a
/// while. It is not greeted again, which would end the commands that users have started meanwhile.
const AGAIN_PLACE: Duration = Duration::from_secs(120);
/// How many bytes of the port are read at a time.
const READ_BYTES: usize = 64 << 10;
/// How many calls of one machine may be under way at a time.
const CALLS_MAX: usize = 16;

/// The connection through which answers are sent.
pub(super) struct Connection {
    stream: Mutex<UnixStream>,
    session: Mutex<u64>,
    /// When a clone that has no identity by then is asked again, and whether its agent has answered its greeting.
    ask_again: Mutex<(Instant, bool)>,
    under_way: AtomicUsize,
    /// Calls that programs have cancelled.
    cancelled: Mutex<BTreeSet<u64>>,
    /// The session whose agent is to tell who reads as soon as its machine gets an input.
    to_watch: Mutex<Option<u64>>,
    /// What users have started in the guest.
    streams: Arc<Streams>,
    /// Whether its agent takes inputs.
    takes_inputs: AtomicBool,
    /// The inputs that it is given.
    typed: Arc<Typed>,
}

impl Connection {
    /// Has the agent tell who reads, once somebody has sent the machine an input: that costs a guest megabytes of memory, and before
    /// the first input nobody waits for what it reads.
    fn watch(&self, entry: &Entry) -> std::io::Result<()> {
        let mut to_watch = self.to_watch.lock();
        match *to_watch {
            Some(session) if entry.last_input().is_some() => {
                *to_watch = None;
                self.send(&ToGuest::Watch { session })
            }
            _ => Ok(()),
        }
    }

    fn send(&self, message: &ToGuest) -> std::io::Result<()> {
        let mut stream = self.stream.lock();
        let sent = stream.write_all(&message.encode());
        if sent.is_err() {
            // half a line may have been sent: closing shows the reader that the conversation is over
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        sent
    }

    /// Answers a call, unless a new session has begun since.
    pub fn answer(&self, session: u64, number: u64, answer: Answer) {
        if *self.session.lock() == session {
            let message = ToGuest::Answer {
                session,
                number,
                answer,
            };
            // if this fails, the guest's agent tells its programs so
            let _ = self.send(&message);
        }
    }

    /// Whether nobody waits for this call's answer any more.
    pub fn is_over(&self, session: u64, number: u64) -> bool {
        *self.session.lock() != session || self.cancelled.lock().contains(&number)
    }

    fn hello(&self) -> std::io::Result<()> {
        self.streams.lose("the agent has begun anew");
        self.typed.lose();
        // ends the half line that a fork or a restart may have cut off
        self.stream.lock().write_all(b"\n")?;
        let session = rand::random();
        *self.session.lock() = session;
        *self.ask_again.lock() = (Instant::now() + AGAIN_HELLO, false);
        self.cancelled.lock().clear();
        self.send(&ToGuest::Hello {
            session,
            version: VERSION,
            frames: true,
        })
    }

    /// Sends an agent that has answered who its machine is and what time it is, in the session that has begun.
    fn place(&self, place: Place) -> std::io::Result<()> {
        let session = *self.session.lock();
        self.send(&ToGuest::Place {
            session,
            place: Box::new(place),
        })
    }

    /// Takes an answer to inputs. Returns whether the message is one that is waited for.
    fn is_answer(&self, message: &ToHost) -> bool {
        match message {
            ToHost::Taken {
                session,
                from,
                number,
                why,
            } => *session == *self.session.lock() && self.typed.took(*from, *number, why),
            _ => false,
        }
    }

    /// From now on the agent is given inputs, if it takes any.
    fn begin_inputs(self: &Arc<Self>, session: u64) {
        let takes = self.takes_inputs.load(Ordering::Relaxed);
        let connection = Arc::downgrade(self);
        let say = move |inputs: &Inputs| {
            let inputs = inputs.clone();
            let message = ToGuest::Input { session, inputs };
            connection
                .upgrade()
                .is_some_and(|connection| connection.send(&message).is_ok())
        };
        self.typed
            .begin(session, takes.then(|| Arc::new(say) as Arc<Say>));
    }

    /// Sends what is to be sent of processes' streams until this conversation with the agent is over.
    fn send_frames(&self, conversation: u64) {
        while let Some(bytes) = self.streams.to_send(conversation) {
            let mut stream = self.stream.lock();
            if stream.write_all(&bytes).is_err() {
                // as above
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

/// Why a conversation ended.
enum Ended {
    /// The guest or QEMU closed it.
    Closed,
    /// The guest sent too much.
    Flooded,
    /// The node ends.
    NodeGone,
}

/// Talks to a machine's guest for as long as its QEMU and the node live.
pub(super) fn run(guests: &Weak<Guests>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
    let Some(over) = guests
        .upgrade()
        .map(|guests| guests.core.threads.over().clone())
    else {
        return;
    };
    let mut resets = vm.resets();
    let mut told = false;
    while guests.strong_count() > 0 && !over.is_cancelled() && !vm.wait_end(Duration::ZERO) {
        let stream = match vm.connect_floe_port() {
            None => return,
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::debug!(machine = %entry.name, %error, "the guest's port can't be reached");
                over.sleep(AGAIN);
                continue;
            }
        };
        match converse(guests, entry, vm, stream, &mut resets) {
            Ok(Ended::NodeGone) => return,
            Ok(Ended::Flooded) => {
                // once: such a guest does it again and again
                if let Some(guests) = guests.upgrade().filter(|_| !told) {
                    told = true;
                    guests.core.tell(entry.name.as_str(), &News::Garbage);
                }
                over.sleep(HUNG_UP);
            }
            Ok(Ended::Closed) | Err(_) => {
                over.sleep(AGAIN);
            }
        }
    }
}

fn converse(
    guests: &Weak<Guests>,
    entry: &Arc<Entry>,
    vm: &Arc<Machine>,
    mut stream: UnixStream,
    resets: &mut u64,
) -> std::io::Result<Ended> {
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    stream.set_write_timeout(Some(WRITE_WAIT))?;
    let Some((streams, typed)) = guests
        .upgrade()
        .map(|guests| (guests.agents.streams_of(vm), guests.agents.typed_of(vm)))
    else {
        return Ok(Ended::NodeGone);
    };
    let connection = Arc::new(Connection {
        stream: Mutex::new(stream.try_clone()?),
        session: Mutex::new(0),
        ask_again: Mutex::new((Instant::now() + AGAIN_HELLO, false)),
        under_way: AtomicUsize::new(0),
        cancelled: Mutex::default(),
        to_watch: Mutex::default(),
        streams,
        takes_inputs: AtomicBool::new(false),
        typed,
    });
    let ended = listen(guests, entry, vm, &connection, &mut stream, resets);
    // with session 0, answers of calls under way are dropped
    *connection.session.lock() = 0;
    connection.streams.lose("the connection to its agent ended");
    connection.typed.lose();
    let _ = stream.shutdown(std::net::Shutdown::Both);
    ended
}

/// Greets the agent and takes what it says, until the conversation ends.
fn listen(
    guests: &Weak<Guests>,
    entry: &Arc<Entry>,
    vm: &Arc<Machine>,
    connection: &Arc<Connection>,
    stream: &mut UnixStream,
    resets: &mut u64,
) -> std::io::Result<Ended> {
    connection.hello()?;
    let began = Instant::now();
    let mut meter = Meter::new();
    let ear = Ear::new();
    let mut messages = Messages::default();
    let mut buffer = [0; READ_BYTES];
    let mut was_open = vm.floe_port_is_open();
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(Ended::Closed),
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(e) => return Err(e),
        };
        let Some(guests) = guests.upgrade() else {
            return Ok(Ended::NodeGone);
        };
        guests.look_at_identity(entry);
        if let Some(place) = guests.late_clock(entry) {
            connection.place(place)?;
        }
        connection.watch(entry)?;
        let now = vm.resets();
        if std::mem::replace(resets, now) != now {
            guests.was_reset(entry, vm);
        }
        let is_open = vm.floe_port_is_open();
        if std::mem::replace(&mut was_open, is_open) != is_open && is_open == Some(false) {
            // one that starts anew says so, and is greeted then
            connection.streams.lose("its agent has ended");
            connection.typed.lose();
        }
        ask_again(&guests, entry, connection)?;
        let now_ms = began.elapsed().as_millis() as u64;
        for message in messages.feed(&buffer[..count]) {
            let understood = match message {
                Message::Line(Ok(line)) if line.is_empty() => continue,
                Message::Line(line) => line.and_then(|line| ToHost::decode(&line)),
                Message::Frame(Ok(frame)) => match connection.streams.heard(frame) {
                    Ok(()) => continue,
                    Err(violation) => {
                        tracing::warn!(machine = %entry.name, %violation, "its guest is hung up on");
                        return Ok(Ended::Flooded);
                    }
                },
                Message::Frame(Err(_)) => Err(LineError::Malformed("a frame was cut, or is none")),
            };
            if let Ok(ToHost::Asked { session, asked }) = &understood
                && ear.takes(now_ms)
            {
                if *session == *connection.session.lock() {
                    ear.told(entry, asked);
                }
                continue;
            }
            // one that is waited for is the answer to a message of this node's
            let awaited = |said: &ToHost| connection.is_answer(said);
            if understood.as_ref().is_ok_and(awaited) {
                continue;
            }
            if !meter.take(now_ms, understood.is_ok()) {
                return Ok(Ended::Flooded);
            }
            match understood {
                Ok(message) => heard(&guests, entry, vm, connection, message)?,
                Err(error) => {
                    tracing::debug!(machine = %entry.name, %error, "the guest said something strange");
                }
            }
        }
    }
}

/// Asks the agent of a clone that has had its time to take its identity once more. One that has answered keeps what users have started.
fn ask_again(guests: &Guests, entry: &Entry, connection: &Connection) -> std::io::Result<()> {
    let waits = super::is_pending(&entry.record()) && !entry.state().guest.forgets;
    let (again, answered) = *connection.ask_again.lock();
    if again > Instant::now() || !waits {
        return Ok(());
    }
    if !answered {
        return connection.hello();
    }
    *connection.ask_again.lock() = (Instant::now() + AGAIN_PLACE, true);
    connection.place(guests.place_again(entry))
}

fn heard(
    guests: &Arc<Guests>,
    entry: &Arc<Entry>,
    vm: &Arc<Machine>,
    connection: &Arc<Connection>,
    message: ToHost,
) -> std::io::Result<()> {
    let current = *connection.session.lock();
    match message {
        ToHost::Wake => connection.hello()?,
        ToHost::Ready {
            session,
            version,
            frames,
            hooks,
            inputs,
        } if session == current => {
            if version == 0 {
                return Ok(());
            }
            connection.takes_inputs.store(inputs, Ordering::Relaxed);
            let place: Place = match guests.place_of(entry, vm) {
                Ok(place) => place,
                // a guest that is not told of its generation takes itself for the one that it is a copy of
                Err(error) => {
                    tracing::debug!(machine = %entry.name, %error, "its agent is greeted again");
                    return connection.hello();
                }
            };
            guests.agents.has_hooks(vm, hooks); // before those go on who wait for this agent
            let conversation = connection.streams.begin(frames);
            if frames {
                let connection = connection.clone();
                let threads = &guests.core.threads;
                threads.start("guest-frames", move || connection.send_frames(conversation))?;
            }
            if entry.agent_answers() {
                guests.core.tell(entry.name.as_str(), &News::Answers);
            }
            guests.look_at_size(entry, vm);
            *connection.ask_again.lock() = (Instant::now() + AGAIN_PLACE, true);
            entry.clock_is_sent();
            connection.place(place)?;
            *connection.to_watch.lock() =
                (guests.core.options.io == IoOrder::Vsip).then_some(session);
        }
        ToHost::Placed { session } if session == current => {
            connection.begin_inputs(session);
            guests.identity_placed(entry, vm);
        }
        ToHost::NotPlaced { session, why } if session == current => {
            guests.identity_failed(entry, &why)
        }
        ToHost::Hooks { session, any, owed } if session == current => {
            guests.agents.has_hooks(vm, any);
            if owed {
                guests.thaw(entry, vm);
            }
        }
        ToHost::Cancel { session, number } if session == current => {
            let mut cancelled = connection.cancelled.lock();
            if cancelled.len() < CALLS_MAX {
                cancelled.insert(number);
            }
        }
        ToHost::Call {
            session,
            number,
            call,
        } if session == current => begin(guests, entry, connection, session, number, call),
        // a message of an earlier session
        _ => {}
    }
    Ok(())
}

/// Carries a call out on a thread of its own.
fn begin(
    guests: &Arc<Guests>,
    entry: &Arc<Entry>,
    connection: &Arc<Connection>,
    session: u64,
    number: u64,
    call: Call,
) {
    let busy = |why: String| {
        Answer::Refused(Refusal::new(
            codes::BUSY,
            why,
            "wait for those under way to end",
        ))
    };
    if connection.under_way.fetch_add(1, Ordering::SeqCst) >= CALLS_MAX {
        connection.under_way.fetch_sub(1, Ordering::SeqCst);
        let why = format!("{CALLS_MAX} calls of this machine are under way");
        return connection.answer(session, number, busy(why));
    }
    let (guests, entry, given) = (guests.clone(), entry.clone(), connection.clone());
    let work = move || {
        let over = || given.is_over(session, number);
        let answer = calls::carry_out(&guests, &entry, call, &over);
        given.cancelled.lock().remove(&number);
        given.under_way.fetch_sub(1, Ordering::SeqCst);
        given.answer(session, number, answer);
    };
    if let Err(error) = floe_threads::spawn("guest-call", work) {
        connection.under_way.fetch_sub(1, Ordering::SeqCst);
        connection.answer(session, number, busy(error.to_string()));
    }
}
