//! The field F_p for a small prime p, in which secrets are shared.

use crate::{Error, Result};

/// A prime field of up to 31 bits. All products of secrets take constant time, without a division or a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    p: u64,
    /// floor(2^62 / p), for Barrett's reduction.
    quotient: u64,
}

fn is_prime(n: u64) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

impl Field {
    /// The field of the largest prime with as few bits as hold `values` different numbers.
    pub fn holding(values: u64) -> Result<Self> {
        let bits = (u64::BITS - values.leading_zeros()).max(3);
        // Either there is a prime between `values` and 2^bits, or one of one more bit.
        let found = (bits..=31)
            .find_map(|bits| (values.max(1 << (bits - 1))..1 << bits).rev().take(1 << 12).find(|n| is_prime(*n)));
        let p = found.ok_or_else(|| {
            Error::parameter("clients", format!("sums of {values} values do not fit a field of 31 bits; fewer clients"))
        })?;
        Ok(Field { p, quotient: (1 << 62) / p })
    }

    #[must_use]
    pub fn p(self) -> u64 {
        self.p
    }

    /// Bits of an element.
    #[must_use]
    pub fn bits(self) -> u32 {
        u64::BITS - (self.p - 1).leading_zeros()
    }

    /// `x mod p` for x < 2^62 (Barrett).
    #[must_use]
    pub fn reduce(self, x: u64) -> u64 {
        let q = ((u128::from(x) * u128::from(self.quotient)) >> 62) as u64;
        self.once(self.once(x - q * self.p))
    }

    /// Reduces x < 2 p to x or x - p.
    fn once(self, x: u64) -> u64 {
        let less = x.wrapping_sub(self.p);
        less.wrapping_add(self.p & ((less as i64) >> 63) as u64)
    }

    #[must_use]
    pub fn add(self, a: u64, b: u64) -> u64 {
        self.once(a + b)
    }

    #[must_use]
    pub fn neg(self, a: u64) -> u64 {
        self.once(self.p - a)
    }

    #[must_use]
    pub fn mul(self, a: u64, b: u64) -> u64 {
        self.reduce(a * b)
    }

    /// The element of a small signed number.
    #[must_use]
    pub fn lift(self, small: i64) -> u64 {
        (small as u64).wrapping_add(self.p & (small >> 63) as u64)
    }

    /// The representative nearest to zero.
    #[must_use]
    pub fn centred(self, a: u64) -> i64 {
        let half = (self.p / 2) as i64 - a as i64;
        a as i64 - (self.p as i64 & (half >> 63))
    }

    /// `1 / a` for a public, nonzero a (Fermat).
    #[must_use]
    pub fn inverse(self, a: u64) -> u64 {
        let (mut out, mut base, mut exponent) = (1, a, self.p - 2);
        while exponent > 0 {
            if exponent & 1 == 1 {
                out = self.mul(out, base);
            }
            base = self.mul(base, base);
            exponent >>= 1;
        }
        out
    }

    /// The weight of the value at each of `nodes` in the value at `at`, on the polynomial through all of them
    /// (Lagrange). Nodes and `at` are public and distinct.
    #[must_use]
    pub fn lagrange(self, nodes: &[u64], at: u64) -> Vec<u64> {
        let factor = |x: u64, but: u64| {
            let others = nodes.iter().filter(|other| **other != but);
            others.fold(1, |product, other| self.mul(product, self.add(x, self.neg(*other))))
        };
        nodes.iter().map(|node| self.mul(factor(at, *node), self.inverse(factor(*node, *node)))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_field_that_holds_a_cohort() {
        for (clients, p) in [(2, 251), (12, 1021), (97, 8191), (100, 16381), (1000, 131_071), (1560, 131_071)] {
            assert_eq!(Field::holding(84 * clients + 1).unwrap().p(), p, "{clients} clients");
        }
        assert!(Field::holding(1 << 31).is_err());
    }

    proptest! {
        #[test]
        fn it_is_arithmetic_modulo_p(values in 200u64..1 << 30, a: u64, b: u64, small in -90i64..90) {
            let f = Field::holding(values).unwrap();
            prop_assert!(is_prime(f.p()) && f.p() >= values);
            prop_assert_eq!(f.reduce(a >> 2), (a >> 2) % f.p());
            let (a, b) = (a % f.p(), b % f.p());
            prop_assert_eq!(f.add(a, b), (a + b) % f.p());
            prop_assert_eq!(f.mul(a, b), a * b % f.p());
            prop_assert_eq!(f.add(a, f.neg(a)), 0);
            prop_assert_eq!(f.centred(f.lift(small)), small);
            if a != 0 {
                prop_assert_eq!(f.mul(a, f.inverse(a)), 1);
            }
        }

        #[test]
        fn lagrange_evaluates_a_polynomial(coefficients in prop::collection::vec(0u64..1021, 1..6), at in 0u64..1021) {
            let f = Field::holding(1000).unwrap();
            let value = |x: u64| coefficients.iter().rev().fold(0, |sum, c| f.add(f.mul(sum, x), *c));
            let nodes: Vec<u64> = (1..=coefficients.len() as u64).collect();
            let made = f.lagrange(&nodes, at).iter().zip(&nodes).fold(0, |sum, (l, x)| f.add(sum, f.mul(*l, value(*x))));
            prop_assert_eq!(made, value(at));
        }
    }
}
