//! Bit-interleaved packing: several weights in the fields of one plaintext coefficient
//! (FedBit, section III-A: Layer-Specific Bit-Field Construction). Field i of a coefficient occupies bits
//! `[i f, (i+1) f)` with f = beta + delta: beta bits of value, delta bits of head-room for the sum.

use crate::bounds::Bounds;
use crate::{Error, Result};

/// Fields of one width in the coefficients of a plaintext modulus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Bits of a field.
    pub width: u32,
    /// Fields in a coefficient.
    pub count: usize,
}

impl Fields {
    /// As many fields for `bits`-bit values as `capacity` bits (floor log2 t) hold.
    ///
    /// Theorem 1: `U (2^beta - 1) < 2^(beta + delta)`, so no field runs into the next.
    /// Theorem 2: `U M < t`, since all fields together stay below `2^(count * width) <= t`.
    pub fn new(bounds: Bounds, bits: u32, capacity: u32) -> Result<Self> {
        let width = bounds.checked_field_bits(bits, capacity.min(crate::bounds::MAX_FIELD_BITS))?;
        Ok(Fields { width, count: (capacity / width) as usize })
    }

    /// Coefficients that `len` values take.
    #[must_use]
    pub fn coefficients(&self, len: usize) -> usize {
        len.div_ceil(self.count)
    }

    /// The coefficients of `values[..] * weight`; every product is below 2^width.
    pub fn pack(&self, values: &[u32], weight: u64, put: impl FnMut(u128)) {
        // A constant number of fields lets the compiler unroll: these counts cover 12 to 24 bits.
        match self.count {
            1 => self.pack_const::<1>(values, weight, put),
            2 => self.pack_const::<2>(values, weight, put),
            3 => self.pack_const::<3>(values, weight, put),
            4 => self.pack_const::<4>(values, weight, put),
            5 => self.pack_const::<5>(values, weight, put),
            6 => self.pack_const::<6>(values, weight, put),
            7 => self.pack_const::<7>(values, weight, put),
            8 => self.pack_const::<8>(values, weight, put),
            count => self.pack_some(values.chunks(count), weight, put),
        }
    }

    #[inline(always)]
    fn pack_const<const N: usize>(&self, values: &[u32], weight: u64, mut put: impl FnMut(u128)) {
        let (whole, rest) = values.as_chunks::<N>();
        for fields in whole {
            put(self.coefficient(fields, weight));
        }
        if !rest.is_empty() {
            put(self.coefficient(rest, weight));
        }
    }

    fn pack_some<'a>(&self, chunks: impl Iterator<Item = &'a [u32]>, weight: u64, put: impl FnMut(u128)) {
        chunks.map(|fields| self.coefficient(fields, weight)).for_each(put);
    }

    #[inline(always)]
    fn coefficient(&self, fields: &[u32], weight: u64) -> u128 {
        let field = |v: &u32| u64::from(*v).wrapping_mul(weight);
        let (low, high) = fields.split_at(fields.len() / 2);
        if high.len() as u32 * self.width > 64 {
            return fields.iter().rev().fold(0, |packed, v| packed << self.width | u128::from(field(v)));
        }
        // Shifts of 128 bits take several times as long as those of a word.
        let join = |half: &[u32]| half.iter().rev().fold(0, |packed, v| packed << (self.width % 64) | field(v));
        u128::from(join(low)) | u128::from(join(high)) << (low.len() as u32 * self.width)
    }

    /// The fields of `coefficient` into `out` (at most `count` of them).
    pub fn unpack(&self, mut coefficient: u128, out: &mut [u64]) {
        let mask = crate::bits::lane_mask(self.width);
        let (low, high) = out.split_at_mut(out.len() / 2);
        if high.len() as u32 * self.width > 64 {
            for slot in low.iter_mut().chain(high) {
                *slot = coefficient as u64 & mask;
                coefficient >>= self.width;
            }
            return;
        }
        let split = |mut half: u64, out: &mut [u64]| {
            for slot in out {
                *slot = half & mask;
                half >>= self.width % 64;
            }
        };
        split(coefficient as u64, low);
        split((coefficient >> (low.len() as u32 * self.width)) as u64, high);
    }

    /// Bits behind the last field must be zero in an undamaged sum.
    pub fn check(&self, coefficient: u128) -> Result<()> {
        if coefficient >> (self.width as usize * self.count) == 0 {
            return Ok(());
        }
        Err(Error::Decrypt { reason: "a coefficient has bits above its fields".into() })
    }
}
