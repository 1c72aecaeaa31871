//! Loops over rows, and the arithmetic of a row's prime. A row holds the residues of a ring element modulo one prime.

use super::narrow::{self, Narrow};
use super::row::Row;
use crate::{Error, Result};
use fhe_math::{ntt::NttOperator, zq::Modulus};
use multiversion::multiversion;

/// A ring element: a row for each prime.
pub type Rows = Vec<Row>;

/// A factor with a precomputed quotient. A product by the factor takes one high and two low multiplications.
#[derive(Debug, Clone, Copy)]
pub struct Factor {
    value: u64,
    /// floor(2^64 value / q).
    quotient: u64,
}

/// Reduces x below 2 q: `x - q` if that is not negative, else `x`.
#[inline(always)]
fn once(x: u64, q: u64) -> u64 {
    x.min(x.wrapping_sub(q))
}

#[inline(always)]
fn high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// The product `x by mod q`, reduced only to less than 2 q, for any x.
#[inline(always)]
fn lazy(x: u64, by: Factor, q: u64) -> u64 {
    x.wrapping_mul(by.value).wrapping_sub(high(x, by.quotient).wrapping_mul(q))
}

/// The constants that reduce modulo a prime below 2^62.
#[derive(Debug, Clone, Copy)]
pub struct Reducer {
    q: u64,
    /// floor(2^64 / q).
    inverse: u64,
    /// 2^64 mod q.
    shift: Factor,
    narrow: Option<Narrow>,
}

impl Reducer {
    /// The same reducer, for sums that may exceed 2^51.
    #[must_use]
    pub fn of_wide(self) -> Self {
        Reducer { narrow: None, ..self }
    }

    /// True if the prime is below 2^51.
    #[must_use]
    pub fn is_narrow(self) -> bool {
        self.narrow.is_some()
    }

    /// `a mod q`. The high word is reduced by a product, and the low word by Barrett's estimate, which is at most one too
    /// small.
    #[inline(always)]
    pub fn wide(self, a: u128) -> u64 {
        let (h, l) = ((a >> 64) as u64, a as u64);
        let low = l.wrapping_sub(high(l, self.inverse).wrapping_mul(self.q));
        once(once(lazy(h, self.shift, self.q) + low, 2 * self.q), self.q)
    }
}

/// Counters of an evaluation's operations. `docs/evidence/limits.md` states the time that these operations alone would
/// take.
#[cfg(feature = "count")]
pub mod counted {
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Transforms of one row, either way.
    pub static TRANSFORMS: AtomicU64 = AtomicU64::new(0);
    /// Rows of plaintexts and keys that products were summed with.
    pub static MULTIPLIERS: AtomicU64 = AtomicU64::new(0);

    pub(super) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// The counts since the last call.
    pub fn taken() -> [u64; 2] {
        [&TRANSFORMS, &MULTIPLIERS].map(|counter| counter.swap(0, Ordering::Relaxed))
    }
}

/// fhe.rs's transform, or the same transform by the newer version of fhe.rs's backend that this crate uses. fhe.rs's own
/// version does not use AVX-512.
enum Transform {
    #[cfg(feature = "ntt-tfhe")]
    Newer(Box<tfhe_ntt::prime64::Plan>),
    Theirs(Box<NttOperator>),
}

impl Transform {
    fn new(modulus: &Modulus, degree: usize) -> Option<Self> {
        let theirs = Box::new(NttOperator::new(modulus, degree)?);
        #[cfg(feature = "ntt-tfhe")]
        if let Some(plan) = tfhe_ntt::prime64::Plan::try_new(degree, **modulus) {
            // Each crate may choose other roots and another order. Keys use fhe.rs's, so both transforms are compared.
            let mut row: Row = (1..=degree as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % **modulus).collect();
            let mut other = row.clone();
            theirs.forward(&mut row);
            plan.fwd(&mut other);
            if row == other {
                return Some(Transform::Newer(Box::new(plan)));
            }
        }
        Some(Transform::Theirs(theirs))
    }
}

/// A prime of the ring with its transform.
pub struct Prime {
    pub q: u64,
    pub reducer: Reducer,
    modulus: Modulus,
    transform: Transform,
}

impl Prime {
    pub fn new(q: u64, degree: usize) -> Result<Self> {
        let wrong = || Error::parameter("bfv", format!("{q} is not a prime with a root of order {}", 2 * degree));
        let modulus = Modulus::new(q).map_err(|_| wrong())?;
        let transform = Transform::new(&modulus, degree).ok_or_else(wrong)?;
        let shift = ((1u128 << 64) % u128::from(q)) as u64;
        let inverse = ((1u128 << 64) / u128::from(q)) as u64;
        let reducer = Reducer {
            q,
            inverse,
            shift: Factor { value: shift, quotient: modulus.shoup(shift) },
            narrow: Narrow::new(q),
        };
        Ok(Prime { q, reducer, modulus, transform })
    }

    pub fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    pub fn forward(&self, row: &mut [u64]) {
        #[cfg(feature = "count")]
        counted::add(&counted::TRANSFORMS, 1);
        match &self.transform {
            #[cfg(feature = "ntt-tfhe")]
            Transform::Newer(plan) => plan.fwd(row),
            Transform::Theirs(ntt) => ntt.forward(row),
        }
    }

    pub fn backward(&self, row: &mut [u64]) {
        #[cfg(feature = "count")]
        counted::add(&counted::TRANSFORMS, 1);
        match &self.transform {
            #[cfg(feature = "ntt-tfhe")]
            Transform::Newer(plan) => {
                plan.inv(row);
                plan.normalize(row);
            }
            Transform::Theirs(ntt) => ntt.backward(row),
        }
    }

    /// Makes a factor from any number.
    pub fn factor(&self, value: u64) -> Factor {
        let value = value % self.q;
        Factor { value, quotient: self.modulus.shoup(value) }
    }

    /// `a b mod q`, for any numbers.
    pub fn product(&self, a: u64, b: u64) -> u64 {
        (u128::from(a % self.q) * u128::from(b % self.q) % u128::from(self.q)) as u64
    }

    /// The inverse of a number that q does not divide (by Fermat's little theorem).
    pub fn inverse(&self, a: u64) -> u64 {
        self.modulus.pow(a % self.q, self.q - 2)
    }
}

/// `a += b`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn add(a: &mut [u64], b: &[u64], q: u64) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = once(*a + b, q);
    }
}

/// `a + by`, for `by` below q.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn shift(a: &mut [u64], by: u64, q: u64) {
    for a in a {
        *a = once(*a + by, q);
    }
}

/// `a -= b`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn subtract(a: &mut [u64], b: &[u64], q: u64) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = once(*a + q - b, q);
    }
}

/// `a *= by`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+bmi2"))]
pub fn scale(a: &mut [u64], by: Factor, q: u64) {
    for a in a {
        *a = once(lazy(*a, by, q), q);
    }
}

/// `a = (a - b) by`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+bmi2"))]
pub fn subtract_and_scale(a: &mut [u64], b: &[u64], by: Factor, q: u64) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = once(lazy(*a + q - b, by, q), q);
    }
}

/// Residues modulo a prime below 2 q are reduced modulo q, less `offset`, which must be below q.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn carried(x: &[u64], offset: u64, q: u64) -> Row {
    x.iter().map(|x| once(once(*x, q) + q - offset, q)).collect()
}

/// Converts residues mod p, with p below q, to residues mod q of the numbers of least absolute value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn centred(x: &[u64], p: u64, q: u64) -> Row {
    x.iter().map(|x| if *x > p / 2 { *x + (q - p) } else { *x }).collect()
}

/// `out[i] = x[from[i]]`.
pub fn permuted(x: &[u64], from: &[u32]) -> Row {
    from.iter().map(|k| x[*k as usize]).collect()
}

/// The sums of products `d x` and `d y` over rows, each reduced once. Both sums must be below 2^128.
pub fn dots(d: &[&[u64]], x: &[&[u64]], y: &[&[u64]], reducer: Reducer) -> [Row; 2] {
    #[cfg(feature = "count")]
    counted::add(&counted::MULTIPLIERS, d.len() as u64);
    let n = d.first().map_or(0, |row| row.len());
    let mut out = [Row::zeros(n), Row::zeros(n)];
    let [a, b] = &mut out;
    if !reducer.narrow.is_some_and(|by| narrow::dots(by, d, x, y, a, b)) {
        dots_into(d, x, y, reducer, a, b);
    }
    out
}

/// Elements of a tile. The sums of a tile fit in the first-level cache. Rows lie a power of two apart, so reading one
/// place of all rows at a time would put all reads into the same few lines of every cache.
const TILE: usize = 256;

#[multiversion(targets("x86_64+avx2+bmi2+adx"))]
fn dots_into(d: &[&[u64]], x: &[&[u64]], y: &[&[u64]], reducer: Reducer, a: &mut [u64], b: &mut [u64]) {
    for (k, (a, b)) in a.chunks_mut(TILE).zip(b.chunks_mut(TILE)).enumerate() {
        let (mut sums, mut others) = ([0u128; TILE], [0u128; TILE]);
        let at = k * TILE..k * TILE + a.len();
        for ((d, x), y) in d.iter().zip(x).zip(y) {
            let (d, x, y) = (&d[at.clone()], &x[at.clone()], &y[at.clone()]);
            for ((((sum, other), d), x), y) in sums.iter_mut().zip(&mut others).zip(d).zip(x).zip(y) {
                *sum += u128::from(*d) * u128::from(*x);
                *other += u128::from(*d) * u128::from(*y);
            }
        }
        for (((a, b), sum), other) in a.iter_mut().zip(b).zip(sums).zip(others) {
            (*a, *b) = (reducer.wide(sum), reducer.wide(other));
        }
    }
}

/// `sum w_i x_i`, reduced once. The sum must be below 2^128. If the reducer is narrow, all x must be below 2^51.
pub fn combined(x: &[&[u64]], w: &[u64], reducer: Reducer) -> Row {
    let mut out = Row::zeros(x.first().map_or(0, |row| row.len()));
    if !reducer.narrow.is_some_and(|by| narrow::combined(by, x, w, &mut out)) {
        combined_into(x, w, reducer, &mut out);
    }
    out
}

#[multiversion(targets("x86_64+avx2+bmi2+adx"))]
fn combined_into(x: &[&[u64]], w: &[u64], reducer: Reducer, out: &mut [u64]) {
    for (k, out) in out.chunks_mut(TILE).enumerate() {
        let mut sums = [0u128; TILE];
        let at = k * TILE..k * TILE + out.len();
        for (x, w) in x.iter().zip(w) {
            for (sum, x) in sums.iter_mut().zip(&x[at.clone()]) {
                *sum += u128::from(*x) * u128::from(*w);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = reducer.wide(sum);
        }
    }
}

/// `a b + c d`.
#[multiversion(targets("x86_64+avx2+bmi2+adx"))]
pub fn cross(a: &[u64], b: &[u64], c: &[u64], d: &[u64], reducer: Reducer) -> Row {
    let both = a.iter().zip(b).zip(c.iter().zip(d));
    both.map(|((a, b), (c, d))| reducer.wide(u128::from(*a) * u128::from(*b) + u128::from(*c) * u128::from(*d)))
        .collect()
}

/// `a b`.
#[multiversion(targets("x86_64+avx2+bmi2+adx"))]
pub fn product(a: &[u64], b: &[u64], reducer: Reducer) -> Row {
    a.iter().zip(b).map(|(a, b)| reducer.wide(u128::from(*a) * u128::from(*b))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use proptest::prelude::*;

    /// Primes of 51, 54, 60 and 61 bits, each with a root of order 64. The first one is narrow.
    fn primes() -> Vec<Prime> {
        [51, 54, 60, 61]
            .map(|bits| fhe_math::zq::primes::generate_prime(bits, 64, 1 << bits).unwrap())
            .map(|q| Prime::new(q, 32).unwrap())
            .into()
    }

    proptest! {
        /// Compares every loop with arithmetic on u128. The lengths end in a partial tile, with and without a partial
        /// vector.
        #[test]
        fn loops_are_arithmetic(seeds in proptest::collection::vec(any::<[u64; 4]>(), 301), factor: u64, wide: u128) {
            let at = |length| primes().into_iter().map(move |prime| (prime, length));
            for (prime, length) in at(301).chain(at(296)) {
                let (q, r) = (prime.q, prime.reducer);
                let row = |k: usize| -> Row { seeds[..length].iter().map(|s| s[k] % q).collect() };
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                let each = |f: &dyn Fn(u128, u128, u128, u128) -> u128| -> Row {
                    (0..a.len())
                        .map(|i| (f(a[i].into(), b[i].into(), c[i].into(), d[i].into()) % u128::from(q)) as u64)
                        .collect()
                };
                let (wide_q, f) = (u128::from(q), u128::from(factor % q));
                prop_assert_eq!(u128::from(r.wide(wide)), wide % wide_q);
                prop_assert_eq!(prime.product(factor, q - 1), (q - factor % q) % q);
                prop_assert_eq!(prime.product(prime.inverse(a[0] | 1), a[0] | 1), 1);
                let applied = |g: &dyn Fn(&mut Row)| { let mut x = a.clone(); g(&mut x); x };
                prop_assert_eq!(applied(&|x| add(x, &b, q)), each(&|a, b, _, _| a + b));
                prop_assert_eq!(applied(&|x| shift(x, f as u64, q)), each(&|a, _, _, _| a + f));
                prop_assert_eq!(applied(&|x| subtract(x, &b, q)), each(&|a, b, _, _| a + wide_q - b));
                prop_assert_eq!(applied(&|x| scale(x, prime.factor(factor), q)), each(&|a, _, _, _| a * f));
                let both = applied(&|x| subtract_and_scale(x, &b, prime.factor(factor), q));
                prop_assert_eq!(both, each(&|a, b, _, _| (a + wide_q - b) * f));
                prop_assert_eq!(product(&a, &b, r), each(&|a, b, _, _| a * b));
                prop_assert_eq!(cross(&a, &b, &c, &d, r), each(&|a, b, c, d| a * b + c * d));
                let [x, y] = dots(&[&a, &b], &[&b, &c], &[&c, &d], r);
                prop_assert_eq!(x, each(&|a, b, c, _| a * b + b * c));
                prop_assert_eq!(y, each(&|a, b, c, d| a * c + b * d));
                // One term more than are added at a time.
                let [x, y] = dots(&[&a, &b, &c, &d, &a], &[&b, &c, &d, &a, &a], &[&d, &d, &d, &d, &d], r);
                prop_assert_eq!(x, each(&|a, b, c, d| (a * b + b * c + c * d) % wide_q + d * a + a * a));
                prop_assert_eq!(y, each(&|a, b, c, d| (2 * (a * d % wide_q) + b * d) % wide_q + c * d + d * d));
                prop_assert_eq!(combined(&[&a, &b], &[f as u64, 3], r), each(&|a, b, _, _| a * f + 3 * b));
                let above: Row = a.iter().zip(&b).map(|(a, b)| a + (q - 1) * (b & 1)).collect();
                let carried = carried(&above, c[0], q);
                for (i, x) in carried.iter().enumerate() {
                    prop_assert_eq!(*x, (above[i] % q + q - c[0]) % q);
                }
                let small: Row = a.iter().map(|a| a % 65_537).collect();
                for (x, y) in small.iter().zip(&centred(&small, 65_537, q)) {
                    prop_assert_eq!(*y, if *x > 32_768 { q - (65_537 - x) } else { *x });
                }
            }
        }
    }

    /// The longest sums of the parameters: 32 products of 60 bits, 11 of 61, and for the narrow prime all that fit.
    #[test]
    fn the_longest_sums_fit() {
        for (prime, terms) in primes().into_iter().zip([4096, 32, 32, 11]) {
            let row = vec![prime.q - 1; 8];
            let rows = vec![row.as_slice(); terms];
            let [x, y] = dots(&rows, &rows, &rows, prime.reducer);
            assert!(x == y && x[..] == [terms as u64; 8]);
            assert_eq!(combined(&rows, &vec![prime.q - 1; terms], prime.reducer)[..], [terms as u64; 8]);
        }
    }
}
