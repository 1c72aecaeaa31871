//! Where in the circuit primes go, and how much noise is left at its end: docs/explanation/hybrid.md has the measurements.

use super::cipher::Variant;
use super::field::Field;

/// Primes by step. A switch to fewer makes noise of its own, some 12 bits, 20 before a key switch: the noise that is
/// there must be well above, so that primes go only as the noise has grown by their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// On the way into each affine layer.
    pub layers: &'static [usize],
    /// Of the square after each but the last layer, from its key switch on.
    pub squares: &'static [usize],
    /// Most noise bits at the end; a test holds it to measurement.
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
