//! The steps of the circuit at which primes are dropped, and the noise at its end. docs/explanation/hybrid.md has the
//! measurements.

use super::cipher::Variant;
use super::field::Field;

/// The number of primes at each step. Dropping primes adds noise of its own: some 12 bits, or 20 before a key switch. The
/// noise of the ciphertext must be well above that. So a prime is dropped only when the noise has grown by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The primes at the input of each affine layer.
    pub layers: &'static [usize],
    /// The level of the square after each layer except the last, from its key switch on.
    pub squares: &'static [usize],
    /// The most noise bits at the end. A test compares this number with a measurement.
    pub noise: u32,
}

impl Plan {
    #[must_use]
    pub fn of(variant: Variant, field: Field) -> Self {
        match (variant.t, field.bits()) {
            (32, 17) => Plan { layers: &[7, 6, 5, 4, 3], squares: &[7, 5, 4, 3], noise: 88 },
            (_, 17) => Plan { layers: &[7, 6, 5, 3], squares: &[7, 5, 4], noise: 47 },
            (32, _) => Plan { layers: &[10, 9, 7, 6, 3], squares: &[9, 7, 6, 4], noise: 64 },
            _ => Plan { layers: &[10, 9, 7, 5], squares: &[9, 7, 6], noise: 87 },
        }
    }

    /// Primes of a transciphered ciphertext.
    #[must_use]
    pub fn end(&self) -> usize {
        self.layers.last().copied().unwrap_or_default()
    }
}
