//! Division by a public constant in constant time (Barrett, Crypto 1986). The dividend may be secret. The processor's own
//! division is not used, because its time depends on the quotient.

/// A divisor below 2^126 and `floor((2^128 - 1) / divisor)`.
#[derive(Debug, Clone, Copy)]
pub struct Divisor {
    divisor: u128,
    inverse: u128,
}

impl Divisor {
    pub fn new(divisor: u128) -> Self {
        Divisor { divisor, inverse: u128::MAX / divisor }
    }

    /// Quotient and remainder of `x` below 2^127.
    pub fn divide(self, x: u128) -> (u128, u128) {
        // The quotient is at most one too small. The estimate is low by `x (1 + e) / (divisor 2^128) <= 1/2`, where e is
        // the remainder of the inverse.
        let quotient = high(x, self.inverse);
        let rest = x.wrapping_sub(quotient.wrapping_mul(self.divisor)).wrapping_sub(self.divisor);
        let negative = (rest as i128 >> 127) as u128;
        (quotient.wrapping_add(1).wrapping_add(negative), rest.wrapping_add(self.divisor & negative))
    }
}

/// The higher half of a product.
fn high(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (a0, a1, b0, b1) = (a & LOW, a >> 64, b & LOW, b >> 64);
    let middle = a1 * b0 + ((a0 * b0) >> 64);
    let other = a0 * b1 + (middle & LOW);
    a1 * b1 + (middle >> 64) + (other >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_processors_division(x in any::<u128>(), by in any::<u128>(), bits in 1u32..=126, near in -3i32..=3) {
            let divisor = (by >> (128 - bits)).max(1);
            let of = Divisor::new(divisor);
            let x = x >> 1;
            prop_assert_eq!(of.divide(x), (x / divisor, x % divisor));
            // Values around multiples, where the quotient changes.
            let multiple = x / divisor * divisor;
            let x = multiple.saturating_add_signed(i128::from(near)) & (u128::MAX >> 1);
            prop_assert_eq!(of.divide(x), (x / divisor, x % divisor));
        }
    }
}
