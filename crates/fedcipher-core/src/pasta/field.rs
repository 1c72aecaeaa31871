//! Arithmetic mod a prime p below 2^40, with one reduction for each dot product and without division.

use crate::{Error, Result};

/// The primes PASTA is used with here: 17 and 33 bits.
pub const PRIMES: [u64; 2] = [65_537, 8_088_322_049];

/// A prime field with Barrett reduction of 128-bit values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    p: u64,
    /// floor(2^64 / p).
    inverse: u64,
    /// 2^64 mod p.
    high: u64,
}

impl Field {
    pub fn new(p: u64) -> Result<Self> {
        if !PRIMES.contains(&p) {
            return Err(Error::parameter("prime", format!("{p} is not one of {PRIMES:?}")));
        }
        Ok(Field::of(p))
    }

    /// Accepts any odd prime below 2^60. The reference's 60-bit vectors need such a field.
    pub(crate) fn of(p: u64) -> Self {
        let inverse = ((1u128 << 64) / u128::from(p)) as u64;
        Field { p, inverse, high: ((1u128 << 64) % u128::from(p)) as u64 }
    }

    #[must_use]
    pub fn p(self) -> u64 {
        self.p
    }

    /// Bits of an element.
    #[must_use]
    pub fn bits(self) -> u32 {
        64 - self.p.leading_zeros()
    }

    /// `x mod p` in a fixed number of steps.
    #[must_use]
    pub fn reduce(self, x: u64) -> u64 {
        let q = ((u128::from(x) * u128::from(self.inverse)) >> 64) as u64;
        let r = x.wrapping_sub(q.wrapping_mul(self.p));
        // q is floor(x / p) or one less.
        let once = r.wrapping_sub(self.p);
        let keep = (once >> 63).wrapping_neg();
        (r & keep) | (once & !keep)
    }

    /// `x mod p` of a 128-bit value.
    #[must_use]
    pub fn reduce_wide(self, x: u128) -> u64 {
        if self.bits() > 40 {
            return (x % u128::from(self.p)) as u64;
        }
        // x = h 2^64 + l; folds by 2^64 mod p leave less than 2^64 + 2^40.
        let fold = |x: u128| u128::from((x >> 64) as u64) * u128::from(self.high) + u128::from(x as u64);
        let x = fold(fold(x));
        let x = fold(x);
        let x = x as u64 as u128 + (x >> 64) * u128::from(self.high);
        self.reduce(x as u64)
    }

    #[must_use]
    pub fn add(self, a: u64, b: u64) -> u64 {
        self.reduce(a + b)
    }

    #[must_use]
    pub fn sub(self, a: u64, b: u64) -> u64 {
        self.reduce(a + self.p - b)
    }

    #[must_use]
    pub fn mul(self, a: u64, b: u64) -> u64 {
        self.mul_add(a, b, 0)
    }

    /// `a b + c`.
    #[must_use]
    pub fn mul_add(self, a: u64, b: u64, c: u64) -> u64 {
        if self.bits() <= 28 {
            self.reduce(a * b + c)
        } else {
            self.reduce_wide(u128::from(a) * u128::from(b) + u128::from(c))
        }
    }

    /// The inner product of two equally long vectors of elements, at most 256 of them.
    #[must_use]
    pub fn dot(self, a: &[u64], b: &[u64]) -> u64 {
        if self.bits() <= 28 {
            // 256 products of 56 bits fit 64 bits.
            self.reduce(a.iter().zip(b).map(|(a, b)| a * b).sum())
        } else {
            self.reduce_wide(a.iter().zip(b).map(|(a, b)| u128::from(*a) * u128::from(*b)).sum())
        }
    }
}
