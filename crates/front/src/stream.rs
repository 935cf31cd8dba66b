//! Watches a connection's bytes: heads must be complete in time, and what is sent must be read.

use super::connection::Connection;
use super::pace::{Pace, Watch};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;

/// A stream over a TCP socket.
pub trait OverTcp: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the socket.
    fn tcp(&self) -> &TcpStream;
}

impl OverTcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Returns how many sent bytes the client has not acknowledged.
fn unacknowledged(socket: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int to the address given, which is that of a live one; the descriptor is borrowed and
    // so open.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 {
        u64::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

/// A watched stream: see the module's documentation. Dropping it gives the connection's seat back.
pub struct Stream<S> {
    inner: S,
    connection: Arc<Connection>,
    /// Bytes passed to the kernel.
    written: u64,
    watch: Option<Watch>,
    /// Since when the server has been waiting for the reader.
    waits_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S: OverTcp> Stream<S> {
    pub fn new(inner: S, connection: Arc<Connection>) -> Stream<S> {
        Stream {
            inner,
            connection,
            written: 0,
            watch: None,
            waits_since: None,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn taken(&self) -> u64 {
        use std::os::fd::AsFd;
        self.written
            .saturating_sub(unacknowledged(self.inner.tcp().as_fd()))
    }

    /// Called when the kernel accepts no more bytes: waits as long as the reader reads fast enough.
    fn reader_waits(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.connection.is_upgraded() {
            return Poll::Pending;
        }
        let pace = self.connection.bounds.pace;
        loop {
            let now = Instant::now();
            let taken = self.taken();
            let watch = self.watch.get_or_insert_with(|| Watch::new(pace, taken));
            let since = self.waits_since.replace(now).map(|since| now - since);
            if watch.is_too_slow(since.unwrap_or_default(), taken) {
                tracing::debug!(address = %self.connection.address, "a reader that takes nothing is cut off");
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            let look_at = now + watch.look_in();
            self.timer.as_mut().reset(look_at);
            ready!(self.timer.as_mut().poll(cx));
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        if let Some(since) = self.waits_since.take() {
            let taken = self.taken();
            if let Some(watch) = &mut self.watch
                && watch.is_too_slow(since.elapsed(), taken)
            {
                // it is progressing after all; begin a new stretch
                self.watch = None;
            }
        }
    }

    fn after_write(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match done {
            Poll::Ready(Ok(bytes)) => {
                self.wrote(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.reader_waits(cx).map(Err),
        }
    }
}

impl<S: OverTcp> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        match read {
            Poll::Ready(Ok(())) => {
                if buf.filled().len() > before {
                    self.connection.bytes_came();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                // the sending side does not need the timer while a head arrives
                if let Some(until) = self.connection.head_due() {
                    self.timer.as_mut().reset(until);
                    ready!(self.timer.as_mut().poll(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending
            }
        }
    }
}

impl<S: OverTcp> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.after_write(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.after_write(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Pending => self.reader_waits(cx).map(Err),
            done => done,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Pending => self.reader_waits(cx).map(Err),
            done => done,
        }
    }
}

impl<S> Drop for Stream<S> {
    fn drop(&mut self) {
        self.connection.closed();
    }
}

/// A request's body, which must keep arriving fast enough.
pub struct Coming<B> {
    inner: B,
    pace: Pace,
    watch: Option<Watch>,
    waits_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    came: u64,
}

/// The body arrived too slowly.
#[derive(Debug, thiserror::Error)]
#[error("fewer than {bytes_per_s_min} bytes a second came for {stretch:?}")]
pub struct TooSlow {
    bytes_per_s_min: u64,
    stretch: Duration,
}

impl<B> Coming<B> {
    pub fn new(inner: B, pace: Pace) -> Coming<B> {
        Coming {
            inner,
            pace,
            watch: None,
            waits_since: None,
            timer: None,
            came: 0,
        }
    }
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

impl<B> HttpBody for Coming<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            let frame = frame.map(|frame| frame.map_err(Into::into));
            if let Some(Ok(data)) = &frame {
                this.came += data.data_ref().map_or(0, |data| data.len() as u64);
            }
            if let (Some(since), Some(watch)) = (this.waits_since.take(), &mut this.watch)
                && watch.is_too_slow(since.elapsed(), this.came)
            {
                return Poll::Ready(Some(Err(this.too_slow())));
            }
            return Poll::Ready(frame);
        }
        loop {
            let now = Instant::now();
            let watch = this
                .watch
                .get_or_insert_with(|| Watch::new(this.pace, this.came));
            let since = this.waits_since.replace(now).map(|since| now - since);
            if watch.is_too_slow(since.unwrap_or_default(), this.came) {
                return Poll::Ready(Some(Err(this.too_slow())));
            }
            let look_at = now + watch.look_in();
            let timer = this
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(look_at)));
            timer.as_mut().reset(look_at);
            ready!(timer.as_mut().poll(cx));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Coming<B> {
    fn too_slow(&self) -> BodyError {
        Box::new(TooSlow {
            bytes_per_s_min: self.pace.bytes_per_s_min,
            stretch: self.pace.stretch,
        })
    }
}

/// An answer's body: the connection counts as busy until it is sent.
pub struct Going {
    inner: axum::body::Body,
    connection: Arc<Connection>,
}

impl Going {
    pub fn new(inner: axum::body::Body, connection: Arc<Connection>) -> Going {
        Going { inner, connection }
    }
}

impl HttpBody for Going {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.connection.answered();
    }
}
