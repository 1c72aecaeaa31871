//! A client's share of noise for differential privacy, added to its integers before they are encrypted.
//!
//! The update is cut to an L2 norm and rounded to the codec's grid by conditional stochastic rounding (Kairouz, Liu and
//! Steinke, ICML 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation").
//! Then discrete Gaussian noise is added (Canonne, Kamath and Steinke, NeurIPS 2020, "The Discrete Gaussian for
//! Differential Privacy", algorithms 1 to 3). The norm is checked and the noise is drawn in integers, so that no rounding
//! of floats weakens the guarantee. `python/fedcipher/dp.py` chooses the parameters.

use crate::bounds::max_level;
use crate::codec::Layout;
use crate::prf::Stream;
use crate::threads::Threads;
use crate::{Error, Result};
use rayon::prelude::*;

/// Elements that draw from one stream of randomness. The result does not depend on the number of threads.
const CHUNK: usize = 1 << 14;

/// The number of tries to round an update. Each try exceeds the norm with a probability below 10^-6 (`dp.py`).
const TRIES: u32 = 16;

/// Largest numerator of a variance: products below stay within 127 bits.
const MAX_NUMERATOR: u64 = 1 << 44;

/// `N_Z(0, sigma^2)`: integers x with a probability proportional to `exp(-x^2 / (2 sigma^2))`.
#[derive(Debug, Clone, Copy)]
pub struct DiscreteGaussian {
    /// sigma^2 is `numerator / denominator`.
    numerator: u128,
    denominator: u128,
    /// floor(sigma) + 1: scale of the discrete Laplace proposals.
    scale: u64,
}

impl DiscreteGaussian {
    /// A sampler of variance `numerator / 2^shift`, at least 1/4.
    pub fn new(numerator: u64, shift: u32) -> Result<Self> {
        let denominator = 1u128.checked_shl(shift).filter(|d| *d <= 4 * u128::from(numerator));
        let Some(denominator) = denominator.filter(|_| (1..=MAX_NUMERATOR).contains(&numerator)) else {
            return Err(Error::parameter(
                "sigma",
                format!("the variance {numerator} / 2^{shift} is below 1/4 or has more than 44 bits"),
            ));
        };
        let numerator = u128::from(numerator);
        Ok(DiscreteGaussian { numerator, denominator, scale: ((numerator / denominator).isqrt() + 1) as u64 })
    }

    /// Draws one integer exactly (algorithm 3). The time depends only on the drawn value.
    pub fn sample(&self, random: &mut Stream) -> i64 {
        loop {
            let proposal = laplace(random, self.scale);
            // (|y| - sigma^2 / t)^2 / (2 sigma^2), as a fraction.
            let (n, m, t) = (self.numerator, self.denominator, u128::from(self.scale));
            let distance = (u128::from(proposal.unsigned_abs()) * m * t).abs_diff(n);
            if exp_of_minus(random, distance.saturating_mul(distance), 2 * n * m * t * t) {
                return proposal;
            }
        }
    }
}

/// Draws from the discrete Laplace distribution with an integer scale (algorithm 2).
fn laplace(random: &mut Stream, scale: u64) -> i64 {
    loop {
        let low = random.below(scale);
        if !exp_of_minus(random, low.into(), scale.into()) {
            continue;
        }
        let mut high = 0u64;
        while exp_of_minus(random, 1, 1) {
            high += 1;
        }
        let magnitude = (low + scale * high) as i64;
        let negative = random.next_u64() & 1 == 1;
        if !(negative && magnitude == 0) {
            return if negative { -magnitude } else { magnitude };
        }
    }
}

/// True with probability exp(-a / b) (algorithm 1).
fn exp_of_minus(random: &mut Stream, mut a: u128, b: u128) -> bool {
    while a > b {
        if !exp_of_minus_fraction(random, 1, 1) {
            return false;
        }
        a -= b;
    }
    exp_of_minus_fraction(random, a, b)
}

/// Like [`exp_of_minus`], for a <= b.
fn exp_of_minus_fraction(random: &mut Stream, a: u128, b: u128) -> bool {
    let mut k = 1u128;
    while fraction(random, a, b * k) {
        k += 1;
    }
    k % 2 == 1
}

/// True with probability a / b, for a <= b < 2^126. Compares a / b with a uniform number, which is drawn 64 bits at a
/// time until the comparison is decided.
fn fraction(random: &mut Stream, mut a: u128, b: u128) -> bool {
    loop {
        let word = u128::from(random.next_u64());
        let low = word * (b & u128::from(u64::MAX));
        // word * b is `high * 2^64 + low`.
        let (high, low) = (word * (b >> 64) + (low >> 64), low & u128::from(u64::MAX));
        let Some(gap) = a.checked_sub(high).filter(|gap| *gap > 0) else { return false };
        if gap >> 63 != 0 {
            return true;
        }
        // a * 2^64 - word * b: the remainder of a, in units of this word.
        let rest = (gap << 64) - low;
        if rest >= b {
            return true;
        }
        a = rest;
    }
}

/// The limits of one client's update.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest L2 norm, in the update's own unit.
    pub clip: f64,
    /// Largest square of the norm after rounding, in steps of the grid.
    pub square: u64,
}

/// An update with its noise.
#[derive(Debug)]
pub struct Noised {
    /// All tensors' values in one list, on the grid. [`crate::codec::Update`] quantises them to exactly the noisy
    /// integers.
    pub values: Vec<f32>,
    /// The number of values of each tensor that had to be cut to the range.
    pub cut: Vec<u64>,
    /// L2 norm before the update was cut. The norm is private.
    pub norm: f64,
}

/// Cuts `tensors` to `limits`, rounds them to the grid of `layout` and adds noise drawn with `key`. A key must be used
/// once only.
///
/// All tensors must have the same bits and range. Values beyond the range are cut and counted.
pub fn noised(
    layout: &Layout,
    tensors: &[&[f32]],
    limits: Limits,
    gaussian: &DiscreteGaussian,
    key: &[u8; 32],
) -> Result<Noised> {
    let (bits, alpha) = checked(layout, tensors)?;
    let mut values = tensors.concat();
    let threads = Threads::for_elements(values.len());
    let square = |(_, chunk): (usize, &[f32])| chunk.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let norm = shared(threads, values.chunks(CHUNK).collect(), square).into_iter().sum::<f64>().sqrt();
    let half = (max_level(bits) / 2) as i64;
    let step = f64::from(alpha) / half as f64;
    let rounded = rounded(&values, limits.scale(norm) / step, limits.square, threads, key)?;
    let add = |(index, (integers, out)): (usize, (&[i32], &mut [f32]))| {
        let mut random = stream(key, 0, index)?;
        let mut cut = Vec::new();
        for (k, (x, out)) in integers.iter().zip(out).enumerate() {
            let noisy = i64::from(*x) + gaussian.sample(&mut random);
            let kept = noisy.clamp(-half, half);
            if kept != noisy {
                cut.push(index * CHUNK + k);
            }
            *out = (kept as f64 * step) as f32;
        }
        Ok(cut)
    };
    let jobs = rounded.chunks(CHUNK).zip(values.chunks_mut(CHUNK)).collect();
    let beyond = shared(threads, jobs, add).into_iter().collect::<Result<Vec<_>>>()?.concat();
    let mut cut = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.len();
        cut.push(beyond.iter().filter(|at| (start..end).contains(*at)).count() as u64);
    }
    Ok(Noised { values, cut, norm })
}

impl Limits {
    /// The factor that cuts an update of this norm to the limit.
    fn scale(self, norm: f64) -> f64 {
        if norm > self.clip { self.clip / norm } else { 1.0 }
    }
}

/// The bits and the range of all tensors of `layout`. Fails if they differ, or if `tensors` do not fit the layout or are
/// not finite.
fn checked(layout: &Layout, tensors: &[&[f32]]) -> Result<(u32, f32)> {
    let described = layout.tensors();
    let lengths = described.iter().map(crate::codec::Tensor::len);
    if !lengths.eq(tensors.iter().map(|x| x.len())) {
        return Err(Error::layout("the lengths of the tensors are not the lengths in the layout"));
    }
    let (bits, alpha) = described.first().map(|t| (t.bits, t.alpha)).ok_or_else(|| Error::layout("no tensors"))?;
    if described.iter().any(|t| (t.bits, t.alpha) != (bits, alpha)) {
        return Err(Error::layout("noise needs one grid: the same bits and range for all tensors"));
    }
    for (tensor, x) in tensors.iter().enumerate() {
        if let Some(index) = x.iter().position(|v| !v.is_finite()) {
            return Err(Error::NotFinite { tensor, index, value: x[index] });
        }
    }
    Ok((bits, alpha))
}

/// Rounds each of `values * scale` to one of its two neighbouring integers, without bias (conditional stochastic
/// rounding). Repeats this until the square of their norm is at most `max_square`.
fn rounded(values: &[f32], scale: f64, max_square: u64, threads: Threads, key: &[u8; 32]) -> Result<Vec<i32>> {
    let mut out = vec![0i32; values.len()];
    for purpose in 1..=TRIES {
        let round = |(index, (x, out)): (usize, (&[f32], &mut [i32]))| {
            let mut random = stream(key, purpose, index)?;
            let mut square = 0u64;
            for (x, out) in x.iter().zip(out) {
                let exact = f64::from(*x) * scale;
                let below = exact.floor();
                let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                *out = below as i32 + i32::from(uniform < exact - below);
                square = square.saturating_add(u64::from(out.unsigned_abs()).pow(2));
            }
            Ok(square)
        };
        let jobs = values.chunks(CHUNK).zip(out.chunks_mut(CHUNK)).collect();
        let squares = shared(threads, jobs, round).into_iter().collect::<Result<Vec<u64>>>()?;
        if squares.into_iter().fold(0, u64::saturating_add) <= max_square {
            return Ok(out);
        }
    }
    Err(Error::layout(format!("{TRIES} roundings of an update all exceed its norm: the bound does not fit the range")))
}

/// The randomness of a chunk. Purpose 0 is the noise; the other purposes are the tries to round.
fn stream(key: &[u8; 32], purpose: u32, chunk: usize) -> Result<Stream> {
    let mut prefix = [0u8; 12];
    prefix[..4].copy_from_slice(&purpose.to_be_bytes());
    prefix[4..].copy_from_slice(&(chunk as u64).to_be_bytes());
    Stream::new(key, prefix)
}

/// Runs `work` on each job with its index, on one thread or all.
fn shared<T: Send, R: Send>(threads: Threads, jobs: Vec<T>, work: impl Fn((usize, T)) -> R + Send + Sync) -> Vec<R> {
    match threads {
        Threads::One => jobs.into_iter().enumerate().map(work).collect(),
        Threads::All => jobs.into_par_iter().enumerate().map(work).collect(),
    }
}
