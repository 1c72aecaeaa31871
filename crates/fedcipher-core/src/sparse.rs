//! One coordinate set for a whole round, common to the cohort. All clients that send a part of their update send the
//! same part. So the choice reveals nothing about a client's data, and frames carry no positions.
//!
//! The set is derived from data that every client has: the last aggregate's mean, and the round number. The set is the
//! same on every machine, because it depends on comparisons of floats and not on sums of them.

use crate::prf::Stream;
use crate::{Error, Result, RoundId};
use sha2::{Digest, Sha256};

/// Smaller tensors are sent whole. They cost next to nothing, and they hold biases and batch-norm
/// statistics, which error feedback would push past their goal (a variance below zero).
const WHOLE_BELOW: usize = 256;

/// The number of coordinates in four that are chosen where the reference is largest. The others are random, so that
/// every coordinate gets its turn. Three of four train worse: `tools/sparse_share.py` measures other shares.
const LARGEST_OF_FOUR: usize = 1;

const LABEL: &[u8] = b"fedcipher common set v1";

/// Fails unless `top` is a fraction in (0, 1].
pub fn check_top(name: &'static str, top: f64) -> Result<()> {
    if top > 0.0 && top <= 1.0 {
        return Ok(());
    }
    Err(Error::parameter(name, format!("{top} is not a fraction in (0, 1]")))
}

/// The number of coordinates that are sent of a tensor of `len` elements.
#[must_use]
pub fn tensor_count(len: usize, top: f64) -> usize {
    if len < WHOLE_BELOW { len } else { ((len as f64 * top).ceil() as usize).min(len) }
}

/// The elements that all clients send in `round`, increasing and numbered through all tensors: the share `top` of each
/// tensor of `lengths`. A quarter of these are the elements where `reference` is largest by magnitude (the lower index
/// of equal ones, never a zero). A public generator, seeded with the round, chooses the rest. Without a reference, all
/// are random.
pub fn common_set(lengths: &[usize], reference: Option<&[f32]>, round: RoundId, top: f64) -> Result<Vec<u32>> {
    check_top("top", top)?;
    let elements = lengths.iter().try_fold(0usize, |sum, len| sum.checked_add(*len));
    let elements = elements
        .filter(|n| u32::try_from(*n).is_ok())
        .ok_or_else(|| Error::layout("a sparse update has at most 2^32 - 1 elements"))?;
    if let Some(reference) = reference {
        if reference.len() != elements {
            return Err(Error::layout(format!(
                "the reference has {} elements but the update has {elements}",
                reference.len()
            )));
        }
        if let Some(index) = reference.iter().position(|v| !v.is_finite()) {
            return Err(Error::layout(format!("the reference is not finite at element {index}")));
        }
    }
    let seed = Sha256::new().chain_update(LABEL).chain_update(round.to_le_bytes()).finalize();
    let mut stream = Stream::new(&seed, [0; 12])?;
    let mut set = Vec::with_capacity(lengths.iter().map(|len| tensor_count(*len, top)).sum());
    let mut start = 0;
    for len in lengths {
        let values = reference.map(|r| &r[start..start + len]);
        let mut chosen = choose(*len, tensor_count(*len, top), values, &mut stream);
        chosen.sort_unstable();
        set.extend(chosen.into_iter().map(|d| start as u32 + d));
        start += len;
    }
    Ok(set)
}

/// `count` elements of one tensor, in no order.
fn choose(len: usize, count: usize, values: Option<&[f32]>, stream: &mut Stream) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len as u32).collect();
    if count >= len {
        return order;
    }
    let mut largest = 0;
    if let Some(values) = values {
        let of = |d: &u32| values[*d as usize].abs();
        let ahead = |a: &u32, b: &u32| of(b).total_cmp(&of(a)).then(a.cmp(b));
        largest = (count * LARGEST_OF_FOUR / 4).min(values.iter().filter(|v| **v != 0.0).count());
        if largest > 0 {
            order.select_nth_unstable_by(largest - 1, ahead);
            // A selection leaves an order that depends on its algorithm. The draw below must not depend on that order.
            order[largest..].sort_unstable();
        }
    }
    for k in largest..count {
        order.swap(k, k + stream.below((len - k) as u64) as usize);
    }
    order.truncate(count);
    order
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_is_increasing_complete_and_holds_the_largest(
            lengths in prop::collection::vec(0usize..1500, 1..5),
            top in 0.001f64..=1.0,
            round in any::<u64>(),
            seed in any::<u32>(),
            sparse in any::<bool>(),
        ) {
            let elements: usize = lengths.iter().sum();
            let mut x = u64::from(seed);
            let reference: Vec<f32> = (0..elements).map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if sparse && x >> 60 > 0 { 0.0 } else { (x >> 40) as i32 as f32 - 8e6 }
            }).collect();
            let set = common_set(&lengths, Some(&reference), RoundId::new(round), top).unwrap();
            prop_assert!(set.windows(2).all(|w| w[0] < w[1]));
            prop_assert_eq!(&set, &common_set(&lengths, Some(&reference), RoundId::new(round), top).unwrap());
            let mut start = 0;
            for len in &lengths {
                let end = start + len;
                let chosen: Vec<usize> = set.iter().map(|d| *d as usize).filter(|d| (start..end).contains(d)).collect();
                prop_assert_eq!(chosen.len(), tensor_count(*len, top));
                // At least as many chosen elements as planned are as large as the smallest of the planned ones.
                let mut sizes: Vec<f32> = (start..end).map(|d| reference[d].abs()).filter(|v| *v > 0.0).collect();
                sizes.sort_by(|a, b| b.total_cmp(a));
                sizes.truncate(chosen.len() * LARGEST_OF_FOUR / 4);
                if let Some(least) = sizes.last() {
                    let kept = chosen.iter().filter(|d| reference[**d].abs() >= *least).count();
                    prop_assert!(kept >= sizes.len());
                }
                start = end;
            }
        }
    }

    /// The set must never change: clients of different versions and machines must choose the same one.
    #[test]
    fn the_set_is_what_it_has_always_been() {
        let reference: Vec<f32> = (0..600).map(|k: i32| ((k * 37) % 101 - 50) as f32).collect();
        let first = common_set(&[600], None, RoundId::new(7), 0.01).unwrap();
        let later = common_set(&[600], Some(&reference), RoundId::new(7), 0.01).unwrap();
        assert_eq!((first, later), (FIRST.to_vec(), LATER.to_vec()));
    }

    const FIRST: [u32; 6] = [178, 244, 272, 377, 426, 508];
    const LATER: [u32; 6] = [0, 179, 273, 377, 426, 508];

    /// Every element is sent in some round, even if the reference is large elsewhere.
    #[test]
    fn every_element_has_its_turn() {
        let mut reference = vec![0.0f32; 1000];
        reference[..200].fill(1.0);
        let mut seen = vec![false; 1000];
        for round in 0..400 {
            for d in common_set(&[1000], Some(&reference), RoundId::new(round), 0.1).unwrap() {
                seen[d as usize] = true;
            }
        }
        assert!(seen.iter().all(|s| *s));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(common_set(&[600], None, RoundId::new(1), 0.0).is_err());
        assert!(common_set(&[600], None, RoundId::new(1), f64::NAN).is_err());
        assert!(common_set(&[usize::MAX, 2], None, RoundId::new(1), 0.1).is_err());
        assert!(common_set(&[1 << 33], None, RoundId::new(1), 0.1).is_err());
        assert!(common_set(&[600], Some(&[0.0; 599]), RoundId::new(1), 0.1).is_err());
        assert!(common_set(&[1], Some(&[f32::NAN]), RoundId::new(1), 0.1).is_err());
    }
}
