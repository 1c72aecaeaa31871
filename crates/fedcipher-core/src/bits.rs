//! Streams of w-bit lanes: packing, unpacking and lane-wise addition mod 2^w.
//!
//! Lane k occupies bits `[k*w, (k+1)*w)` of the stream, least significant bit first, so for
//! w = 8, 16, 32, 64 a stream is a plain little-endian array.

use crate::{Error, Result};
use multiversion::multiversion;

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
        Some(last) if !bits.is_multiple_of(8) && last >> (bits % 8) != 0 => {
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
            pack_lanes(values.iter().map(|v| u64::from(*v).wrapping_mul(factor) & mask), width, out);
        }
    }
}

/// Writes `values` (each below 2^width) into the stream `out`.
pub fn pack(values: &[u64], width: u32, out: &mut [u8]) {
    pack_lanes(values.iter().copied(), width, out);
}

#[inline(always)]
fn pack_lanes(values: impl Iterator<Item = u64>, width: u32, out: &mut [u8]) {
    let mut writer = BitWriter::new(out);
    for v in values {
        writer.push(u128::from(v), width);
    }
    writer.finish();
}

/// Reads lanes `0..out.len()` of the stream.
pub fn unpack(bytes: &[u8], width: u32, out: &mut [u64]) {
    let mask = lane_mask(width);
    // One unaligned 64-bit load holds a whole lane while width + 7 <= 64 and 8 bytes remain.
    let fast =
        if width > 57 || bytes.len() < 8 { 0 } else { (((bytes.len() - 8) * 8) / width as usize).min(out.len()) };
    let (head, tail) = out.split_at_mut(fast);
    let mut bit = 0usize;
    for slot in head {
        let mut word = [0u8; 8];
        word.copy_from_slice(&bytes[bit / 8..bit / 8 + 8]);
        *slot = (u64::from_le_bytes(word) >> (bit % 8)) & mask;
        bit += width as usize;
    }
    for slot in tail {
        *slot = read_bits(bytes, bit, width) as u64;
        bit += width as usize;
    }
}

/// Bits `[at, at + width)` of a stream, width at most 120; bytes behind the end read as zero.
#[must_use]
pub fn read_bits(bytes: &[u8], at: usize, width: u32) -> u128 {
    let first = (at / 8).min(bytes.len());
    let available = (bytes.len() - first).min(16);
    let mut word = [0u8; 16];
    word[..available].copy_from_slice(&bytes[first..first + available]);
    (u128::from_le_bytes(word) >> (at % 8)) & ((1u128 << width) - 1)
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

macro_rules! lane_kernels {
    ($lane:ty, $bytes:literal, $add:ident, $sub:ident) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $add(acc: &mut [u8], x: &[u8]) {
            let (acc, _) = acc.as_chunks_mut::<$bytes>();
            let (x, _) = x.as_chunks::<$bytes>();
            for (a, b) in acc.iter_mut().zip(x) {
                *a = <$lane>::from_le_bytes(*a).wrapping_add(<$lane>::from_le_bytes(*b)).to_le_bytes();
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $sub(acc: &mut [u8], x: &[u8]) {
            let (acc, _) = acc.as_chunks_mut::<$bytes>();
            let (x, _) = x.as_chunks::<$bytes>();
            for (a, b) in acc.iter_mut().zip(x) {
                *a = <$lane>::from_le_bytes(*a).wrapping_sub(<$lane>::from_le_bytes(*b)).to_le_bytes();
            }
        }
    };
}

macro_rules! scale_kernel {
    ($lane:ty, $bytes:literal, $scale:ident) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $scale(values: &[u32], factor: $lane, out: &mut [u8]) {
            let (out, _) = out.as_chunks_mut::<$bytes>();
            for (slot, v) in out.iter_mut().zip(values) {
                *slot = (*v as $lane).wrapping_mul(factor).to_le_bytes();
            }
        }
    };
}

lane_kernels!(u8, 1, add_u8, sub_u8);
lane_kernels!(u16, 2, add_u16, sub_u16);
lane_kernels!(u32, 4, add_u32, sub_u32);
lane_kernels!(u64, 8, add_u64, sub_u64);
scale_kernel!(u8, 1, scale_u8);
scale_kernel!(u16, 2, scale_u16);
scale_kernel!(u32, 4, scale_u32);

/// `acc[k] = acc[k] + x[k] mod 2^width` for all `lanes` lanes of two equally long streams.
pub fn add_assign(acc: &mut [u8], x: &[u8], width: u32, lanes: usize) {
    match width {
        8 => add_u8(acc, x),
        16 => add_u16(acc, x),
        32 => add_u32(acc, x),
        64 => add_u64(acc, x),
        _ => combine(acc, x, width, lanes, u64::wrapping_add),
    }
}

/// `acc[k] = acc[k] - x[k] mod 2^width`.
pub fn sub_assign(acc: &mut [u8], x: &[u8], width: u32, lanes: usize) {
    match width {
        8 => sub_u8(acc, x),
        16 => sub_u16(acc, x),
        32 => sub_u32(acc, x),
        64 => sub_u64(acc, x),
        _ => combine(acc, x, width, lanes, u64::wrapping_sub),
    }
}

/// Lanes that are not whole bytes: unpack a group, combine, pack; groups of 8k lanes end on a byte.
#[inline(always)]
fn combine(acc: &mut [u8], x: &[u8], width: u32, lanes: usize, op: impl Fn(u64, u64) -> u64) {
    const GROUP: usize = 512;
    let mask = lane_mask(width);
    let (mut a, mut b) = ([0u64; GROUP], [0u64; GROUP]);
    let stride = packed_len(GROUP, width);
    let mut left = lanes;
    for (acc, x) in acc.chunks_mut(stride).zip(x.chunks(stride)) {
        let n = left.min(GROUP);
        unpack(acc, width, &mut a[..n]);
        unpack(x, width, &mut b[..n]);
        for (a, b) in a[..n].iter_mut().zip(&b[..n]) {
            *a = op(*a, *b) & mask;
        }
        pack(&a[..n], width, &mut acc[..packed_len(n, width)]);
        left -= n;
    }
}
