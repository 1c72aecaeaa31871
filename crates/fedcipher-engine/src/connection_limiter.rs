//! How many connections a service holds and how long one may say nothing: what strangers could use up.
//!
//! A connection is *greeted* when its first call has arrived: TLS, HTTP/2 and the call's headers are through.
//! Until then it has [`FIRST_CALL_LIMIT`]. After that HTTP/2's own pings ([`crate::listen::server`]) end it when its peer is
//! gone. One with no call under way makes room for a newer one when its peer or the service has too many: a peer that
//! has called once, and been refused, answers pings for ever.

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
/// Most connections where descriptors would allow more.
const MAX_CONNECTIONS: usize = 4096;
/// Descriptors for all that is not a connection: the store, ledgers, the listener.
const RESERVE: usize = 128;
/// A connection over a Unix socket may bring a ring.
const DESCRIPTORS: usize = 2;

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// An address; of IPv6 its /64, since whoever has one address has the others.
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

/// What to do about a connection that has ended without a call; it must not block.
pub type OnRejected = Box<dyn Fn(Origin, &'static str) + Send + Sync>;

/// The open connections of one service.
pub struct ConnectionLimiter {
    open: Mutex<Open>,
    on_rejected: OnRejected,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// By age.
    all: BTreeMap<u64, Entry>,
    of: BTreeMap<Origin, usize>,
}

struct Entry {
    origin: Origin,
    has_called: bool,
    /// Calls under way.
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

    /// Ends the oldest connection, of `origin` if one is named, that has made no call; else the oldest that has none
    /// under way.
    fn make_room(&mut self, origin: Option<Origin>) -> bool {
        let idle = || self.all.iter().filter(|(_, e)| e.calls == 0 && origin.is_none_or(|origin| origin == e.origin));
        let oldest = idle().find(|(_, e)| !e.has_called).or_else(|| idle().next()).map(|(id, _)| *id);
        oldest.and_then(|id| self.remove(id)).map(|entry| entry.close.send(())).is_some()
    }
}

/// Most connections that the limit of descriptors leaves room for.
fn most() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    (descriptors.saturating_sub(RESERVE.min(descriptors / 2)) / DESCRIPTORS).min(MAX_CONNECTIONS)
}

impl ConnectionLimiter {
    /// Raises the process's limit of descriptors as far as it may.
    #[must_use]
    pub fn new(on_rejected: OnRejected) -> Arc<Self> {
        let limit = getrlimit(Resource::Nofile);
        // Where it may not, fewer connections fit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        Arc::new(ConnectionLimiter { open: Mutex::default(), on_rejected })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; none if everybody who could make room for it is at work.
    #[must_use]
    pub fn admit(self: &Arc<Self>, origin: Origin) -> Option<Pass> {
        // Looked up each time: the limit of a running process can be changed.
        let most = most();
        let mut open = self.open();
        let own = open.of.get(&origin).copied().unwrap_or(0);
        // One peer has half of the places at most.
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

    /// For when descriptors have run out all the same.
    pub fn make_room(&self) {
        let mut open = self.open();
        for _ in 0..open.all.len().div_ceil(4) {
            open.make_room(None);
        }
    }
}

/// Tells the limiter of a connection's calls.
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
    /// A call has arrived; it is under way until what this returns is dropped.
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

/// A call under way.
#[derive(Debug)]
pub struct Work(CallTracker);

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(entry) = self.0.limiter.open().all.get_mut(&self.0.id) {
            entry.calls -= 1;
        }
    }
}

/// One connection's place, given back when it is dropped.
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

    /// An error once the connection has to end.
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

    /// Until the connection has to end.
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

/// A connection that ends when its pass does.
pub struct Admitted<S> {
    pub socket: S,
    pub pass: Pass,
    pub ring: Option<Arc<SharedMemoryRing>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Admitted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        // Every connection waits here for its peer, so this is where it learns that its time is over.
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
