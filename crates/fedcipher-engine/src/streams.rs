//! The streaming calls: values in and ciphertext out, or ciphertext in and values out, a few pieces at a time.
//!
//! The connection provides backpressure: a session reads nothing while its reader does not take the output.

use crate::compute::compute;
use crate::error::{Error, Result};
use crate::keyring::DeviceKeys;
use crate::memory_budget::Reservation;
use crate::metrics::Metrics;
use crate::proto::{self, decrypt_reply, decrypt_request, encrypt_reply, encrypt_request};
use crate::ring::SharedMemoryRing;
use crate::text::quoted;
use crate::{CHUNK, MAX_MESSAGE, MESSAGE};
use bytes::{Buf, Bytes, BytesMut};
use fedcipher_core::codec::{Layout, Means, Rounding, Sums, Update};
use fedcipher_core::prf::KeyStream;
use fedcipher_core::protocol::{Decryption, Decryptor, Encryption, Encryptor, Form};
use fedcipher_core::scheme::{Expect, Request, Summary, Terms};
use fedcipher_core::wire;
use fedcipher_core::{ClientId, RoundId, Weight};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

/// Largest head of an aggregate: a million contributions and a layout of some thousand tensors.
const MAX_HEAD: usize = 64 << 20;

/// A part of an update or an aggregate from the host.
pub enum Chunk {
    Bytes(Bytes),
    /// The number of bytes in the ring's next slot.
    Shared(usize),
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Chunk::Bytes(bytes) => bytes.len(),
            Chunk::Shared(len) => *len,
        }
    }
}

/// A message from the host.
pub trait ChunkMessage {
    /// The message's chunk; `None` for another part.
    fn chunk(self) -> Option<Chunk>;
}

/// A message to the host.
pub trait Reply: Sized {
    type Part;
    fn new(part: Option<Self::Part>, taken: u64) -> Self;
    fn bytes(bytes: Bytes) -> Self::Part;
    fn shared(len: u32) -> Self::Part;
}

macro_rules! chunk_messages {
    ($request:ident, $in:ident :: $chunk:ident, $reply:ident, $out:ident :: $sent:ident) => {
        impl ChunkMessage for proto::$request {
            fn chunk(self) -> Option<Chunk> {
                match self.part? {
                    $in::Part::$chunk(bytes) => Some(Chunk::Bytes(bytes)),
                    $in::Part::Shared(len) => Some(Chunk::Shared(len as usize)),
                    $in::Part::Begin(_) => None,
                }
            }
        }

        impl Reply for proto::$reply {
            type Part = $out::Part;

            fn new(part: Option<Self::Part>, taken: u64) -> Self {
                proto::$reply { part, taken }
            }

            fn bytes(bytes: Bytes) -> Self::Part {
                $out::Part::$sent(bytes)
            }

            fn shared(len: u32) -> Self::Part {
                $out::Part::Shared(len)
            }
        }
    };
}

chunk_messages!(EncryptRequest, encrypt_request::Values, EncryptReply, encrypt_reply::Frame);
chunk_messages!(DecryptRequest, decrypt_request::Frame, DecryptReply, decrypt_reply::Values);

/// The engine's side of a connection's ring during one call.
pub struct RingSide {
    ring: Arc<SharedMemoryRing>,
    /// The number of the host's chunks that have been read.
    taken: u64,
    /// True if the host has not been told of all of them.
    owed: bool,
    /// The number of chunks written for the host.
    sent: u64,
}

impl RingSide {
    #[must_use]
    pub fn new(ring: Arc<SharedMemoryRing>) -> Self {
        RingSide { ring, taken: 0, owed: false, sent: 0 }
    }
}

/// Polling interval while the ring is full. The ring holds more than a host takes in that time.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// One streaming call.
pub struct StreamSession<'a, In, Out> {
    pub requests: &'a mut In,
    pub replies: &'a Sender<std::result::Result<Out, Status>>,
    pub ring: Option<RingSide>,
    pub metrics: &'a Metrics,
    /// Longest silence of the host.
    pub stall: Duration,
    /// The memory reserved for this call.
    pub held: Reservation,
}

impl<In, Message, Out> StreamSession<'_, In, Out>
where
    In: Stream<Item = std::result::Result<Message, Status>> + Unpin,
    Message: ChunkMessage,
    Out: Reply,
{
    /// The next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        if self.ring.as_ref().is_some_and(|ring| ring.owed) {
            // The host may be waiting for a free slot.
            self.reply(None).await?;
        }
        let began = Instant::now();
        let next = next(self.requests, self.stall).await;
        self.metrics.phase("wait", began.elapsed().as_secs_f64());
        next
    }

    /// The next chunk from the host, counted in the metrics as `counted`; `None` at the end.
    async fn chunk(&mut self, counted: &str) -> Result<Option<Chunk>> {
        let Some(message) = self.next().await? else { return Ok(None) };
        let chunk = message.chunk().ok_or_else(|| Error::Protocol("data comes after one begin".into()))?;
        if matches!(chunk, Chunk::Shared(len) if len > CHUNK) {
            return Err(Error::Protocol("a shared chunk larger than its place".into()));
        }
        self.metrics.moved(counted, chunk.len());
        Ok(Some(chunk))
    }

    /// Copies a chunk to `place`, which has its length.
    fn copy_chunk(&mut self, chunk: &Chunk, place: &mut [u8]) -> Result<()> {
        match (chunk, &mut self.ring) {
            (Chunk::Shared(_), Some(end)) => {
                end.ring.read_slot(end.taken, place)?;
                end.taken += 1;
                end.owed = true;
            }
            (Chunk::Shared(_), None) => return Err(Error::Protocol("a shared chunk without a ring".into())),
            (Chunk::Bytes(bytes), _) => place.copy_from_slice(bytes),
        }
        Ok(())
    }

    async fn send(&mut self, part: Out::Part) -> Result<()> {
        self.reply(Some(part)).await
    }

    /// Sends bytes through the ring if there is one, otherwise in messages.
    async fn send_bytes(&mut self, bytes: &[u8], counted: &str) -> Result<()> {
        self.metrics.moved(counted, bytes.len());
        let most = self.ring.as_ref().map_or(MESSAGE, |_| CHUNK);
        for chunk in bytes.chunks(most) {
            self.wait_for_slot().await?;
            let part = match &mut self.ring {
                Some(end) => {
                    end.ring.write_slot(end.sent, chunk)?;
                    end.sent += 1;
                    #[expect(clippy::cast_possible_truncation, reason = "at most CHUNK")]
                    Out::shared(chunk.len() as u32)
                }
                None => Out::bytes(Bytes::copy_from_slice(chunk)),
            };
            self.send(part).await?;
        }
        Ok(())
    }

    /// Waits for a free slot in the ring.
    async fn wait_for_slot(&self) -> Result<()> {
        let Some(end) = &self.ring else { return Ok(()) };
        let began = Instant::now();
        while !end.ring.slot_is_free(end.sent) {
            if self.replies.is_closed() {
                return Err(Error::Truncated("the host has gone".into()));
            }
            if began.elapsed() > self.stall {
                return Err(stalled(self.stall));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.metrics.phase("wait", began.elapsed().as_secs_f64());
        Ok(())
    }

    async fn reply(&mut self, part: Option<Out::Part>) -> Result<()> {
        let taken = self.ring.as_mut().map_or(0, |end| {
            end.owed = false;
            end.taken
        });
        let began = Instant::now();
        let sent = answer(self.replies, Out::new(part, taken), self.stall).await;
        self.metrics.phase("wait", began.elapsed().as_secs_f64());
        sent
    }
}

/// Sends `reply`. Fails if the host does not read for `stall`.
pub async fn answer<T>(replies: &Sender<std::result::Result<T, Status>>, reply: T, stall: Duration) -> Result<()> {
    let sent = tokio::time::timeout(stall, replies.send(Ok(reply))).await;
    sent.map_err(|_| stalled(stall))?.map_err(|_| Error::Truncated("the host has gone".into()))
}

/// The next message from a host; `None` at the end of the stream.
pub async fn next<T>(
    requests: &mut (impl Stream<Item = std::result::Result<T, Status>> + Unpin),
    stall: Duration,
) -> Result<Option<T>> {
    let next = tokio::time::timeout(stall, requests.next()).await;
    next.map_err(|_| stalled(stall))?.transpose().map_err(|status| Error::Truncated(quoted(status.message())))
}

fn stalled(stall: Duration) -> Error {
    Error::Stalled { seconds: stall.as_secs() }
}

fn missing(done: usize, of: usize, what: &str) -> Error {
    Error::Truncated(format!("{done} of {of} {what} arrived"))
}

// --- encrypting ------------------------------------------------------------------------------

impl<In> StreamSession<'_, In, proto::EncryptReply>
where
    In: Stream<Item = std::result::Result<proto::EncryptRequest, Status>> + Unpin,
{
    /// Handles an Encrypt call after its `begin`.
    pub async fn encrypt(&mut self, device_keys: &Arc<DeviceKeys>, begin: proto::EncryptBegin) -> Result<()> {
        let job = Arc::new(Job { layout: Layout::decode(&begin.layout)?, device_keys: Arc::clone(device_keys), begin });
        let own = Arc::clone(&job);
        // The claimed round is on disk before any ciphertext exists.
        let mut encryptor = device_keys.encryptor().await?;
        let begun = compute(move || Ok(encryptor.start(&own.terms())?)).await?;
        let done = match begun {
            Some(frame) => self.encrypt_pieces(&job, frame).await?,
            None => self.encrypt_whole(job).await?,
        };
        self.metrics.phase("encode", done.encode_seconds);
        self.metrics.phase("encrypt", done.encrypt_seconds);
        self.send(encrypt_reply::Part::Done(done)).await
    }

    /// Appends the next values to `window`; returns false at the end.
    async fn values(&mut self, window: &mut Vec<f32>) -> Result<bool> {
        let Some(chunk) = self.chunk("values_in").await? else { return Ok(false) };
        if chunk.len() % 4 != 0 {
            return Err(Error::Protocol("values are whole float32 numbers".into()));
        }
        let start = window.len();
        window.resize(start + chunk.len() / 4, 0.0);
        self.copy_chunk(&chunk, bytemuck::cast_slice_mut(&mut window[start..]))?;
        Ok(true)
    }

    async fn frame(&mut self, bytes: &[u8]) -> Result<()> {
        self.send_bytes(bytes, "frame_out").await
    }

    async fn frame_len(&mut self, len: usize) -> Result<()> {
        self.send(encrypt_reply::Part::FrameLen(len as u64)).await
    }

    async fn encrypt_pieces(&mut self, job: &Job, mut frame: Encryption) -> Result<proto::EncryptDone> {
        let elements = job.layout.elements();
        let rounding = job.rounding()?;
        self.frame_len(frame.frame_len()).await?;
        let mut done = proto::EncryptDone::default();
        let (mut window, mut first, mut out) = (Vec::<f32>::new(), 0, Vec::new());
        while first < elements {
            if !self.values(&mut window).await? {
                return Err(missing(first + window.len(), elements, "values"));
            }
            if first + window.len() > elements {
                return Err(too_many(elements));
            }
            let used = frame.whole(window.len());
            if used == 0 {
                continue;
            }
            // Done on this thread: it takes less than a millisecond, about as long as waking another thread.
            let part = Update::window(&job.layout, first, &window[..used], rounding.clone())?;
            encrypt_window(&mut frame, &part, &mut out, &mut done)?;
            window.drain(..used);
            first += used;
            self.frame(&out).await?;
            out.clear();
        }
        if self.values(&mut window).await? {
            return Err(too_many(elements));
        }
        self.frame(&frame.finish()?).await?;
        Ok(done)
    }

    /// Encrypts an update in which every byte depends on all values, such as a sparse one.
    async fn encrypt_whole(&mut self, job: Arc<Job>) -> Result<proto::EncryptDone> {
        let elements = job.layout.elements();
        if elements > MAX_MESSAGE / 4 {
            let reason = format!("{elements} elements are more than this scheme can take through an engine");
            return Err(Error::Configuration(reason));
        }
        let mut flat = Vec::<f32>::new();
        while self.values(&mut flat).await? {
            if flat.len() > elements {
                return Err(too_many(elements));
            }
            self.held.grow_to(4 * flat.len())?;
        }
        if flat.len() < elements {
            return Err(missing(flat.len(), elements, "values"));
        }
        let mut encryptor = job.device_keys.encryptor().await?;
        let (frame, done) = compute(move || job.encrypt(&mut encryptor, &flat)).await?;
        self.frame_len(frame.len()).await?;
        self.frame(&frame).await?;
        Ok(done)
    }
}

fn too_many(elements: usize) -> Error {
    Error::Protocol(format!("more values than the {elements} of the layout"))
}

/// The parameters of an Encrypt call.
struct Job {
    layout: Layout,
    device_keys: Arc<DeviceKeys>,
    begin: proto::EncryptBegin,
}

impl Job {
    fn terms(&self) -> Terms<'_> {
        let begin = &self.begin;
        Terms {
            round: RoundId::new(begin.round),
            weight: Weight::new(begin.weight),
            layout: &self.layout,
            round_plan: &begin.plan,
            model: &begin.model,
            memory: &begin.memory,
            associated_data: &begin.associated_data,
        }
    }

    fn rounding(&self) -> Result<Rounding> {
        Ok(if self.begin.stochastic { Rounding::stochastic()? } else { Rounding::Nearest })
    }

    /// Encrypts the whole update at once.
    fn encrypt(&self, encryptor: &mut Encryptor, flat: &[f32]) -> Result<(Vec<u8>, proto::EncryptDone)> {
        let began = Instant::now();
        let update = Update::new(&self.layout, self.layout.split(flat)?, self.rounding()?)?;
        let Terms { round, weight, round_plan, model, memory, associated_data, .. } = self.terms();
        let frame = encryptor.encrypt(&Request {
            round,
            weight,
            update: &update,
            round_plan,
            model,
            memory,
            associated_data,
        })?;
        let encode_seconds = update.seconds();
        let done = proto::EncryptDone {
            clipped: update.clipped().iter().sum(),
            setup_bytes: encryptor.setup_bytes() as u64,
            encode_seconds,
            encrypt_seconds: (began.elapsed().as_secs_f64() - encode_seconds).max(0.0),
        };
        Ok((frame, done))
    }
}

/// Appends the ciphertext of `part` to `out`, and adds to the counts in `done`.
fn encrypt_window(
    frame: &mut Encryption,
    part: &Update<'_>,
    out: &mut Vec<u8>,
    done: &mut proto::EncryptDone,
) -> Result<()> {
    let began = Instant::now();
    frame.push(part, out)?;
    let encode_seconds = part.seconds();
    done.clipped += part.clipped().iter().sum::<u64>();
    done.encode_seconds += encode_seconds;
    done.encrypt_seconds += (began.elapsed().as_secs_f64() - encode_seconds).max(0.0);
    Ok(())
}

// --- decrypting ------------------------------------------------------------------------------

impl<In> StreamSession<'_, In, proto::DecryptReply>
where
    In: Stream<Item = std::result::Result<proto::DecryptRequest, Status>> + Unpin,
{
    /// Reads until `buffer` has at least `len` bytes.
    async fn fill(&mut self, buffer: &mut BytesMut, len: usize) -> Result<()> {
        while buffer.len() < len {
            let Some(chunk) = self.chunk("frame_in").await? else {
                return Err(missing(buffer.len(), len, "bytes of the next part"));
            };
            let start = buffer.len();
            self.held.grow_to(start + chunk.len())?;
            buffer.resize(start + chunk.len(), 0);
            self.copy_chunk(&chunk, &mut buffer[start..])?;
        }
        Ok(())
    }

    /// Reads the aggregate's head, which stays at the front of `buffer`: (head bytes, head).
    pub async fn head(&mut self, buffer: &mut BytesMut) -> Result<(usize, wire::Head)> {
        self.fill(buffer, wire::FIXED_LEN).await?;
        let head_len = wire::head_len(&buffer[..wire::FIXED_LEN])?;
        if head_len > MAX_HEAD {
            return Err(Error::Protocol(format!("a head of {head_len} bytes")));
        }
        self.fill(buffer, head_len).await?;
        let head = wire::parse_head(&buffer[..head_len])?;
        Ok((head_len, head))
    }

    /// Handles a Decrypt call after its `begin` and [`Self::head`].
    pub async fn decrypt(
        &mut self,
        device_keys: &Arc<DeviceKeys>,
        begin: &proto::DecryptBegin,
        mut buffer: BytesMut,
        head_len: usize,
        head: wire::Head,
    ) -> Result<()> {
        let prefix_len = device_keys.decryptor()?.prefix_len(head.header.contributions.len()).min(head.payload_len);
        self.fill(&mut buffer, head_len + prefix_len).await?;
        let form = if begin.sums { Form::Sums } else { Form::Means };
        let start = &buffer[..head_len + prefix_len];
        let done = match Decryption::start(device_keys.decryptor()?, start, &expected(begin), form)? {
            Some(opening) => self.decrypt_pieces(opening, buffer, head_len).await?,
            None => self.decrypt_whole(Arc::clone(device_keys), begin.clone(), form, buffer, head_len, &head).await?,
        };
        self.send(decrypt_reply::Part::Done(done)).await
    }

    async fn values(&mut self, bytes: &[u8]) -> Result<()> {
        self.send_bytes(bytes, "values_out").await
    }

    async fn opened(&mut self, header: &wire::Header) -> Result<()> {
        let contributions = header.contributions.iter();
        let opened = proto::Opened {
            layout: Bytes::copy_from_slice(&header.layout),
            round: header.round.get(),
            contributions: contributions
                .map(|c| proto::Contribution { client: c.client.get(), weight: c.weight.get() })
                .collect(),
        };
        self.send(decrypt_reply::Part::Opened(opened)).await
    }

    async fn decrypt_pieces(
        &mut self,
        mut opening: Decryption,
        mut buffer: BytesMut,
        head_len: usize,
    ) -> Result<proto::DecryptDone> {
        self.opened(opening.header()).await?;
        buffer.advance(head_len + opening.prefix());
        while let Some(next) = opening.next_len() {
            self.fill(&mut buffer, next).await?;
            let used = opening.whole(buffer.len());
            let began = Instant::now();
            let covered = opening.push(&buffer[..used])?;
            self.metrics.phase("decrypt", began.elapsed().as_secs_f64());
            self.values(covered.bytes()).await?;
            buffer.advance(used);
        }
        self.fill(&mut buffer, Decryption::END).await?;
        self.end().await?;
        let end = buffer.as_ref().try_into().map_err(|_| longer())?;
        // The sum is claimed and the set remembered before the result is known.
        let opened = compute(move || Ok(opening.finish(&end).map_err(unopened)?)).await?;
        let (_, key) = opened.into_parts();
        Ok(proto::DecryptDone { key: key.to_vec().into(), ..proto::DecryptDone::default() })
    }

    async fn end(&mut self) -> Result<()> {
        match self.next().await? {
            None => Ok(()),
            Some(_) => Err(longer()),
        }
    }

    async fn decrypt_whole(
        &mut self,
        device_keys: Arc<DeviceKeys>,
        begin: proto::DecryptBegin,
        form: Form,
        mut buffer: BytesMut,
        head_len: usize,
        head: &wire::Head,
    ) -> Result<proto::DecryptDone> {
        let total = head_len.saturating_add(head.payload_len).saturating_add(wire::CRC_LEN);
        if total > MAX_MESSAGE {
            return Err(Error::Configuration(format!("an aggregate of {total} bytes is more than an engine takes")));
        }
        self.fill(&mut buffer, total).await?;
        self.end().await?;
        let began = Instant::now();
        let decrypted =
            compute(move || Ok(whole(device_keys.decryptor()?, &buffer, &expected(&begin), form).map_err(unopened)?));
        let (summary, mut values) = decrypted.await?;
        self.metrics.phase("decrypt", began.elapsed().as_secs_f64());
        self.opened(&summary.header).await?;
        let mut cover = KeyStream::from_os()?;
        cover.apply(&mut values);
        self.values(&values).await?;
        let counts = summary.counts.unwrap_or_default();
        let counts = Bytes::copy_from_slice(bytemuck::cast_slice(&counts));
        let false_members = summary.false_members.into_iter().map(ClientId::get).collect();
        Ok(proto::DecryptDone { counts, key: cover.into_key().to_vec().into(), false_members })
    }
}

/// Decrypts a complete aggregate to bytes.
fn whole(
    decryptor: &Decryptor,
    frame: &[u8],
    expect: &Expect<'_>,
    form: Form,
) -> fedcipher_core::Result<(Summary, Vec<u8>)> {
    Ok(match form {
        Form::Sums => {
            let (summary, sums) = decryptor.decrypt(frame, expect, Sums::default())?.into_parts();
            (summary, bytemuck::cast_slice(&sums.0).to_vec())
        }
        Form::Means => {
            let (summary, means) = decryptor.decrypt(frame, expect, Means::default())?.into_parts();
            (summary, bytemuck::cast_slice(&means.values).to_vec())
        }
    })
}

fn longer() -> Error {
    Error::Protocol("more bytes than the aggregate's header announced".into())
}

/// Maps every failure that depends on the plaintext to one error for the host.
fn unopened(error: fedcipher_core::Error) -> fedcipher_core::Error {
    match error {
        fedcipher_core::Error::Decrypt { reason } => {
            tracing::info!("an aggregate does not open: {reason}");
            fedcipher_core::Error::Tag
        }
        other => other,
    }
}

/// The properties that the host expects of the aggregate.
fn expected(begin: &proto::DecryptBegin) -> Expect<'_> {
    let (model, memory) = (begin.model.as_deref(), begin.memory.as_deref());
    Expect { round: begin.round.map(RoundId::new), model, memory, associated_data: &begin.associated_data }
}
