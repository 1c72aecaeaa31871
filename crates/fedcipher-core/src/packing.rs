//! Bit-interleaved packing: several weights in the fields of one plaintext coefficient
//! (FedBit section III-B). Field i of a coefficient occupies bits `[i f, (i+1) f)` with
//! f = beta + delta: beta bits of value, delta bits of head-room for the sum.

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
    pub fn pack(&self, values: &[u32], weight: u64, mut put: impl FnMut(u128)) {
        // Fields are gathered in 64-bit words first: 128-bit shifts are several instructions each.
        let group = (64 / self.width) as usize;
        for coefficient in values.chunks(self.count) {
            let mut packed = 0u128;
            for (g, fields) in coefficient.chunks(group).enumerate() {
                let mut word = 0u64;
                for (i, v) in fields.iter().enumerate() {
                    word |= u64::from(*v).wrapping_mul(weight) << (i as u32 * self.width);
                }
                packed |= u128::from(word) << ((g * group) as u32 * self.width);
            }
            put(packed);
        }
    }

    /// The fields of `coefficient` into `out` (at most `count` of them).
    pub fn unpack(&self, mut coefficient: u128, out: &mut [u64]) {
        let mask = crate::bits::lane_mask(self.width);
        for slot in out {
            *slot = coefficient as u64 & mask;
            coefficient >>= self.width;
        }
    }

    /// Bits behind the last field must be zero in an undamaged sum.
    pub fn check(&self, coefficient: u128) -> Result<()> {
        if coefficient >> (self.width as usize * self.count) == 0 {
            return Ok(());
        }
        Err(Error::Decrypt { reason: "a coefficient has bits above its fields".into() })
    }
}
