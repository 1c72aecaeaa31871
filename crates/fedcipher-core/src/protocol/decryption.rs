//! Decryption of an aggregate: head, pieces, tag, and only then values.

use super::pieces::whole;
use super::{CheckedHead, ClaimedSum, FrameDigest, Opened, Piece, Proven, Receiver};
use crate::codec::{self, SumSink};
use crate::mac::field::Element;
use crate::mac::{PolyEval, TAG_LEN, Tag};
use crate::prf::KeyStream;
use crate::request::Expect;
use crate::threads::Threads;
use crate::wire::{self, CRC_LEN, Checksum, Header};
use crate::{Error, Result, TotalWeight};
use rayon::prelude::*;
use std::sync::Arc;
use zeroize::Zeroizing;

/// One scheme's part of an aggregate's decryption. [`Decryptor`] and [`Decryption`] drive it.
pub(crate) trait DecryptKernel: Send + Sync {
    fn receiver(&self) -> &Arc<Receiver>;

    /// See [`Decryptor::prefix_len`].
    fn prefix_len(&self, _contributions: usize) -> usize {
        0
    }

    /// Begins the decryption by independent pieces, from the first bytes of the payload. `None` if a piece depends on
    /// the whole payload, or if the bytes before the pieces depend on a secret.
    fn opener(&self, checked: &CheckedHead, prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>>;

    /// Decrypts one aggregate at once, if [`Self::opener`] returns `None`. `payload` lacks the tag.
    fn open_whole(&self, _sum: ClaimedSum, _payload: &[u8], _sink: &mut dyn SumSink) -> Result<Proven> {
        Err(Error::frame("an aggregate that is decrypted by pieces"))
    }

    /// The digest that decides whether an aggregate is the same one again.
    fn digest(&self, frame: &[u8], _header: &Header, _payload: &[u8], _tag: Tag) -> Result<[u8; 32]> {
        Ok(FrameDigest::of(frame))
    }
}

/// One scheme's part of one aggregate's decryption, piece by piece.
pub(crate) trait PieceDecryptor: Send + Sync {
    /// Payload bytes before the first piece.
    fn prefix(&self) -> usize;

    /// The pieces: contiguous and increasing, in elements and in bytes.
    fn pieces(&self) -> &[Piece];

    /// Writes the sums of piece `index` from its payload bytes. Returns the parts of the tag other than the polynomial
    /// of the sums.
    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<PolyEval>;

    /// The threads that decrypt an aggregate in memory.
    fn threads(&self) -> Threads {
        Threads::All
    }

    /// The sum of the pads that the clients have drawn; `None` if they draw none.
    fn pads(&self) -> Option<&Element> {
        None
    }

    /// Fails if the payload's length is not the length of this aggregate.
    fn check_len(&self, payload_len: usize) -> Result<()> {
        let expected = Piece::end(self.pieces(), self.prefix()) + TAG_LEN;
        if payload_len == expected {
            return Ok(());
        }
        Err(Error::frame(format!("payload has {payload_len} bytes instead of {expected}")))
    }
}

/// Decrypts aggregates for a client. An aggregate opens only if it is the sum of the updates that its named clients
/// sent. Its round must not be older than the last opened one, unless it is the same bytes again. Without a memory, one
/// aggregate opens per round. With a memory, several open if they have no client in common and keep the rule of sets.
pub struct Decryptor(Box<dyn DecryptKernel>);

impl Decryptor {
    pub(crate) fn new(kernel: impl DecryptKernel + 'static) -> Self {
        Decryptor(Box::new(kernel))
    }

    /// Decrypts a whole aggregate into `sink`. Returns the sink only if the aggregate opens.
    pub fn decrypt<S: SumSink>(&self, frame: &[u8], expect: &Expect<'_>, mut sink: S) -> Result<Opened<S>> {
        let (kernel, receiver) = (self.0.as_ref(), self.0.receiver());
        let digest = |header: &Header, payload: &[u8], tag| kernel.digest(frame, header, payload, tag);
        let (sum, payload) = receiver.admit_as(frame, expect, digest)?;
        let outcome = kernel.opener(sum.checked(), payload).and_then(|opener| match opener {
            Some(opener) => open_pieces(sum, opener.as_ref(), payload, &mut sink),
            None => kernel.open_whole(sum, payload, &mut sink),
        });
        receiver.settle(outcome, sink)
    }

    /// The most payload bytes that [`Decryption::start`] needs for this number of contributions.
    #[must_use]
    pub fn prefix_len(&self, contributions: usize) -> usize {
        self.0.prefix_len(contributions)
    }

    /// Fails with `Closed` if the key is closed.
    pub fn check_open(&self) -> Result<()> {
        self.0.receiver().check_open()
    }
}

/// The number of shares per thread into which the pieces are divided. Each share begins with a buffer of its own.
const SHARES: usize = 8;

/// Decrypts a whole payload into `sink`. The tag is checked last: discard the sums on an error.
pub(crate) fn open_pieces(
    sum: ClaimedSum,
    opener: &dyn PieceDecryptor,
    payload: &[u8],
    sink: &mut dyn SumSink,
) -> Result<Proven> {
    let checked = sum.checked();
    opener.check_len(payload.len() + TAG_LEN)?;
    sink.begin(checked.layout(), checked.levels(), checked.header().total_weight())?;
    let pieces = opener.pieces();
    let open = |index: usize, piece: &Piece, sums: &mut [u64]| {
        hashed(opener, checked, index, &payload[piece.at..piece.at + piece.bytes], sums)
    };
    let mut total = PolyEval::default();
    let longest = pieces.iter().map(|p| p.len).max().unwrap_or(0);
    if opener.threads().there() == Threads::One {
        let mut sums = vec![0u64; longest];
        for (index, piece) in pieces.iter().enumerate() {
            total += open(index, piece, &mut sums[..piece.len])?;
            sink.put(piece.start, &sums[..piece.len])?;
        }
    } else {
        let takers = sink.split(&mut pieces.iter().map(|piece| piece.len))?;
        // Each thread passes its sums on while they are in its cache. The destination may be fresh memory, and its
        // first use takes as long as the decryption.
        let share = pieces.len().div_ceil(SHARES * rayon::current_num_threads());
        total = takers
            .into_par_iter()
            .zip(pieces)
            .enumerate()
            .with_min_len(share)
            .map_init(
                || vec![0u64; longest],
                |sums, (index, (take, piece))| {
                    let sums = &mut sums[..piece.len];
                    let hash = open(index, piece, sums)?;
                    take(sums);
                    Ok(hash)
                },
            )
            .sum::<Result<PolyEval>>()?;
    }
    sum.verify(total, opener.pads())
}

/// Writes the sums of a piece. Returns everything that the tag covers of them.
fn hashed(
    opener: &dyn PieceDecryptor,
    checked: &CheckedHead,
    index: usize,
    bytes: &[u8],
    sums: &mut [u64],
) -> Result<PolyEval> {
    let mut hash = opener.open(index, bytes, sums)?;
    if let Some(verifier) = checked.verifier() {
        hash += verifier.hash(opener.pieces()[index].start, sums);
    }
    Ok(hash)
}

/// The number format of an aggregate's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Weighted means, as float32.
    Means,
    /// The sums themselves, as 64-bit integers.
    Sums,
}

impl Form {
    /// Bytes of a value.
    fn width(self) -> usize {
        match self {
            Form::Means => size_of::<f32>(),
            Form::Sums => size_of::<u64>(),
        }
    }

    /// Writes the values of `sums`, from element `start` on, to `place`.
    fn write(self, checked: &CheckedHead, weight: TotalWeight, start: usize, sums: &[u64], place: &mut [u8]) {
        match self {
            Form::Sums => place.copy_from_slice(bytemuck::cast_slice(sums)),
            Form::Means => {
                let place = bytemuck::cast_slice_mut(place);
                codec::means(checked.layout(), checked.levels(), weight, start, sums, place);
            }
        }
    }
}

/// Values encrypted under a key stream. [`Decryption::finish`] returns the key if the aggregate opens.
pub struct Covered<'a>(&'a [u8]);

impl Covered<'_> {
    /// The ciphertext, for the holder of the key.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// A decryption that takes a few pieces at a time; the head is already checked. A wrong plaintext is reported only at
/// the end, because the time of an earlier report would leak where it is wrong.
pub struct Decryption {
    receiver: Arc<Receiver>,
    checked: CheckedHead,
    opener: Box<dyn PieceDecryptor>,
    form: Form,
    /// A buffer of words, so that values of any width are aligned in it.
    values: Vec<u64>,
    cover: KeyStream,
    /// The number of pieces received.
    next: usize,
    hash: Result<PolyEval>,
    checksum: Checksum,
    digest: FrameDigest,
}

impl Decryption {
    /// Starts a decryption from the first bytes of an aggregate. `begin` holds the head and [`Decryptor::prefix_len`]
    /// bytes of the payload, or the whole payload if it is shorter. Returns `None` if a piece depends on the whole
    /// aggregate; use [`Decryptor::decrypt`] then.
    pub fn start(decryptor: &Decryptor, begin: &[u8], expect: &Expect<'_>, form: Form) -> Result<Option<Self>> {
        let kernel = decryptor.0.as_ref();
        let head_len = wire::head_len(begin)?;
        let (bytes, prefix) =
            begin.split_at_checked(head_len).ok_or_else(|| Error::frame("it ends before its head does"))?;
        let checked = kernel.receiver().check(wire::parse_head(bytes)?, expect)?;
        let Some(opener) = kernel.opener(&checked, prefix)? else { return Ok(None) };
        opener.check_len(checked.payload_len())?;
        let mut opening = Decryption {
            receiver: Arc::clone(kernel.receiver()),
            checked,
            opener,
            form,
            values: Vec::new(),
            cover: KeyStream::from_os()?,
            next: 0,
            hash: Ok(PolyEval::default()),
            checksum: Checksum::default(),
            digest: FrameDigest::default(),
        };
        let used = head_len + opening.opener.prefix();
        let used = begin.get(..used).ok_or_else(|| Error::frame("it ends before its first piece"))?;
        opening.take(used);
        Ok(Some(opening))
    }

    fn take(&mut self, bytes: &[u8]) {
        self.checksum.update(bytes);
        self.digest.update(bytes);
    }

    #[must_use]
    pub fn header(&self) -> &Header {
        self.checked.header()
    }

    /// Payload bytes before the first piece. [`Self::start`] has read these from `begin`.
    #[must_use]
    pub fn prefix(&self) -> usize {
        self.opener.prefix()
    }

    /// Bytes of the next piece; `None` after the last.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        self.opener.pieces().get(self.next).map(|piece| piece.bytes)
    }

    /// The number of bytes that whole pieces take of the next `bytes` bytes.
    #[must_use]
    pub fn whole(&self, bytes: usize) -> usize {
        whole(self.opener.pieces(), self.next, bytes, |piece| piece.bytes).1
    }

    /// Decrypts the next whole pieces with all threads.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Covered<'_>> {
        let (count, used) = whole(self.opener.pieces(), self.next, bytes.len(), |piece| piece.bytes);
        if used != bytes.len() {
            return Err(Error::frame("bytes that are not those of the next pieces"));
        }
        self.take(bytes);
        let (first, form, weight) = (self.next, self.form, self.checked.header().total_weight());
        self.next += count;
        let window = &self.opener.pieces()[first..first + count];
        let len = window.iter().map(|piece| piece.len).sum::<usize>() * form.width();
        self.values.resize(len.div_ceil(size_of::<u64>()), 0);
        let (opener, checked) = (self.opener.as_ref(), &self.checked);
        let open = |sums: &mut Vec<u64>, (k, place): (usize, &mut [u8])| {
            let piece = &window[k];
            let from = piece.at - window[0].at;
            sums.clear();
            sums.resize(piece.len, 0);
            let hash = hashed(opener, checked, first + k, &bytes[from..from + piece.bytes], sums);
            form.write(checked, weight, piece.start, sums, place);
            hash
        };
        let values = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.values)[..len];
        let places: Vec<&mut [u8]> =
            crate::memory::runs(&mut *values, window.iter().map(|piece| piece.len * form.width())).collect();
        let parts: Vec<_> = places.into_par_iter().enumerate().map_init(Vec::new, open).collect();
        let hash = std::mem::replace(&mut self.hash, Ok(PolyEval::default()));
        self.hash = parts.into_iter().fold(hash, |sum, part| {
            let mut sum = sum?;
            sum += part?;
            Ok(sum)
        });
        self.cover.apply(values);
        Ok(Covered(values))
    }

    /// Bytes of the frame after the last piece: tag and checksum.
    pub const END: usize = TAG_LEN + CRC_LEN;

    /// Takes the frame's last bytes and returns the key of the covered values. The sum is claimed on disk before the
    /// result is known.
    pub fn finish(mut self, end: &[u8; Self::END]) -> Result<Opened<Zeroizing<[u8; 32]>>> {
        if self.next_len().is_some() {
            return Err(Error::frame("it ends before its last piece"));
        }
        let (tag, crc) = end.split_at(TAG_LEN);
        self.checksum.update(tag);
        self.checksum.check(crc)?;
        self.digest.update(end);
        let (_, tag) = Tag::split(tag)?;
        let sum = self.receiver.claim(self.checked, |_| Ok(self.digest.finish()), tag)?;
        let outcome = self.hash.and_then(|hash| sum.verify(hash, self.opener.pads()));
        self.receiver.settle(outcome, self.cover.into_key())
    }
}
