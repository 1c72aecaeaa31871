//! Plaintexts: values in two rows of slots, as fhe.rs places them.

use super::rows::Prime;
use super::{Ring, Row, Rows, rows};
use crate::Result;
use rayon::prelude::*;

/// Where slots lie, and the transform modulo the plaintext's prime.
pub struct Slots {
    prime: Prime,
    places: Vec<u32>,
}

impl Slots {
    pub fn new(degree: usize, p: u64) -> Result<Self> {
        let prime = Prime::new(p, degree)?;
        let (half, shift) = (degree / 2, usize::BITS - degree.ilog2());
        let mut places = vec![0u32; degree];
        let mut power = 1;
        for i in 0..half {
            for (slot, index) in [(i, (power - 1) / 2), (half + i, (2 * degree - power - 1) / 2)] {
                places[slot] = (index.reverse_bits() >> shift) as u32;
            }
            power = 3 * power % (2 * degree);
        }
        Ok(Slots { prime, places })
    }

    /// Where the value of each slot goes before [`Slots::coefficients`].
    #[must_use]
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Of values at their places.
    #[must_use]
    pub fn coefficients(&self, mut placed: Row) -> Row {
        self.prime.backward(&mut placed);
        placed
    }

    /// Of values in order of slots.
    #[must_use]
    pub fn encode(&self, slots: impl Iterator<Item = u64>) -> Row {
        let mut placed = Row::zeros(self.places.len());
        slots.zip(&self.places).for_each(|(value, place)| placed[*place as usize] = value);
        self.coefficients(placed)
    }
}

impl Ring {
    /// To multiply a ciphertext by. Coefficients are centred: that is half the noise of coefficients from 0 to p.
    #[must_use]
    pub fn multiplier(&self, coefficients: &Row, level: usize) -> Rows {
        self.multiplier_over((0..level).collect(), coefficients)
    }

    /// For multiplication with an element that has the special prime's row too.
    #[must_use]
    pub fn extended_multiplier(&self, coefficients: &Row, level: usize) -> Rows {
        self.multiplier_over(self.targets(level), coefficients)
    }

    fn multiplier_over(&self, primes: Vec<usize>, coefficients: &Row) -> Rows {
        let each = |prime: usize| {
            let prime = &self.primes[prime];
            let mut row = rows::centred(coefficients, self.p, prime.q);
            prime.forward(&mut row);
            row
        };
        primes.into_par_iter().map(each).collect()
    }

    /// To add: `m q / p`, rounded down, as fhe.rs encrypts it: `[q m]_p (-1 / p)` modulo each prime.
    #[must_use]
    pub fn summand(&self, coefficients: &Row, level: usize) -> Rows {
        let modulus = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(self.p)) as u64;
        let q = self.primes[..level].iter().fold(1, |product, prime| modulus(product, prime.q % self.p));
        let m: Row = coefficients.iter().map(|c| modulus(*c, q)).collect();
        let each = |prime: &Prime| {
            let mut row = m.clone();
            rows::scale(&mut row, prime.factor(prime.q - prime.inverse(self.p)), prime.q);
            prime.forward(&mut row);
            row
        };
        self.primes[..level].par_iter().map(each).collect()
    }
}
