//! Products of ciphertexts.

use super::{Pair, Ring, Row, Rows, rows};
use crate::Result;
use rayon::prelude::*;

impl Ring {
    /// Multiplies two ciphertexts. The product has `level` primes. The primes above are dropped before the key switch,
    /// which makes the switch cheaper. The rounding of the third element is then multiplied by the square of the key, so
    /// noise of up to 20 bits must not matter.
    pub fn multiply(&self, x: &Pair, y: &Pair, relinearisation: &super::SwitchKey, level: usize) -> Result<Pair> {
        let tensor = self.tensor(x[0].len())?;
        let same = std::ptr::eq(x, y);
        let extended = |pair: &Pair| pair.each_ref().map(|element| tensor.extended(self, element));
        let a = extended(x);
        let b = if same { None } else { Some(extended(y)) };
        let primes = tensor.primes(self);
        let each = |t: usize| -> [Row; 3] {
            let (r, [a0, a1]) = (primes[t].reducer, a.each_ref().map(|element| &element[t]));
            // The two middle products of a square are equal, so one of them is doubled.
            let [b0, b1] = b.as_ref().map_or([a0, a1], |b| b.each_ref().map(|element| &element[t]));
            [rows::product(a0, b0, r), rows::cross(a0, b1, a1, b0, r), rows::product(a1, b1, r)]
        };
        let mut elements: [Rows; 3] = Default::default();
        for triple in (0..primes.len()).into_par_iter().map(each).collect::<Vec<_>>() {
            elements.iter_mut().zip(triple).for_each(|(element, row)| element.push(row));
        }
        let scaled = elements.into_par_iter().map(|x| self.divided(tensor.scaled(self, x), level, false));
        let mut parts = scaled.collect::<Vec<_>>().into_iter();
        let (Some(mut c0), Some(mut c1), Some(c2)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(crate::Error::parameter("bfv", "a product has three elements"));
        };
        let [k0, k1] = self.down(self.inner(&self.digits_of(&c2, None), relinearisation));
        for (element, switched) in [(&mut c0, &k0), (&mut c1, &k1)] {
            self.forward(element);
            self.add(element, switched);
        }
        Ok([c0, c1])
    }
}
