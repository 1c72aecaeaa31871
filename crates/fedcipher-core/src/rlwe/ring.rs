//! `Z_q[X]/(X^n + 1)` with q a product of one or two NTT primes, and the samplers over it.
//!
//! Coefficients are integers mod the composite q, which has at most 106 bits, so a `u128` holds sums. Residues appear only
//! around a transform. So the online path takes one addition and no reduction.

use super::ntt::Ntt;
use crate::prf::{CHUNK_BLOCKS, Prf, Stream};
use crate::shown::shown;
use crate::{Error, Result};
use multiversion::multiversion;
use zeroize::Zeroizing;

/// The largest modulus, in bits, for 128-bit security with a ternary secret under every attack and cost model of
/// docs/reference/parameters.md, including the lattice estimator's default (MATZOV, 2022). The HomomorphicEncryption.org
/// standard (2018, table 1) allows 54 and 109 bits, which give 126 and 125 bits of security under that model.
pub fn max_log_q(n: usize) -> Option<u32> {
    match n {
        2048 => Some(53),
        4096 => Some(106),
        _ => None,
    }
}

/// A centred binomial distribution: the difference of two sums of `0` fair bits. sigma = sqrt(eta / 2), and no draw
/// exceeds eta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binomial(u32);

impl Binomial {
    /// The errors under a long-lived secret: sigma = 3.24 >= 3.19.
    pub const ERROR: Binomial = Binomial(21);
    /// Secrets and errors whose sum is revealed: sigma = 4.58, which the revealed sum reduces (`crate::oneshot`).
    pub const SUMMED: Binomial = Binomial(42);

    /// The largest draw.
    #[must_use]
    pub fn bound(self) -> u128 {
        u128::from(self.0)
    }

    /// Draws `count` independent values.
    #[must_use]
    pub fn draws(self, stream: &mut Stream, count: usize) -> Zeroizing<Vec<i8>> {
        const RUN: usize = 256;
        let mut out = Zeroizing::new(vec![0; count]);
        let [mut words, mut others] = [(); 2].map(|()| Zeroizing::new([0; RUN]));
        for run in out.chunks_mut(RUN) {
            stream.fill(&mut words[..run.len()]);
            if self.0 > 32 {
                stream.fill(&mut others[..run.len()]);
            } else {
                words.iter().zip(others.iter_mut()).for_each(|(word, other)| *other = word >> self.0);
            }
            ones(words.as_slice(), others.as_slice(), (1 << self.0) - 1, run);
        }
        out
    }
}

/// For each pair of words: the number of set bits in `mask` of the first, less that of the second.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512vpopcntdq", "x86_64+popcnt"))]
fn ones(words: &[u64], others: &[u64], mask: u64, out: &mut [i8]) {
    for ((word, other), out) in words.iter().zip(others).zip(out) {
        *out = (word & mask).count_ones() as i8 - (other & mask).count_ones() as i8;
    }
}

/// Adds words mod p. Returns false and adds nothing if one of the words is not below p. For the primes of 53 bits this
/// is very rare.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn add_uniform(words: &[[u8; 8]], mask: u64, p: u64, acc: &mut [u64]) -> bool {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) & mask;
    if words.iter().fold(false, |beyond, bytes| beyond | (word(bytes) >= p)) {
        return false;
    }
    for (sum, bytes) in acc.iter_mut().zip(words) {
        *sum = back_below((*sum + word(bytes)).wrapping_sub(p), p);
    }
    true
}

/// A ring with its transforms.
pub struct Ring {
    pub n: usize,
    pub primes: Vec<u64>,
    pub q: u128,
    ntts: Vec<Ntt>,
    /// `primes[0]^-1 mod primes[1]` when there are two.
    inverse: Option<Shoup>,
}

/// Multiplication by a constant mod p < 2^63 without division (Shoup).
#[derive(Debug, Clone, Copy)]
struct Shoup {
    value: u64,
    quotient: u64,
    p: u64,
}

impl Shoup {
    fn new(value: u64, p: u64) -> Self {
        Shoup { value, quotient: ((u128::from(value) << 64) / u128::from(p)) as u64, p }
    }

    fn mul(self, x: u64) -> u64 {
        let q = ((u128::from(x) * u128::from(self.quotient)) >> 64) as u64;
        let r = x.wrapping_mul(self.value).wrapping_sub(q.wrapping_mul(self.p));
        back_below(r.wrapping_sub(self.p), self.p)
    }
}

/// `x + p` if x is negative (as a signed number), else `x`.
fn back_below(x: u64, p: u64) -> u64 {
    x.wrapping_add(p & (x as i64 >> 63) as u64)
}

fn power(mut base: u64, mut exponent: u64, p: u64) -> u64 {
    let mul = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(p)) as u64;
    let mut out = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            out = mul(out, base);
        }
        base = mul(base, base);
        exponent >>= 1;
    }
    out
}

impl Ring {
    pub fn new(n: usize, primes: &[u64]) -> Result<Self> {
        let q: u128 = primes.iter().map(|p| u128::from(*p)).product();
        let bits = 128 - q.leading_zeros();
        if max_log_q(n).is_none_or(|max| bits > max) || primes.is_empty() || primes.len() > 2 {
            return Err(Error::Parameter {
                name: "q",
                reason: format!(
                    "log q = {bits} with N = {n} has no 128 bits of security; take at most 53 bits at N = 2048, 106 \
                     at N = 4096"
                ),
            });
        }
        let ntts = primes.iter().map(|p| Ntt::new(n, *p)).collect::<Result<_>>()?;
        let inverse = match primes {
            [first, second] => Some(Shoup::new(power(first % second, second - 2, *second), *second)),
            _ => None,
        };
        Ok(Ring { n, primes: primes.to_vec(), q, ntts, inverse })
    }

    /// Bits of the largest coefficient.
    #[must_use]
    pub fn log_q(&self) -> u32 {
        128 - self.q.leading_zeros()
    }

    /// `x + q` if x is negative (as a signed number), else `x`. A comparison would be compiled into a branch that depends
    /// on secrets.
    fn back(&self, x: u128) -> u128 {
        x.wrapping_add(self.q & (x as i128 >> 127) as u128)
    }

    #[must_use]
    pub fn add(&self, a: u128, b: u128) -> u128 {
        self.back((a + b).wrapping_sub(self.q))
    }

    #[must_use]
    pub fn sub(&self, a: u128, b: u128) -> u128 {
        self.back(a.wrapping_sub(b))
    }

    /// `a * scalar mod q` for a public scalar (double and add).
    #[must_use]
    pub fn scale(&self, mut a: u128, mut scalar: u64) -> u128 {
        let mut out = 0;
        while scalar > 0 {
            if scalar & 1 == 1 {
                out = self.add(out, a);
            }
            a = self.add(a, a);
            scalar >>= 1;
        }
        out
    }

    /// The integer mod q with these residues (Garner).
    fn compose(&self, residues: &[Zeroizing<Vec<u64>>], k: usize) -> u128 {
        let low = residues[0][k];
        let Some(inverse) = self.inverse else {
            return u128::from(low);
        };
        let (first, second) = (self.primes[0], inverse.p);
        // The fold subtracts at most once for the primes used here.
        let below = |low: u64, _| back_below(low.wrapping_sub(second), second);
        let reduced = (0..first / second).fold(low, below);
        let high = residues[1][k];
        let difference = back_below(high.wrapping_sub(reduced), second);
        u128::from(low) + u128::from(first) * u128::from(inverse.mul(difference))
    }

    /// A ternary secret from the operating system, one byte a coefficient: 0, 1 or 255 for -1.
    pub fn secret(&self) -> Result<Zeroizing<Vec<u8>>> {
        let mut stream = Stream::from_os()?;
        Ok(Zeroizing::new((0..self.n).map(|_| (stream.below(3) as u8).wrapping_sub(1)).collect()))
    }

    /// The secret in the transform domain.
    pub fn secret_ntt(&self, secret: &[u8]) -> Result<SecretNtt> {
        // All coefficients are checked: the end of a search would reveal something about the secret.
        let wrong = secret.iter().fold(false, |wrong, c| wrong | (c.wrapping_add(1) > 2));
        if secret.len() != self.n || shown(wrong) {
            return Err(Error::Key { reason: format!("a BFV key has {} ternary coefficients", self.n) });
        }
        let signed = Zeroizing::new(secret.iter().map(|c| i32::from(*c as i8)).collect::<Vec<_>>());
        Ok(self.transformed(&signed))
    }

    /// Transforms small numbers, which must be below the primes.
    #[must_use]
    pub fn transformed(&self, small: &[i32]) -> SecretNtt {
        let transform = |(p, ntt): (&u64, &Ntt)| {
            // -1 becomes p - 1 without a branch on the secret.
            let lift = |c: &i32| {
                let wide = i64::from(*c);
                (wide as u64).wrapping_add(p & (wide >> 63) as u64)
            };
            let mut s = Zeroizing::new(small.iter().map(lift).collect::<Vec<_>>());
            ntt.forward(&mut s);
            s
        };
        SecretNtt(self.primes.iter().zip(&self.ntts).map(transform).collect())
    }

    /// Converts a small number to a coefficient mod q.
    #[must_use]
    pub fn lift(&self, e: i8) -> u128 {
        self.back(i128::from(e) as u128)
    }

    /// Adds `scale * a` to residue accumulators. Here a is the public polynomial number `index` of `seed`: uniform mod
    /// each prime, from AES-256-CTR with rejection.
    pub fn accumulate_a(&self, seed: &[u8; 32], index: u64, scale: u64, acc: &mut [Zeroizing<Vec<u64>>]) -> Result<()> {
        let prf = Prf::new(seed)?;
        let mut blocks = [[0u8; 16]; CHUNK_BLOCKS];
        for (limb, (p, acc)) in self.primes.iter().zip(acc).enumerate() {
            let mask = u64::MAX >> p.leading_zeros();
            let factor = (scale != 1).then(|| Shoup::new(scale % p, *p));
            let mut prefix = [0u8; 12];
            prefix[..8].copy_from_slice(&index.to_be_bytes());
            prefix[8..].copy_from_slice(&(limb as u32).to_be_bytes());
            let (mut k, mut block) = (0, 0u32);
            while k < self.n {
                prf.blocks(prefix, block, &mut blocks);
                block += CHUNK_BLOCKS as u32;
                let (words, _) = blocks.as_flattened().as_chunks::<8>();
                let run = words.len().min(self.n - k);
                if factor.is_none() && add_uniform(&words[..run], mask, *p, &mut acc[k..k + run]) {
                    k += run;
                    continue;
                }
                for word in words {
                    let a = u64::from_le_bytes(*word) & mask;
                    if a < *p && k < self.n {
                        let a = factor.map_or(a, |f| f.mul(a));
                        let sum = acc[k] + a;
                        acc[k] = back_below(sum.wrapping_sub(*p), *p);
                        k += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Residue accumulators of zero.
    #[must_use]
    pub fn zero(&self) -> Vec<Zeroizing<Vec<u64>>> {
        self.primes.iter().map(|_| Zeroizing::new(vec![0; self.n])).collect()
    }

    /// The first `used` coefficients mod q of `a * s`; `a` is consumed.
    #[must_use]
    pub fn times_secret(
        &self,
        mut a: Vec<Zeroizing<Vec<u64>>>,
        secret: &SecretNtt,
        used: usize,
    ) -> Zeroizing<Vec<u128>> {
        for ((a, s), ntt) in a.iter_mut().zip(&secret.0).zip(&self.ntts) {
            ntt.forward(a);
            ntt.inverse_product(a, s);
        }
        Zeroizing::new((0..used).map(|k| self.compose(&a, k)).collect())
    }
}

/// A secret key in the transform domain of each prime; zeroised when dropped.
pub struct SecretNtt(Vec<Zeroizing<Vec<u64>>>);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use proptest::prelude::*;

    /// Primes with transforms of N = 2048. A third of the words of its bits are not below the first prime; nearly all
    /// words are below the second.
    const PRIMES: [u64; 2] = [40_961, 1_125_899_906_826_241];

    proptest! {
        #[test]
        fn public_polynomials_are_the_stream_without_what_is_not_below_p(
            seed: [u8; 32], index: u64, scale in 1u64..=9, which in 0..2usize,
        ) {
            let (n, p) = (2048, PRIMES[which]);
            let ring = Ring::new(n, &[p]).unwrap();
            let (mut prefix, bits) = ([0u8; 12], 64 - p.leading_zeros());
            prefix[..8].copy_from_slice(&index.to_be_bytes());
            let mut stream = Stream::new(&seed, prefix).unwrap();
            let words = std::iter::repeat_with(|| stream.next_u64() & ((1 << bits) - 1));
            let want: Vec<u64> = words.filter(|a| *a < p).take(n).map(|a| (p - 3 + a * scale % p) % p).collect();
            let mut acc = ring.zero();
            acc[0].fill(p - 3);
            ring.accumulate_a(&seed, index, scale, &mut acc).unwrap();
            prop_assert_eq!(&*acc[0], &want);
        }

        #[test]
        fn words_come_alike_one_by_one_and_many_at_once(seed: [u8; 32], runs in prop::collection::vec(0usize..1500, 1..6)) {
            let [mut one, mut many] = [(); 2].map(|()| Stream::new(&seed, [7; 12]).unwrap());
            for run in runs {
                let mut words = vec![0; run];
                many.fill(&mut words);
                prop_assert!(words.iter().all(|word| *word == one.next_u64()));
                prop_assert_eq!(many.next_u64(), one.next_u64());
            }
        }
    }
}
