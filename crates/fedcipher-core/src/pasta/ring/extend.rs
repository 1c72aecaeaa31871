//! Converts residues modulo some primes to residues modulo others, and holds the tables of a product.
//!
//! The number x of least absolute value with residues x_i is `sum y_i F / f_i - v F`. Here
//! `y_i = x_i (F / f_i)^-1 mod f_i`, and v is the sum of all y_i / f_i, rounded (Halevi, Polyakov, Shoup, ePrint
//! 2018/117). v is computed in floating point. For a number within 2^-44 F of the boundary, v may be off by one; then the
//! result is the other of the two numbers of almost that size. The operations and their order are fixed, so every machine
//! computes the same v.

use super::narrow::BITS as NARROW_BITS;
use super::rows::{self, Factor, Prime};
use super::{Ring, Row, Rows};
use crate::{Error, Result};
use fhe_math::zq::primes::generate_prime;
use multiversion::multiversion;
use rayon::prelude::*;

/// The conversion from one set of primes to another.
struct Extension {
    /// `k (F / f_i)^-1 mod f_i` for the numerator k.
    inverses: Vec<Factor>,
    shares: Vec<f64>,
    /// For each target prime: all `F / f_i`, then `-F`, divided by the denominator.
    weights: Vec<Vec<u64>>,
}

impl Extension {
    /// Converts to `k x / d` modulo `to`. x's residues are multiplied by k modulo F; d must divide the result.
    fn new(from: &[&Prime], to: &[&Prime], k: u64, d: &[&Prime]) -> Self {
        let all_but = |skip: Option<usize>, of: &Prime| {
            let others = from.iter().enumerate().filter(|(i, _)| Some(*i) != skip);
            others.fold(1, |product, (_, f)| of.product(product, f.q))
        };
        let inverses =
            from.iter().copied().enumerate().map(|(i, f)| f.factor(f.product(k, f.inverse(all_but(Some(i), f)))));
        let weights = to.iter().copied().map(|t| {
            let over = t.inverse(d.iter().fold(1, |product, d| t.product(product, d.q)));
            let mut row: Vec<u64> = (0..from.len()).map(|i| t.product(over, all_but(Some(i), t))).collect();
            row.push(t.product(over, t.q - all_but(None, t)));
            row
        });
        Extension {
            inverses: inverses.collect(),
            shares: from.iter().map(|f| 1.0 / f.q as f64).collect(),
            weights: weights.collect(),
        }
    }

    fn apply(&self, x: &[&Row], from: &[&Prime], to: &[&Prime]) -> Rows {
        let share = |((x, inverse), f): ((&&Row, &Factor), &&Prime)| {
            let mut y = (*x).clone();
            rows::scale(&mut y, *inverse, f.q);
            y
        };
        let mut y: Rows = x.par_iter().zip(&self.inverses).zip(from).map(share).collect();
        let wraps = wraps(&y, &self.shares);
        y.push(wraps);
        let y: Vec<&[u64]> = y.iter().map(|row| &row[..]).collect();
        let all_narrow = from.iter().all(|f| f.reducer.is_narrow());
        let reducer = |t: &Prime| if all_narrow { t.reducer } else { t.reducer.of_wide() };
        self.weights.par_iter().zip(to).map(|(weights, t)| rows::combined(&y, weights, reducer(t))).collect()
    }
}

/// `round(sum y_i / f_i)`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
fn wraps(y: &[Row], shares: &[f64]) -> Row {
    let n = y.first().map_or(0, |row| row.len());
    let mut sums = vec![0.5; n];
    for (y, share) in y.iter().zip(shares) {
        for (sum, y) in sums.iter_mut().zip(y) {
            *sum += *y as f64 * share;
        }
    }
    sums.iter().map(|sum| *sum as u64).collect()
}

/// Bits of the primes for products, in addition to the primes of the ciphertexts.
const MORE_BITS: usize = 61;

fn bits(q: u64) -> f64 {
    (q as f64).log2()
}

/// The bits of additional primes that a product over `base` needs. A product's elements are at most N q^2 / 2 (the two
/// halves of the middle element together), times p / q. They must be at most a quarter of the primes' product.
fn needed(degree: usize, base: &[Prime], p: u64) -> f64 {
    base.iter().map(|prime| bits(prime.q)).sum::<f64>() + bits(p) + bits(degree as u64) + 1.0
}

/// The index of the first prime of `more` up to which the primes have these bits; `None` if all of them have fewer.
fn enough(more: &[Prime], needed: f64) -> Option<usize> {
    let mut room = 0.0;
    more.iter().position(|prime| {
        room += bits(prime.q);
        room >= needed
    })
}

/// Additional primes for products of fresh ciphertexts. `primes` are the primes of keys.
pub fn more(degree: usize, primes: &[Prime], p: u64) -> Result<Vec<Prime>> {
    let needed = needed(degree, &primes[..primes.len() - 1], p);
    // If all primes are narrow, the additional ones are too: there are more of them, but their arithmetic is faster.
    let bits = if primes.iter().all(|p| p.reducer.is_narrow()) { NARROW_BITS } else { MORE_BITS };
    let (mut more, mut bound) = (Vec::new(), 1 << bits);
    while enough(&more, needed).is_none() {
        let Some(q) = generate_prime(bits, 2 * degree as u64, bound) else {
            return Err(Error::parameter("bfv", format!("too few primes of {bits} bits")));
        };
        bound = q;
        if primes.iter().all(|p| p.q != q) {
            more.push(Prime::new(q, degree)?);
        }
    }
    Ok(more)
}

/// The tables of a product of ciphertexts with `level` primes.
pub struct Tensor {
    level: usize,
    /// The number of additional primes.
    more: usize,
    up: Extension,
    /// `[p x]_q / q`.
    rest: Extension,
    /// `p / q`.
    ratios: Vec<Factor>,
    back: Extension,
}

impl Tensor {
    pub fn new(ring: &Ring, level: usize) -> Self {
        let more = enough(&ring.more, needed(ring.degree, &ring.primes[..level], ring.p));
        let more = more.map_or(ring.more.len(), |last| last + 1);
        let base: Vec<&Prime> = ring.primes[..level].iter().collect();
        let over: Vec<&Prime> = ring.more[..more].iter().collect();
        let inverse = |b: &Prime| b.inverse(base.iter().fold(1, |product, p| b.product(product, p.q)));
        Tensor {
            level,
            more,
            up: Extension::new(&base, &over, 1, &[]),
            rest: Extension::new(&base, &over, ring.p, &base),
            ratios: over.iter().copied().map(|b| b.factor(b.product(ring.p, inverse(b)))).collect(),
            back: Extension::new(&over, &base, 1, &[]),
        }
    }

    fn more<'a>(&self, ring: &'a Ring) -> Vec<&'a Prime> {
        ring.more[..self.more].iter().collect()
    }

    fn base<'a>(&self, ring: &'a Ring) -> Vec<&'a Prime> {
        ring.primes[..self.level].iter().collect()
    }

    /// Extends an element to all primes, with the ciphertext's primes first.
    pub fn extended(&self, ring: &Ring, x: &Rows) -> Rows {
        let mut coefficients = x.clone();
        ring.backward(&mut coefficients);
        let mut above = self.up.apply(&coefficients.iter().collect::<Vec<_>>(), &self.base(ring), &self.more(ring));
        above.par_iter_mut().zip(&ring.more).for_each(|(row, p)| p.forward(row));
        let mut all = x.clone();
        all.append(&mut above);
        all
    }

    /// The primes of an extended element's rows.
    pub fn primes<'a>(&self, ring: &'a Ring) -> Vec<&'a Prime> {
        ring.primes[..self.level].iter().chain(&ring.more[..self.more]).collect()
    }

    /// `round(p x / q)` as coefficients in the ciphertext's primes.
    pub fn scaled(&self, ring: &Ring, mut x: Rows) -> Rows {
        x.par_iter_mut().zip(self.primes(ring)).for_each(|(row, p)| p.backward(row));
        let (below, above) = x.split_at_mut(self.level);
        let rest = self.rest.apply(&below.iter().collect::<Vec<_>>(), &self.base(ring), &self.more(ring));
        // (p x - [p x]_q) / q is a whole number, which is the rounded quotient.
        above.par_iter_mut().zip(&rest).zip(&self.ratios).zip(&ring.more).for_each(|(((x, rest), ratio), p)| {
            rows::scale(x, *ratio, p.q);
            rows::subtract(x, rest, p.q);
        });
        self.back.apply(&above.iter().collect::<Vec<_>>(), &self.more(ring), &self.base(ring))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use num_bigint::BigInt;
    use proptest::prelude::*;

    fn primes(bits: usize, count: usize) -> Vec<Prime> {
        let below = |bound: &u64| generate_prime(bits, 64, *bound);
        let chain = std::iter::successors(below(&(1 << bits)), below);
        chain.take(count).map(|q| Prime::new(q, 32).unwrap()).collect()
    }

    fn modulo(x: &BigInt, q: u64) -> u64 {
        let q = BigInt::from(q);
        u64::try_from(((x % &q) + &q) % &q).unwrap()
    }

    /// The quotient, rounded to the nearest integer, for a positive divisor.
    fn nearest(x: &BigInt, by: &BigInt) -> BigInt {
        let twice: BigInt = (x * 2 + by) / (by * 2);
        if &twice * by * 2 > x * 2 + by { twice - 1 } else { twice }
    }

    proptest! {
        /// Compares with big integers: numbers of both signs, small, large and on both sides of the boundary.
        #[test]
        fn extensions_are_exact(words in proptest::collection::vec(any::<u64>(), 7), bits in 1..376u32, negative: bool) {
            let (from, to) = (primes(54, 7), primes(61, 7));
            let (from, to): (Vec<&Prime>, Vec<&Prime>) = (from.iter().collect(), to.iter().collect());
            let mut x = words.iter().fold(BigInt::from(0), |x, word| (x << 64u32) + *word) >> (7 * 64 - bits);
            if negative {
                x = -x;
            }
            let residues: Rows = from.iter().map(|f| vec![modulo(&x, f.q); 32].into()).collect();
            let rows: Vec<&Row> = residues.iter().collect();
            let out = Extension::new(&from, &to, 1, &[]).apply(&rows, &from, &to);
            for (row, t) in out.iter().zip(&to) {
                prop_assert_eq!(&row[..], &[modulo(&x, t.q); 32]);
            }
            // 5 x modulo all primes, divided by two other primes.
            let extra = primes(60, 2);
            let extra: Vec<&Prime> = extra.iter().collect();
            let all: BigInt = from.iter().map(|f| BigInt::from(f.q)).product();
            let five = &x * 5 - nearest(&(&x * 5), &all) * &all;
            for (row, t) in Extension::new(&from, &to, 5, &extra).apply(&rows, &from, &to).iter().zip(&to) {
                let back = extra.iter().fold(row[0], |product, d| t.product(product, d.q));
                prop_assert_eq!(back, modulo(&five, t.q));
            }
        }

        /// `round(p x / q)` of numbers as large as a product's elements.
        #[test]
        fn scaling_rounds(words in proptest::collection::vec(any::<u64>(), 14), bits in 1..760u32, negative: bool) {
            let moduli: Vec<u64> = primes(54, 8).iter().map(|p| p.q).collect();
            let ring = Ring::new(32, &moduli, 65_537).unwrap();
            let tensor = Tensor::new(&ring, 7);
            let mut x = words.iter().fold(BigInt::from(0), |x, word| (x << 64u32) + *word) >> (14 * 64 - bits);
            if negative {
                x = -x;
            }
            let all = tensor.primes(&ring);
            let constant = |q: u64| -> Row { (0..32).map(|i| if i == 0 { modulo(&x, q) } else { 0 }).collect() };
            let mut rows: Rows = all.iter().map(|p| constant(p.q)).collect();
            rows.iter_mut().zip(&all).for_each(|(row, p)| p.forward(row));
            let q: BigInt = moduli[..7].iter().map(|q| BigInt::from(*q)).product();
            let expected = nearest(&(&x * 65_537), &q);
            for (row, q) in tensor.scaled(&ring, rows).iter().zip(&moduli) {
                prop_assert_eq!(row[0], modulo(&expected, *q));
                prop_assert!(row[1..].iter().all(|x| *x == 0));
            }
        }
    }
}
