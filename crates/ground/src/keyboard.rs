//! Typing on the serial console of a machine, for all who watch it through the node together.
//!
//! QEMU serves a console to one program at a time. Who watches it through the node reads its log instead, which has every byte and any
//! number of readers, each at its own pace. The line itself is taken only while somebody types, so that `floe console` finds it free;
//! as long as that has it, nobody types here, and is told so.
//!
//! Locks: the list of keyboards, for an instant.

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::{collections::HashMap, future::Future, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// How many messages of typed text wait for a guest that does not read; then those who type wait.
const TYPED_QUEUED_MAX: usize = 16;
/// How long the line is kept after the last key, and while the machine stands still: QEMU drops what it has not handed over to the
/// guest when the line is let go.
const KEPT: Duration = Duration::from_secs(5);
/// The same after the last of those who watch has gone: what was typed last, perhaps to log out, is still to arrive.
const KEPT_FOR_NOBODY: Duration = Duration::from_millis(500);
/// Bytes of the guest that are read at a time, and dropped: they are in the log.
const DROPPED_BYTES: usize = 16 << 10;

/// The keyboards of all machines whose consoles somebody watches.
#[derive(Default)]
pub struct Keyboards {
    open: Mutex<HashMap<String, Open>>,
}

/// A keyboard in use: it is gone with the last of its users.
type Open = (mpsc::WeakSender<Bytes>, watch::Receiver<bool>);

/// Types on one machine's console.
pub struct Keyboard {
    /// Takes what is typed. Sending waits while the guest does not read.
    pub keys: mpsc::Sender<Bytes>,
    /// Whether another program has the line, as of the last key.
    pub taken: watch::Receiver<bool>,
}

impl Keyboards {
    /// Returns a machine's keyboard: that which others use already, or a new one, whose work is then done by the returned future.
    /// `connect` (which may block) connects to the line: `None` if another program has it. `stands_still` says whether the machine is
    /// paused.
    pub fn of<C, S>(
        &self,
        machine: &str,
        connect: C,
        stands_still: S,
    ) -> (
        Keyboard,
        Option<impl Future<Output = ()> + Send + use<C, S>>,
    )
    where
        C: Fn() -> Option<std::os::unix::net::UnixStream> + Clone + Send + 'static,
        S: Fn() -> bool + Send + Sync,
    {
        let mut open = self.open.lock();
        open.retain(|_, (keys, _)| keys.strong_count() > 0);
        let used = open.get(machine);
        if let Some((keys, taken)) = used.and_then(|(keys, taken)| Some((keys.upgrade()?, taken))) {
            let taken = taken.clone();
            return (Keyboard { keys, taken }, None);
        }
        let (keys, typed) = mpsc::channel(TYPED_QUEUED_MAX);
        let (tell, taken) = watch::channel(false);
        open.insert(machine.to_owned(), (keys.downgrade(), taken.clone()));
        let work = pass_on(typed, tell, connect, stands_still);
        (Keyboard { keys, taken }, Some(work))
    }
}

/// Takes the line whenever something is typed, until nobody is left who could type.
async fn pass_on<C, S>(
    mut typed: mpsc::Receiver<Bytes>,
    taken: watch::Sender<bool>,
    connect: C,
    stands_still: S,
) where
    C: Fn() -> Option<std::os::unix::net::UnixStream> + Clone + Send + 'static,
    S: Fn() -> bool + Send + Sync,
{
    while let Some(first) = typed.recv().await {
        let line = tokio::task::spawn_blocking(connect.clone()).await;
        let line = line.ok().flatten().and_then(|line| {
            line.set_nonblocking(true).ok()?;
            UnixStream::from_std(line).ok()
        });
        taken
            .send_if_modified(|before| std::mem::replace(before, line.is_none()) != line.is_none());
        if let Some(line) = line {
            hold(line, first, &mut typed, &stands_still).await;
        }
    }
}

/// Types on a line until nobody has done so for a while, or the machine has ended.
async fn hold(
    line: UnixStream,
    first: Bytes,
    typed: &mut mpsc::Receiver<Bytes>,
    stands_still: &(impl Fn() -> bool + Sync),
) {
    let (mut from_guest, mut to_guest) = line.into_split();
    let mut dropped = vec![0; DROPPED_BYTES];
    let mut unsent = first;
    let mut until = Instant::now() + KEPT;
    let mut all_gone = false;
    loop {
        tokio::select! {
            read = from_guest.read(&mut dropped) => if !matches!(read, Ok(1..)) {
                return;
            },
            wrote = to_guest.write(&unsent), if !unsent.is_empty() => match wrote {
                Ok(count) => unsent.advance(count),
                Err(_) => return,
            },
            next = typed.recv(), if unsent.is_empty() && !all_gone => {
                all_gone = next.is_none();
                unsent = next.unwrap_or_default();
                until = floe_threads::from_now(if all_gone { KEPT_FOR_NOBODY } else { KEPT }).into();
            }
            () = sleep_until(until) => {
                // whoever waits that long for a guest that does not read, and has gone, waits no more
                if all_gone || unsent.is_empty() && !stands_still() {
                    return;
                }
                until = Instant::now() + KEPT;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn all_who_type_share_one_line_which_is_let_go_with_the_last_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.sock");
        let qemu = UnixListener::bind(&path).unwrap();
        let free = Arc::new(AtomicBool::new(false));
        let keyboards = Keyboards::default();
        let open = || {
            let (path, free) = (path.clone(), free.clone());
            let connect = move || {
                free.load(Ordering::Relaxed)
                    .then(|| std::os::unix::net::UnixStream::connect(&path).unwrap())
            };
            let (keyboard, work) = keyboards.of("web", connect, || false);
            let is_new = work.is_some();
            work.map(tokio::spawn);
            (keyboard, is_new)
        };
        let (mut one, first) = open();
        let (two, second) = open();
        assert_eq!((first, second), (true, false));
        // another program has the line
        one.keys.send(Bytes::from_static(b"lost")).await.unwrap();
        one.taken.changed().await.unwrap();
        assert!(*one.taken.borrow_and_update());
        // it has left
        free.store(true, Ordering::Relaxed);
        one.keys.send(Bytes::from_static(b"one ")).await.unwrap();
        one.taken.changed().await.unwrap();
        assert!(!*one.taken.borrow());
        let (mut guest, _) = qemu.accept().await.unwrap();
        two.keys.send(Bytes::from_static(b"two")).await.unwrap();
        let mut got = [0; 7];
        guest.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"one two");
        // a guest that writes more than the socket holds is not held up
        guest.write_all(&vec![b'x'; 4 << 20]).await.unwrap();
        drop((one, two));
        let mut rest = Vec::new();
        guest.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
        assert!(open().1, "the next one finds no line open");
    }
}
