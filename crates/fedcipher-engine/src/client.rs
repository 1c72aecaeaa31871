//! The host's side of the engine, and the aggregator's side of the authority: blocking calls, no keys.

use crate::error::{Error, Result};
use crate::proto::{
    self, authority_client, decrypt_reply, decrypt_request, encrypt_reply, encrypt_request, engine_client,
};
use crate::ring::{SLOTS, SharedMemoryRing};
use crate::text::quoted;
use crate::tls::Credentials;
use crate::{CHUNK, FRAME, MAX_MESSAGE, MESSAGE, WINDOW};
use bytes::{Bytes, BytesMut};
use fedcipher_core::codec::Layout;
use fedcipher_core::memory::zeros;
use fedcipher_core::prf::KeyStream;
use fedcipher_core::scheme::Expect;
use fedcipher_core::wire::{self, Contribution, FrameBuffer};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
#[cfg(unix)]
use tokio::io::Interest;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// The number of messages that a sender may be ahead of the connection.
const AHEAD: usize = 4;
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that has been idle for this long is replaced. Between two calls the client does not answer pings, so
/// the server may have closed it ([`crate::listen::QUIET`] and as long again).
const QUIET: Duration = Duration::from_secs(30);
/// Most bytes of a frame in addition to its values: a ciphertext's padding, and keys sent once an epoch.
const FRAME_ROOM: usize = 256 << 20;
/// Most bytes of a frame per value: two polynomials of the largest modulus with one value per coefficient.
const FRAME_FACTOR: usize = 128;

const FOREIGN: &str = "values of another layout than the aggregate's";
const LARGE: &str = "more values than this host has memory for";

/// Timeouts of a call.
#[derive(Debug, Clone)]
pub struct Patience {
    /// A peer that does not answer a ping for this long is lost.
    silence: Duration,
    /// A peer that answers pings may work this long without progress of the call.
    work: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { silence: Duration::from_secs(30), work: Duration::from_secs(300) }
    }
}

impl Patience {
    /// `seconds` without a sign of life, ten times as many without progress.
    pub fn seconds(seconds: f64) -> Result<Self> {
        let most = 86_400.0;
        if !(0.1..=most).contains(&seconds) {
            return Err(Error::Configuration(format!("patience of {seconds} s; it is 0.1 to {most} s")));
        }
        let silence = Duration::from_secs_f64(seconds);
        Ok(Patience { silence, work: silence * 10 })
    }
}

/// Where a service listens: `unix:/path`, or `host:port` for mTLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Unix(PathBuf),
    /// `host:port`. An IPv6 address is stored without its brackets.
    Tls {
        host: String,
        port: u16,
    },
}

impl std::str::FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Without a path, Linux would use an unnamed socket without permissions, which every user can connect to.
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Target::Unix(PathBuf::from(path)));
        }
        host_port(text).ok_or_else(|| {
            let how = "an address of IPv6 is in brackets, as [::1]:7700";
            Error::Configuration(format!("{text:?} is neither unix:/path nor host:port; {how}"))
        })
    }
}

fn host_port(text: &str) -> Option<Target> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(literal) => literal.parse::<std::net::Ipv6Addr>().is_ok().then_some(literal)?,
        // An IPv6 address without brackets is ambiguous: its end cannot be told from the port.
        None => Some(host).filter(|host| !host.is_empty() && !host.contains([':', '[', ']']))?,
    };
    Some(Target::Tls { host: host.to_owned(), port })
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::Tls { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Target::Tls { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// A channel that connects on first use and reconnects after a loss. Over a Unix socket it can offer a ring.
pub fn channel(
    target: &Target,
    credentials: Option<&Path>,
    ring: Option<Arc<SharedMemoryRing>>,
    patience: &Patience,
) -> Result<Channel> {
    let common = |endpoint: Endpoint| {
        endpoint
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .max_frame_size(FRAME)
            // The limit includes TLS: the kernel accepts connections for a stopped process.
            .connect_timeout(CONNECT.min(patience.silence))
            .http2_keep_alive_interval(patience.silence / 3)
            .keep_alive_timeout(patience.silence * 2 / 3)
    };
    let failed = |e: tonic::transport::Error| Error::of_transport(&target.to_string(), &e);
    match target {
        #[cfg(not(unix))]
        Target::Unix(_) => {
            drop(ring);
            let reason = "this system has no Unix sockets; give the engine's host:port and credentials";
            Err(Error::Configuration(format!("{target}: {reason}")))
        }
        #[cfg(unix)]
        Target::Unix(path) => {
            let path = path.clone();
            let connect = tower::service_fn(move |_: Uri| {
                let (path, ring) = (path.clone(), ring.clone());
                async move {
                    let socket = tokio::net::UnixStream::connect(path).await?;
                    if let Some(ring) = ring {
                        socket.async_io(Interest::WRITABLE, || ring.offer(&socket)).await?;
                    }
                    Ok::<_, std::io::Error>(TokioIo::new(socket))
                }
            });
            Ok(common(Endpoint::from_static("http://engine")).connect_with_connector_lazy(connect))
        }
        Target::Tls { host, port } => {
            let folder = credentials.ok_or_else(|| {
                Error::Configuration(format!("{target} needs credentials, a folder made by fedcipher-authority enrol"))
            })?;
            let endpoint = Endpoint::from_shared(format!("https://{target}")).map_err(failed)?;
            let endpoint = endpoint.tls_config(Credentials::new(folder).client(host)?).map_err(failed)?;
            let (host, port) = (host.clone(), *port);
            let connect = tower::service_fn(move |_: Uri| {
                let host = host.clone();
                async move {
                    let socket = tokio::net::TcpStream::connect((host.as_str(), port)).await?;
                    socket.set_nodelay(true)?;
                    Ok::<_, std::io::Error>(TokioIo::new(socket))
                }
            });
            Ok(common(endpoint).connect_with_connector_lazy(connect))
        }
    }
}

/// The remote peer. Failures before its first successful reply are reported as connection errors.
#[derive(Debug)]
pub struct Peer {
    target: String,
    answered: AtomicBool,
}

impl Peer {
    #[must_use]
    pub fn new(target: &Target) -> Self {
        Peer { target: target.to_string(), answered: AtomicBool::new(false) }
    }

    /// The answer to a call within `most`, or the error of this connection.
    pub async fn answer<T>(
        &self,
        most: Duration,
        call: impl Future<Output = std::result::Result<tonic::Response<T>, Status>>,
    ) -> Result<T> {
        match tokio::time::timeout(most, call).await {
            Ok(Ok(reply)) => {
                self.answered.store(true, Ordering::Relaxed);
                Ok(reply.into_inner())
            }
            Ok(Err(status)) => Err(self.error(&status)),
            Err(_) => Err(self.stuck(most)),
        }
    }

    /// The error of a call without progress for `most`.
    #[must_use]
    pub fn stuck(&self, most: Duration) -> Error {
        Error::Stuck { target: self.target.clone(), seconds: most.as_secs_f64() }
    }

    fn error(&self, status: &Status) -> Error {
        let error = Error::of_status(&self.target, status);
        if self.answered.load(Ordering::Relaxed) || self.target.starts_with("unix:") {
            error
        } else {
            error.of_stranger()
        }
    }

    /// The error of an invalid answer.
    fn absurd(&self, what: &str) -> Error {
        Error::Protocol(format!("{} answers with {what}", self.target))
    }

    fn lost(&self) -> Error {
        Error::Unavailable { target: self.target.clone(), reason: "its answer ended early".into() }
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Configuration(format!("no event loop for the connection: {e}")))
}

/// An engine's description of a device.
#[derive(Debug, Clone)]
pub struct Description {
    pub spec: String,
    pub client: ClientId,
    pub epochs: Vec<Epoch>,
}

/// The decrypted values of an aggregate.
#[derive(Debug)]
pub enum Values {
    Means(Vec<f32>),
    Sums(Vec<u64>),
}

impl Values {
    /// A buffer of zeros; `None` if memory does not suffice. The pages are not touched before values are written.
    fn zeros(sums: bool, elements: usize) -> Option<Self> {
        let bytes = elements.checked_mul(if sums { size_of::<u64>() } else { size_of::<f32>() })?;
        // Reserved first, because a failed allocation of zeros would end the process.
        Vec::<u8>::new().try_reserve_exact(bytes).ok()?;
        Some(if sums { Values::Sums(zeros(elements)) } else { Values::Means(zeros(elements)) })
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Values::Means(values) => bytemuck::cast_slice_mut(values),
            Values::Sums(values) => bytemuck::cast_slice_mut(values),
        }
    }
}

/// An aggregate's decrypted values and its contributions.
#[derive(Debug)]
pub struct Decrypted {
    pub layout: Layout,
    pub round: RoundId,
    pub contributions: Vec<Contribution>,
    pub values: Values,
    pub counts: Option<Vec<u32>>,
    /// Committee members with false answers.
    pub false_members: Vec<ClientId>,
}

/// A connection, and the ring that it shares with the engine.
struct Link {
    client: engine_client::EngineClient<Channel>,
    ring: Option<Arc<SharedMemoryRing>>,
    /// When the last call ended.
    used: Instant,
}

impl Link {
    fn new(runtime: &Runtime, target: &Target, credentials: Option<&Path>, patience: &Patience) -> Result<Self> {
        let ring = match target {
            Target::Unix(_) => {
                let made =
                    SharedMemoryRing::make().map_err(|e| Error::Configuration(format!("no memory to share: {e}")))?;
                made.map(Arc::new)
            }
            Target::Tls { .. } => None,
        };
        let channel = runtime.block_on(async { channel(target, credentials, ring.clone(), patience) })?;
        let client = engine_client::EngineClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Link { client, ring, used: Instant::now() })
    }
}

/// A host's connection to its engine, for one device.
pub struct EngineClient {
    runtime: Runtime,
    target: Target,
    credentials: Option<PathBuf>,
    patience: Patience,
    link: Link,
    peer: Peer,
    device: String,
}

/// The progress of a call.
#[derive(Default)]
struct Credit {
    /// Chunks that the engine has read.
    taken: Cell<u64>,
    told: Notify,
    /// The number of messages sent or received.
    moved: Cell<u64>,
}

impl Credit {
    fn tell(&self, taken: u64) {
        self.taken.set(taken);
        self.told.notify_one();
        self.move_on();
    }

    fn move_on(&self) {
        self.moved.set(self.moved.get() + 1);
    }

    /// Returns once there has been no progress for `most`, at the latest after twice that time.
    async fn still(&self, most: Duration) {
        let mut before = None;
        while before != Some(self.moved.get()) {
            before = Some(self.moved.get());
            tokio::time::sleep(most).await;
        }
    }
}

/// The upload of one call to the engine, through the ring if there is one.
struct Upload<'a, Message> {
    ring: Option<&'a SharedMemoryRing>,
    credit: &'a Credit,
    messages: mpsc::Sender<Message>,
    inline: fn(Bytes) -> Message,
    shared: fn(u32) -> Message,
    sent: u64,
    /// Bytes of the current chunk. Without a ring, `pending` holds them.
    filled: usize,
    pending: BytesMut,
}

impl<'a, Message> Upload<'a, Message> {
    fn new(
        ring: Option<&'a SharedMemoryRing>,
        credit: &'a Credit,
        messages: mpsc::Sender<Message>,
        inline: fn(Bytes) -> Message,
        shared: fn(u32) -> Message,
    ) -> Self {
        Upload { ring, credit, messages, inline, shared, sent: 0, filled: 0, pending: BytesMut::new() }
    }

    async fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let full = self.ring.map_or(MESSAGE, |_| CHUNK);
            let (part, rest) = bytes.split_at(bytes.len().min(full - self.filled));
            match self.ring {
                Some(ring) => {
                    while self.sent.saturating_sub(self.credit.taken.get()) >= SLOTS as u64 {
                        self.credit.told.notified().await;
                    }
                    ring.write_part(self.sent, self.filled, part)?;
                }
                None => self.pending.extend_from_slice(part),
            }
            self.filled += part.len();
            bytes = rest;
            if self.filled == full {
                self.flush().await;
            }
        }
        Ok(())
    }

    /// Sends the pushed bytes. If the stream is closed, the answer has the reason.
    async fn flush(&mut self) {
        let message = match self.ring {
            _ if self.filled == 0 => return,
            Some(_) => {
                self.sent += 1;
                #[expect(clippy::cast_possible_truncation, reason = "at most CHUNK")]
                (self.shared)(self.filled as u32)
            }
            None => (self.inline)(self.pending.split().freeze()),
        };
        self.filled = 0;
        if self.messages.send(message).await.is_ok() {
            self.credit.move_on();
        }
    }
}

/// The download of one call from the engine, into preallocated memory.
struct Download<'a> {
    ring: Option<&'a SharedMemoryRing>,
    taken: u64,
    at: usize,
}

impl<'a> Download<'a> {
    /// Must be called before the call begins.
    fn new(ring: Option<&'a SharedMemoryRing>) -> Result<Self> {
        ring.map_or(Ok(()), |ring| ring.taken(0))?;
        Ok(Download { ring, taken: 0, at: 0 })
    }

    /// The next `len` bytes of `place`; `None` beyond its end.
    fn next<'p>(&mut self, place: &'p mut [u8], len: usize) -> Option<&'p mut [u8]> {
        let end = self.at.checked_add(len)?;
        let slot = place.get_mut(self.at..end);
        self.at = end;
        slot
    }

    fn bytes(&mut self, place: &mut [u8], bytes: &[u8]) -> Option<()> {
        self.next(place, bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    fn shared(&mut self, place: &mut [u8], len: u32) -> Option<()> {
        let ring = self.ring?;
        let slot = self.next(place, len as usize).filter(|slot| slot.len() <= CHUNK)?;
        ring.read_reply_slot(self.taken, slot).ok()?;
        self.taken += 1;
        Some(())
    }
}

/// A request to an engine to encrypt one update.
#[derive(Debug)]
pub struct EncryptRequest<'a> {
    pub epoch: Epoch,
    pub round: RoundId,
    pub weight: Weight,
    pub layout: &'a Layout,
    pub round_plan: &'a [u8],
    pub model: &'a [u8],
    pub memory: &'a [u8],
    pub associated_data: &'a [u8],
    pub stochastic: bool,
}

impl EngineClient {
    /// Connects to `target`. `device` may be empty if the engine has only one device.
    pub fn new(target: &str, device: &str, credentials: Option<&Path>, patience: Patience) -> Result<Self> {
        let runtime = runtime()?;
        let target: Target = target.parse()?;
        let link = Link::new(&runtime, &target, credentials, &patience)?;
        let peer = Peer::new(&target);
        Ok(EngineClient {
            runtime,
            target,
            credentials: credentials.map(Path::to_owned),
            patience,
            link,
            peer,
            device: device.to_owned(),
        })
    }

    fn relink(&mut self) -> Result<()> {
        self.link = Link::new(&self.runtime, &self.target, self.credentials.as_deref(), &self.patience)?;
        Ok(())
    }

    /// Makes one call. A connection that the engine may have closed as idle is replaced first. After a failed call the
    /// ring may still be written to, so the next call gets its own.
    fn call<T>(&mut self, call: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if self.link.used.elapsed() > QUIET {
            self.relink()?;
        }
        let result = call(self);
        self.link.used = Instant::now();
        if result.is_err() && self.link.ring.is_some() {
            self.relink()?;
        }
        result
    }

    /// Makes one call with a single answer.
    fn ask<T, F: Future<Output = std::result::Result<tonic::Response<T>, Status>>>(
        &mut self,
        ask: impl FnOnce(engine_client::EngineClient<Channel>) -> F,
    ) -> Result<T> {
        self.call(|this| {
            let answer = this.peer.answer(this.patience.work, ask(this.link.client.clone()));
            this.runtime.block_on(answer)
        })
    }

    pub fn describe(&mut self) -> Result<Description> {
        let request = proto::DescribeRequest { device: self.device.clone() };
        let reply = self.ask(|mut client| async move { client.describe(request).await })?;
        Ok(Description { spec: reply.spec, client: ClientId::new(reply.client), epochs: Epoch::list(reply.epochs) })
    }

    /// Streams `tensors` to the engine, and receives its frame in `place`.
    pub fn encrypt(
        &mut self,
        what: &EncryptRequest<'_>,
        tensors: &[&[f32]],
        place: &mut dyn FrameBuffer,
    ) -> Result<proto::EncryptDone> {
        self.call(|this| this.try_encrypt(what, tensors, place))
    }

    fn try_encrypt(
        &self,
        what: &EncryptRequest<'_>,
        tensors: &[&[f32]],
        place: &mut dyn FrameBuffer,
    ) -> Result<proto::EncryptDone> {
        let ring = self.link.ring.as_deref();
        let begin = proto::EncryptBegin {
            device: self.device.clone(),
            epoch: what.epoch.get(),
            round: what.round.get(),
            weight: what.weight.get(),
            layout: what.layout.encode().into(),
            plan: Bytes::copy_from_slice(what.round_plan),
            model: Bytes::copy_from_slice(what.model),
            memory: Bytes::copy_from_slice(what.memory),
            associated_data: Bytes::copy_from_slice(what.associated_data),
            stochastic: what.stochastic,
            ring: ring.is_some(),
        };
        fn message(part: encrypt_request::Part) -> proto::EncryptRequest {
            proto::EncryptRequest { part: Some(part) }
        }
        let (sender, receiver) = mpsc::channel(AHEAD);
        let credit = Credit::default();
        let mut download = Download::new(ring)?;
        let inline = |bytes| message(encrypt_request::Part::Values(bytes));
        let shared = |len| message(encrypt_request::Part::Shared(len));
        let mut upload = Upload::new(ring, &credit, sender, inline, shared);
        let send = async move {
            let _ = upload.messages.send(message(encrypt_request::Part::Begin(begin))).await;
            for tensor in tensors {
                upload.push(bytemuck::cast_slice(tensor)).await?;
            }
            upload.flush().await;
            Ok(())
        };
        let mut client = self.link.client.clone();
        let receive = async {
            let call = client.encrypt(ReceiverStream::new(receiver));
            let mut parts = self.peer.answer(self.patience.work, call).await?;
            let mut frame: &mut [u8] = &mut [];
            let mut place = Some(place);
            while let Some(reply) = parts.next().await {
                let reply = reply.map_err(|status| self.peer.error(&status))?;
                credit.tell(reply.taken);
                let fits = match reply.part {
                    None => Some(()),
                    Some(encrypt_reply::Part::FrameLen(len)) => {
                        let most = what.layout.elements().saturating_mul(FRAME_FACTOR).saturating_add(FRAME_ROOM);
                        let len = usize::try_from(len).ok().filter(|len| *len <= most);
                        let len =
                            len.ok_or_else(|| self.peer.absurd("a frame larger than its update could make it"))?;
                        frame = place.take().ok_or_else(|| self.peer.lost())?.reserve(len)?;
                        Some(())
                    }
                    Some(encrypt_reply::Part::Frame(bytes)) => download.bytes(frame, &bytes),
                    Some(encrypt_reply::Part::Shared(len)) => download.shared(frame, len),
                    Some(encrypt_reply::Part::Done(done)) if download.at == frame.len() && download.at > 0 => {
                        return Ok(done);
                    }
                    Some(encrypt_reply::Part::Done(_)) => None,
                };
                fits.ok_or_else(|| self.peer.lost())?;
            }
            Err(self.peer.lost())
        };
        self.runtime.block_on(self.answered(&credit, send, receive))
    }

    /// Streams an aggregate to the engine, and receives its values. `sums` requests integers.
    pub fn decrypt(&mut self, frame: &[u8], expect: &Expect<'_>, sums: bool) -> Result<Decrypted> {
        self.call(|this| this.try_decrypt(frame, expect, sums))
    }

    fn try_decrypt(&self, frame: &[u8], expect: &Expect<'_>, sums: bool) -> Result<Decrypted> {
        let ring = self.link.ring.as_deref();
        let begin = proto::DecryptBegin {
            device: self.device.clone(),
            round: expect.round.map(RoundId::get),
            sums,
            ring: ring.is_some(),
            model: expect.model.map(Bytes::copy_from_slice),
            memory: expect.memory.map(Bytes::copy_from_slice),
            associated_data: Bytes::copy_from_slice(expect.associated_data),
        };
        fn message(part: decrypt_request::Part) -> proto::DecryptRequest {
            proto::DecryptRequest { part: Some(part) }
        }
        let (sender, receiver) = mpsc::channel(AHEAD);
        let credit = Credit::default();
        let mut download = Download::new(ring)?;
        let inline = |bytes| message(decrypt_request::Part::Frame(bytes));
        let shared = |len| message(decrypt_request::Part::Shared(len));
        let mut upload = Upload::new(ring, &credit, sender, inline, shared);
        let send = async move {
            let _ = upload.messages.send(message(decrypt_request::Part::Begin(begin))).await;
            upload.push(frame).await?;
            upload.flush().await;
            Ok(())
        };
        let mut client = self.link.client.clone();
        let receive = async {
            let call = client.decrypt(ReceiverStream::new(receiver));
            let mut parts = self.peer.answer(self.patience.work, call).await?;
            let mut opened: Option<(proto::Opened, Layout, Values)> = None;
            while let Some(reply) = parts.next().await {
                let reply = reply.map_err(|status| self.peer.error(&status))?;
                credit.tell(reply.taken);
                let fits = match (reply.part, &mut opened) {
                    (None, _) => Some(()),
                    (Some(decrypt_reply::Part::Opened(said)), None) => {
                        let layout = own_layout(frame, &said.layout).ok_or_else(|| self.peer.absurd(FOREIGN))?;
                        let values = Values::zeros(sums, layout.elements()).ok_or_else(|| self.peer.absurd(LARGE))?;
                        opened = Some((said, layout, values));
                        Some(())
                    }
                    (Some(decrypt_reply::Part::Values(bytes)), Some((_, _, values))) => {
                        download.bytes(values.bytes(), &bytes)
                    }
                    (Some(decrypt_reply::Part::Shared(len)), Some((_, _, values))) => {
                        download.shared(values.bytes(), len)
                    }
                    (Some(decrypt_reply::Part::Done(done)), Some(_)) => {
                        return opened
                            .and_then(|opened| decrypted(opened, &done, download.at))
                            .ok_or_else(|| self.peer.lost());
                    }
                    _ => None,
                };
                fits.ok_or_else(|| self.peer.lost())?;
            }
            Err(self.peer.lost())
        };
        self.runtime.block_on(self.answered(&credit, send, receive))
    }

    /// Returns whether the engine has precomputed the round.
    pub fn precompute(&mut self, epoch: Epoch, round: RoundId, layout: &Layout, plan: &[u8]) -> Result<bool> {
        let request = proto::PrecomputeRequest {
            device: self.device.clone(),
            epoch: epoch.get(),
            round: round.get(),
            layout: layout.encode().into(),
            plan: Bytes::copy_from_slice(plan),
        };
        Ok(self.ask(|mut client| async move { client.precompute(request).await })?.made)
    }

    fn state_request(&self, epoch: Epoch) -> proto::StateRequest {
        proto::StateRequest { device: self.device.clone(), epoch: epoch.get() }
    }

    pub fn export_state(&mut self, epoch: Epoch) -> Result<Vec<u8>> {
        self.call(|this| this.runtime.block_on(this.try_export(epoch)))
    }

    async fn try_export(&self, epoch: Epoch) -> Result<Vec<u8>> {
        let (mut client, most) = (self.link.client.clone(), self.patience.work);
        let mut chunks = self.peer.answer(most, client.export_state(self.state_request(epoch))).await?;
        let mut state = Vec::new();
        loop {
            let chunk = tokio::time::timeout(most, chunks.next()).await.map_err(|_| self.peer.stuck(most))?;
            let Some(chunk) = chunk else { return Ok(state) };
            let data = chunk.map_err(|status| self.peer.error(&status))?.data;
            if state.len() + data.len() > MAX_MESSAGE {
                return Err(self.peer.absurd("a state of more than 1 GiB"));
            }
            state.extend_from_slice(&data);
        }
    }

    pub fn import_state(&mut self, epoch: Epoch, state: &[u8]) -> Result<()> {
        use proto::import_state_request::Part;
        let begin = Part::Begin(self.state_request(epoch));
        let data = state.chunks(MESSAGE).map(|chunk| Part::Data(Bytes::copy_from_slice(chunk)));
        let parts: Vec<_> =
            std::iter::once(begin).chain(data).map(|part| proto::ImportStateRequest { part: Some(part) }).collect();
        self.ask(|mut client| async move { client.import_state(tokio_stream::iter(parts)).await }).map(drop)
    }

    /// The device's answer, as a committee member, to a request of the server.
    pub fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        use proto::answer_request::Part;
        let begin = Part::Begin(proto::AnswerBegin { device: self.device.clone() });
        let data = request.chunks(MESSAGE).map(|chunk| Part::Frame(Bytes::copy_from_slice(chunk)));
        let parts: Vec<_> =
            std::iter::once(begin).chain(data).map(|part| proto::AnswerRequest { part: Some(part) }).collect();
        let reply = self.ask(|mut client| async move { client.answer(tokio_stream::iter(parts)).await })?;
        Ok(reply.frame.to_vec())
    }

    /// Gives the device prekeys of committee members. Returns the reason of each rejection.
    pub fn take_prekeys(&mut self, epoch: Epoch, frames: &[Vec<u8>]) -> Result<Vec<String>> {
        let given: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        let request = proto::PrekeysRequest { device: self.device.clone(), epoch: epoch.get(), frames: given };
        let reply = self.ask(|mut client| async move { client.take_prekeys(request).await })?;
        if reply.refused.len() > frames.len() {
            return Err(self.peer.absurd("more refusals than prekeys"));
        }
        Ok(reply.refused.iter().map(|why| quoted(why)).collect())
    }

    /// The prekey of the device, if it is a committee member.
    pub fn prekey(&mut self, epoch: Epoch) -> Result<Vec<u8>> {
        let request = proto::PrekeyRequest { device: self.device.clone(), epoch: epoch.get() };
        Ok(self.ask(|mut client| async move { client.prekey(request).await })?.frame.to_vec())
    }

    /// Deletes the prekeys of the device in `epoch`, or in all epochs for 0.
    pub fn forget(&mut self, epoch: Epoch) -> Result<()> {
        let request = proto::ForgetRequest { device: self.device.clone(), epoch: epoch.get() };
        self.ask(|mut client| async move { client.forget(request).await }).map(drop)
    }

    /// Sends and receives concurrently. The answer ends both, and so does a call without progress.
    async fn answered<T>(
        &self,
        credit: &Credit,
        send: impl Future<Output = Result<()>>,
        receive: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let most = self.patience.work;
        let (mut send, mut receive) = (std::pin::pin!(send), std::pin::pin!(receive));
        let mut still = std::pin::pin!(credit.still(most));
        let mut sent = false;
        loop {
            tokio::select! {
                answer = &mut receive => return answer,
                result = &mut send, if !sent => {
                    result?;
                    sent = true;
                }
                () = &mut still => return Err(self.peer.stuck(most)),
            }
        }
    }
}

/// The layout of `frame`, if it equals the layout that the engine `said`.
fn own_layout(frame: &[u8], said: &[u8]) -> Option<Layout> {
    let head_len = wire::head_len(frame.get(..wire::FIXED_LEN)?).ok()?;
    let head = wire::parse_head(frame.get(..head_len)?).ok()?;
    (*head.header.layout == *said).then(|| Layout::decode(said).ok())?
}

/// The whole answer, if its values have exactly `at` bytes.
fn decrypted(opened: (proto::Opened, Layout, Values), done: &proto::DecryptDone, at: usize) -> Option<Decrypted> {
    let (said, layout, mut values) = opened;
    if at != values.bytes().len() {
        return None;
    }
    let key: [u8; 32] = done.key.as_ref().try_into().ok()?;
    KeyStream::new(key.into()).ok()?.apply(values.bytes());
    let counts: Vec<u32> = done.counts.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
    let contributions = said.contributions.iter();
    let contributions = contributions
        .map(|c| Contribution { client: ClientId::new(c.client), weight: Weight::new(c.weight) })
        .collect();
    let counts = (!counts.is_empty()).then_some(counts);
    let false_members = ClientId::list(done.false_members.iter().copied());
    Some(Decrypted { layout, round: RoundId::new(said.round), contributions, values, counts, false_members })
}

/// Numbers are sent as they lie in memory, and the wire is little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// The aggregator's view of the key epochs.
#[derive(Debug, Clone)]
pub struct ServerKeys {
    pub spec: String,
    /// (epoch, server key) of the epochs that the caller does not hold.
    pub issued: Vec<(Epoch, Vec<u8>)>,
    pub usable: Vec<Epoch>,
    pub revoked: Vec<ClientId>,
}

/// The aggregator's connection to the authority.
pub struct AuthorityClient {
    runtime: Runtime,
    target: Target,
    credentials: PathBuf,
    patience: Patience,
    client: authority_client::AuthorityClient<Channel>,
    /// When the last call ended.
    used: Instant,
    peer: Peer,
}

impl AuthorityClient {
    pub fn new(target: &str, credentials: &Path, patience: Patience) -> Result<Self> {
        let runtime = runtime()?;
        let target: Target = target.parse()?;
        let client = Self::connect(&runtime, &target, credentials, &patience)?;
        let (credentials, peer) = (credentials.to_owned(), Peer::new(&target));
        Ok(AuthorityClient { runtime, target, credentials, patience, client, used: Instant::now(), peer })
    }

    fn connect(
        runtime: &Runtime,
        target: &Target,
        credentials: &Path,
        patience: &Patience,
    ) -> Result<authority_client::AuthorityClient<Channel>> {
        let channel = runtime.block_on(async { channel(target, Some(credentials), None, patience) })?;
        Ok(authority_client::AuthorityClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }

    /// Makes one call with a single answer. A connection that the authority may have closed as idle is replaced first.
    fn ask<T, F: Future<Output = std::result::Result<tonic::Response<T>, Status>>>(
        &mut self,
        ask: impl FnOnce(authority_client::AuthorityClient<Channel>) -> F,
    ) -> Result<T> {
        if self.used.elapsed() > QUIET {
            self.client = Self::connect(&self.runtime, &self.target, &self.credentials, &self.patience)?;
        }
        let answer = self.peer.answer(self.patience.work, ask(self.client.clone()));
        let answer = self.runtime.block_on(answer);
        self.used = Instant::now();
        answer
    }

    /// The server keys of the usable epochs that are not in `held`.
    pub fn server_keys(&mut self, held: &[Epoch]) -> Result<ServerKeys> {
        let request = proto::ServerKeysRequest { held: held.iter().map(|epoch| epoch.get()).collect() };
        let reply = self.ask(|mut client| async move { client.server_keys(request).await })?;
        Ok(ServerKeys {
            spec: reply.spec,
            issued: reply.issued.into_iter().map(|k| (Epoch::new(k.epoch), k.key.to_vec())).collect(),
            usable: Epoch::list(reply.usable),
            revoked: ClientId::list(reply.revoked),
        })
    }

    /// Reports that a round under `epoch` is complete: the epochs before it end.
    pub fn finish_epoch(&mut self, epoch: Epoch) -> Result<()> {
        let request = proto::SettleRequest { epoch: epoch.get() };
        self.ask(|mut client| async move { client.settle(request).await }).map(drop)
    }
}
