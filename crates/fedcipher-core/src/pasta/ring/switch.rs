//! Key switching with a special prime, in two halves: one decomposition serves many keys, and sums of products with
//! keys are divided by the special prime once.
//!
//! An *extended* ciphertext is multiplied by the special prime P and has a last row modulo P. It is the result of a key
//! switch before the division by P. Extended ciphertexts can be added and multiplied, so a layer of many rotations
//! divides once ("double hoisting", Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux, ePrint 2020/1203).
//!
//! A digit is an element's residue modulo one prime, as whole numbers. fhe.rs's keys hold P times the digit's indicator,
//! so the first l digits and rows of a key are a key of level l.

use super::{Pair, Ring, Row, Rows, pairs, rows};
use crate::{Error, Result};
use rayon::prelude::*;

/// The digits of an element modulo all primes of a key switch, indexed `[target][digit]`.
pub struct Digits(Vec<Rows>);

/// A key for digits of all levels, indexed `[prime][half][digit]`.
pub struct SwitchKey(pub Vec<Pair>);

/// The key for the automorphism `X -> X^exponent`.
pub struct GaloisKey {
    /// The key under the inverse automorphism. So the automorphism is applied to the sum and not to each digit.
    key: SwitchKey,
    from: Vec<u32>,
}

impl Ring {
    /// The place from which each value is taken when X becomes `X^exponent`. The transform's values are in bit-reversed
    /// order of the odd powers of a root.
    fn automorphism(&self, exponent: usize) -> Vec<u32> {
        let (mask, shift) = (self.degree - 1, usize::BITS - self.degree.ilog2());
        let reversed = |j: usize| (j & mask).reverse_bits() >> shift;
        let mut from = vec![0; self.degree];
        for j in 0..self.degree {
            from[reversed(j)] = reversed(exponent * j + (exponent - 1) / 2) as u32;
        }
        from
    }

    /// The exponent that moves row entry `i + by` to `i`.
    #[must_use]
    pub fn columns(&self, by: usize) -> usize {
        (0..by).fold(1, |power, _| 3 * power % (2 * self.degree))
    }

    /// The exponent that exchanges the rows.
    #[must_use]
    pub fn row_swap(&self) -> usize {
        2 * self.degree - 1
    }

    pub fn galois_key(&self, exponent: usize, mut key: SwitchKey) -> Result<GaloisKey> {
        if exponent.is_multiple_of(2) || exponent >= 2 * self.degree {
            return Err(Error::frame(format!("no automorphism has exponent {exponent}")));
        }
        let from = self.automorphism(exponent);
        key.0.par_iter_mut().flatten().flatten().for_each(|row| {
            let mut back = Row::zeros(row.len());
            from.iter().zip(row.iter()).for_each(|(to, value)| back[*to as usize] = *value);
            *row = back;
        });
        Ok(GaloisKey { key, from })
    }

    /// The part that all rotations of a ciphertext share, computed from its second element.
    #[must_use]
    pub fn digits(&self, x: &Rows) -> Digits {
        let mut coefficients = x.clone();
        self.backward(&mut coefficients);
        self.digits_of(&coefficients, Some(x))
    }

    /// Like [`Self::digits`], from coefficients. `own` are their transforms, if the caller has them.
    pub(super) fn digits_of(&self, coefficients: &Rows, own: Option<&Rows>) -> Digits {
        let each = |target: usize| {
            let prime = &self.primes[target];
            let digit = |(i, x): (usize, &Row)| {
                if let Some(own) = own.and_then(|own| own.get(target)).filter(|_| i == target) {
                    return own.clone();
                }
                let mut row = rows::carried(x, 0, prime.q);
                prime.forward(&mut row);
                row
            };
            coefficients.par_iter().enumerate().map(digit).collect()
        };
        Digits(self.targets(coefficients.len()).into_par_iter().map(each).collect())
    }

    /// The sum of a key switch, as an extended ciphertext.
    #[must_use]
    pub fn inner(&self, digits: &Digits, key: &SwitchKey) -> Pair {
        let level = digits.0.len() - 1;
        let each = |(digits, target): (&Rows, usize)| {
            let of = |half: usize| -> Vec<&[u64]> { key.0[target][half][..level].iter().map(|row| &row[..]).collect() };
            let d: Vec<&[u64]> = digits.iter().map(|row| &row[..]).collect();
            rows::dots(&d, &of(0), &of(1), self.primes[target].reducer)
        };
        pairs(digits.0.par_iter().zip(self.targets(level)).map(each).collect())
    }

    /// Divides an extended ciphertext by the special prime.
    #[must_use]
    pub fn down(&self, extended: Pair) -> Pair {
        let [a, b] = extended;
        rayon::join(|| self.divide(a, self.top(), true), || self.divide(b, self.top(), true)).into()
    }

    fn moved(&self, pair: &Pair, key: &GaloisKey) -> Pair {
        pair.each_ref().map(|x| x.par_iter().map(|row| rows::permuted(row, &key.from)).collect())
    }

    /// Applies an automorphism to a ciphertext. `digits` are the digits of its second element.
    #[must_use]
    pub fn rotate(&self, x: &Pair, digits: &Digits, key: &GaloisKey) -> Pair {
        let mut sum = self.down(self.inner(digits, &key.key));
        self.add(&mut sum[0], &x[0]);
        self.moved(&sum, key)
    }

    /// Multiplies an element by the special prime.
    fn raised(&self, x: &Rows) -> Rows {
        let special = self.primes[self.top()].q;
        let mut out: Rows = x.clone();
        self.scale(&mut out, special);
        out.push(Row::zeros(self.degree));
        out
    }

    #[must_use]
    pub fn extended(&self, x: &Pair) -> Pair {
        x.each_ref().map(|x| self.raised(x))
    }

    /// Like [`Self::rotate`]; the result is an extended ciphertext.
    #[must_use]
    pub fn rotate_extended(&self, x: &Pair, digits: &Digits, key: &GaloisKey) -> Pair {
        let mut sum = self.inner(digits, &key.key);
        self.add_extended(&mut sum[0], &self.raised(&x[0]));
        self.moved(&sum, key)
    }

    /// `sum d_i x_i` of extended plaintexts and ciphertexts.
    #[must_use]
    pub fn extended_dots(&self, plain: &[&Rows], x: &[&Pair]) -> Pair {
        let level = x.first().map_or(1, |pair| pair[0].len()) - 1;
        self.dots_over(&self.targets(level), plain, x)
    }

    /// Adds to `first` the others, each under its automorphism. All are extended ciphertexts, and the sum is divided once.
    #[must_use]
    pub fn sum_of_rotations(&self, first: Pair, others: Vec<(Pair, &GaloisKey)>) -> Pair {
        let one = |([a, mut b], key): (Pair, &GaloisKey)| {
            b.par_iter_mut().zip(self.targets(a.len() - 1)).for_each(|(row, t)| self.primes[t].backward(row));
            let mut sum = self.inner(&self.digits_of(&self.divide(b, self.top(), false), None), &key.key);
            self.add_extended(&mut sum[0], &a);
            self.moved(&sum, key)
        };
        let mut total = first;
        for part in others.into_par_iter().map(one).collect::<Vec<_>>() {
            total.iter_mut().zip(&part).for_each(|(a, b)| self.add_extended(a, b));
        }
        self.down(total)
    }

    fn add_extended(&self, a: &mut Rows, b: &Rows) {
        let targets = self.targets(a.len() - 1);
        a.iter_mut().zip(b).zip(targets).for_each(|((a, b), t)| rows::add(a, b, self.primes[t].q));
    }
}
