//! Homomorphic evaluation of BFV over fhe.rs's transforms. The module adds operations that transciphering needs and fhe.rs
//! lacks: rotations that share one decomposition, sums of key switches that are divided once, and products that are
//! computed at the level of their result.
//!
//! Ciphertexts, keys and plaintexts equal fhe.rs's to the bit on the wire (`wire`), and the tests compare with fhe.rs's
//! operations. An element has a row for each of the first l primes; "level" counts primes here. Rows are in fhe.rs's
//! transform unless the text says *coefficients*. `[Rows; 2]` is a ciphertext.

mod extend;
mod narrow;
mod product;
mod row;
mod rows;
mod slots;
mod switch;
#[cfg(test)]
mod tests;
pub mod wire;

use crate::{Error, Result};
use extend::Tensor;
pub use narrow::BITS as NARROW_BITS;
use rayon::prelude::*;
pub use row::{Row, keep_rows};
pub use rows::Rows;
#[cfg(feature = "count")]
pub use rows::counted;
use rows::{Factor, Prime};
pub use slots::Slots;
use std::sync::{Mutex, PoisonError};
use std::{collections::BTreeMap, sync::Arc};
pub use switch::{Digits, GaloisKey, SwitchKey};

/// The two elements of a ciphertext.
pub type Pair = [Rows; 2];

/// Tables of the primes and of the divisors.
pub struct Ring {
    pub degree: usize,
    /// The primes of ciphertexts, then the special prime of key switching.
    primes: Vec<Prime>,
    /// `inverses[i][j]` is 1 / q_i mod q_j.
    inverses: Vec<Vec<Factor>>,
    /// Additional primes for products, as many as products at the top level need.
    more: Vec<Prime>,
    /// Tables of products, by level. Each is made when first needed.
    tensors: Mutex<BTreeMap<usize, Arc<Tensor>>>,
    /// The plaintext modulus.
    pub p: u64,
}

impl Ring {
    /// A ring over `moduli`, with the special prime last.
    pub fn new(degree: usize, moduli: &[u64], p: u64) -> Result<Self> {
        let primes = moduli.iter().map(|q| Prime::new(*q, degree)).collect::<Result<Vec<_>>>()?;
        let (min, max) = (moduli.iter().min().copied(), moduli.iter().max().copied());
        if min.zip(max).is_none_or(|(min, max)| max >= 2 * min || moduli.len() < 2) {
            return Err(Error::parameter("bfv", "the primes are not of one size"));
        }
        let of = |i: &Prime| {
            primes.iter().map(|j| if i.q == j.q { j.factor(0) } else { j.factor(j.inverse(i.q)) }).collect()
        };
        let inverses = primes.iter().map(of).collect();
        let more = extend::more(degree, &primes, p)?;
        Ok(Ring { degree, primes, inverses, more, tensors: Mutex::new(BTreeMap::new()), p })
    }

    /// Primes of a fresh ciphertext.
    #[must_use]
    pub fn top(&self) -> usize {
        self.primes.len() - 1
    }

    #[must_use]
    pub fn moduli(&self) -> Vec<u64> {
        self.primes.iter().map(|p| p.q).collect()
    }

    /// The moduli of a key switch at `level`: the level's primes, then the special prime.
    fn targets(&self, level: usize) -> Vec<usize> {
        (0..level).chain([self.top()]).collect()
    }

    fn tensor(&self, level: usize) -> Result<Arc<Tensor>> {
        let mut made = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.get(&level) {
            return Ok(Arc::clone(found));
        }
        let tensor = Arc::new(Tensor::new(self, level));
        made.insert(level, Arc::clone(&tensor));
        Ok(tensor)
    }

    pub fn add(&self, a: &mut Rows, b: &Rows) {
        a.iter_mut().zip(b).zip(&self.primes).for_each(|((a, b), p)| rows::add(a, b, p.q));
    }

    pub fn subtract(&self, a: &mut Rows, b: &Rows) {
        a.iter_mut().zip(b).zip(&self.primes).for_each(|((a, b), p)| rows::subtract(a, b, p.q));
    }

    /// Multiplies an element by a whole number.
    pub fn scale(&self, a: &mut Rows, by: u64) {
        a.iter_mut().zip(&self.primes).for_each(|(a, p)| rows::scale(a, p.factor(by), p.q));
    }

    pub fn forward(&self, rows: &mut Rows) {
        rows.par_iter_mut().zip(&self.primes).for_each(|(row, p)| p.forward(row));
    }

    pub fn backward(&self, rows: &mut Rows) {
        rows.par_iter_mut().zip(&self.primes).for_each(|(row, p)| p.backward(row));
    }

    /// `sum d_i x_i` of plaintexts and ciphertexts.
    pub fn dots(&self, plain: &[&Rows], x: &[&Pair]) -> Pair {
        let level = x.first().map_or(0, |pair| pair[0].len());
        self.dots_over(&(0..level).collect::<Vec<_>>(), plain, x)
    }

    fn dots_over(&self, primes: &[usize], plain: &[&Rows], x: &[&Pair]) -> Pair {
        let each = |(row, prime): (usize, &usize)| {
            let d: Vec<&[u64]> = plain.iter().map(|rows| &rows[row][..]).collect();
            let of = |half: usize| -> Vec<&[u64]> { x.iter().map(|pair| &pair[half][row][..]).collect() };
            rows::dots(&d, &of(0), &of(1), self.primes[*prime].reducer)
        };
        pairs(primes.par_iter().enumerate().map(each).collect())
    }

    /// Divides an element by the prime of its last row, which is number `last`, and rounds (Algorithm 2 of ePrint
    /// 2018/931). If the rows are transformed values, only the last row is transformed back.
    fn divide(&self, mut x: Rows, last: usize, values: bool) -> Rows {
        let Some(mut top) = x.pop() else { return x };
        let from = &self.primes[last];
        if values {
            from.backward(&mut top);
        }
        let half = from.q / 2;
        rows::shift(&mut top, half, from.q);
        x.par_iter_mut().zip(&self.primes).zip(&self.inverses[last]).for_each(|((row, p), inverse)| {
            let mut rest = rows::carried(&top, half % p.q, p.q);
            if values {
                p.forward(&mut rest);
            }
            rows::subtract_and_scale(row, &rest, *inverse, p.q);
        });
        x
    }

    /// Divides by one prime after the other, down to `level` primes.
    fn divided(&self, mut x: Rows, level: usize, values: bool) -> Rows {
        while x.len() > level {
            let last = x.len() - 1;
            x = self.divide(x, last, values);
        }
        x
    }

    /// Switches a ciphertext to fewer primes. The message stays the same, and the noise is divided with the modulus.
    #[must_use]
    pub fn lower(&self, pair: Pair, level: usize) -> Pair {
        let [a, b] = pair;
        rayon::join(|| self.divided(a, level, true), || self.divided(b, level, true)).into()
    }
}

/// Collects two rows for each prime into two elements.
fn pairs(by_prime: Vec<[Row; 2]>) -> Pair {
    let mut out = [Vec::with_capacity(by_prime.len()), Vec::with_capacity(by_prime.len())];
    for [a, b] in by_prime {
        out[0].push(a);
        out[1].push(b);
    }
    out
}
