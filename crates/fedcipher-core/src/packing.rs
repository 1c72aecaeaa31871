//! Bit-interleaved packing: several weights in the fields of one plaintext coefficient
//! (FedBit, section III-A: Layer-Specific Bit-Field Construction). Field i of a coefficient occupies bits
//! `[i f, (i+1) f)` with f = beta + delta: beta bits of value, delta bits of head-room for the sum.

use crate::Result;
use crate::bounds::Bounds;
use multiversion::multiversion;

/// Fields of one width in the coefficients of a plaintext modulus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Bits of a field.
    pub width: u32,
    /// Fields in a coefficient.
    pub count: usize,
}

#[multiversion(targets("x86_64+bmi1+bmi2"))]
fn pack<const N: usize>(of: Fields, values: &[u32], factor: u64, out: &mut [u128]) {
    let (whole, rest) = values.as_chunks::<N>();
    let both = out.iter_mut().zip(whole);
    if factor == 1 {
        // Most often, and then nothing is multiplied.
        both.for_each(|(out, fields)| *out = of.coefficient(fields, 1));
    } else {
        both.for_each(|(out, fields)| *out = of.coefficient(fields, factor));
    }
    if let (false, Some(out)) = (rest.is_empty(), out.get_mut(whole.len())) {
        *out = of.coefficient(rest, factor);
    }
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

    /// The coefficients of `values[..] * factor` into the first places of `out`; every product is below 2^width.
    pub fn pack(&self, values: &[u32], factor: u64, out: &mut [u128]) {
        // A constant number of fields lets the compiler unroll: these counts cover 12 to 24 bits.
        match self.count {
            1 => pack::<1>(*self, values, factor, out),
            2 => pack::<2>(*self, values, factor, out),
            3 => pack::<3>(*self, values, factor, out),
            4 => pack::<4>(*self, values, factor, out),
            5 => pack::<5>(*self, values, factor, out),
            6 => pack::<6>(*self, values, factor, out),
            7 => pack::<7>(*self, values, factor, out),
            8 => pack::<8>(*self, values, factor, out),
            count => {
                for (out, fields) in out.iter_mut().zip(values.chunks(count)) {
                    *out = self.coefficient(fields, factor);
                }
            }
        }
    }

    #[inline(always)]
    fn coefficient(&self, fields: &[u32], factor: u64) -> u128 {
        let field = |v: &u32| u64::from(*v).wrapping_mul(factor);
        let (low, high) = fields.split_at(fields.len() / 2);
        if high.len() as u32 * self.width > 64 {
            return fields.iter().rev().fold(0, |packed, v| packed << self.width | u128::from(field(v)));
        }
        // Shifts of 128 bits take several times as long as shifts of a word.
        let join = |half: &[u32]| half.iter().rev().fold(0, |packed, v| packed << (self.width % 64) | field(v));
        let (low, high, by) = (join(low), join(high), low.len() as u32 * self.width);
        // The lower half has at most 64 bits too.
        let (over, above) = if by < 64 { (high << by, high >> (63 - by) >> 1) } else { (0, high) };
        u128::from(low | over) | u128::from(above) << 64
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

    /// The bits behind the last of `used` fields: zeros in an undamaged sum.
    #[must_use]
    pub fn above(&self, coefficient: u128, used: usize) -> u128 {
        coefficient >> (self.width as usize * used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::lane_mask;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn coefficients_are_their_fields_in_a_row() {
        let mut rng = StdRng::seed_from_u64(3);
        for width in 2..=60u32 {
            for count in 1..=127 / width as usize {
                let of = Fields { width, count };
                for factor in [1, 5] {
                    let most = (lane_mask(width) / factor).min(lane_mask(24));
                    let values: Vec<u32> =
                        (0..3 * count + count / 2).map(|_| (rng.random::<u64>() % (most + 1)) as u32).collect();
                    let mut out = vec![0; of.coefficients(values.len())];
                    of.pack(&values, factor, &mut out);
                    for (fields, made) in values.chunks(count).zip(out) {
                        let place = |(i, v): (usize, &u32)| (u128::from(*v) * u128::from(factor)) << (i as u32 * width);
                        let wanted: u128 = fields.iter().enumerate().map(place).sum();
                        assert_eq!(made, wanted, "{of:?} times {factor}");
                        let mut back = vec![0; fields.len()];
                        of.unpack(made, &mut back);
                        assert!(
                            back.iter().zip(fields).all(|(b, v)| *b == u64::from(*v) * factor),
                            "{of:?} times {factor}"
                        );
                        assert_eq!(of.above(made, fields.len()), 0);
                        assert_eq!(of.above(made | 1 << (fields.len() as u32 * width), fields.len()), 1);
                    }
                }
            }
        }
    }
}
