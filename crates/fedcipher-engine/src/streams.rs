//! The two pumps: values in and ciphertext out, ciphertext in and values out, a few pieces at a time.
//!
//! Backpressure is the connection's: a pump reads no more while its reader does not take what it made.

use crate::error::{Error, Result};
use crate::keyring::Party;
use crate::metrics::Metrics;
use crate::proto::{self, decrypt_reply, decrypt_request, encrypt_reply, encrypt_request};
use crate::ring::Ring;
use crate::text::quoted;
use crate::unfinished::Held;
use crate::{CHUNK, MAX_MESSAGE, MESSAGE};
use bytes::{Buf, Bytes, BytesMut};
use fedcipher_core::client::Digest;
use fedcipher_core::codec::{self, Layout, Means, Rounding, SumSink, Sums, Update};
use fedcipher_core::ledger::Sum;
use fedcipher_core::mac::{Hash, TAG_LEN, Tag};
use fedcipher_core::prf::KeyStream;
use fedcipher_core::scheme::{Encryptor, Expect, Opening, Request, Terms};
use fedcipher_core::stream::{self, Piece, Sealing};
use fedcipher_core::wire::{self, Checksum};
use rayon::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

/// Largest head of an aggregate: a million contributions and a layout of some thousand tensors.
const MAX_HEAD: usize = 64 << 20;

/// A part of an update or an aggregate, on its way from the host.
pub enum Chunk {
    Bytes(Bytes),
    /// So many bytes in the ring.
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

/// A message of the host.
pub trait Carrier {
    /// The chunk it carries, if it is not another part.
    fn chunk(self) -> Option<Chunk>;
}

/// A message to the host.
pub trait Reply: Sized {
    type Part;
    fn new(part: Option<Self::Part>, taken: u64) -> Self;
    fn bytes(bytes: Bytes) -> Self::Part;
    fn shared(len: u32) -> Self::Part;
}

macro_rules! carries {
    ($request:ident, $in:ident :: $chunk:ident, $reply:ident, $out:ident :: $sent:ident) => {
        impl Carrier for proto::$request {
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

carries!(EncryptRequest, encrypt_request::Values, EncryptReply, encrypt_reply::Frame);
carries!(DecryptRequest, decrypt_request::Frame, DecryptReply, decrypt_reply::Values);

/// The engine's side of a connection's ring, for one call.
pub struct RingEnd {
    ring: Arc<Ring>,
    /// Chunks of the host that have been read.
    taken: u64,
    /// The host has not been told of all of them.
    owed: bool,
    /// Chunks for the host that have been written.
    sent: u64,
}

impl RingEnd {
    #[must_use]
    pub fn new(ring: Arc<Ring>) -> Self {
        RingEnd { ring, taken: 0, owed: false, sent: 0 }
    }
}

/// Between two looks whether a full ring has a place again; the ring holds more than a host takes in that time.
const LOOK: Duration = Duration::from_millis(1);

/// One stream's ends.
pub struct Pump<'a, In, Out> {
    pub requests: &'a mut In,
    pub replies: &'a Sender<std::result::Result<Out, Status>>,
    pub ring: Option<RingEnd>,
    pub metrics: &'a Metrics,
    /// Longest silence of the host.
    pub stall: Duration,
    /// This call's share of what all may hold of what has not come whole.
    pub held: Held,
}

impl<In, Message, Out> Pump<'_, In, Out>
where
    In: Stream<Item = std::result::Result<Message, Status>> + Unpin,
    Message: Carrier,
    Out: Reply,
{
    /// The next message, or none at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        if self.ring.as_ref().is_some_and(|ring| ring.owed) {
            // The host may be waiting for a place.
            self.reply(None).await?;
        }
        let began = Instant::now();
        let next = next(self.requests, self.stall).await;
        self.metrics.phase("wait", began.elapsed().as_secs_f64());
        next
    }

    /// The next chunk of what the host sends, `counted` as that; none at the end.
    async fn chunk(&mut self, counted: &str) -> Result<Option<Chunk>> {
        let Some(message) = self.next().await? else { return Ok(None) };
        let chunk = message.chunk().ok_or_else(|| Error::Protocol("data comes after one begin".into()))?;
        if matches!(chunk, Chunk::Shared(len) if len > CHUNK) {
            return Err(Error::Protocol("a shared chunk larger than its place".into()));
        }
        self.metrics.moved(counted, chunk.len());
        Ok(Some(chunk))
    }

    /// `chunk`'s bytes into `place`, of its length.
    fn take(&mut self, chunk: &Chunk, place: &mut [u8]) -> Result<()> {
        match (chunk, &mut self.ring) {
            (Chunk::Shared(_), Some(end)) => {
                end.ring.take_up(end.taken, place)?;
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

    /// Sends bytes through the ring if there is one, else in messages.
    async fn give(&mut self, bytes: &[u8], counted: &str) -> Result<()> {
        self.metrics.moved(counted, bytes.len());
        let most = self.ring.as_ref().map_or(MESSAGE, |_| CHUNK);
        for chunk in bytes.chunks(most) {
            self.place().await?;
            let part = match &mut self.ring {
                Some(end) => {
                    end.ring.put_down(end.sent, chunk)?;
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

    /// Waits until the host has taken enough that the ring has a free place.
    async fn place(&self) -> Result<()> {
        let Some(end) = &self.ring else { return Ok(()) };
        let began = Instant::now();
        while !end.ring.free_down(end.sent) {
            if self.replies.is_closed() {
                return Err(Error::Truncated("the host has gone".into()));
            }
            if began.elapsed() > self.stall {
                return Err(stalled(self.stall));
            }
            tokio::time::sleep(LOOK).await;
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

/// Hands `reply` to the connection, which its host must empty.
pub async fn answer<T>(replies: &Sender<std::result::Result<T, Status>>, reply: T, stall: Duration) -> Result<()> {
    let sent = tokio::time::timeout(stall, replies.send(Ok(reply))).await;
    sent.map_err(|_| stalled(stall))?.map_err(|_| Error::Truncated("the host has gone".into()))
}

/// The next message of a host's; none at its end.
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

/// Runs `work` on the threads that encrypt; the event loop goes on meanwhile.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, done) = oneshot::channel();
    rayon::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // A stream that was dropped meanwhile does not wait.
        let _ = sender.send(result.unwrap_or_else(|_| Err(Error::Protocol("the engine failed on this input".into()))));
    });
    done.await.unwrap_or_else(|_| Err(Error::Protocol("the engine is ending".into())))
}

fn missing(done: usize, of: usize, what: &str) -> Error {
    Error::Truncated(format!("{done} of {of} {what} arrived"))
}

/// How many whole pieces, from `next` on, `have` units hold; and how many units those are.
fn ready(pieces: &[Piece], next: usize, have: usize, size: impl Fn(&Piece) -> usize) -> (usize, usize) {
    let mut used = 0;
    let count = pieces[next..].iter().take_while(|piece| {
        let fits = used + size(piece) <= have;
        used += if fits { size(piece) } else { 0 };
        fits
    });
    (count.count(), used)
}

// --- encrypting ------------------------------------------------------------------------------

impl<In> Pump<'_, In, proto::EncryptReply>
where
    In: Stream<Item = std::result::Result<proto::EncryptRequest, Status>> + Unpin,
{
    /// The rest of an Encrypt call after its `begin`.
    pub async fn encrypt(&mut self, party: &Arc<Party>, begin: proto::EncryptBegin) -> Result<()> {
        let job = Arc::new(Job { layout: Layout::decode(&begin.layout)?, party: Arc::clone(party), begin });
        let own = Arc::clone(&job);
        // The round is on disk before anything of it exists.
        let mut encryptor = party.encryptor().await?;
        let sealing = compute(move || Ok(encryptor.sealer(&own.terms())?)).await?;
        let done = match sealing {
            Some(sealing) => self.encrypt_pieces(&job, &sealing).await?,
            None => self.encrypt_whole(job).await?,
        };
        self.metrics.phase("encode", done.encode_seconds);
        self.metrics.phase("encrypt", done.encrypt_seconds);
        self.send(encrypt_reply::Part::Done(done)).await
    }

    /// Appends the next values to `window`; false at the end.
    async fn values(&mut self, window: &mut Vec<f32>) -> Result<bool> {
        let Some(chunk) = self.chunk("values_in").await? else { return Ok(false) };
        if chunk.len() % 4 != 0 {
            return Err(Error::Protocol("values are whole float32 numbers".into()));
        }
        let start = window.len();
        window.resize(start + chunk.len() / 4, 0.0);
        self.take(&chunk, bytemuck::cast_slice_mut(&mut window[start..]))?;
        Ok(true)
    }

    async fn frame(&mut self, bytes: &[u8]) -> Result<()> {
        self.give(bytes, "frame_out").await
    }

    async fn frame_len(&mut self, len: usize) -> Result<()> {
        self.send(encrypt_reply::Part::FrameLen(len as u64)).await
    }

    async fn encrypt_pieces(&mut self, job: &Job, sealing: &Sealing) -> Result<proto::EncryptDone> {
        let sealer = sealing.sealer();
        let (pieces, elements) = (sealer.pieces(), job.layout.elements());
        let rounding = job.rounding()?;
        self.frame_len(sealer.header().frame_len(sealer.payload_len())).await?;
        let mut out = sealer.header().head(sealer.payload_len());
        out.extend_from_slice(sealer.prefix());
        let mut checksum = Checksum::default();
        checksum.update(&out);
        let mut done = proto::EncryptDone::default();
        let (mut window, mut first, mut next) = (Vec::<f32>::new(), 0, 0);
        let (mut hash, mut digest) = (Hash::default(), sealer.digest());
        while first < elements {
            if !self.values(&mut window).await? {
                return Err(missing(first + window.len(), elements, "values"));
            }
            if first + window.len() > elements {
                return Err(too_many(elements));
            }
            let (count, used) = ready(pieces, next, window.len(), |p| p.len);
            if count == 0 {
                continue;
            }
            let at = out.len();
            // Less than a millisecond: handing it to another thread and waking up again would cost as much.
            let part = Update::window(&job.layout, first, &window[..used], rounding.clone())?;
            hash += seal(sealing, next, count, &part, &mut out, &mut done)?;
            checksum.update(&out[at..]);
            digest.update(&out[at..]);
            window.drain(..used);
            first += used;
            next += count;
            self.frame(&out).await?;
            out.clear();
        }
        if self.values(&mut window).await? {
            return Err(too_many(elements));
        }
        let at = out.len();
        out.extend_from_slice(&sealer.end(hash, &digest.finish())?);
        checksum.update(&out[at..]);
        out.extend_from_slice(&checksum.finish());
        self.frame(&out).await?;
        Ok(done)
    }

    /// For updates whose every byte depends on all values: sparse ones.
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
        let mut encryptor = job.party.encryptor().await?;
        let (frame, done) = compute(move || job.encrypt(encryptor.as_mut(), &flat)).await?;
        self.frame_len(frame.len()).await?;
        self.frame(&frame).await?;
        Ok(done)
    }
}

fn too_many(elements: usize) -> Error {
    Error::Protocol(format!("more values than the {elements} of the layout"))
}

/// What an Encrypt call was asked for.
struct Job {
    layout: Layout,
    party: Arc<Party>,
    begin: proto::EncryptBegin,
}

impl Job {
    fn terms(&self) -> Terms<'_> {
        let begin = &self.begin;
        Terms {
            round: begin.round,
            weight: begin.weight,
            layout: &self.layout,
            plan: &begin.plan,
            model: &begin.model,
            memory: &begin.memory,
            bound: &begin.bound,
        }
    }

    fn rounding(&self) -> Result<Rounding> {
        Ok(if self.begin.stochastic { Rounding::stochastic()? } else { Rounding::Nearest })
    }

    /// The whole update at once.
    fn encrypt(&self, encryptor: &mut dyn Encryptor, flat: &[f32]) -> Result<(Vec<u8>, proto::EncryptDone)> {
        let began = Instant::now();
        let update = Update::new(&self.layout, self.layout.split(flat)?, self.rounding()?)?;
        let Terms { round, weight, plan, model, memory, bound, .. } = self.terms();
        let frame = encryptor.encrypt(&Request { round, weight, update: &update, plan, model, memory, bound })?;
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

/// Appends the ciphertext of pieces `next..next + count`, which `part` holds, to `out`; counts in `done`.
fn seal(
    sealing: &Sealing,
    next: usize,
    count: usize,
    part: &Update<'_>,
    out: &mut Vec<u8>,
    done: &mut proto::EncryptDone,
) -> Result<Hash> {
    let began = Instant::now();
    let pieces = &sealing.sealer().pieces()[next..next + count];
    let at = out.len();
    out.resize(at + pieces.iter().map(|p| p.bytes).sum::<usize>(), 0);
    let slots = stream::slots(pieces, &mut out[at..]);
    let sealed = slots.into_par_iter().enumerate().map(|(k, slot)| sealing.seal(next + k, part, slot));
    let hash = sealed.sum::<fedcipher_core::Result<Hash>>()?;
    let encode_seconds = part.seconds();
    done.clipped += part.clipped().iter().sum::<u64>();
    done.encode_seconds += encode_seconds;
    done.encrypt_seconds += (began.elapsed().as_secs_f64() - encode_seconds).max(0.0);
    Ok(hash)
}

// --- decrypting ------------------------------------------------------------------------------

/// What a decrypting host gets.
#[derive(Clone, Copy)]
enum Output {
    Means,
    Sums,
}

impl Output {
    /// Bytes of one value.
    fn width(self) -> usize {
        match self {
            Output::Means => size_of::<f32>(),
            Output::Sums => size_of::<u64>(),
        }
    }

    /// One piece's values as they go out, into `place`.
    fn write(self, opening: &Opening, weight: u64, start: usize, sums: &[u64], place: &mut [u8]) {
        match self {
            Output::Sums => place.copy_from_slice(bytemuck::cast_slice(sums)),
            Output::Means => {
                let (layout, levels) = (&opening.layout, opening.verifier.levels);
                codec::means(layout, levels, weight, start, sums, bytemuck::cast_slice_mut(place));
            }
        }
    }
}

impl<In> Pump<'_, In, proto::DecryptReply>
where
    In: Stream<Item = std::result::Result<proto::DecryptRequest, Status>> + Unpin,
{
    /// At least `len` bytes in `buffer`.
    async fn fill(&mut self, buffer: &mut BytesMut, len: usize) -> Result<()> {
        while buffer.len() < len {
            let Some(chunk) = self.chunk("frame_in").await? else {
                return Err(missing(buffer.len(), len, "bytes of the next part"));
            };
            let start = buffer.len();
            self.held.grow_to(start + chunk.len())?;
            buffer.resize(start + chunk.len(), 0);
            self.take(&chunk, &mut buffer[start..])?;
        }
        Ok(())
    }

    /// The head of the aggregate, left at the front of `buffer`: (head bytes, head).
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

    /// The rest of a Decrypt call after its `begin` and [`Self::head`].
    pub async fn decrypt(
        &mut self,
        party: &Arc<Party>,
        begin: &proto::DecryptBegin,
        mut buffer: BytesMut,
        head_len: usize,
        head: wire::Head,
    ) -> Result<()> {
        let prefix_len = party.decryptor()?.prefix_len(head.header.contributions.len()).min(head.payload_len);
        self.fill(&mut buffer, head_len + prefix_len).await?;
        let prefix = &buffer[head_len..head_len + prefix_len];
        let output = if begin.sums { Output::Sums } else { Output::Means };
        let expect = expected(begin);
        let done = match party.decryptor()?.opener(&head, &expect, prefix)? {
            Some(opening) => {
                let sum = party.decryptor()?.openings().sum(&head.header)?;
                self.decrypt_pieces(party, opening, output, buffer, (head_len, &head), sum).await?
            }
            None => self.decrypt_whole(Arc::clone(party), begin.clone(), output, buffer, head_len, &head).await?,
        };
        self.send(decrypt_reply::Part::Done(done)).await
    }

    async fn values(&mut self, bytes: &[u8]) -> Result<()> {
        self.give(bytes, "values_out").await
    }

    async fn opened(&mut self, header: &wire::Header) -> Result<()> {
        let contributions = header.contributions.iter();
        let opened = proto::Opened {
            layout: Bytes::copy_from_slice(&header.layout),
            round: header.round,
            contributions: contributions.map(|c| proto::Contribution { client: c.client, weight: c.weight }).collect(),
        };
        self.send(decrypt_reply::Part::Opened(opened)).await
    }

    async fn decrypt_pieces(
        &mut self,
        party: &Arc<Party>,
        opening: Opening,
        output: Output,
        mut buffer: BytesMut,
        (head_len, head): (usize, &wire::Head),
        sum: Sum,
    ) -> Result<proto::DecryptDone> {
        let (pieces, weight) = (opening.opener.pieces(), head.header.total_weight());
        opening.opener.check_len(head.payload_len)?;
        self.opened(&head.header).await?;
        let mut checksum = Checksum::default();
        let mut digest = Digest::default();
        let start = head_len + opening.opener.prefix();
        checksum.update(&buffer[..start]);
        digest.update(&buffer[..start]);
        buffer.advance(start);
        let mut cover = KeyStream::from_os()?;
        // Words, so that values of any width lie in it as they must.
        let mut out = Vec::<u64>::new();
        // What fails is told at the end only: when it failed would tell of the plaintext.
        let mut hash = Ok(Hash::default());
        let mut next = 0;
        while next < pieces.len() {
            self.fill(&mut buffer, pieces[next].bytes).await?;
            let (count, used) = ready(pieces, next, buffer.len(), |p| p.bytes);
            let began = Instant::now();
            let bytes = &buffer[..used];
            checksum.update(bytes);
            digest.update(bytes);
            let window = &pieces[next..next + count];
            let len = window.iter().map(|p| p.len).sum::<usize>() * output.width();
            out.resize(len.div_ceil(8), 0);
            let open = |sums: &mut Vec<u64>, (k, place): (usize, &mut [u8])| {
                let piece = &window[k];
                let from = piece.at - window[0].at;
                sums.clear();
                sums.resize(piece.len, 0);
                let opened = opening.opener.open(next + k, &bytes[from..from + piece.bytes], sums);
                output.write(&opening, weight, piece.start, sums, place);
                opened.map(|mut hash| {
                    hash += opening.verifier.hash(piece.start, sums);
                    hash
                })
            };
            let mut rest = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut out)[..len];
            let places = window.iter().map(|piece| {
                let (place, after) = std::mem::take(&mut rest).split_at_mut(piece.len * output.width());
                rest = after;
                place
            });
            let places: Vec<&mut [u8]> = places.collect();
            let parts: Vec<_> = places.into_par_iter().enumerate().map_init(Vec::new, open).collect();
            hash = parts.into_iter().fold(hash, |sum, part| {
                let mut sum = sum?;
                sum += part?;
                Ok(sum)
            });
            buffer.advance(used);
            let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut out)[..len];
            cover.apply(bytes);
            self.metrics.phase("decrypt", began.elapsed().as_secs_f64());
            next += count;
            self.values(bytes).await?;
        }
        self.fill(&mut buffer, TAG_LEN + wire::CRC_LEN).await?;
        let (tag, crc) = buffer.split_at(TAG_LEN);
        checksum.update(tag);
        checksum.check(crc)?;
        digest.update(&buffer);
        self.end().await?;
        let mut bytes = [0u8; TAG_LEN];
        bytes.copy_from_slice(tag);
        let party = Arc::clone(party);
        // Its clients are spent for the round, and the set is remembered, before anybody learns whether it opens.
        compute(move || {
            party.decryptor()?.openings().claim(&sum, &digest.finish())?;
            let hash = hash.map_err(unopened)?;
            Ok(opening.verifier.check(hash, Tag::parse(bytes)?)?)
        })
        .await?;
        Ok(proto::DecryptDone { key: cover.into_key().to_vec().into(), ..proto::DecryptDone::default() })
    }

    async fn end(&mut self) -> Result<()> {
        match self.next().await? {
            None => Ok(()),
            Some(_) => Err(Error::Protocol("more bytes than the aggregate's header announced".into())),
        }
    }

    async fn decrypt_whole(
        &mut self,
        party: Arc<Party>,
        begin: proto::DecryptBegin,
        output: Output,
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
        let decrypted = compute(move || {
            let mut sums = Sums::default();
            let mut means = Means::default();
            let sink: &mut dyn SumSink = match output {
                Output::Sums => &mut sums,
                Output::Means => &mut means,
            };
            let summary = party.decryptor()?.decrypt(&buffer, &expected(&begin), sink).map_err(unopened)?;
            let values: Vec<u8> = match output {
                Output::Sums => bytemuck::cast_slice(&sums.0).to_vec(),
                Output::Means => bytemuck::cast_slice(&means.values).to_vec(),
            };
            Ok((summary, values))
        });
        let (summary, mut values) = decrypted.await?;
        self.metrics.phase("decrypt", began.elapsed().as_secs_f64());
        self.opened(&summary.header).await?;
        let mut cover = KeyStream::from_os()?;
        cover.apply(&mut values);
        self.values(&values).await?;
        let counts = summary.counts.unwrap_or_default();
        let counts = Bytes::copy_from_slice(bytemuck::cast_slice(&counts));
        let false_members = summary.false_members;
        Ok(proto::DecryptDone { counts, key: cover.into_key().to_vec().into(), false_members })
    }
}

/// What a host is told where the cause depends on the plaintext: one refusal, whatever it was.
fn unopened(error: fedcipher_core::Error) -> fedcipher_core::Error {
    match error {
        fedcipher_core::Error::Decrypt { reason } => {
            tracing::info!("an aggregate does not open: {reason}");
            fedcipher_core::Error::Tag
        }
        other => other,
    }
}

/// What the host says the aggregate must be.
fn expected(begin: &proto::DecryptBegin) -> Expect<'_> {
    let (model, memory) = (begin.model.as_deref(), begin.memory.as_deref());
    Expect { round: begin.round, model, memory, bound: &begin.bound }
}
