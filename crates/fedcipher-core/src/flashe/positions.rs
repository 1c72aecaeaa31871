//! Sets of coordinates on the wire: increasing positions as Rice-coded gaps.
//!
//! A secret permutation spreads the positions evenly, so gaps are geometric and a Rice code is
//! within a few hundredths of a bit of their entropy.

use crate::bits;
use crate::mac::coordinates;
use crate::wire::{Contribution, Header, Reader};
use crate::{Error, Result};

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

/// Reads what [`encode`] wrote; every position is checked to be below `universe`.
pub fn decode(r: &mut Reader<'_>, universe: usize) -> Result<Vec<u32>> {
    let count = r.u32()? as usize;
    let k = u32::from(r.u8()?);
    let bytes = r.u32()? as usize;
    let code = r.bytes(bytes)?;
    if k > MAX_RICE || count > universe || count > code.len() * 8 {
        return Err(Error::frame("position list announces more than it can hold"));
    }
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
        }
        let low = crate::bits::read_bits(code, at, k) as u64;
        at += k as usize;
        let position = next + (high << k | low);
        if position >= universe as u64 || at > code.len() * 8 {
            return Err(Error::frame(format!("position {position} is not below {universe}")));
        }
        positions.push(position as u32);
        next = position + 1;
    }
    if code.len() * 8 - at >= 8 {
        return Err(Error::frame("position list has bytes behind its end"));
    }
    Ok(positions)
}

/// What a sparse aggregate carries: positions are increasing, and every client's are in `union`.
pub struct SparseSum {
    pub masking: u8,
    pub senders: Vec<(Contribution, Vec<u32>)>,
    pub union: Vec<u32>,
    /// How many clients sent each of `union`, and what they weigh together.
    pub counts: Vec<u32>,
    pub weights: Vec<u64>,
    /// Still masked.
    pub lanes: Vec<u64>,
    pub tags: Vec<u64>,
}

impl SparseSum {
    /// Parses `masking u8 | sets | packed sums | tags`. Whatever it makes is as large as what the payload holds.
    pub fn parse(header: &Header, payload: &[u8], width: u32) -> Result<Self> {
        let universe = usize::try_from(header.elements).map_err(|_| Error::frame("too many elements"))?;
        let mut r = Reader::new(payload);
        let masking = r.u8()?;
        let senders: Vec<(Contribution, Vec<u32>)> =
            header.contributions.iter().map(|c| Ok((*c, decode(&mut r, universe)?))).collect::<Result<_>>()?;
        let mut union: Vec<u32> = senders.iter().flat_map(|(_, set)| set).copied().collect();
        union.sort_unstable();
        union.dedup();
        let (mut counts, mut weights) = (vec![0u32; union.len()], vec![0u64; union.len()]);
        for (contribution, set) in &senders {
            for at in coordinates::places(&union, set) {
                counts[at] += 1;
                weights[at] += contribution.weight;
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

/// The union of two increasing lists, in order, with where each position came from.
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
