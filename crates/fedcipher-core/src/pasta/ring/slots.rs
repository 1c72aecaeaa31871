//! Plaintexts: values in two rows of slots, in fhe.rs's order.

use super::rows::Prime;
use super::{Ring, Row, Rows, rows};
use crate::Result;
use rayon::prelude::*;

/// The places of slots, and the transform modulo the plaintext's prime.
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

    /// The place of each slot's value in the argument of [`Slots::coefficients`].
    #[must_use]
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// The coefficients of a plaintext whose values are at their places.
    #[must_use]
    pub fn coefficients(&self, mut placed: Row) -> Row {
        self.prime.backward(&mut placed);
        placed
    }

    /// The coefficients of a plaintext whose values are in the order of slots.
    #[must_use]
    pub fn encode(&self, slots: impl Iterator<Item = u64>) -> Row {
        let mut placed = Row::zeros(self.places.len());
        slots.zip(&self.places).for_each(|(value, place)| placed[*place as usize] = value);
        self.coefficients(placed)
    }
}

impl Ring {
    /// A plaintext by which a ciphertext can be multiplied. Coefficients are centred, which halves the noise compared with
    /// coefficients from 0 to p.
    #[must_use]
    pub fn multiplier(&self, coefficients: &Row, level: usize) -> Rows {
        self.multiplier_over((0..level).collect(), coefficients)
    }

    /// Like [`Ring::multiplier`], for an extended ciphertext, which also has the special prime's row.
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

    /// A plaintext that can be added to a ciphertext: `m q / p`, rounded down like in fhe.rs, which is
    /// `[q m]_p (-1 / p)` modulo each prime.
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
