//! A work item computes one ciphertext of an aggregate from the clients' words that belong to it. A work item keeps no
//! state and needs the server's key only. So any process or machine of the server can compute it, and the aggregate is
//! the same to the bit.

use super::context::Context;
use super::known::EncryptedKey;
use super::ring::{Pair, keep_rows};
use super::transcipher::{Diagonals, ServerKeys, Transcipher};
use crate::bits::{check_stream, packed_len, read_bits};
use crate::scheme::Parts;
use crate::wire::Reader;
use crate::{Error, Result, RoundId, Weight};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Evaluations in one ciphertext: one for each row.
const CHUNKS: usize = 2;

/// A client in the sum.
#[derive(Clone)]
pub struct Summand {
    pub weight: Weight,
    /// The client's PASTA key under BFV.
    pub key: Arc<EncryptedKey>,
}

/// The data that all work items of an aggregate share.
pub struct Common {
    pub round: RoundId,
    pub summands: Vec<Summand>,
}

/// One ciphertext's share of the work.
pub struct WorkItem<'a> {
    index: usize,
    /// Words of each client.
    values: usize,
    /// The packed words of each client.
    packed: Vec<&'a [u8]>,
}

/// The number of work items for an update of `padded` words, padding included.
#[must_use]
pub fn count(c: &Context, padded: usize) -> usize {
    padded.div_ceil(CHUNKS * c.capacity())
}

fn words(c: &Context, padded: usize, index: usize) -> Range<usize> {
    let step = CHUNKS * c.capacity();
    index * step..padded.min((index + 1) * step)
}

impl<'a> WorkItem<'a> {
    /// Work item `index` for `updates`, each with `padded` packed words.
    pub fn of(c: &Context, padded: usize, index: usize, updates: impl Iterator<Item = &'a [u8]>) -> Self {
        let (words, bits) = (words(c, padded, index), c.field.bits());
        // The capacity is a power of two, so every piece begins on a byte.
        let bytes = packed_len(words.start, bits)..packed_len(words.end, bits);
        let packed = updates.map(|update| &update[bytes.clone()]).collect();
        WorkItem { index, values: words.len(), packed }
    }

    /// Computes `length u64 | ciphertext`. Calls `step` with the number of evaluations as they are done.
    pub fn compute(
        &self,
        c: &Context,
        keys: &ServerKeys,
        common: &Common,
        step: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let capacity = c.capacity();
        let mut sums = Vec::with_capacity(CHUNKS);
        for start in (0..self.values).step_by(capacity) {
            let range = start..self.values.min(start + capacity);
            sums.push(self.chunk(c, keys, common, range, step)?);
        }
        let sum = match sums.as_slice() {
            [first, second] => fold(c, first, second)?,
            _ => sums.pop().ok_or(Error::EmptyCohort)?,
        };
        switched(c, sum)
    }

    /// The weighted sum of some words over all clients.
    fn chunk(
        &self,
        c: &Context,
        keys: &ServerKeys,
        common: &Common,
        range: Range<usize>,
        step: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Pair> {
        let ring = &c.server()?.ring;
        let number = self.index * CHUNKS + range.start / c.capacity();
        let diagonals = Diagonals::new(c, common.round.get(), number, range.len() / c.variant.t)?;
        let transcipher = Transcipher::new(c, keys)?;
        let bits = c.field.bits();
        let one = |(summand, packed): (&Summand, &&[u8])| {
            let words: Vec<u64> = range.clone().map(|k| read_bits(packed, k * bits as usize, bits) as u64).collect();
            let mut result = transcipher.decipher(&words, &summand.key.pair, &diagonals)?;
            if summand.weight != Weight::ONE {
                result.iter_mut().for_each(|element| ring.scale(element, summand.weight.get()));
            }
            Ok(result)
        };
        let all: Vec<_> = common.summands.iter().zip(&self.packed).collect();
        let mut sum: Option<Pair> = None;
        // As many clients run in parallel as there are cores, so that their sequential parts overlap.
        for group in all.chunks(rayon::current_num_threads()) {
            let done = group.par_iter().map(|pair| one(*pair)).collect::<Result<Vec<_>>>()?;
            let count = done.len();
            for part in done {
                match &mut sum {
                    None => sum = Some(part),
                    Some(sum) => sum.iter_mut().zip(&part).for_each(|(a, b)| ring.add(a, b)),
                }
            }
            step(count)?;
        }
        sum.ok_or(Error::EmptyCohort)
    }

    /// `index u64 | values u64 | each client's words`.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = [self.index as u64, self.values as u64].map(u64::to_le_bytes).concat();
        self.packed.iter().for_each(|packed| out.extend_from_slice(packed));
        out
    }

    fn parse(c: &Context, bytes: &'a [u8], clients: usize) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (index, values) = (r.length()?, r.length()?);
        let fits = (1..=CHUNKS * c.capacity()).contains(&values) && values.is_multiple_of(c.variant.t);
        if !fits || u32::try_from(index).is_err() {
            return Err(Error::frame(format!("piece {index} of {values} words")));
        }
        let each = packed_len(values, c.field.bits());
        let packed = (0..clients).map(|_| r.bytes(each)).collect::<Result<Vec<_>>>()?;
        r.finish()?;
        Ok(WorkItem { index, values, packed })
    }
}

impl Common {
    /// `round u64 | count u32 | count x (weight u64, length u64, PASTA key)`.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.round.to_le_bytes().to_vec();
        out.extend_from_slice(&(self.summands.len() as u32).to_le_bytes());
        for Summand { weight, key } in &self.summands {
            out.extend_from_slice(&[weight.get(), key.bytes.len() as u64].map(u64::to_le_bytes).concat());
            out.extend_from_slice(&key.bytes);
        }
        out
    }

    fn parse(c: &Context, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (round, count) = (r.round()?, r.u32()?);
        let mut summands = Vec::new();
        for _ in 0..count {
            let (weight, length) = (r.weight()?, r.length()?);
            summands.push(Summand { weight, key: EncryptedKey::parse(c, r.bytes(length)?)? });
        }
        r.finish()?;
        Ok(Common { round, summands })
    }
}

/// All work items of an aggregate, for other processes to run.
pub fn parts<'a>(
    c: &Context,
    common: &Common,
    padded: usize,
    updates: impl Iterator<Item = &'a [u8]> + Clone,
) -> Parts {
    let pieces = (0..count(c, padded)).map(|index| WorkItem::of(c, padded, index, updates.clone()).to_bytes());
    Parts { pieces: pieces.collect(), common: common.to_bytes() }
}

/// Runs one work item made by [`parts`].
pub fn run_work_item(c: &Context, keys: &ServerKeys, common: &[u8], piece: &[u8]) -> Result<Vec<u8>> {
    let common = Common::parse(c, common)?;
    let piece = WorkItem::parse(c, piece, common.summands.len())?;
    let _guard = keep_rows();
    piece.compute(c, keys, &common, &mut |_| Ok(()))
}

/// Fails unless `result` has the form that [`run_work_item`] returns. A worker may have failed half way.
pub fn check_result(c: &Context, result: &[u8]) -> Result<()> {
    let mut r = Reader::new(result);
    let length = r.length()?;
    let ciphertext = r.bytes(length)?;
    r.finish()?;
    c.server()?.ring.ciphertext("a worker's ciphertext", ciphertext, c.final_primes()).map(drop)
}

/// Fails for words that are not in the field.
pub fn check_words(c: &Context, packed: &[u8], words: usize) -> Result<()> {
    let bits = c.field.bits();
    check_stream(packed, words, bits)?;
    if (0..words).any(|k| read_bits(packed, k * bits as usize, bits) >= u128::from(c.field.p())) {
        return Err(Error::frame("a ciphertext word is not below p"));
    }
    Ok(())
}

/// Joins two results in one ciphertext: row 0 of the first and row 1 of the second (both rows of each are equal).
fn fold(c: &Context, first: &Pair, second: &Pair) -> Result<Pair> {
    let (server, half) = (c.server()?, c.capacity());
    let mask = |row: usize| {
        let slots = (0..2 * half).map(|slot| u64::from(slot / half == row));
        server.ring.multiplier(&server.slots.encode(slots), first[0].len())
    };
    Ok(server.ring.dots(&[&mask(0), &mask(1)], &[first, second]))
}

/// Switches a sum to the last primes: `length u64 | ciphertext`.
fn switched(c: &Context, sum: Pair) -> Result<Vec<u8>> {
    let ring = &c.server()?.ring;
    let bytes = ring.ciphertext_bytes(&ring.lower(sum, c.final_primes()));
    Ok([(bytes.len() as u64).to_le_bytes().as_slice(), &bytes].concat())
}
