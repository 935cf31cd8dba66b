//! One connection: a request, and its answer as it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::http::response::Parts;
use hyper::{Request, Response};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout_at};

use crate::server::{Fault, chain};
use crate::tls;

/// Bytes of a body that are handed to the connection at a time, if somebody watches, who is told of each before the next:
/// how soon it can be stopped.
const PIECE_BYTES: usize = 64 << 10;

/// How long an exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To connect, the TLS handshake included.
    pub connect: Duration,
    /// When all must be over.
    pub until: Option<Instant>,
    /// In which some bytes of the request's body must move.
    pub stall: Option<Duration>,
    /// For the answer's head, from when the request's body was sent; and once more for its body.
    pub answer: Option<Duration>,
    /// How long the thread looks for the answer before it sleeps: who sleeps is woken by a CPU that has to wake up first, some
    /// 40 us in a virtual machine.
    pub look: Duration,
}

impl Limits {
    /// All of it in `limit`, of which the connection may take `connect`.
    pub fn within(limit: Duration, connect: Duration) -> Limits {
        Limits {
            connect: connect.min(limit),
            until: Some(Instant::now() + limit),
            stall: None,
            answer: None,
            look: Duration::ZERO,
        }
    }
}

/// Takes the answer's head with pieces of its body: an empty one as soon as the head is there, then the others as they arrive.
/// An error ends the exchange.
pub type OnData<'a, E> = dyn FnMut(&Parts, &[u8]) -> Result<(), E> + 'a;

/// Told how many more bytes of the request's body were handed to the connection. An error ends the exchange.
pub type OnSent<'a, E> = dyn FnMut(u64) -> Result<(), E> + 'a;

/// Why an exchange ended early.
#[derive(Debug)]
pub enum Ended<E> {
    /// The connection did.
    Fault(Fault),
    /// The caller wanted it so.
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
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    send: SendRequest<Sending>,
    /// Moves the bytes, while somebody waits in a call; its result is why the connection ended.
    driver: JoinHandle<hyper::Result<()>>,
    /// Whether it is between two requests.
    clean: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Plainly dropping a runtime panics on an async thread; the owner may be dropped there.
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

    /// Whether another request may follow: the last one and its answer are complete.
    pub(crate) fn is_clean(&self) -> bool {
        self.clean
    }

    /// Sends `request` and hands its answer to `data` as it arrives. Blocks.
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

    /// Sends `request` and waits for its answer's head. Blocks.
    pub fn open(mut self, request: Request<Bytes>) -> Result<Answer, Fault> {
        let (send, driver) = (&mut self.send, &mut self.driver);
        let Some(runtime) = self.runtime.as_ref() else {
            return Err(Fault::NotAsked("the connection is closed".into()));
        };
        let response = runtime.block_on(async {
            if let Err(error) = send.ready().await {
                return Err(why_silent(error, driver).await);
            }
            match send.send_request(request.map(Sending::unwatched)).await {
                Ok(response) => Ok(response),
                Err(error) => Err(why_silent(error, driver).await),
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

/// An answer to read from. Dropping it hangs up.
#[derive(Debug)]
pub struct Answer {
    connection: Connection,
    head: Parts,
    body: Incoming,
}

impl Answer {
    /// Status and headers.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// The next piece of the body, not empty; `None` at its end. Blocks.
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
                    _ => {} // trailers carry nothing of ours
                },
            }
        }
    }
}

/// The answer's head, and whether the connection may be used again.
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
    let watched = sent.is_some();
    let response = match sent {
        None => send.send_request(request).await,
        Some(sent) => watch(send.send_request(request), &progress, limits, sent).await?,
    };
    let response = match response {
        Ok(response) => response,
        Err(error) => return Err(why_silent(error, driver).await.into()),
    };
    let complete = !watched || progress.over.load(Relaxed);
    let received = receive(response, data);
    let head = match limits.answer {
        None => received.await?,
        Some(limit) => tokio::time::timeout(limit, received)
            .await
            .unwrap_or(Err(Fault::Late { asked: true }.into()))?,
    };
    Ok((head, complete))
}

/// Waits for the head, tells of the body's progress, and gives up where nothing moves.
async fn watch<E>(
    asked: impl Future<Output = hyper::Result<Response<Incoming>>>,
    progress: &Progress,
    limits: &Limits,
    sent: &mut OnSent<'_, E>,
) -> Result<hyper::Result<Response<Incoming>>, Ended<E>> {
    let mut asked = std::pin::pin!(asked);
    loop {
        let limit = match progress.over.load(Relaxed) {
            true => limits.answer,
            false => limits.stall,
        };
        let late = async {
            match limit {
                Some(limit) => sleep_until((Instant::now() + limit).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            response = &mut asked => {
                progress.tell(sent)?;
                return Ok(response);
            }
            () = progress.moved.notified() => progress.tell(sent)?,
            () = late => return Err(Fault::Late { asked: true }.into()),
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

/// Why no answer came. A peer that refuses our certificate says so after the handshake: its alert is the connection's error.
async fn why_silent(error: hyper::Error, driver: &mut JoinHandle<hyper::Result<()>>) -> Fault {
    let ended = driver.await.ok().and_then(Result::err);
    let error = ended.unwrap_or(error);
    match tls::is_refusal(&error) {
        true => Fault::Refused(chain(&error)),
        false => Fault::NoAnswer(chain(&error)),
    }
}

/// Waits for `answer`, for the first `long` without letting the thread sleep.
async fn looking<T>(answer: impl Future<Output = T>, long: Duration) -> T {
    let mut answer = std::pin::pin!(answer);
    if !long.is_zero() {
        let until = Instant::now() + long;
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

/// How much of a request's body has been handed to the connection.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes of which nobody was told yet.
    bytes: AtomicU64,
    over: AtomicBool,
    moved: Notify,
    /// Of the body, which waits until the caller was told of the last piece.
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
