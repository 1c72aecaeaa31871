//! Updates and aggregates piece by piece, in memory that does not grow with the model.
//!
//! A [`Sealer`] is one update on its way out, an [`Opener`] one aggregate on its way in. Their pieces do
//! not depend on each other: a process can hold one at a time (the offload engine), or work on several
//! at once (a library call over memory that is all there).

use crate::client::Digest;
use crate::codec::{SumSink, Update};
use crate::mac::{Hash, Stamp, TAG_LEN, Tag};
use crate::memory::runs;
use crate::scheme::Opening;
use crate::statement::END_LEN;
use crate::wire::{Header, Place};
use crate::{Error, Result};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements `start..start + len` of the update, and the payload bytes `at..at + bytes` that carry them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: usize,
    pub len: usize,
    pub at: usize,
    pub bytes: usize,
}

impl Piece {
    /// End of the last piece: elements and payload bytes of the whole.
    #[must_use]
    pub fn end(pieces: &[Piece], prefix: usize) -> usize {
        pieces.last().map_or(prefix, |p| p.at + p.bytes)
    }
}

/// One update under encryption; its nonce is spent. A piece may be sealed once: twice would put two
/// messages under one mask. [`Sealing`] sees to that.
pub trait Sealer: Send + Sync {
    fn header(&self) -> &Header;

    /// Payload bytes before the first piece.
    fn prefix(&self) -> &[u8];

    /// Contiguous and increasing, in elements and in bytes.
    fn pieces(&self) -> &[Piece];

    /// Encrypts piece `index` of `update`, which must hold that piece's elements. Its part of the tag's polynomial.
    fn seal(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<Hash>;

    /// Makes tag and signature.
    fn stamp(&self) -> &Stamp;

    /// A digest that takes the bytes of all pieces in their order. [`Self::end`] signs its value.
    fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        digest.update(self.prefix());
        digest
    }

    /// The payload's last bytes, from the parts of all pieces and the digest of their bytes.
    fn end(&self, hash: Hash, digest: &[u8; 32]) -> Result<Vec<u8>> {
        Ok(self.stamp().end(hash, digest).to_vec())
    }

    /// Bytes of [`Self::end`].
    fn end_len(&self) -> usize {
        END_LEN
    }

    /// Bytes of the payload.
    fn payload_len(&self) -> usize {
        Piece::end(self.pieces(), self.prefix().len()) + self.end_len()
    }
}

/// A [`Sealer`] that refuses to seal a piece twice.
pub struct Sealing {
    inner: Box<dyn Sealer>,
    sealed: Vec<AtomicBool>,
}

impl Sealing {
    #[must_use]
    pub fn new(sealer: impl Sealer + 'static) -> Self {
        let sealed = sealer.pieces().iter().map(|_| AtomicBool::new(false)).collect();
        Sealing { inner: Box::new(sealer), sealed }
    }

    #[must_use]
    pub fn sealer(&self) -> &dyn Sealer {
        self.inner.as_ref()
    }

    /// [`Sealer::seal`], once a piece, also when it fails.
    pub fn seal(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<Hash> {
        let first = self.sealed.get(index).is_some_and(|sealed| !sealed.swap(true, Ordering::Relaxed));
        if !first {
            return Err(Error::layout(format!("piece {index} has been encrypted already, or does not exist")));
        }
        self.inner.seal(index, update, out)
    }
}

/// One aggregate under decryption.
pub trait Opener: Send + Sync {
    /// Payload bytes before the first piece.
    fn prefix(&self) -> usize;

    /// Contiguous and increasing, in elements and in bytes.
    fn pieces(&self) -> &[Piece];

    /// The sums of piece `index` from its payload bytes, and what is in the tag beside their polynomial.
    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<Hash>;

    /// Refuses a payload of any other length than this aggregate has.
    fn check_len(&self, payload_len: usize) -> Result<()> {
        let expected = Piece::end(self.pieces(), self.prefix()) + TAG_LEN;
        if payload_len == expected {
            return Ok(());
        }
        Err(Error::frame(format!("payload has {payload_len} bytes instead of {expected}")))
    }
}

/// Who works on the pieces of an update that is all in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// This thread: a client a core, as simulations run them, gains nothing from more.
    One,
    /// All of rayon's.
    All,
}

/// Elements from which an update is shared out between threads. Below, a client is done in milliseconds, and
/// simulations have one a core; from a million on a client is more likely alone on its machine than not.
const MANY: usize = 1 << 20;
/// Bytes from which memory is shared out.
const MANY_BYTES: usize = 16 << 20;

impl Threads {
    /// For work of some nanoseconds an element.
    #[must_use]
    pub fn for_elements(elements: usize) -> Self {
        Threads::above(elements, MANY)
    }

    /// For work that takes no longer than memory does to give its bytes: waking others takes as long as some megabytes.
    #[must_use]
    pub fn for_bytes(bytes: usize) -> Self {
        Threads::above(bytes, MANY_BYTES)
    }

    fn above(amount: usize, many: usize) -> Self {
        if amount < many { Threads::One } else { Threads::All.there() }
    }

    /// These where rayon has more than one: to hand work to a single other thread and wait gains nothing.
    #[must_use]
    fn there(self) -> Self {
        if rayon::current_num_threads() > 1 { self } else { Threads::One }
    }

    /// What `work` makes of each of `items`, in their order.
    pub fn map<T: Sync, R: Send>(self, items: &[T], work: impl Fn(usize, &T) -> Result<R> + Sync) -> Result<Vec<R>> {
        match self.there() {
            Threads::One => items.iter().enumerate().map(|(k, item)| work(k, item)).collect(),
            Threads::All => items.par_iter().enumerate().map(|(k, item)| work(k, item)).collect(),
        }
    }
}

/// The bytes of each of `pieces`, which lie in a row in `out`.
pub fn slots<'a>(pieces: &[Piece], out: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    runs(out, pieces.iter().map(|piece| piece.bytes)).collect()
}

/// A whole update to a whole frame.
pub fn seal_all(sealer: &dyn Sealer, update: &Update<'_>, place: &mut dyn Place, threads: Threads) -> Result<()> {
    sealer.header().build(sealer.payload_len(), place, |payload| {
        let (head, rest) = payload.split_at_mut(sealer.prefix().len());
        head.copy_from_slice(sealer.prefix());
        let (pieces, end) = rest.split_at_mut(rest.len() - sealer.end_len());
        let mut digest = sealer.digest();
        let mut hash = Hash::default();
        match threads.there() {
            Threads::One => {
                for (index, slot) in slots(sealer.pieces(), pieces).into_iter().enumerate() {
                    hash += sealer.seal(index, update, slot)?;
                    // While it is in the cache.
                    digest.update(slot);
                }
            }
            Threads::All => {
                let slots = slots(sealer.pieces(), pieces).into_par_iter().enumerate();
                hash = slots.map(|(index, slot)| sealer.seal(index, update, slot)).sum::<Result<Hash>>()?;
                digest.update_by_all(pieces);
            }
        }
        end.copy_from_slice(&sealer.end(hash, &digest.finish())?);
        Ok(())
    })
}

/// Shares of the pieces that a thread takes up at least once: each begins with a buffer of its own.
const SHARES: usize = 8;

/// A whole payload's sums into `sink`, which are to be thrown away on an error: the tag is checked last.
pub fn open_all(
    Opening { layout, opener, verifier }: &Opening,
    total_weight: u64,
    payload: &[u8],
    tag: Tag,
    sink: &mut dyn SumSink,
    threads: Threads,
) -> Result<()> {
    opener.check_len(payload.len() + TAG_LEN)?;
    sink.begin(layout, verifier.levels, total_weight)?;
    let open = |index: usize, piece: &Piece, sums: &mut [u64]| {
        let mut hash = opener.open(index, &payload[piece.at..piece.at + piece.bytes], sums)?;
        hash += verifier.hash(piece.start, sums);
        Ok(hash)
    };
    let mut total = Hash::default();
    let longest = opener.pieces().iter().map(|p| p.len).max().unwrap_or(0);
    if threads.there() == Threads::One {
        let mut sums = vec![0u64; longest];
        for (index, piece) in opener.pieces().iter().enumerate() {
            total += open(index, piece, &mut sums[..piece.len])?;
            sink.put(piece.start, &sums[..piece.len])?;
        }
    } else {
        let pieces = opener.pieces();
        let takers = sink.split(&mut pieces.iter().map(|piece| piece.len))?;
        // Each thread hands its sums on while its cache has them. The memory that they go to may be fresh, and its first
        // use takes as long as opening.
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
            .sum::<Result<Hash>>()?;
    }
    verifier.check(total, tag)
}
