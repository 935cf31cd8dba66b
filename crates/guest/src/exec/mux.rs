//! Decides which frame is sent next, and what the other side may send. No I/O, no clock; the same at both ends.
//!
//! Each channel of a stream has a window: its sender has credit for so many bytes that the receiver has not consumed yet, so
//! a process that reads nothing holds up nobody but its own stream. All streams together have at most [`WIRE_BYTES_MAX`] on
//! their way over the port, whether consumed or not: what waits there is what a keystroke waits for. Of what may be sent,
//! frames about streams come first, then bytes of interactive streams, then those of the others, each class in turn; after
//! `INTERACTIVE_RUN` interactive frames one of the others follows, so that no stream starves.

use super::frame::{Channel, DATA_BYTES_MAX, Frame, Outcome};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Most streams at a time.
pub const STREAMS_MAX: usize = 64;
/// Bytes of a channel that its sender may send before any was consumed.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of all streams that may be on their way over the port: a round trip of 2 ms at 60 MB/s, and less than what a socket
/// takes without a reader.
pub const WIRE_BYTES_MAX: u32 = 128 << 10;
/// How many more of them interactive streams may have.
const WIRE_BYTES_SPARE: u32 = 32 << 10;
/// Bytes after whose arrival the sender is told of them. Telling it wakes the other side, which is expensive in an emulated guest.
const TAKEN_STEP: u32 = WIRE_BYTES_MAX / 2;
/// Bytes that must be consumed before the sender gets credit for more.
const CREDIT_STEP: u32 = WINDOW_BYTES / 4;
/// How many frames of interactive streams may go before one of another stream that waits.
const INTERACTIVE_RUN: u32 = 8;
/// Most frames about streams that wait to be sent; a caller that has more to say waits.
pub const URGENT_MAX: usize = 512;

/// At which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The node, which opens streams.
    Node,
    /// The agent.
    Guest,
}

impl Side {
    fn sends(self, channel: Channel) -> bool {
        (self == Side::Node) == (channel == Channel::Input)
    }
}

/// The other side has sent what it must not: the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the other side does not keep to the protocol: {}",
            self.0
        )
    }
}

impl std::error::Error for Violation {}

/// A channel on which this side sends.
#[derive(Debug, Default)]
struct Outgoing {
    queue: VecDeque<Vec<u8>>,
    queued: u32,
    /// How many more bytes the receiver takes, those in `queued` included.
    credit: u32,
    finished: bool,
    end_sent: bool,
}

impl Outgoing {
    fn has_frame(&self) -> bool {
        self.queued > 0 || (self.finished && !self.end_sent)
    }
}

/// A channel on which this side receives.
#[derive(Debug, Default)]
struct Incoming {
    /// How many more bytes the sender may send.
    allowed: u32,
    /// Bytes that were received and not yet consumed.
    held: u32,
    /// Bytes that were consumed and for which the sender got no credit yet.
    owed: u32,
    ended: bool,
}

#[derive(Debug, Default)]
struct Stream {
    interactive: bool,
    out: BTreeMap<Channel, Outgoing>,
    come: BTreeMap<Channel, Incoming>,
    /// Sent after everything else of this stream, which then ends.
    last: Option<Outcome>,
    /// Whether this side wants nothing more of it.
    closed: bool,
    /// The channel whose frame was sent last.
    turn: Option<Channel>,
    started: bool,
}

impl Stream {
    fn new(side: Side, interactive: bool) -> Stream {
        let mut stream = Stream {
            interactive,
            ..Default::default()
        };
        for channel in Channel::ALL {
            if side.sends(channel) {
                let outgoing = Outgoing {
                    credit: WINDOW_BYTES,
                    ..Default::default()
                };
                stream.out.insert(channel, outgoing);
            } else {
                let incoming = Incoming {
                    allowed: WINDOW_BYTES,
                    ..Default::default()
                };
                stream.come.insert(channel, incoming);
            }
        }
        stream
    }

    fn has_frame(&self) -> bool {
        self.out.values().any(Outgoing::has_frame) || self.last.is_some()
    }

    /// The channel whose turn it is.
    fn ready(&self) -> Option<Channel> {
        let mut ready = self.out.iter().filter(|(_, out)| out.has_frame());
        let first = ready.next().map(|(channel, _)| *channel)?;
        let later = ready.map(|(channel, _)| *channel).next();
        Some(match (self.turn == Some(first), later) {
            (true, Some(later)) => later,
            _ => first,
        })
    }
}

/// All streams of a port, at one of its ends.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    streams: BTreeMap<u32, Stream>,
    urgent: VecDeque<Frame>,
    /// Channels whose sender gets credit.
    owing: BTreeSet<(u32, Channel)>,
    /// Bytes that were sent and are still on their way, as far as is known.
    under_way: u32,
    /// Bytes that arrived and that the sender was not told of.
    taken: u32,
    /// Interactive frames in a row while others wait.
    run: u32,
    /// The stream that was served last, of interactive ones and of others.
    served: [u32; 2],
}

impl Mux {
    /// Makes an end without streams.
    pub fn new(side: Side) -> Mux {
        Mux {
            side,
            streams: BTreeMap::new(),
            urgent: VecDeque::new(),
            owing: BTreeSet::new(),
            under_way: 0,
            taken: 0,
            run: 0,
            served: [0; 2],
        }
    }

    /// Returns the number of streams.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Opens a stream with a number that was never used before, and queues its request. For the node. Returns whether there
    /// was room for one more.
    pub fn open(&mut self, stream: u32, interactive: bool, request: Vec<u8>) -> bool {
        if self.streams.len() >= STREAMS_MAX || request.len() > DATA_BYTES_MAX {
            return false;
        }
        let new = Stream::new(self.side, interactive);
        if self.streams.insert(stream, new).is_some() {
            return false;
        }
        self.urgent.push_back(Frame::Open {
            stream,
            interactive,
            request,
        });
        true
    }

    /// Queues a frame about a stream: a signal, a size, or that a process has started. Returns whether there was room.
    pub fn tell(&mut self, frame: Frame) -> bool {
        let fits = self.urgent.len() < URGENT_MAX;
        if fits {
            self.urgent.push_back(frame);
        }
        fits
    }

    /// Returns how many bytes [`Mux::send`] takes of this channel.
    pub fn room(&self, stream: u32, channel: Channel) -> usize {
        let stream = self.streams.get(&stream).filter(|stream| !stream.closed);
        match stream.and_then(|stream| stream.out.get(&channel)) {
            Some(out) if !out.finished => (out.credit - out.queued) as usize,
            _ => 0,
        }
    }

    /// Queues bytes of a channel, at most as many as there is [room](Mux::room) for; the caller checks that.
    pub fn send(&mut self, stream: u32, channel: Channel, bytes: &[u8]) {
        let room = self.room(stream, channel);
        let out = self.streams.get_mut(&stream);
        let Some(out) = out.and_then(|stream| stream.out.get_mut(&channel)) else {
            return;
        };
        let bytes = &bytes[..bytes.len().min(room)];
        out.queued += bytes.len() as u32;
        // few bytes at a time would take the memory of a frame each
        let last = out.queue.back_mut();
        match last.filter(|last| last.len() + bytes.len() <= DATA_BYTES_MAX) {
            Some(last) => last.extend(bytes),
            None => out
                .queue
                .extend(bytes.chunks(DATA_BYTES_MAX).map(<[u8]>::to_vec)),
        }
    }

    /// Ends a channel once what is queued was sent.
    pub fn finish(&mut self, stream: u32, channel: Channel) {
        let stream = self.streams.get_mut(&stream);
        if let Some(out) = stream.and_then(|stream| stream.out.get_mut(&channel)) {
            out.finished = true;
        }
    }

    /// Ends a stream once what is queued was sent. For the guest.
    pub fn end(&mut self, stream: u32, outcome: Outcome) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.last = Some(outcome);
            for out in stream.out.values_mut() {
                out.finished = true;
            }
        }
    }

    /// Wants nothing more of a stream: what still arrives for it is dropped, until the other side ends it. For the node.
    pub fn close(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream).filter(|known| !known.closed) {
            known.closed = true;
            for out in known.out.values_mut() {
                out.queue.clear();
                out.queued = 0;
                out.finished = true;
                out.end_sent = true;
            }
            self.owing.retain(|(owing, _)| *owing != stream);
            self.urgent.push_back(Frame::Close { stream });
        }
    }

    /// Counts bytes of a channel that have left this side for good: its sender may send as many more.
    pub fn consumed(&mut self, stream: u32, channel: Channel, bytes: usize) {
        let known = self.streams.get_mut(&stream).filter(|known| !known.closed);
        let Some(come) = known.and_then(|known| known.come.get_mut(&channel)) else {
            return;
        };
        let bytes = (bytes as u64).min(u64::from(come.held)) as u32;
        come.held -= bytes;
        come.owed += bytes;
        if come.owed >= CREDIT_STEP && !come.ended {
            self.owing.insert((stream, channel));
        }
    }

    /// Appends the next frame to `out`; returns false if there is none for now.
    pub fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let frame = self.pick();
        if let Some(frame) = &frame {
            frame.encode(out);
        }
        frame.is_some()
    }

    fn pick(&mut self) -> Option<Frame> {
        if self.taken >= TAKEN_STEP {
            let bytes = std::mem::take(&mut self.taken);
            return Some(Frame::Taken { bytes });
        }
        while let Some((stream, channel)) = self.owing.pop_first() {
            let known = self.streams.get_mut(&stream);
            if let Some(come) = known.and_then(|known| known.come.get_mut(&channel)) {
                let bytes = std::mem::take(&mut come.owed);
                come.allowed += bytes;
                return Some(Frame::Credit {
                    stream,
                    channel,
                    bytes,
                });
            }
        }
        if let Some(frame) = self.urgent.pop_front() {
            return Some(frame);
        }
        let interactive = self.waiting(true);
        let bulk = self.waiting(false);
        match (interactive, bulk) {
            (Some(stream), None) => {
                self.run = 0;
                self.take(stream)
            }
            (Some(stream), Some(_)) if self.run < INTERACTIVE_RUN => {
                self.run += 1;
                self.take(stream)
            }
            (_, Some(stream)) => {
                self.run = 0;
                self.take(stream)
            }
            (None, None) => None,
        }
    }

    /// Returns how many more bytes a class may have under way.
    fn wire_left(&self, interactive: bool) -> u32 {
        let spare = if interactive { WIRE_BYTES_SPARE } else { 0 };
        (WIRE_BYTES_MAX + spare).saturating_sub(self.under_way)
    }

    /// Returns the stream of a class whose turn it is.
    fn waiting(&self, interactive: bool) -> Option<u32> {
        let left = self.wire_left(interactive);
        let can = |stream: &Stream| {
            let queued = stream.ready().and_then(|channel| stream.out.get(&channel));
            // an end, or the outcome, needs no room
            let needs_room = queued.is_some_and(|out| out.queued > 0);
            stream.interactive == interactive && stream.has_frame() && (left > 0 || !needs_room)
        };
        let after = self.served[usize::from(interactive)];
        let later = self.streams.range(after.saturating_add(1)..);
        let mut in_turn = later.chain(self.streams.range(..=after));
        in_turn
            .find(|(_, stream)| can(stream))
            .map(|(number, _)| *number)
    }

    /// Removes the next frame of a stream that has one.
    fn take(&mut self, number: u32) -> Option<Frame> {
        let stream = self.streams.get_mut(&number)?;
        let interactive = stream.interactive;
        self.served[usize::from(interactive)] = number;
        let Some(channel) = stream.ready() else {
            let outcome = stream.last.take()?;
            self.streams.remove(&number);
            self.owing.retain(|(owing, _)| *owing != number);
            return Some(Frame::Over {
                stream: number,
                outcome,
            });
        };
        let left = self.wire_left(interactive) as usize;
        let stream = self.streams.get_mut(&number)?;
        stream.turn = Some(channel);
        let out = stream.out.get_mut(&channel)?;
        let Some(mut bytes) = out.queue.pop_front() else {
            out.end_sent = true;
            return Some(Frame::End {
                stream: number,
                channel,
            });
        };
        if bytes.len() > left {
            out.queue.push_front(bytes.split_off(left));
        }
        out.queued -= bytes.len() as u32;
        out.credit -= bytes.len() as u32;
        self.under_way += bytes.len() as u32;
        Some(Frame::Data {
            stream: number,
            channel,
            bytes,
        })
    }

    /// Checks and counts a frame of the other side. Returns it if the caller has to do something about it.
    pub fn received(&mut self, frame: Frame) -> Result<Option<Frame>, Violation> {
        match self.side {
            Side::Node => match frame {
                Frame::Started { stream, .. } => {
                    let known = self.streams.get_mut(&stream);
                    let known = known.ok_or(Violation("it started what nobody asked for"))?;
                    if std::mem::replace(&mut known.started, true) {
                        return Err(Violation("a process started twice"));
                    }
                    Ok((!known.closed).then_some(frame))
                }
                Frame::Over { stream, .. } => {
                    let known = self.streams.remove(&stream);
                    let known = known.ok_or(Violation("it ended what nobody asked for"))?;
                    self.owing.retain(|(owing, _)| *owing != stream);
                    Ok((!known.closed).then_some(frame))
                }
                other => self.flows(other),
            },
            Side::Guest => match frame {
                Frame::Open {
                    stream,
                    interactive,
                    ..
                } => {
                    let new = Stream::new(self.side, interactive);
                    if self.streams.len() >= STREAMS_MAX {
                        return Err(Violation("too many streams"));
                    }
                    if self.streams.insert(stream, new).is_some() {
                        return Err(Violation("a stream was opened twice"));
                    }
                    Ok(Some(frame))
                }
                Frame::Signal { stream, .. }
                | Frame::Size { stream, .. }
                | Frame::Close { stream } => {
                    Ok(self.streams.contains_key(&stream).then_some(frame))
                }
                other => self.flows(other),
            },
        }
    }

    /// The frames that both sides send.
    fn flows(&mut self, frame: Frame) -> Result<Option<Frame>, Violation> {
        match frame {
            Frame::Data {
                stream,
                channel,
                ref bytes,
            } => {
                let length = bytes.len() as u32;
                self.taken = self.taken.saturating_add(length);
                let Some((come, closed)) = self.receiving(stream, channel)? else {
                    return Ok(None);
                };
                let left = come.allowed.checked_sub(length).filter(|_| !come.ended);
                come.allowed = left.ok_or(Violation("more bytes than it has credit for"))?;
                if closed {
                    return Ok(None);
                }
                come.held += length;
                Ok(Some(frame))
            }
            Frame::End { stream, channel } => {
                let Some((come, closed)) = self.receiving(stream, channel)? else {
                    return Ok(None);
                };
                if std::mem::replace(&mut come.ended, true) {
                    return Err(Violation("a channel ended twice"));
                }
                self.owing.remove(&(stream, channel));
                Ok((!closed).then_some(frame))
            }
            Frame::Credit {
                stream,
                channel,
                bytes,
            } => {
                if bytes == 0 || !self.side.sends(channel) {
                    return Err(Violation("credit of 0, or for what this side receives"));
                }
                let Some(known) = self.streams.get_mut(&stream) else {
                    return self.unknown();
                };
                if let Some(out) = known.out.get_mut(&channel) {
                    let credit = out.credit.checked_add(bytes);
                    let credit = credit.filter(|credit| *credit <= WINDOW_BYTES);
                    out.credit = credit.ok_or(Violation("credit for more than was sent"))?;
                }
                Ok((!known.closed).then_some(frame))
            }
            Frame::Taken { bytes } => {
                let left = self.under_way.checked_sub(bytes).filter(|_| bytes > 0);
                self.under_way = left.ok_or(Violation("it took more than was sent"))?;
                Ok(None)
            }
            _ => Err(Violation("a frame that only the other side sends")),
        }
    }

    fn receiving(
        &mut self,
        stream: u32,
        channel: Channel,
    ) -> Result<Option<(&mut Incoming, bool)>, Violation> {
        if self.side.sends(channel) {
            return Err(Violation("bytes on a channel that leads to it"));
        }
        if !self.streams.contains_key(&stream) {
            return self.unknown().map(|_: Option<Frame>| None);
        }
        let known = self.streams.get_mut(&stream);
        Ok(known.and_then(|known| {
            let closed = known.closed;
            Some((known.come.get_mut(&channel)?, closed))
        }))
    }

    /// What belongs to no stream: a guest ends streams by itself, so the node's frames may cross that; a node's don't end
    /// before the guest said so.
    fn unknown<T>(&self) -> Result<Option<T>, Violation> {
        match self.side {
            Side::Guest => Ok(None),
            Side::Node => Err(Violation("a frame of a stream that does not exist")),
        }
    }
}

#[cfg(test)]
mod tests;
