//! Conversions of an update's values between their own size and whole steps: divide, cut, round, and back.
//!
//! Sums are added in one order, so that all machines get the same result to the bit. Nothing here is secret.

use crate::memory::{SHARED, check_runs, runs, zeros};
use crate::prf::{CHUNK_BLOCKS, Prf, prefix};
use crate::{Error, Result};
use multiversion::multiversion;
use rayon::prelude::*;

/// Values whose sum is added up by itself.
const SUMMED: usize = 1 << 16;

/// All `arrays` in a row, each divided by its own number.
pub fn divided(arrays: &[&[f32]], divisors: &[f32]) -> Result<Vec<f32>> {
    if arrays.len() != divisors.len() {
        return Err(Error::layout(format!("{} arrays and {} divisors", arrays.len(), divisors.len())));
    }
    let mut made = zeros(arrays.iter().map(|x| x.len()).sum());
    let lengths = arrays.iter().map(|x| x.len());
    for ((to, from), divisor) in runs(&mut made, lengths).zip(arrays).zip(divisors) {
        let parts = to.par_chunks_mut(SHARED).zip(from.par_chunks(SHARED));
        parts.for_each(|(to, from)| divide(from, *divisor, to));
    }
    Ok(made)
}

#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn divide(from: &[f32], divisor: f32, to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from / divisor;
    }
}

/// How many values of each run of these `lengths` are beyond the run's end, of either sign.
pub fn beyond(values: &[f32], lengths: &[usize], ends: &[f32]) -> Result<Vec<usize>> {
    check_runs(values.len(), lengths, ends.len())?;
    let mut rest = values;
    let counted = lengths.iter().zip(ends).map(|(length, end)| {
        let (run, behind) = rest.split_at(*length);
        rest = behind;
        run.par_chunks(SUMMED).map(|run| beyond_part(run, *end)).sum()
    });
    Ok(counted.collect())
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn beyond_part(values: &[f32], end: f32) -> usize {
    values.iter().map(|value| u32::from(value.abs() > end)).sum::<u32>() as usize
}

/// Cuts the values of each run of these `lengths` to the run's end. Returns the part cut from each value.
pub fn cut(values: &mut [f32], lengths: &[usize], ends: &[f32]) -> Result<Vec<f32>> {
    check_runs(values.len(), lengths, ends.len())?;
    let mut over = zeros(values.len());
    let runs = runs(values, lengths.iter().copied()).zip(runs(&mut over, lengths.iter().copied()));
    for ((values, over), end) in runs.zip(ends) {
        let parts = values.par_chunks_mut(SHARED).zip(over.par_chunks_mut(SHARED));
        parts.for_each(|(values, over)| cut_part(values, *end, over));
    }
    Ok(over)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn cut_part(values: &mut [f32], end: f32, over: &mut [f32]) {
    for (value, over) in values.iter_mut().zip(over) {
        let held = value.min(end).max(-end);
        (*over, *value) = (*value - held, held);
    }
}

/// Multiplies `values` in double precision. Results beyond single precision are clamped to its range.
pub fn multiply(values: &mut [f32], factor: f64) {
    values.par_chunks_mut(SHARED).for_each(|values| multiply_part(values, factor));
}

#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn multiply_part(values: &mut [f32], factor: f64) {
    const MAX_VALUE: f64 = f32::MAX as f64;
    for value in values {
        *value = (f64::from(*value) * factor).clamp(-MAX_VALUE, MAX_VALUE) as f32;
    }
}

/// The sum of products of as many values.
pub fn dot(x: &[f32], y: &[f32]) -> Result<f64> {
    if x.len() != y.len() {
        return Err(Error::layout(format!("{} values beside {}", x.len(), y.len())));
    }
    let sums: Vec<f64> = x.par_chunks(SUMMED).zip(y.par_chunks(SUMMED)).map(|(x, y)| products(x, y)).collect();
    Ok(sums.iter().sum())
}

/// Rounds finite `values` to whole steps: to the nearest, or at random to one of the two neighbours, which is unbiased.
/// Both take the same work, because a client's choice between them depends on its values. The draws are those of
/// `stream` under a `seed`. The seed need not be secret, so that a run can be repeated to the bit.
pub fn whole_steps(values: &mut [f32], step: f64, at_random: bool, seed: [u8; 16], stream: u32) -> Result<()> {
    const LANES: usize = CHUNK_BLOCKS * 4;
    let prf = Prf::new(&seed)?;
    let prefix = prefix(0, stream);
    values.par_chunks_mut(LANES).enumerate().for_each(|(k, values)| {
        let mut blocks = [[0u8; 16]; CHUNK_BLOCKS];
        prf.blocks(prefix, (k * CHUNK_BLOCKS) as u32, &mut blocks);
        to_steps(values, blocks.as_flattened().as_chunks::<4>().0, step, if at_random { 1.0 } else { 0.0 });
    });
    Ok(())
}

// SSE4.1 has an instruction for floor. Without it, floor branches on its argument.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma", "x86_64+sse4.1"))]
fn to_steps(values: &mut [f32], draws: &[[u8; 4]], step: f64, share: f64) {
    for (value, draw) in values.iter_mut().zip(draws) {
        // The draw over 2^32 lies in [0, 1).
        let shift = f64::from(u32::from_le_bytes(*draw)) / 4_294_967_296.0 * share + 0.5 * (1.0 - share);
        *value = ((f64::from(*value) / step + shift).floor() * step) as f32;
    }
}

/// The mean square of `values`, to the bit the same on every machine: added in one order.
#[must_use]
pub fn mean_square(values: &[f32]) -> f64 {
    let sums: Vec<f64> = values.par_chunks(SUMMED).map(|values| products(values, values)).collect();
    sums.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean squares of `values`, of their nearest whole steps, and of the differences; to the bit as [`mean_square`].
#[must_use]
pub fn nearest_squares(values: &[f32], step: f64) -> [f64; 3] {
    let sums: Vec<[f64; 3]> = values.par_chunks(SUMMED).map(|values| step_squares(values, step)).collect();
    [0, 1, 2].map(|k| sums.iter().map(|sum| sum[k]).sum::<f64>() / values.len().max(1) as f64)
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2", "x86_64+sse4.1"))]
fn step_squares(values: &[f32], step: f64) -> [f64; 3] {
    const LANES: usize = 16;
    let mut sums = [[0f64; LANES]; 3];
    let mut add = |lane: usize, value: f32| {
        let value = f64::from(value);
        let nearest = (value / step + 0.5).floor() * step;
        sums[0][lane] += value * value;
        sums[1][lane] += nearest * nearest;
        sums[2][lane] += (nearest - value) * (nearest - value);
    };
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        (0..LANES).for_each(|lane| add(lane, group[lane]));
    }
    rest.iter().enumerate().for_each(|(lane, value)| add(lane, *value));
    sums.map(|lanes| lanes.iter().sum())
}

#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn products(x: &[f32], y: &[f32]) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0f64; LANES];
    let ((groups, rest), (others, behind)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in groups.iter().zip(others) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += f64::from(x[lane]) * f64::from(y[lane]);
        }
    }
    for ((sum, x), y) in sums.iter_mut().zip(rest).zip(behind) {
        *sum += f64::from(*x) * f64::from(*y);
    }
    sums.iter().sum()
}
