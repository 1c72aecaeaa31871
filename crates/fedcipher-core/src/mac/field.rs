//! The prime field of the tags: integers mod `p = 2^127 - 1`, in constant time.

use crate::prf::Stream;
use crate::shown::shown;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use zeroize::Zeroize;

/// p, a Mersenne prime: `2^127 = 1 (mod p)`, so a reduction is a shift and an addition.
const P: u128 = (1 << 127) - 1;

/// An element of the field, always below p.
#[derive(Clone, Copy, Default, PartialEq, Eq, Zeroize)]
pub struct Element(u128);

impl std::fmt::Debug for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Element(secret)")
    }
}

impl Element {
    pub const ONE: Element = Element(1);

    /// Any number, reduced.
    #[must_use]
    pub fn new(x: u128) -> Self {
        let once = (x & P) + (x >> 127);
        let beyond = u128::from(once >= P).wrapping_neg();
        Element(once - (P & beyond))
    }

    /// Sixteen pseudo-random bytes as an element; the bias is below 2^-126.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Element::new(u128::from_le_bytes(bytes) & P)
    }

    /// A uniform element.
    pub fn draw(stream: &mut Stream) -> Self {
        loop {
            let drawn = (u128::from(stream.next_u64()) << 64 | u128::from(stream.next_u64())) & P;
            // Only one of 2^127 values is rejected, and a rejected value reveals nothing.
            if shown(drawn < P) {
                return Element(drawn);
            }
        }
    }

    /// The element that `bytes` stand for on the wire; none when they stand for no element.
    #[must_use]
    pub fn from_wire(bytes: [u8; 16]) -> Option<Self> {
        let x = u128::from_le_bytes(bytes);
        // Nothing is refused that honest parties make, and a refusal shows.
        shown(x < P).then_some(Element(x))
    }

    #[must_use]
    pub fn to_wire(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The integer behind the element.
    #[must_use]
    pub fn value(self) -> u128 {
        self.0
    }

    /// `self * 2^by`: a rotation of 127 bits.
    #[must_use]
    pub fn times_power_of_two(self, by: u32) -> Self {
        match by % 127 {
            0 => self,
            by => Element::new(((self.0 << by) & P) | (self.0 >> (127 - by))),
        }
    }

    /// `self^exponent` for a public exponent.
    #[must_use]
    pub fn power(self, exponent: u64) -> Self {
        self.raised(exponent.into())
    }

    /// `1 / self` of an element that is public and not zero (Fermat).
    #[must_use]
    pub fn inverse(self) -> Self {
        self.raised(P - 2)
    }

    fn raised(self, mut exponent: u128) -> Self {
        let (mut base, mut out) = (self, Element::ONE);
        while exponent > 0 {
            if exponent & 1 == 1 {
                out = out * base;
            }
            base = base * base;
            exponent >>= 1;
        }
        out
    }
}

impl Add for Element {
    type Output = Element;

    #[inline(always)]
    fn add(self, other: Element) -> Element {
        Element::new(self.0 + other.0)
    }
}

impl Sub for Element {
    type Output = Element;

    #[inline(always)]
    fn sub(self, other: Element) -> Element {
        Element::new(self.0 + (P - other.0))
    }
}

impl AddAssign for Element {
    fn add_assign(&mut self, other: Element) {
        *self = *self + other;
    }
}

impl Sum for Element {
    fn sum<I: Iterator<Item = Element>>(iter: I) -> Element {
        iter.fold(Element::default(), Add::add)
    }
}

impl Mul for Element {
    type Output = Element;

    #[inline(always)]
    fn mul(self, other: Element) -> Element {
        const LOW: u128 = u64::MAX as u128;
        let (a0, a1, b0, b1) = (self.0 & LOW, self.0 >> 64, other.0 & LOW, other.0 >> 64);
        // Both high halves are below 2^63, so the middle sum fits.
        let low = a0 * b0;
        let middle = a0 * b1 + a1 * b0 + (low >> 64);
        let (low, high) = ((middle << 64) | (low & LOW), a1 * b1 + (middle >> 64));
        // high < 2^126, and 2^128 = 2 (mod p): the three terms stay below 2^128.
        Element::new((low & P) + (low >> 127) + (high << 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

    proptest! {
        /// Against big integers.
        #[test]
        fn arithmetic_is_that_of_the_integers_mod_p(a in any::<u128>(), b in any::<u128>(), e in any::<u32>(), k in 0u32..300) {
            let (x, y, p) = (Element::new(a), Element::new(b), BigUint::from(P));
            let big = |x: u128| BigUint::from(x) % &p;
            prop_assert_eq!(BigUint::from(x.value()), big(a));
            prop_assert_eq!(BigUint::from((x + y).value()), (big(a) + big(b)) % &p);
            prop_assert_eq!(BigUint::from((x * y).value()), big(a) * big(b) % &p);
            prop_assert_eq!(x + y - y, x);
            if x != Element::default() {
                prop_assert_eq!(x * x.inverse(), Element::ONE);
            }
            prop_assert_eq!(BigUint::from(x.power(u64::from(e)).value()), big(a).modpow(&BigUint::from(e), &p));
            prop_assert_eq!(x.times_power_of_two(k), x * Element::new(2).power(u64::from(k)));
            prop_assert_eq!(Element::from_wire(x.to_wire()), Some(x));
        }
    }

    #[test]
    fn the_ends_of_the_field() {
        let top = Element::new(P - 1);
        assert_eq!((top + Element::ONE).value(), 0);
        assert_eq!((top * top).value(), 1);
        assert_eq!(Element::new(P).value(), 0);
        assert_eq!(Element::new(u128::MAX).value(), 1);
        assert_eq!(Element::from_wire(P.to_le_bytes()), None);
        assert_eq!(format!("{top:?}"), "Element(secret)");
    }
}
