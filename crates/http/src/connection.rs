//! A connection to a server: sends a request and returns its answer as it arrives.

use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use floe_threads::from_now;
use futures::task::AtomicWaker;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::http::response::Parts;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout_at};

use crate::carry::carry;
use crate::fault::{Fault, chain};
use crate::tls;

/// How many bytes of a watched body are given to the connection at a time. The watcher is told of each piece before the next
/// one, so this limits how much is still sent after it has asked to stop.
const PIECE_BYTES: usize = 64 << 10;

/// How often a watcher is called while nothing of the request moves: so late it may ask to stop.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// How long an exchange, and its parts, may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time to connect, including the TLS handshake.
    pub connect: Duration,
    /// When everything must be done.
    pub until: Option<Instant>,
    /// Longest time in which nothing of the request's body is sent.
    pub stall: Option<Duration>,
    /// Longest time from the end of the request's body to the answer's head; and again from there to the end of the answer.
    pub answer: Option<Duration>,
    /// How long the thread polls for the answer before it sleeps. A CPU that has to be woken for a sleeping thread costs some
    /// 40 us in a virtual machine.
    pub look: Duration,
}

impl Limits {
    /// Allows `limit` for everything, of which `connect` for the connection.
    pub fn within(limit: Duration, connect: Duration) -> Limits {
        Limits {
            connect: connect.min(limit),
            until: Some(from_now(limit)),
            stall: None,
            answer: None,
            look: Duration::ZERO,
        }
    }
}

/// Called with the answer's head and pieces of its body: with an empty piece as soon as the head is there, then with each piece
/// that arrives. An error ends the exchange.
pub type OnData<'a, E> = dyn FnMut(&Parts, &[u8]) -> Result<(), E> + 'a;

/// Called with how many more bytes of the request's body were given to the connection; and with none, now and then, while the answer's
/// head is waited for. An error ends the exchange.
pub type OnSent<'a, E> = dyn FnMut(u64) -> Result<(), E> + 'a;

/// Why an exchange ended early.
#[derive(Debug)]
pub enum Ended<E> {
    /// The connection failed.
    Fault(Fault),
    /// A callback of the caller returned this error.
    Caller(E),
}

impl<E> From<Fault> for Ended<E> {
    fn from(fault: Fault) -> Ended<E> {
        Ended::Fault(fault)
    }
}

/// A connection to a server, for one request after another.
#[derive(Debug)]
pub struct Connection {
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    send: SendRequest<Sending>,
    /// Moves the bytes while somebody waits in a call; its result is why the connection ended.
    driver: JoinHandle<hyper::Result<()>>,
    /// Whether the last request and its answer are complete.
    clean: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Dropping a runtime in the usual way panics on an async thread, and this may be dropped on one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Connection {
    pub(crate) fn new(
        runtime: Runtime,
        send: SendRequest<Sending>,
        driver: JoinHandle<hyper::Result<()>>,
    ) -> Connection {
        Connection {
            runtime: Some(runtime),
            send,
            driver,
            clean: true,
        }
    }

    /// Returns whether another request may follow, because the last one and its answer are complete.
    pub(crate) fn is_clean(&self) -> bool {
        self.clean
    }

    /// Sends `request` and passes its answer to `data` as it arrives. Blocks until the answer is complete.
    pub fn exchange<E>(
        &mut self,
        request: Request<Bytes>,
        limits: &Limits,
        sent: Option<&mut OnSent<'_, E>>,
        data: &mut OnData<'_, E>,
    ) -> Result<Parts, Ended<E>> {
        let Connection {
            runtime,
            send,
            driver,
            clean,
        } = self;
        let Some(runtime) = runtime.as_ref() else {
            return Err(Fault::NotAsked("the connection is closed".into()).into());
        };
        *clean = false;
        let exchange = looking(
            exchange(send, driver, request, limits, sent, data),
            limits.look,
        );
        let outcome = runtime.block_on(async {
            match limits.until {
                None => exchange.await,
                Some(until) => timeout_at(until.into(), exchange)
                    .await
                    .unwrap_or(Err(Fault::Late { asked: true }.into())),
            }
        });
        let (parts, complete) = outcome?;
        *clean = complete;
        Ok(parts)
    }

    /// Sends `request`, which asks for another protocol on this connection, and blocks until the server has decided.
    pub fn switch(self, request: Request<Bytes>) -> Result<Switched, Fault> {
        self.open(request)?.switch()
    }

    /// Does the same for at most so long.
    pub fn switch_within(
        self,
        request: Request<Bytes>,
        limit: Duration,
    ) -> Result<Switched, Fault> {
        self.open_until(request, Some(from_now(limit)))?.switch()
    }

    /// Sends `request` and blocks until its answer's head is there.
    pub fn open(self, request: Request<Bytes>) -> Result<Answer, Fault> {
        self.open_until(request, None)
    }

    fn open_until(
        mut self,
        request: Request<Bytes>,
        until: Option<Instant>,
    ) -> Result<Answer, Fault> {
        let (send, driver) = (&mut self.send, &mut self.driver);
        let Some(runtime) = self.runtime.as_ref() else {
            return Err(Fault::NotAsked("the connection is closed".into()));
        };
        let asked = async {
            if let Err(error) = send.ready().await {
                return Err(why_silent(error, driver).await);
            }
            match send.send_request(request.map(Sending::unwatched)).await {
                Ok(response) => Ok(response),
                Err(error) => Err(why_silent(error, driver).await),
            }
        };
        let response = runtime.block_on(async {
            match until {
                None => asked.await,
                Some(until) => timeout_at(until.into(), asked)
                    .await
                    .unwrap_or(Err(Fault::Late { asked: true })),
            }
        });
        let (head, body) = response?.into_parts();
        Ok(Answer {
            connection: self,
            head,
            body,
        })
    }
}

/// The answer to a request for another protocol.
#[derive(Debug)]
pub enum Switched {
    /// From here on the connection belongs to the other protocol: the stream, and what came of it already.
    Stream(UnixStream, Bytes),
    /// The server stays with HTTP.
    Refused(Box<Answer>),
}

/// An answer to read from. Dropping it closes the connection.
#[derive(Debug)]
pub struct Answer {
    connection: Connection,
    head: Parts,
    body: Incoming,
}

impl Answer {
    /// Takes the connection over, if the server has agreed to another protocol. A unix socket is handed over; for any other a thread
    /// carries the bytes.
    fn switch(self) -> Result<Switched, Fault> {
        if self.head.status != hyper::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Switched::Refused(Box::new(self)));
        }
        let Answer {
            connection,
            head,
            body,
        } = self;
        let cut_off = |error: &dyn std::error::Error| Fault::CutOff(chain(error));
        let Some(runtime) = connection.runtime.as_ref() else {
            return Err(Fault::NotAsked("the connection is closed".into()));
        };
        let response = Response::from_parts(head, body);
        let upgraded = runtime.block_on(hyper::upgrade::on(response));
        let upgraded = upgraded.map_err(|error| cut_off(&error))?;
        let parts = match upgraded.downcast::<TokioIo<tokio::net::UnixStream>>() {
            Ok(parts) => parts,
            Err(upgraded) => return carried(connection, upgraded),
        };
        let stream = runtime.block_on(async { parts.io.into_inner().into_std() });
        let stream = stream.and_then(|stream| {
            stream.set_nonblocking(false)?;
            Ok(stream)
        });
        let stream = stream.map_err(|error| cut_off(&error))?;
        Ok(Switched::Stream(stream, parts.read_buf))
    }

    /// Returns status and headers.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// Returns the next piece of the body, which isn't empty; `None` at the end. Blocks until the piece is there.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, Fault> {
        let Some(runtime) = self.connection.runtime.as_ref() else {
            return Ok(None);
        };
        loop {
            match runtime.block_on(self.body.frame()) {
                None => return Ok(None),
                Some(Err(error)) => return Err(Fault::CutOff(chain(&error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {} // trailers are ignored
                },
            }
        }
    }

    /// Returns all of the body. Blocks until it is there, for at most so long; one that is longer than so many bytes is an error.
    pub fn body_within(&mut self, bytes_max: usize, limit: Duration) -> Result<Vec<u8>, Fault> {
        let Some(runtime) = self.connection.runtime.as_ref() else {
            return Ok(Vec::new());
        };
        let body = &mut self.body;
        let read = async {
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Fault::CutOff(chain(&error)))?;
                let Some(piece) = frame.data_ref() else {
                    continue; // trailers are ignored
                };
                if piece.len() > bytes_max - bytes.len() {
                    let why = format!("the answer is longer than {bytes_max} bytes");
                    return Err(Fault::CutOff(why));
                }
                bytes.extend_from_slice(piece);
            }
            Ok(bytes)
        };
        let until = from_now(limit);
        runtime.block_on(async {
            let read = timeout_at(until.into(), read).await;
            read.unwrap_or(Err(Fault::Late { asked: true }))
        })
    }
}

/// Returns one end of a pair of sockets, between the other end of which and a connection a thread carries the bytes ([`carry`]).
fn carried(connection: Connection, there: Upgraded) -> Result<Switched, Fault> {
    let cut_off = |error: std::io::Error| Fault::CutOff(chain(&error));
    let (ours, theirs) = UnixStream::pair().map_err(cut_off)?;
    theirs.set_nonblocking(true).map_err(cut_off)?;
    let carries = move || {
        let Some(runtime) = connection.runtime.as_ref() else {
            return;
        };
        runtime.block_on(async {
            if let Ok(here) = tokio::net::UnixStream::from_std(theirs) {
                carry(here, TokioIo::new(there)).await;
            }
        });
    };
    let started = floe_threads::spawn("http-carries", carries);
    started.map_err(|error| Fault::CutOff(error.to_string()))?;
    Ok(Switched::Stream(ours, Bytes::new()))
}

/// Sends a request and receives its answer; returns the head, and whether the connection may be used again.
async fn exchange<E>(
    send: &mut SendRequest<Sending>,
    driver: &mut JoinHandle<hyper::Result<()>>,
    request: Request<Bytes>,
    limits: &Limits,
    sent: Option<&mut OnSent<'_, E>>,
    data: &mut OnData<'_, E>,
) -> Result<(Parts, bool), Ended<E>> {
    if let Err(error) = send.ready().await {
        return Err(why_silent(error, driver).await.into());
    }
    let progress = Arc::new(Progress::default());
    let request = request.map(|body| match sent {
        None => Sending::unwatched(body),
        Some(_) => Sending {
            left: body,
            progress: Some(progress.clone()),
        },
    });
    // a body of no bytes is never asked for, and sent with the head
    let unwatched = sent.is_none() || request.body().is_end_stream();
    let response = match sent {
        None => send.send_request(request).await,
        Some(sent) => watch(send.send_request(request), &progress, limits, sent).await?,
    };
    let response = match response {
        Ok(response) => response,
        Err(error) => return Err(why_silent(error, driver).await.into()),
    };
    let complete = unwatched || progress.over.load(Relaxed);
    let received = receive(response, data);
    let head = match limits.answer {
        None => received.await?,
        Some(limit) => tokio::time::timeout(limit, received)
            .await
            .unwrap_or(Err(Fault::Late { asked: true }.into()))?,
    };
    Ok((head, complete))
}

/// Waits for the head, reports the body's progress, and gives up if nothing moves for too long.
async fn watch<E>(
    asked: impl Future<Output = hyper::Result<Response<Incoming>>>,
    progress: &Progress,
    limits: &Limits,
    sent: &mut OnSent<'_, E>,
) -> Result<hyper::Result<Response<Incoming>>, Ended<E>> {
    let mut asked = std::pin::pin!(asked);
    let mut since = Instant::now();
    loop {
        let limit = match progress.over.load(Relaxed) {
            true => limits.answer,
            false => limits.stall,
        };
        let late = limit.and_then(|limit| since.checked_add(limit));
        let tell = from_now(TELL_EVERY);
        let next = late.map_or(tell, |late| late.min(tell));
        tokio::select! {
            biased;
            response = &mut asked => {
                progress.tell(sent)?;
                return Ok(response);
            }
            () = progress.moved.notified() => {
                since = Instant::now();
                progress.tell(sent)?;
            }
            () = sleep_until(next.into()) => {
                if late.is_some_and(|late| late <= Instant::now()) {
                    return Err(Fault::Late { asked: true }.into());
                }
                sent(0).map_err(Ended::Caller)?;
            }
        }
    }
}

async fn receive<E>(
    response: Response<Incoming>,
    data: &mut OnData<'_, E>,
) -> Result<Parts, Ended<E>> {
    let (head, mut body) = response.into_parts();
    data(&head, &[]).map_err(Ended::Caller)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Fault::CutOff(chain(&e)))?;
        if let Some(piece) = frame.data_ref() {
            data(&head, piece).map_err(Ended::Caller)?;
        }
    }
    Ok(head)
}

/// Returns why no answer came. A peer that refuses the client's certificate says so after the handshake: then its alert is the
/// connection's error.
async fn why_silent(error: hyper::Error, driver: &mut JoinHandle<hyper::Result<()>>) -> Fault {
    let ended = driver.await.ok().and_then(Result::err);
    let error = ended.unwrap_or(error);
    match tls::is_refusal(&error) {
        true => Fault::Refused(chain(&error)),
        false => Fault::NoAnswer(chain(&error)),
    }
}

/// Waits for `answer`; for the first `long` it doesn't let the thread sleep.
async fn looking<T>(answer: impl Future<Output = T>, long: Duration) -> T {
    let mut answer = std::pin::pin!(answer);
    if !long.is_zero() {
        let until = from_now(long);
        while Instant::now() < until {
            tokio::select! {
                biased;
                outcome = &mut answer => return outcome,
                () = tokio::task::yield_now() => {}
            }
        }
    }
    answer.await
}

/// How much of a request's body was given to the connection.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes that the watcher wasn't told of yet.
    bytes: AtomicU64,
    over: AtomicBool,
    moved: Notify,
    /// Wakes the body, which waits until the watcher was told of the last piece.
    next: AtomicWaker,
}

impl Progress {
    fn tell<E>(&self, sent: &mut OnSent<'_, E>) -> Result<(), Ended<E>> {
        match self.bytes.swap(0, Relaxed) {
            0 => Ok(()),
            bytes => {
                sent(bytes).map_err(Ended::Caller)?;
                self.next.wake();
                Ok(())
            }
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub(crate) struct Sending {
    left: Bytes,
    progress: Option<Arc<Progress>>,
}

impl Sending {
    fn unwatched(left: Bytes) -> Sending {
        Sending {
            left,
            progress: None,
        }
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let Some(progress) = self.progress.clone() else {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.left)))));
        };
        progress.next.register(cx.waker());
        if progress.bytes.load(Relaxed) > 0 {
            return Poll::Pending;
        }
        let length = self.left.len().min(PIECE_BYTES);
        let piece = self.left.split_to(length);
        progress.bytes.fetch_add(length as u64, Relaxed);
        progress.over.store(self.left.is_empty(), Relaxed);
        progress.moved.notify_one();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
