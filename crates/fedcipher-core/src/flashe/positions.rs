//! Sets of coordinates on the wire: increasing positions as Rice-coded gaps.
//!
//! A secret permutation spreads the positions evenly. So the gaps are geometrically distributed, and a Rice code is within
//! a few hundredths of a bit of their entropy.

use crate::bits;
use crate::mac::coordinates;
use crate::wire::{Contribution, Header, Reader};
use crate::{Error, Result, TotalWeight};

const MAX_RICE: u32 = 32;

/// Appends `count u32 | k u8 | bytes u32 | code` for increasing `positions` below `universe`.
pub fn encode(positions: &[u32], universe: usize, out: &mut Vec<u8>) {
    let mean_gap = (universe as f64 / (positions.len() as f64 + 1.0)).max(1.0);
    // k = log2(mean * ln 2) is the best Rice parameter of a geometric distribution.
    let k = (mean_gap * std::f64::consts::LN_2).log2().floor().clamp(0.0, f64::from(MAX_RICE)) as u32;
    out.extend_from_slice(&(positions.len() as u32).to_le_bytes());
    out.push(k as u8);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    let (mut pending, mut filled) = (0u128, 0u32);
    let mut push = |value: u64, width: u32, out: &mut Vec<u8>| {
        pending |= u128::from(value) << filled;
        filled += width;
        while filled >= 8 {
            out.push(pending as u8);
            pending >>= 8;
            filled -= 8;
        }
    };
    let mut next = 0u64;
    for p in positions {
        let gap = u64::from(*p) - next;
        for _ in 0..gap >> k {
            push(1, 1, out);
        }
        push(0, 1, out);
        push(gap & ((1u64 << k) - 1), k, out);
        next = u64::from(*p) + 1;
    }
    push(0, 7, out);
    let bytes = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&bytes.to_le_bytes());
}

/// Reads a list that [`encode`] wrote. Fails for more than `max` positions, and for a position that is not below
/// `universe`.
pub fn decode(r: &mut Reader<'_>, universe: usize, max: usize) -> Result<Vec<u32>> {
    let count = r.u32()? as usize;
    let k = u32::from(r.u8()?);
    let bytes = r.u32()? as usize;
    let code = r.bytes(bytes)?;
    if k > MAX_RICE || count > universe || count > code.len() * 8 {
        return Err(Error::frame("position list announces more than it can hold"));
    }
    // Eight positions may take one byte here but 32 bytes in memory, so the count is checked before allocation.
    if count > max {
        return Err(Error::frame(format!("a list of {count} positions of at most {max}")));
    }
    let below = || Error::frame(format!("a position is not below {universe}"));
    let mut positions = Vec::with_capacity(count);
    let (mut at, mut next) = (0usize, 0u64);
    let bit = |at: usize| code.get(at / 8).map(|b| b >> (at % 8) & 1);
    for _ in 0..count {
        let mut high = 0u64;
        loop {
            let b = bit(at).ok_or_else(|| Error::frame("position list ends early"))?;
            at += 1;
            if b == 0 {
                break;
            }
            high += 1;
            // This check also keeps the shift below within 64 bits.
            if high > universe as u64 >> k {
                return Err(below());
            }
        }
        let low = crate::bits::read_bits(code, at, k) as u64;
        at += k as usize;
        let position = next + (high << k | low);
        if position >= universe as u64 || at > code.len() * 8 {
            return Err(below());
        }
        positions.push(position as u32);
        next = position + 1;
    }
    if code.len() * 8 - at >= 8 || crate::bits::read_bits(code, at, 8) != 0 {
        return Err(Error::frame("position list has bytes or bits behind its end"));
    }
    Ok(positions)
}

/// The content of a sparse aggregate. Positions are increasing, and `union` contains every client's positions.
pub struct SparseSum {
    pub masking: u8,
    pub senders: Vec<(Contribution, Vec<u32>)>,
    pub union: Vec<u32>,
    /// The number of clients that sent each position of `union`, and their total weight.
    pub counts: Vec<u32>,
    pub weights: Vec<TotalWeight>,
    /// Still masked.
    pub lanes: Vec<u64>,
    pub tags: Vec<u64>,
}

impl SparseSum {
    /// Parses `masking u8 | sets | packed sums | tags`, with at most `max` positions in a set.
    pub fn parse(header: &Header, payload: &[u8], width: u32, max: usize) -> Result<Self> {
        let universe = usize::try_from(header.elements).map_err(|_| Error::frame("too many elements"))?;
        let mut r = Reader::new(payload);
        let masking = r.u8()?;
        let senders: Vec<(Contribution, Vec<u32>)> =
            header.contributions.iter().map(|c| Ok((*c, decode(&mut r, universe, max)?))).collect::<Result<_>>()?;
        let mut union: Vec<u32> = senders.iter().flat_map(|(_, set)| set).copied().collect();
        union.sort_unstable();
        union.dedup();
        let (mut counts, mut weights) = (vec![0u32; union.len()], vec![TotalWeight::default(); union.len()]);
        for (contribution, set) in &senders {
            for at in coordinates::places(&union, set) {
                counts[at] += 1;
                weights[at] = weights[at].with(contribution.weight);
            }
        }
        let packed = r.bytes(bits::packed_len(union.len(), width))?;
        bits::check_stream(packed, union.len(), width)?;
        let tags = coordinates::parse(r.rest(), union.len())?;
        let mut lanes = vec![0u64; union.len()];
        bits::unpack(packed, width, &mut lanes);
        Ok(SparseSum { masking, senders, union, counts, weights, lanes, tags })
    }
}

/// The index of each position in a list of increasing positions. Takes two bits for each element of the universe.
pub struct Ranks(Vec<(u64, u32)>);

impl Ranks {
    pub fn of(positions: &[u32], universe: usize) -> Self {
        // For each 64 positions: a bit for each that is in the list, and the number of listed positions before them.
        let mut words = vec![(0u64, 0u32); universe.div_ceil(64)];
        positions.iter().for_each(|p| words[*p as usize / 64].0 |= 1 << (p % 64));
        let mut before = 0;
        for (bits, rank) in &mut words {
            *rank = before;
            before += bits.count_ones();
        }
        Ranks(words)
    }

    pub fn of_site(&self, position: u32) -> Option<usize> {
        let (bits, rank) = self.0[position as usize / 64];
        let (own, below) = (1u64 << (position % 64), (1u64 << (position % 64)) - 1);
        (bits & own != 0).then(|| (rank + (bits & below).count_ones()) as usize)
    }
}

/// The union of two increasing lists, in order. Each item is (position, in `a`, in `b`).
pub fn merge<'a>(a: &'a [u32], b: &'a [u32]) -> impl Iterator<Item = (u32, bool, bool)> + 'a {
    let (mut i, mut j) = (0, 0);
    std::iter::from_fn(move || {
        let (x, y) = (a.get(i), b.get(j));
        let least = match (x, y) {
            (Some(x), Some(y)) => *x.min(y),
            (Some(p), None) | (None, Some(p)) => *p,
            (None, None) => return None,
        };
        let (in_a, in_b) = (x == Some(&least), y == Some(&least));
        i += usize::from(in_a);
        j += usize::from(in_b);
        Some((least, in_a, in_b))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `count u32 | k u8 | bytes u32 | code`.
    fn list(count: u32, k: u8, code: &[u8]) -> Vec<u8> {
        [&count.to_le_bytes()[..], &[k], &(code.len() as u32).to_le_bytes(), code].concat()
    }

    fn read(bytes: &[u8], universe: usize, max: usize) -> Result<Vec<u32>> {
        decode(&mut Reader::new(bytes), universe, max)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(set in prop::collection::btree_set(0u32..5000, 0..200), max in 200usize..300) {
            let set: Vec<u32> = set.into_iter().collect();
            let mut bytes = Vec::new();
            encode(&set, 5000, &mut bytes);
            prop_assert_eq!(read(&bytes, 5000, max).unwrap(), &set[..]);
            let ranks = Ranks::of(&set, 5000);
            prop_assert!((0..5000).all(|p| ranks.of_site(p) == set.binary_search(&p).ok()));
        }
    }

    #[test]
    fn no_more_positions_are_read_than_there_can_be() {
        // Eight positions a byte: 0, 1, 2, ...
        let all = list(800, 0, &[0; 100]);
        assert_eq!(read(&all, 1000, 800).unwrap().len(), 800);
        let error = read(&all, 1000, 799).unwrap_err().to_string();
        assert!(error.contains("800 positions of at most 799"), "{error}");
    }

    /// The code announces a gap of more than 64 bits. Without the check, the shift would reduce it to a small gap.
    #[test]
    fn a_gap_is_refused_as_soon_as_it_is_too_long() {
        let mut code = vec![0xff; 1 << 16];
        code.extend([0; 8]);
        let error = read(&list(1, 32, &code), 1 << 20, 1).unwrap_err().to_string();
        assert!(error.contains("is not below"), "{error}");
    }

    #[test]
    fn bits_behind_the_last_position_are_zero() {
        assert_eq!(read(&list(1, 0, &[0b0000_0001]), 9, 9).unwrap(), [1]);
        for code in [0b1000_0001, 0b0000_0101] {
            let error = read(&list(1, 0, &[code]), 9, 9).unwrap_err().to_string();
            assert!(error.contains("behind its end"), "{error}");
        }
    }
}
