//! The paper's top-s% sparsification, in which every client chooses its own coordinates: error feedback, and the secret
//! permutation of coordinates (Algorithm 1; FLASHE, section 4.2: A Note on Security). The server sees how many
//! coordinates were sent, and which clients sent the same ones, but not which coordinates these are. A holder of the key
//! sees which clients sent each coordinate that remains in a sum.

use crate::codec::Update;
use crate::prf::Stream;
use crate::sparse::tensor_count;
use crate::{Error, Result, RoundId};
use zeroize::Zeroizing;

/// The most elements that are shuffled by Fisher-Yates alone: one megabyte, which fits in a processor's cache.
const IN_CACHE: usize = 1 << 18;
/// The number of parts into which a longer list is first split: one random byte chooses the part.
const PARTS: usize = 256;

/// A permutation of `0..len` for `round`, derived from the cohort's shared secret. All permutations are equally likely.
pub fn permutation(secret: &[u8; 32], round: RoundId, len: usize) -> Result<Zeroizing<Vec<u32>>> {
    let mut prefix = [0u8; 12];
    prefix[..8].copy_from_slice(&round.get().to_be_bytes());
    let mut order = Zeroizing::new((0..len as u32).collect::<Vec<_>>());
    shuffle(&mut order, IN_CACHE, &mut Stream::new(secret, prefix)?);
    Ok(order)
}

/// Shuffles `order`. A list of more than `max` elements is split into parts at random, and each part is shuffled on its
/// own (Rao 1961, Sandelius 1962). On such a list Fisher-Yates alone would wait for memory at every step.
fn shuffle(order: &mut [u32], max: usize, stream: &mut Stream) {
    if order.len() <= max {
        for i in (1..order.len()).rev() {
            order.swap(i, stream.below(i as u64 + 1) as usize);
        }
        return;
    }
    let mut thrown = Zeroizing::new(vec![0u8; order.len()]);
    for eight in thrown.chunks_mut(8) {
        eight.copy_from_slice(&stream.next_u64().to_le_bytes()[..eight.len()]);
    }
    let mut lens = [0usize; PARTS];
    thrown.iter().for_each(|part| lens[usize::from(*part)] += 1);
    let mut next = [0usize; PARTS];
    (1..PARTS).for_each(|part| next[part] = next[part - 1] + lens[part - 1]);
    let before = Zeroizing::new(order.to_vec());
    for (element, part) in before.iter().zip(thrown.iter()) {
        let at = &mut next[usize::from(*part)];
        order[*at] = *element;
        *at += 1;
    }
    drop((before, thrown));
    let mut rest = order;
    for len in lens {
        let (part, others) = rest.split_at_mut(len);
        shuffle(part, max, stream);
        rest = others;
    }
}

/// The unsent part of earlier updates, which is added to the next update (error feedback).
#[derive(Debug, Default, Clone)]
pub struct Residual(Vec<f32>);

/// The coordinates to send, increasing, and the update to quantise: input plus residual.
pub struct Selection {
    pub chosen: Vec<u32>,
    pub values: Vec<f32>,
}

impl Residual {
    /// Chooses the `top` fraction of each layer by magnitude. Small layers are sent whole.
    pub fn select(&self, update: &Update<'_>, top: f64) -> Result<Selection> {
        let mut values = Vec::with_capacity(update.layout().elements());
        let mut chosen = Vec::new();
        for (i, x) in update.tensors()?.iter().enumerate() {
            if let Some((index, value)) = x.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(Error::NotFinite { tensor: i, index, value: *value });
            }
            let start = values.len();
            match self.0.get(start..start + x.len()) {
                Some(residual) => values.extend(x.iter().zip(residual).map(|(x, r)| x + r)),
                None => values.extend_from_slice(x),
            }
            let count = tensor_count(x.len(), top);
            if count == 0 {
                continue;
            }
            let mut order: Vec<u32> = (start as u32..(start + x.len()) as u32).collect();
            let by_magnitude =
                |a: &u32, b: &u32| values[*b as usize].abs().total_cmp(&values[*a as usize].abs()).then(a.cmp(b));
            order.select_nth_unstable_by(count - 1, by_magnitude);
            order.truncate(count);
            order.sort_unstable();
            chosen.extend(order);
        }
        Ok(Selection { chosen, values })
    }

    /// Keeps the part that the server does not receive: all unsent values, and the quantisation errors of the sent ones.
    pub fn keep(&mut self, mut values: Vec<f32>, sent: impl Iterator<Item = (usize, f32)>) {
        for (d, sent) in sent {
            values[d] -= sent;
        }
        self.0 = values;
    }

    pub fn export(&self) -> Vec<u8> {
        self.0.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    pub fn import(&mut self, state: &[u8]) -> Result<()> {
        let (words, rest) = state.as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
        if !rest.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return Err(Error::frame("the stored error-feedback state is damaged; delete it to start from zero"));
        }
        self.0 = values;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::collections::BTreeMap;
    use std::fmt::Write;

    /// Counts each of the 24 orders of four elements: from swaps alone, and from parts of at most one or two elements.
    /// For uniform orders, chi-squared with 23 degrees of freedom exceeds 49.7 once in a thousand times.
    #[test]
    fn every_order_is_as_likely() {
        for max in [1, 2, 4] {
            let mut stream = Stream::new(&[7; 32], [0; 12]).unwrap();
            let mut found = BTreeMap::<[u32; 4], u32>::new();
            for _ in 0..24_000 {
                let mut order = [0, 1, 2, 3];
                shuffle(&mut order, max, &mut stream);
                *found.entry(order).or_default() += 1;
            }
            assert_eq!(found.len(), 24);
            let chi: f64 = found.values().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi < 49.7, "{chi} with parts of {max}");
        }
    }

    /// The output of `tools/permutation.py`, which uses another library's AES.
    const KNOWN: [(usize, [u32; 4], &str); 5] = [
        (10, [9, 5, 2, 4], "253dadac435e7159d233d628a690333595cbcbeb5c6c31a7821199e7babf524a"),
        (1000, [204, 635, 373, 469], "ac027571b7cde5f438e5f67a8a74859ba23c9d554e9ba8bb2877714b85dbb52f"),
        (262144, [96848, 148424, 143023, 3546], "3ca09dbc4e203630c114a93785d30adfd6bd2511e2369a85f186868a0a675004"),
        (262145, [66424, 211379, 51874, 73716], "a998c9e09da8a3de54148fb5f4d32a529f9689f07d893847ff6c44dd497f663a"),
        (1000003, [259983, 232021, 86569, 205927], "66af04622c72c4a75f20791b8be4ba58bf7de0a11854d1f4b9b08394da7fa104"),
    ];

    #[test]
    fn known_permutations() {
        for (len, first, digest) in KNOWN {
            let order = permutation(&std::array::from_fn(|k| k as u8), RoundId::new(9), len).unwrap();
            let bytes: Vec<u8> = order.iter().flat_map(|k| k.to_le_bytes()).collect();
            let mut all = order.to_vec();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..len as u32));
            assert_eq!(order[..4], first);
            let found = Sha256::digest(&bytes).iter().fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").unwrap();
                hex
            });
            assert_eq!(found, digest);
        }
    }
}
