//! The host's side of the engine, and the aggregator's side of the authority: blocking calls, no keys.

use crate::error::{Error, Result};
use crate::proto::{
    self, authority_client, decrypt_reply, decrypt_request, encrypt_reply, encrypt_request, engine_client,
};
use crate::ring::{PLACES, Ring};
use crate::tls::Credentials;
use crate::{CHUNK, FRAME, MAX_MESSAGE, WINDOW};
use bytes::{Bytes, BytesMut};
use fedcipher_core::codec::Layout;
use fedcipher_core::prf::KeyStream;
use fedcipher_core::scheme::Expect;
use fedcipher_core::wire::Place;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// Messages a sender may be ahead of the connection.
const AHEAD: usize = 4;
const CONNECT: Duration = Duration::from_secs(10);

/// Where a service listens: `unix:/path`, or `host:port` for mTLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Unix(PathBuf),
    Tls { host: String, port: u16 },
}

impl std::str::FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Target::Unix(PathBuf::from(path)));
        }
        let host_port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match host_port {
            Some((host, port)) if !host.is_empty() => Ok(Target::Tls { host: host.to_owned(), port }),
            _ => Err(Error::Configuration(format!("{text:?} is neither unix:/path nor host:port"))),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::Tls { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// A channel that connects when it is used, and again after a loss; over a Unix socket it can bring a ring.
pub fn channel(target: &Target, credentials: Option<&Path>, ring: Option<Arc<Ring>>) -> Result<Channel> {
    let common = |endpoint: Endpoint| {
        endpoint
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .max_frame_size(FRAME)
            .connect_timeout(CONNECT)
    };
    let failed = |e: tonic::transport::Error| Error::of_transport(&target.to_string(), &e);
    match target {
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
            let endpoint = Endpoint::from_shared(format!("https://{host}:{port}")).map_err(failed)?;
            let endpoint = endpoint.tls_config(Credentials::new(folder).client(host)?).map_err(failed)?;
            Ok(common(endpoint.tcp_nodelay(true)).connect_lazy())
        }
    }
}

/// The other side of a connection: what its failures mean depends on whether it has answered before.
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

    /// The answer to a call, or the error of this connection.
    pub fn answer<T>(&self, reply: std::result::Result<tonic::Response<T>, Status>) -> Result<T> {
        match reply {
            Ok(reply) => {
                self.answered.store(true, Ordering::Relaxed);
                Ok(reply.into_inner())
            }
            Err(status) => Err(self.error(&status)),
        }
    }

    fn error(&self, status: &Status) -> Error {
        let error = Error::of_status(&self.target, status);
        if self.answered.load(Ordering::Relaxed) || self.target.starts_with("unix:") {
            error
        } else {
            error.of_stranger()
        }
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

/// What an engine says of a device.
#[derive(Debug, Clone)]
pub struct Description {
    pub spec: String,
    pub client: u32,
    pub epochs: Vec<u64>,
}

/// What an aggregate decrypts to.
#[derive(Debug)]
pub enum Values {
    Means(Vec<f32>),
    Sums(Vec<u64>),
}

impl Values {
    fn zeros(sums: bool, elements: usize) -> Self {
        if sums { Values::Sums(vec![0; elements]) } else { Values::Means(vec![0.0; elements]) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Values::Means(values) => bytemuck::cast_slice_mut(values),
            Values::Sums(values) => bytemuck::cast_slice_mut(values),
        }
    }
}

/// An aggregate's decrypted values, and who is in it.
#[derive(Debug)]
pub struct Decrypted {
    pub layout: Layout,
    pub round: u64,
    pub contributions: Vec<(u32, u64)>,
    pub values: Values,
    pub counts: Option<Vec<u32>>,
}

/// A connection, and what it shares with the engine.
struct Link {
    client: engine_client::EngineClient<Channel>,
    ring: Option<Arc<Ring>>,
}

impl Link {
    fn new(runtime: &Runtime, target: &Target, credentials: Option<&Path>) -> Result<Self> {
        let ring = match target {
            Target::Unix(_) => {
                let made = Ring::make().map_err(|e| Error::Configuration(format!("no memory to share: {e}")))?;
                Some(Arc::new(made))
            }
            Target::Tls { .. } => None,
        };
        let channel = runtime.block_on(async { channel(target, credentials, ring.clone()) })?;
        let client = engine_client::EngineClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Link { client, ring })
    }
}

/// A host's connection to its engine, for one device.
pub struct EngineClient {
    runtime: Runtime,
    target: Target,
    credentials: Option<PathBuf>,
    link: Link,
    peer: Peer,
    device: String,
}

/// How many of a call's chunks the engine has read.
#[derive(Default)]
struct Credit {
    taken: Cell<u64>,
    told: Notify,
}

impl Credit {
    fn tell(&self, taken: u64) {
        self.taken.set(taken);
        self.told.notify_one();
    }
}

/// One call's bytes on their way to the engine: through the ring where there is one.
struct Upload<'a, Message> {
    ring: Option<&'a Ring>,
    credit: &'a Credit,
    messages: mpsc::Sender<Message>,
    inline: fn(Bytes) -> Message,
    shared: fn(u32) -> Message,
    sent: u64,
    /// Bytes of the chunk that is not full yet; those themselves where there is no ring.
    filled: usize,
    pending: BytesMut,
}

impl<'a, Message> Upload<'a, Message> {
    fn new(
        ring: Option<&'a Ring>,
        credit: &'a Credit,
        messages: mpsc::Sender<Message>,
        inline: fn(Bytes) -> Message,
        shared: fn(u32) -> Message,
    ) -> Self {
        Upload { ring, credit, messages, inline, shared, sent: 0, filled: 0, pending: BytesMut::new() }
    }

    async fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(CHUNK - self.filled));
            match self.ring {
                Some(ring) => {
                    while self.sent.saturating_sub(self.credit.taken.get()) >= PLACES as u64 {
                        self.credit.told.notified().await;
                    }
                    ring.put_up(self.sent, self.filled, part)?;
                }
                None => self.pending.extend_from_slice(part),
            }
            self.filled += part.len();
            bytes = rest;
            if self.filled == CHUNK {
                self.flush().await;
            }
        }
        Ok(())
    }

    /// Sends what has been pushed. A closed stream has its reason in the answer.
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
        let _ = self.messages.send(message).await;
    }
}

/// One call's bytes on their way from the engine, into memory that waits for them.
struct Download<'a> {
    ring: Option<&'a Ring>,
    taken: u64,
    at: usize,
}

impl<'a> Download<'a> {
    /// Before the call begins.
    fn new(ring: Option<&'a Ring>) -> Result<Self> {
        ring.map_or(Ok(()), |ring| ring.taken(0))?;
        Ok(Download { ring, taken: 0, at: 0 })
    }

    /// The next `len` bytes of `place`; none if it is not as large.
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
        ring.take_down(self.taken, slot).ok()?;
        self.taken += 1;
        Some(())
    }
}

/// What a host asks an engine to encrypt.
#[derive(Debug)]
pub struct Sealed<'a> {
    pub epoch: u64,
    pub round: u64,
    pub weight: u64,
    pub layout: &'a Layout,
    pub plan: &'a [u8],
    pub model: &'a [u8],
    pub bound: &'a [u8],
    pub stochastic: bool,
}

impl EngineClient {
    /// `device` may be empty where the engine has only one.
    pub fn new(target: &str, device: &str, credentials: Option<&Path>) -> Result<Self> {
        let runtime = runtime()?;
        let target: Target = target.parse()?;
        let link = Link::new(&runtime, &target, credentials)?;
        let peer = Peer::new(&target);
        Ok(EngineClient {
            runtime,
            target,
            credentials: credentials.map(Path::to_owned),
            link,
            peer,
            device: device.to_owned(),
        })
    }

    /// After a call that broke off: its ring may still be written to, so the next one gets its own.
    fn again<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() && self.link.ring.is_some() {
            self.link = Link::new(&self.runtime, &self.target, self.credentials.as_deref())?;
        }
        result
    }

    pub fn describe(&self) -> Result<Description> {
        let mut client = self.link.client.clone();
        let request = proto::DescribeRequest { device: self.device.clone() };
        let reply = self.peer.answer(self.runtime.block_on(client.describe(request)))?;
        Ok(Description { spec: reply.spec, client: reply.client, epochs: reply.epochs })
    }

    /// Streams `tensors` to the engine and its frame into `place`.
    pub fn encrypt(
        &mut self,
        what: &Sealed<'_>,
        tensors: &[&[f32]],
        place: &mut dyn Place,
    ) -> Result<proto::EncryptDone> {
        let result = self.try_encrypt(what, tensors, place);
        self.again(result)
    }

    fn try_encrypt(&self, what: &Sealed<'_>, tensors: &[&[f32]], place: &mut dyn Place) -> Result<proto::EncryptDone> {
        let ring = self.link.ring.as_deref();
        let begin = proto::EncryptBegin {
            device: self.device.clone(),
            epoch: what.epoch,
            round: what.round,
            weight: what.weight,
            layout: what.layout.encode().into(),
            plan: Bytes::copy_from_slice(what.plan),
            model: Bytes::copy_from_slice(what.model),
            bound: Bytes::copy_from_slice(what.bound),
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
            let mut parts = self.peer.answer(client.encrypt(ReceiverStream::new(receiver)).await)?;
            let mut frame: &mut [u8] = &mut [];
            let mut place = Some(place);
            while let Some(reply) = parts.next().await {
                let reply = reply.map_err(|status| self.peer.error(&status))?;
                credit.tell(reply.taken);
                let fits = match reply.part {
                    None => Some(()),
                    Some(encrypt_reply::Part::FrameLen(len)) => {
                        let len = usize::try_from(len).map_err(|_| self.peer.lost())?;
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
        self.runtime.block_on(answered(send, receive))
    }

    /// Streams an aggregate to the engine and its values back; `sums` asks for integers.
    pub fn decrypt(&mut self, frame: &[u8], expect: &Expect<'_>, sums: bool) -> Result<Decrypted> {
        let result = self.try_decrypt(frame, expect, sums);
        self.again(result)
    }

    fn try_decrypt(&self, frame: &[u8], expect: &Expect<'_>, sums: bool) -> Result<Decrypted> {
        let ring = self.link.ring.as_deref();
        let begin = proto::DecryptBegin {
            device: self.device.clone(),
            round: expect.round,
            sums,
            ring: ring.is_some(),
            model: expect.model.map(Bytes::copy_from_slice),
            bound: Bytes::copy_from_slice(expect.bound),
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
            let mut parts = self.peer.answer(client.decrypt(ReceiverStream::new(receiver)).await)?;
            let mut opened: Option<(proto::Opened, Layout, Values)> = None;
            while let Some(reply) = parts.next().await {
                let reply = reply.map_err(|status| self.peer.error(&status))?;
                credit.tell(reply.taken);
                let fits = match (reply.part, &mut opened) {
                    (None, _) => Some(()),
                    (Some(decrypt_reply::Part::Opened(said)), None) => {
                        let layout = Layout::decode(&said.layout)?;
                        let values = Values::zeros(sums, layout.elements());
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
        self.runtime.block_on(answered(send, receive))
    }

    /// Whether the engine made what it can make ahead.
    pub fn precompute(&self, epoch: u64, round: u64, layout: &Layout, plan: &[u8]) -> Result<bool> {
        let request = proto::PrecomputeRequest {
            device: self.device.clone(),
            epoch,
            round,
            layout: layout.encode().into(),
            plan: Bytes::copy_from_slice(plan),
        };
        let mut client = self.link.client.clone();
        Ok(self.peer.answer(self.runtime.block_on(client.precompute(request)))?.made)
    }

    fn state_request(&self, epoch: u64) -> proto::StateRequest {
        proto::StateRequest { device: self.device.clone(), epoch }
    }

    pub fn export_state(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut client = self.link.client.clone();
        self.runtime.block_on(async {
            let mut chunks = self.peer.answer(client.export_state(self.state_request(epoch)).await)?;
            let mut state = Vec::new();
            while let Some(chunk) = chunks.next().await {
                state.extend_from_slice(&chunk.map_err(|status| self.peer.error(&status))?.data);
            }
            Ok(state)
        })
    }

    pub fn import_state(&self, epoch: u64, state: &[u8]) -> Result<()> {
        use proto::import_state_request::Part;
        let begin = Part::Begin(self.state_request(epoch));
        let data = state.chunks(CHUNK).map(|chunk| Part::Data(Bytes::copy_from_slice(chunk)));
        let parts: Vec<_> =
            std::iter::once(begin).chain(data).map(|part| proto::ImportStateRequest { part: Some(part) }).collect();
        let mut client = self.link.client.clone();
        self.peer.answer(self.runtime.block_on(client.import_state(tokio_stream::iter(parts)))).map(drop)
    }
}

/// The whole answer, if `at` bytes are all of its values.
fn decrypted(opened: (proto::Opened, Layout, Values), done: &proto::DecryptDone, at: usize) -> Option<Decrypted> {
    let (said, layout, mut values) = opened;
    if at != values.bytes().len() {
        return None;
    }
    let key: [u8; 32] = done.key.as_ref().try_into().ok()?;
    KeyStream::new(key.into()).ok()?.apply(values.bytes());
    let counts: Vec<u32> = done.counts.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
    let contributions = said.contributions.iter().map(|c| (c.client, c.weight)).collect();
    let counts = (!counts.is_empty()).then_some(counts);
    Some(Decrypted { layout, round: said.round, contributions, values, counts })
}

/// Sends while it receives; the answer ends both.
async fn answered<T>(send: impl Future<Output = Result<()>>, receive: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut send, mut receive) = (std::pin::pin!(send), std::pin::pin!(receive));
    let mut sent = false;
    loop {
        tokio::select! {
            answer = &mut receive => return answer,
            result = &mut send, if !sent => {
                result?;
                sent = true;
            }
        }
    }
}

/// Numbers go as they lie in memory; the wire is little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// What the aggregator knows of the key epochs.
#[derive(Debug, Clone)]
pub struct ServerKeys {
    pub spec: String,
    /// (epoch, server key), those not yet held.
    pub issued: Vec<(u64, Vec<u8>)>,
    pub usable: Vec<u64>,
    pub revoked: Vec<u32>,
}

/// The aggregator's connection to the authority.
pub struct AuthorityClient {
    runtime: Runtime,
    client: authority_client::AuthorityClient<Channel>,
    peer: Peer,
}

impl AuthorityClient {
    pub fn new(target: &str, credentials: &Path) -> Result<Self> {
        let runtime = runtime()?;
        let parsed: Target = target.parse()?;
        let channel = runtime.block_on(async { channel(&parsed, Some(credentials), None) })?;
        let client = authority_client::AuthorityClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(AuthorityClient { runtime, client, peer: Peer::new(&parsed) })
    }

    /// Keys of the usable epochs beyond those `held`.
    pub fn server_keys(&self, held: &[u64]) -> Result<ServerKeys> {
        let mut client = self.client.clone();
        let request = proto::ServerKeysRequest { held: held.to_vec() };
        let reply = self.peer.answer(self.runtime.block_on(client.server_keys(request)))?;
        Ok(ServerKeys {
            spec: reply.spec,
            issued: reply.issued.into_iter().map(|k| (k.epoch, k.key.to_vec())).collect(),
            usable: reply.usable,
            revoked: reply.revoked,
        })
    }

    /// A round under `epoch` is done: the epochs before it end.
    pub fn settle(&self, epoch: u64) -> Result<()> {
        let mut client = self.client.clone();
        self.peer.answer(self.runtime.block_on(client.settle(proto::SettleRequest { epoch }))).map(drop)
    }
}
