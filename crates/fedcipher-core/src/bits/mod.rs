//! Streams of w-bit lanes: packing, unpacking and lane-wise addition mod 2^w.
//!
//! Lane k occupies bits `[k*w, (k+1)*w)` of the stream, least significant bit first, so for
//! w = 8, 16, 32, 64 a stream is a plain little-endian array.

mod add;
mod groups;
mod regroup;
mod vectors;

pub use add::{add_assign, add_groups, sub_assign, sub_groups};
pub use groups::{group_scaled, pack_first, pack_groups};

use crate::shown::shown;
use crate::{Error, Result};
use multiversion::multiversion;

/// `x << by`, for `by` below 64. A shift of 128 bits by any number takes several times as long.
#[must_use]
#[inline(always)]
pub fn up(x: u128, by: u32) -> u128 {
    let (low, high) = (x as u64, (x >> 64) as u64);
    u128::from(low << by) | u128::from(high << by | low >> (63 - by) >> 1) << 64
}

/// `x >> by`, for `by` below 64.
#[must_use]
#[inline(always)]
pub fn down(x: u128, by: u32) -> u128 {
    let (low, high) = (x as u64, (x >> 64) as u64);
    u128::from(low >> by | high << (63 - by) << 1) | u128::from(high >> by) << 64
}

/// Bytes that `lanes` lanes of `width` bits occupy.
#[must_use]
pub fn packed_len(lanes: usize, width: u32) -> usize {
    (lanes * width as usize).div_ceil(8)
}

/// The largest value of a lane.
#[must_use]
pub fn lane_mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Rejects a stream of the wrong length or with bits set behind its last lane.
pub fn check_stream(bytes: &[u8], lanes: usize, width: u32) -> Result<()> {
    let bits = lanes.checked_mul(width as usize).ok_or_else(|| Error::frame("lane count overflows"))?;
    if bytes.len() != bits.div_ceil(8) {
        return Err(Error::frame(format!(
            "payload has {} bytes where {lanes} lanes of {width} bits take {}",
            bytes.len(),
            bits.div_ceil(8)
        )));
    }
    match bytes.last() {
        // The error reveals whether a share is invalid.
        Some(last) if !bits.is_multiple_of(8) && shown(last >> (bits % 8) != 0) => {
            Err(Error::frame("bits are set behind the last lane"))
        }
        _ => Ok(()),
    }
}

/// Writes `values[k] * factor mod 2^width` into the stream `out`.
pub fn pack_scaled(values: &[u32], factor: u64, width: u32, out: &mut [u8]) {
    match width {
        8 => scale_u8(values, factor as u8, out),
        16 => scale_u16(values, factor as u16, out),
        32 => scale_u32(values, factor as u32, out),
        _ => {
            let mask = lane_mask(width);
            pack_lanes(values, width, out, |v| u64::from(*v).wrapping_mul(factor) & mask);
        }
    }
}

/// Writes `values[k] * factor + plus[k] - minus[k] mod 2^width` into the stream `out`. `plus` and `minus` are streams.
pub fn pack_masked(values: &[u32], factor: u64, width: u32, [plus, minus]: [&[u8]; 2], out: &mut [u8]) {
    match width {
        8 => mask_u8(values, factor as u8, plus, minus, out),
        16 => mask_u16(values, factor as u16, plus, minus, out),
        32 => mask_u32(values, factor as u32, plus, minus, out),
        _ => {
            pack_scaled(values, factor, width, out);
            add_assign(out, plus, width);
            sub_assign(out, minus, width);
        }
    }
}

/// Writes `values` (each below 2^width) into the stream `out`.
pub fn pack(values: &[u64], width: u32, out: &mut [u8]) {
    pack_lanes(values, width, out, |v| *v);
}

#[inline(always)]
fn pack_lanes<T>(values: &[T], width: u32, out: &mut [u8], lane: impl Fn(&T) -> u64) {
    let mut writer = BitWriter::new(out);
    // Four lanes of at most 30 bits are written at once.
    let (fours, rest) = if width <= 30 { values.as_chunks::<4>() } else { (&[][..], values) };
    for four in fours {
        let [a, b, c, d] = four.each_ref().map(&lane);
        let (low, high) = (a | b << width, c | d << width);
        writer.push(u128::from(low) | u128::from(high) << (2 * width), 4 * width);
    }
    for v in rest {
        writer.push(u128::from(lane(v)), width);
    }
    writer.finish();
}

/// Reads lanes `0..out.len()` of the stream.
pub fn unpack(bytes: &[u8], width: u32, out: &mut [u64]) {
    let mut done = regroup::lanes(bytes, width, out);
    if done == 0 {
        done = regroup::narrow_lanes(bytes, width, out);
    }
    let (bytes, out) = (&bytes[done / 8 * width as usize..], &mut out[done..]);
    let mask = lane_mask(width);
    // Every eighth lane begins on a byte. While width + 7 <= 64, each lane lies in the 64-bit word at its first byte.
    const WINDOW: usize = 72;
    let places: [(usize, u32); 8] = std::array::from_fn(|k| (k * width as usize / 8, k as u32 * width % 8));
    let fast = if width > 57 { 0 } else { bytes.len().saturating_sub(WINDOW - width as usize) / width as usize };
    let (eights, _) = out.as_chunks_mut::<8>();
    let fast = fast.min(eights.len());
    for (i, eight) in eights[..fast].iter_mut().enumerate() {
        let Some((window, _)) = bytes[i * width as usize..].split_first_chunk::<WINDOW>() else { break };
        for (slot, (at, shift)) in eight.iter_mut().zip(places) {
            let mut word = [0u8; 8];
            word.copy_from_slice(&window[at % 64..at % 64 + 8]);
            *slot = (u64::from_le_bytes(word) >> shift) & mask;
        }
    }
    let (_, tail) = out.split_at_mut(8 * fast);
    let mut bit = 8 * fast * width as usize;
    for slot in tail {
        *slot = read_bits(bytes, bit, width) as u64;
        bit += width as usize;
    }
}

/// Reads lanes `0..out.len()` of a stream whose lanes may have up to 120 bits.
pub fn unpack_wide(bytes: &[u8], width: u32, out: &mut [u128]) {
    let done = regroup::wide_lanes(bytes, width, out);
    for (k, lane) in out.iter_mut().enumerate().skip(done) {
        *lane = read_bits(bytes, k * width as usize, width);
    }
}

/// Bits `[at, at + width)` of a stream, width at most 120; bytes behind the end read as zero.
#[must_use]
#[inline(always)]
pub fn read_bits(bytes: &[u8], at: usize, width: u32) -> u128 {
    let mask = (1u128 << width) - 1;
    if let Some((word, _)) = bytes.get(at / 8..).and_then(|rest| rest.split_first_chunk()) {
        return down(u128::from_le_bytes(*word), at as u32 % 8) & mask;
    }
    let first = (at / 8).min(bytes.len());
    let available = (bytes.len() - first).min(16);
    let mut word = [0u8; 16];
    word[..available].copy_from_slice(&bytes[first..first + available]);
    (u128::from_le_bytes(word) >> (at % 8)) & mask
}

/// Appends values of up to 120 bits to a byte slice of exactly the right length.
pub struct BitWriter<'a> {
    out: &'a mut [u8],
    at: usize,
    pending: u64,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    #[must_use]
    pub fn new(out: &'a mut [u8]) -> Self {
        BitWriter { out, at: 0, pending: 0, filled: 0 }
    }

    /// `value` must be below 2^width.
    #[inline(always)]
    pub fn push(&mut self, value: u128, width: u32) {
        if width > 64 {
            self.push64(value as u64, 64);
            self.push64((value >> 64) as u64, width - 64);
        } else {
            self.push64(value as u64, width);
        }
    }

    #[inline(always)]
    fn push64(&mut self, value: u64, width: u32) {
        self.pending |= value << self.filled;
        let total = self.filled + width;
        if total >= 64 {
            self.out[self.at..self.at + 8].copy_from_slice(&self.pending.to_le_bytes());
            self.at += 8;
            self.pending = if self.filled == 0 { 0 } else { value >> (64 - self.filled) };
            self.filled = total - 64;
        } else {
            self.filled = total;
        }
    }

    /// Flushes the last partial word; unused bits are zero.
    pub fn finish(self) {
        let rest = self.filled.div_ceil(8) as usize;
        self.out[self.at..self.at + rest].copy_from_slice(&self.pending.to_le_bytes()[..rest]);
    }
}

macro_rules! scale_kernel {
    ($lane:ty, $bytes:literal, $scale:ident, $mask:ident) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $scale(values: &[u32], factor: $lane, out: &mut [u8]) {
            let (out, _) = out.as_chunks_mut::<$bytes>();
            for (slot, v) in out.iter_mut().zip(values) {
                *slot = (*v as $lane).wrapping_mul(factor).to_le_bytes();
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $mask(values: &[u32], factor: $lane, plus: &[u8], minus: &[u8], out: &mut [u8]) {
            let (out, plus, minus) = (out.as_chunks_mut::<$bytes>().0, plus.as_chunks().0, minus.as_chunks().0);
            for (((slot, v), p), m) in out.iter_mut().zip(values).zip(plus).zip(minus) {
                let mask = <$lane>::from_le_bytes(*p).wrapping_sub(<$lane>::from_le_bytes(*m));
                *slot = (*v as $lane).wrapping_mul(factor).wrapping_add(mask).to_le_bytes();
            }
        }
    };
}

/// `values[k] = values[k] * factor & mask`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn scale(values: &mut [u32], factor: u32, mask: u32) {
    values.iter_mut().for_each(|v| *v = v.wrapping_mul(factor) & mask);
}

scale_kernel!(u8, 1, scale_u8, mask_u8);
scale_kernel!(u16, 2, scale_u16, mask_u16);
scale_kernel!(u32, 4, scale_u32, mask_u32);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// The stream of `lanes`, a bit at a time.
    fn stream(lanes: &[u64], width: u32) -> Vec<u8> {
        let mut out = vec![0; packed_len(lanes.len(), width)];
        for (k, lane) in lanes.iter().enumerate() {
            for bit in 0..width as usize {
                let at = k * width as usize + bit;
                out[at / 8] |= ((lane >> bit & 1) as u8) << (at % 8);
            }
        }
        out
    }

    fn check_streams(width: u32, len: usize, full: bool, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mask = lane_mask(width);
        // Lanes of all ones have every possible carry.
        let mut some = || (0..len).map(|_| if full { mask } else { rng.random::<u64>() & mask }).collect::<Vec<_>>();
        let (a, b) = (some(), some());
        let both = |op: fn(u64, u64) -> u64| a.iter().zip(&b).map(|(a, b)| op(*a, *b) & mask).collect::<Vec<_>>();
        let (packed, other) = (stream(&a, width), stream(&b, width));

        let mut out = vec![0; packed.len()];
        pack(&a, width, &mut out);
        assert_eq!(&out, &packed);
        let mut lanes = vec![0; len];
        unpack(&packed, width, &mut lanes);
        assert_eq!(&lanes, &a);
        let done = regroup::narrow_lanes(&packed, width, &mut lanes);
        assert_eq!(&lanes[..done], &a[..done]);
        add_assign(&mut out, &other, width);
        assert_eq!(&out, &stream(&both(u64::wrapping_add), width));
        out.copy_from_slice(&packed);
        sub_assign(&mut out, &other, width);
        assert_eq!(&out, &stream(&both(u64::wrapping_sub), width));

        let mut narrow: Vec<u32> = a.iter().map(|x| *x as u32).collect();
        pack_scaled(&narrow, 12_345, width, &mut out);
        let scaled: Vec<u64> = narrow.iter().map(|x| (u64::from(*x) * 12_345) & mask).collect();
        assert_eq!(&out, &stream(&scaled, width));
        let masked =
            b.iter().zip(a.iter().rev()).zip(&scaled).map(|((p, m), v)| v.wrapping_add(*p).wrapping_sub(*m) & mask);
        let wanted = stream(&masked.collect::<Vec<_>>(), width);
        let minus = stream(&a.iter().rev().copied().collect::<Vec<_>>(), width);
        pack_masked(&narrow, 12_345, width, [&other, &minus], &mut out);
        assert_eq!(&out, &wanted);

        let per = (128 / width) as usize;
        let mut groups = vec![[0; 16]; len.div_ceil(per)];
        group_scaled(&mut narrow, 12_345, width, &mut groups);
        pack_groups(&groups, width, len, &mut out);
        assert_eq!(&out, &stream(&scaled, width));

        // One lane in each group, with other bits behind it.
        let firsts: Vec<_> = a.iter().map(|lane| (u128::from(*lane) | u128::MAX << width).to_le_bytes()).collect();
        pack_first(&firsts, width, &mut out);
        assert_eq!(&out, &packed);

        // In groups, with bits of a key stream after their lanes.
        let mut grouped = |lanes: &[u64]| -> Vec<[u8; 16]> {
            let word = |l: &[u64]| l.iter().enumerate().fold(0, |w, (k, l)| w | u128::from(*l) << (k as u32 * width));
            let junk = u128::MAX.checked_shl(per as u32 * width).unwrap_or(0);
            let mut junk = |full| if full { junk } else { rng.random::<u128>() & junk };
            lanes.chunks(per).map(|l| word(l) | junk(full)).map(u128::to_le_bytes).collect()
        };
        let (x, y) = (grouped(&a), grouped(&b));
        for (op, want) in [
            (add_groups as fn(&mut [[u8; 16]], &[[u8; 16]], u32), both(u64::wrapping_add)),
            (sub_groups, both(u64::wrapping_sub)),
        ] {
            let mut sums = x.clone();
            op(&mut sums, &y, width);
            pack_groups(&sums, width, len, &mut out);
            assert_eq!(&out, &stream(&want, width));
        }
    }

    /// Operations on whole vectors have a table of shifts for each width.
    #[test]
    fn streams_of_every_width_are_what_their_lanes_say() {
        for width in 2..=64 {
            for len in [31, 32, 33, 463] {
                check_streams(width, len, false, len as u64);
                check_streams(width, len, true, len as u64);
            }
        }
    }

    #[test]
    fn wide_lanes_of_every_width_are_their_bits() {
        let mut rng = StdRng::seed_from_u64(11);
        for width in 1..=120 {
            for (len, full) in [(0, false), (1, true), (7, false), (8, true), (9, false), (143, false), (143, true)] {
                let mut byte = |_| if full { 0xff } else { rng.random() };
                let packed: Vec<u8> = (0..packed_len(len, width)).map(&mut byte).collect();
                let bit = |at: usize| u128::from(packed[at / 8] >> (at % 8) & 1);
                let lane = |k: usize| (0..width).fold(0, |lane, b| lane | bit(k * width as usize + b as usize) << b);
                let lanes: Vec<u128> = (0..len).map(lane).collect();
                let mut out = vec![u128::MAX; len];
                unpack_wide(&packed, width, &mut out);
                assert_eq!(out, lanes, "{len} lanes of {width} bits");

                // And back, from groups that hold other bits behind each lane.
                let junk = u128::MAX << width;
                let groups: Vec<_> = lanes.iter().map(|l| (l | junk & rng.random::<u128>()).to_le_bytes()).collect();
                let mut out = vec![0; packed.len()];
                pack_first(&groups, width, &mut out);
                let behind = packed.len() * 8 - len * width as usize;
                let mut wanted = packed.clone();
                wanted.iter_mut().last().into_iter().for_each(|last| *last &= 0xff >> behind);
                assert_eq!(out, wanted, "{len} groups of {width} bits");
            }
        }
    }

    proptest! {
        #[test]
        fn shifts_by_less_than_a_word_are_shifts(x: u128, by in 0u32..64) {
            prop_assert_eq!(up(x, by), x << by);
            prop_assert_eq!(down(x, by), x >> by);
        }

        #[test]
        fn streams_are_what_their_lanes_say(width in 2u32..=64, len in 0usize..1500, full: bool, seed in any::<u64>()) {
            check_streams(width, len, full, seed);
        }
    }
}
