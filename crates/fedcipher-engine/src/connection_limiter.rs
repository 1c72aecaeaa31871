//! Limits the number of connections of a service, and their time without a call. Strangers could otherwise exhaust
//! both.
//!
//! A connection must make its first call within [`FIRST_CALL_LIMIT`]: TLS, HTTP/2 and the call's headers must have
//! arrived.
//! After that, HTTP/2's own pings ([`crate::listen::server`]) end it when its peer is gone. At the connection limit, of
//! the
//! peer or of the service, the oldest idle connection is closed. Answers to pings do not count as activity, because a
//! rejected peer could send them for any length of time.

use crate::ring::SharedMemoryRing;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// Longest time from a connection's beginning to its first call.
pub const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);
/// The largest number of connections, even if descriptors would allow more.
const MAX_CONNECTIONS: usize = 4096;
/// Descriptors kept for other uses: the store, ledgers, the listener.
const RESERVE: usize = 128;
/// Descriptors per connection: one over a Unix socket may bring a ring.
const DESCRIPTORS: usize = 2;

/// The origin by which connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// An address. For IPv6 its /64, because a peer with one address usually has all of them.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Origin {
    #[must_use]
    pub fn address(address: IpAddr) -> Self {
        Origin::Address(match address.to_canonical() {
            IpAddr::V6(six) => IpAddr::V6((u128::from(six) >> 64 << 64).into()),
            four => four,
        })
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Address(address) => write!(f, "address {address}"),
            Origin::User(user) => write!(f, "user {user}"),
        }
    }
}

/// Called for a connection that was rejected or ended without a call. It must not block.
pub type OnRejected = Box<dyn Fn(Origin, &'static str) + Send + Sync>;

/// The open connections of one service.
pub struct ConnectionLimiter {
    open: Mutex<Open>,
    on_rejected: OnRejected,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// The connections, oldest first.
    all: BTreeMap<u64, Entry>,
    of: BTreeMap<Origin, usize>,
}

struct Entry {
    origin: Origin,
    has_called: bool,
    /// The number of active calls.
    calls: usize,
    close: oneshot::Sender<()>,
}

impl Open {
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.all.remove(&id)?;
        if let Some(count) = self.of.get_mut(&entry.origin) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&entry.origin);
            }
        }
        Some(entry)
    }

    /// Closes the oldest connection that has made no call; otherwise the oldest without an active call. If
    /// `origin` is given, only its connections are considered.
    fn make_room(&mut self, origin: Option<Origin>) -> bool {
        let idle = || self.all.iter().filter(|(_, e)| e.calls == 0 && origin.is_none_or(|origin| origin == e.origin));
        let oldest = idle().find(|(_, e)| !e.has_called).or_else(|| idle().next()).map(|(id, _)| *id);
        oldest.and_then(|id| self.remove(id)).map(|entry| entry.close.send(())).is_some()
    }
}

/// The largest number of connections within the limit of descriptors.
fn most() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    (descriptors.saturating_sub(RESERVE.min(descriptors / 2)) / DESCRIPTORS).min(MAX_CONNECTIONS)
}

impl ConnectionLimiter {
    /// Raises the process's limit of descriptors as far as permitted.
    #[must_use]
    pub fn new(on_rejected: OnRejected) -> Arc<Self> {
        let limit = getrlimit(Resource::Nofile);
        // If the limit cannot be raised, fewer connections fit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        Arc::new(ConnectionLimiter { open: Mutex::default(), on_rejected })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection; `None` if the limit is reached and no connection can be closed for it.
    #[must_use]
    pub fn admit(self: &Arc<Self>, origin: Origin) -> Option<Pass> {
        // Read each time: the limit of a running process can be changed.
        let most = most();
        let mut open = self.open();
        let own = open.of.get(&origin).copied().unwrap_or(0);
        // One peer may have at most half of the connections.
        let room =
            (own < most.div_ceil(2) || open.make_room(Some(origin))) && (open.all.len() < most || open.make_room(None));
        if !room {
            drop(open);
            (self.on_rejected)(origin, "connection, too many are open");
            return None;
        }
        let id = open.next;
        open.next += 1;
        let (close, closed) = oneshot::channel();
        open.all.insert(id, Entry { origin, has_called: false, calls: 0, close });
        *open.of.entry(origin).or_default() += 1;
        drop(open);
        let tracker = CallTracker { limiter: Arc::clone(self), id, done: Arc::default() };
        Some(Pass { origin, tracker, closed, until: Some(Box::pin(tokio::time::sleep(FIRST_CALL_LIMIT))), fault: None })
    }

    /// Closes a quarter of the connections. For use when descriptors have run out in spite of the limit.
    pub fn make_room(&self) {
        let mut open = self.open();
        for _ in 0..open.all.len().div_ceil(4) {
            open.make_room(None);
        }
    }
}

/// Counts the calls of a connection for the limiter.
#[derive(Clone)]
pub struct CallTracker {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    done: Arc<AtomicBool>,
}

impl std::fmt::Debug for CallTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallTracker({})", self.id)
    }
}

impl CallTracker {
    /// Counts a call. It is active until the result is dropped.
    #[must_use]
    pub fn call(&self) -> Work {
        self.done.store(true, Ordering::Relaxed);
        if let Some(entry) = self.limiter.open().all.get_mut(&self.id) {
            entry.has_called = true;
            entry.calls += 1;
        }
        Work(self.clone())
    }
}

/// An active call.
#[derive(Debug)]
pub struct Work(CallTracker);

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(entry) = self.0.limiter.open().all.get_mut(&self.0.id) {
            entry.calls -= 1;
        }
    }
}

/// The permit of one connection. It is returned when dropped.
pub struct Pass {
    origin: Origin,
    tracker: CallTracker,
    closed: oneshot::Receiver<()>,
    until: Option<Pin<Box<Sleep>>>,
    fault: Option<&'static str>,
}

impl Pass {
    #[must_use]
    pub fn call_tracker(&self) -> CallTracker {
        self.tracker.clone()
    }

    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Fails once the connection must end.
    fn poll(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        if Pin::new(&mut self.closed).poll(cx).is_ready() {
            self.fault = Some("silent connection, for a newer one");
            return Err(Error::new(ErrorKind::ConnectionAborted, "makes room for another connection"));
        }
        if let Some(until) = &mut self.until {
            if self.tracker.done.load(Ordering::Relaxed) {
                self.until = None;
            } else if until.as_mut().poll(cx).is_ready() {
                self.fault = Some("silent connection");
                return Err(Error::new(ErrorKind::TimedOut, "made no call in time"));
            }
        }
        Ok(())
    }

    /// Returns once the connection must end.
    pub async fn ended(&mut self) -> Error {
        std::future::poll_fn(|cx| match self.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        })
        .await
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.tracker.limiter.open().remove(self.tracker.id);
        if !self.tracker.done.load(Ordering::Relaxed) {
            (self.tracker.limiter.on_rejected)(
                self.origin,
                self.fault.unwrap_or("connection that broke off before a call"),
            );
        }
    }
}

/// A connection that ends with its pass.
pub struct Admitted<S> {
    pub socket: S,
    pub pass: Pass,
    pub ring: Option<Arc<SharedMemoryRing>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Admitted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        // Every connection waits here for its peer, so the time limit is checked here.
        self.pass.poll(cx)?;
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Admitted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
