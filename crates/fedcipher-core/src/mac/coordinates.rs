//! A tag for each coordinate, for sums from which the server may leave coordinates out.
//!
//! `tag_{u,p} = r m_{u,p} + F(u, p)` over F_q, q = 2^61 - 1, for client u's integer at position p. The round has a
//! secret r,
//! and F(u, p) is a pad that is used once. The server adds the tags of a position as it adds its ciphertexts. The
//! decryptor
//! knows from the sets who sent the position, and checks `r M_p + sum F(u, p)`. A tag is valid for one position and its
//! senders, so positions can be left out, but not moved, altered or attributed to other clients. It costs 61 bits a
//! coordinate up and down, beside the update's own tag, which binds the header.
//!
//! A forgery is accepted with probability at most 2^-60 per attempt; a client makes one attempt a round
//! ([`crate::ledger::OpenedLedger`]). Sums stay below 2^60, so that no two of them are the same in the field.

use super::{MacKey, RoundMac, prf};
use crate::bits;
use crate::prf::{CHUNK_BLOCKS, Prf};
use crate::wire::Contribution;
use crate::{Error, Result};
use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, Zeroizing};

/// Bits of a coordinate's tag on the wire.
const TAG_BITS: u32 = 61;
/// Most bits of a sum.
pub const MAX_SUM_BITS: u32 = 60;

const Q: u64 = (1 << 61) - 1;

/// `x mod q`, in constant time.
fn reduce(x: u128) -> u64 {
    let once = (x & u128::from(Q)) + (x >> 61);
    let twice = (once as u64 & Q) + (once >> 61) as u64;
    twice - (Q & u64::from(twice >= Q).wrapping_neg())
}

/// The sum of two tags.
#[must_use]
pub fn add(a: u64, b: u64) -> u64 {
    reduce(u128::from(a) + u128::from(b))
}

/// The tags of `count` coordinates, which are all that `bytes` may hold.
pub fn parse(bytes: &[u8], count: usize) -> Result<Vec<u64>> {
    bits::check_stream(bytes, count, TAG_BITS)?;
    let mut tags = vec![0u64; count];
    bits::unpack(bytes, TAG_BITS, &mut tags);
    if tags.iter().any(|t| *t >= Q) {
        return Err(Error::frame("a coordinate's tag is not a field element"));
    }
    Ok(tags)
}

/// Appends `tags` to a payload.
pub fn write(tags: &[u64], payload: &mut Vec<u8>) {
    let at = payload.len();
    payload.resize(at + bits::packed_len(tags.len(), TAG_BITS), 0);
    bits::pack(tags, TAG_BITS, &mut payload[at..]);
}

/// One round's MAC of coordinates.
pub struct CoordinateMac {
    r: Zeroizing<u64>,
    key: Zeroizing<[u8; 32]>,
    context: [u8; 32],
}

impl MacKey {
    /// Like [`MacKey::round`].
    #[must_use]
    pub fn coordinates(&self, round: &RoundMac) -> CoordinateMac {
        let mut random = prf(&self.coordinates, &[&round.context]);
        let r = Zeroizing::new(reduce(u128::from_le_bytes(random)));
        random.zeroize();
        CoordinateMac { r, key: self.coordinates.clone(), context: round.context }
    }
}

impl CoordinateMac {
    /// `r` times an integer below 2^60.
    fn times(&self, m: u64) -> u64 {
        reduce(u128::from(*self.r) * u128::from(m))
    }

    /// Calls `put(k, F(of, positions[k]))`.
    fn pads(&self, of: &Contribution, positions: &[u32], mut put: impl FnMut(usize, u64)) -> Result<()> {
        let parts: [&[u8]; 3] = [&self.context, &of.client.to_le_bytes(), &of.weight.to_le_bytes()];
        let aes = Prf::new(Zeroizing::new(prf(&self.key, &parts)).as_slice())?;
        let mut blocks = Zeroizing::new([[0u8; 16]; CHUNK_BLOCKS]);
        for (chunk, positions) in positions.chunks(CHUNK_BLOCKS).enumerate() {
            for (block, position) in blocks.iter_mut().zip(positions) {
                *block = u128::from(*position).to_be_bytes();
            }
            aes.permute(&mut blocks[..positions.len()]);
            for (k, block) in blocks[..positions.len()].iter().enumerate() {
                put(chunk * CHUNK_BLOCKS + k, reduce(u128::from_le_bytes(*block)));
            }
        }
        Ok(())
    }

    /// A client's tags of `integers` (weighted) at increasing `positions`.
    pub fn tags(&self, own: &Contribution, positions: &[u32], integers: &[u64]) -> Result<Vec<u64>> {
        let mut tags: Vec<u64> = integers.iter().map(|m| self.times(*m)).collect();
        self.pads(own, positions, |k, pad| tags[k] = add(tags[k], pad))?;
        Ok(tags)
    }

    /// Fails unless the sums are, position by position, the sums that `senders` sent. Each sender comes with its
    /// positions, which are increasing and in `union`. All positions are examined, and the error does not say which is
    /// wrong.
    pub fn check(&self, union: &[u32], sums: &[u64], senders: &[(Contribution, Vec<u32>)], tags: &[u64]) -> Result<()> {
        let mut expected: Vec<u64> = sums.iter().map(|sum| self.times(*sum)).collect();
        for (contribution, positions) in senders {
            let at = places(union, positions);
            self.pads(contribution, positions, |k, pad| expected[at[k]] = add(expected[at[k]], pad))?;
        }
        let sound = expected.iter().zip(tags).fold(Choice::from(1), |sound, (e, t)| sound & e.ct_eq(t));
        if bool::from(sound) && expected.len() == tags.len() { Ok(()) } else { Err(Error::Tag) }
    }
}

/// Where each of `some` is in `all`, which holds them; both increasing.
#[must_use]
pub fn places(all: &[u32], some: &[u32]) -> Vec<usize> {
    let mut at = 0;
    let step = |p: &u32| {
        at += all[at..].iter().position(|q| q >= p).unwrap_or(0);
        at
    };
    some.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reduction_is_that_of_the_integers(x in any::<u128>(), a in 0..Q, b in 0..Q) {
            prop_assert_eq!(BigUint::from(reduce(x)), BigUint::from(x) % BigUint::from(Q));
            prop_assert_eq!(u128::from(add(a, b)), (u128::from(a) + u128::from(b)) % u128::from(Q));
        }
    }

    #[test]
    fn the_ends_of_the_field() {
        assert_eq!((reduce(u128::from(Q)), reduce(u128::from(Q) * u128::from(Q))), (0, 0));
        assert_eq!(reduce(u128::MAX), (u128::MAX % u128::from(Q)) as u64);
        assert!(parse(&Q.to_le_bytes(), 1).is_err());
    }

    #[test]
    fn places_are_found() {
        assert_eq!(places(&[1, 4, 6, 9], &[1, 6, 9]), [0, 2, 3]);
        assert!(places(&[1, 4], &[]).is_empty());
    }
}
