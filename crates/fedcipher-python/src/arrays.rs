//! Passes over arrays of float32.

use crate::errors::raise;
use crate::forked::at_work;
use crate::layout::{Layout, slices};
use fedcipher_core::codec;
use fedcipher_core::rotation::Rotation;
use fedcipher_core::{memory, noise, prf, steps};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use rayon::prelude::*;

/// An update with a client's share of noise: (flat float32 values on the grid of `layout`, values cut per tensor, L2
/// norm before it was cut to `clip`). `square` bounds the square of the norm after rounding, in steps; the variance
/// is `numerator / 2^shift` square steps. Only tests give a `key`; the default is random.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the Python signature, one to one")]
#[allow(clippy::type_complexity, reason = "one tuple for one thin call")]
#[pyo3(signature = (layout, arrays, clip, square, numerator, shift, key = None))]
pub fn add_noise<'py>(
    py: Python<'py>,
    layout: &Layout,
    arrays: Vec<PyReadonlyArray1<'py, f32>>,
    clip: f64,
    square: u64,
    numerator: u64,
    shift: u32,
    key: Option<[u8; 32]>,
) -> PyResult<(Bound<'py, PyArray1<f32>>, Vec<u64>, f64)> {
    let slices = slices(&arrays)?;
    let made = at_work(py, || {
        let gaussian = noise::DiscreteGaussian::new(numerator, shift)?;
        let fresh = prf::random_bytes::<32>()?;
        let key = key.as_ref().unwrap_or(&fresh);
        noise::noised(&layout.0, &slices, noise::Limits { clip, square }, &gaussian, key)
    });
    let noise::Noised { values, cut, norm } = made.map_err(raise)?;
    Ok((values.into_pyarray(py), cut, norm))
}

/// Blocks of AES-CTR under a public seed, from block `first` on. Rotations and rounding draw their randomness from
/// these.
#[pyfunction]
pub fn key_stream<'py>(
    py: Python<'py>,
    seed: [u8; 16],
    prefix: [u8; 12],
    first: u32,
    blocks: usize,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let made = at_work(py, || {
        let prf = prf::Prf::new(&seed)?;
        let mut stream = memory::zeros(16 * blocks);
        stream.par_chunks_mut(16 * prf::CHUNK_BLOCKS).enumerate().for_each(|(k, stream)| {
            prf.blocks(prefix, first.wrapping_add((k * prf::CHUNK_BLOCKS) as u32), stream.as_chunks_mut().0);
        });
        Ok(stream)
    });
    Ok(made.map_err(raise)?.into_pyarray(py))
}

/// Rotates values in place by the rotation of a public seed and this length, or rotates them back.
#[pyfunction]
pub fn rotate(py: Python<'_>, mut values: PyReadwriteArray1<'_, f32>, seed: [u8; 16], back: bool) -> PyResult<()> {
    let values = values.as_slice_mut()?;
    at_work(py, || {
        let rotation = Rotation::new(seed, values.len())?;
        if back {
            rotation.back(values);
        } else {
            rotation.forward(values);
        }
        Ok(())
    })
    .map_err(raise)
}

/// Concatenates the arrays, each divided by its own divisor.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
pub fn divided<'py>(
    py: Python<'py>,
    arrays: Vec<PyReadonlyArray1<'py, f32>>,
    divisors: Vec<f32>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let slices = slices(&arrays)?;
    Ok(at_work(py, || steps::divided(&slices, &divisors)).map_err(raise)?.into_pyarray(py))
}

/// Cuts the values of each run of these lengths to the run's end, in place. Returns the number of values cut per run,
/// of either sign, and the parts cut; None if nothing was cut.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity, reason = "what PyO3 extracts and one thin call gives")]
pub fn cut<'py>(
    py: Python<'py>,
    mut values: PyReadwriteArray1<'py, f32>,
    lengths: Vec<usize>,
    ends: Vec<f32>,
) -> PyResult<(Vec<usize>, Option<Bound<'py, PyArray1<f32>>>)> {
    let values = values.as_slice_mut()?;
    let made = at_work(py, || {
        let beyond = steps::beyond(values, &lengths, &ends)?;
        let some = beyond.iter().any(|count| *count > 0);
        let over = some.then(|| steps::cut(values, &lengths, &ends)).transpose()?;
        Ok((beyond, over))
    });
    let (beyond, over) = made.map_err(raise)?;
    Ok((beyond, over.map(|over| over.into_pyarray(py))))
}

/// Multiplies values in place, in double precision. Results beyond single precision are clamped to its range.
#[pyfunction]
pub fn multiply(py: Python<'_>, mut values: PyReadwriteArray1<'_, f32>, factor: f64) -> PyResult<()> {
    let values = values.as_slice_mut()?;
    at_work(py, || {
        steps::multiply(values, factor);
        Ok(())
    })
    .map_err(raise)
}

/// The sum of products, added in one order on every machine.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
pub fn dot(py: Python<'_>, x: PyReadonlyArray1<'_, f32>, y: PyReadonlyArray1<'_, f32>) -> PyResult<f64> {
    let (x, y) = (x.as_slice()?, y.as_slice()?);
    at_work(py, || steps::dot(x, y)).map_err(raise)
}

/// Multiplies values in place by `factor`, and then each run of these `lengths` by its range.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
pub fn scale(
    py: Python<'_>,
    mut values: PyReadwriteArray1<'_, f32>,
    factor: f64,
    lengths: Vec<usize>,
    ranges: Vec<f64>,
) -> PyResult<()> {
    let values = values.as_slice_mut()?;
    at_work(py, || codec::scale(values, factor as f32, &lengths, &ranges)).map_err(raise)
}

/// Rounds values in place to whole steps: to the nearest, or at random with draws of a stream. Both take the same
/// work.
#[pyfunction]
pub fn whole_steps(
    py: Python<'_>,
    mut values: PyReadwriteArray1<'_, f32>,
    step: f64,
    at_random: bool,
    seed: [u8; 16],
    stream: u32,
) -> PyResult<()> {
    let values = values.as_slice_mut()?;
    at_work(py, || steps::whole_steps(values, step, at_random, seed, stream)).map_err(raise)
}

/// The mean square, added in one order on every machine.
#[pyfunction]
pub fn mean_square(py: Python<'_>, values: PyReadonlyArray1<'_, f32>) -> PyResult<f64> {
    let values = values.as_slice()?;
    at_work(py, || Ok(steps::mean_square(values))).map_err(raise)
}

/// Mean squares of values, of their nearest whole steps, and of the differences, added in one order.
#[pyfunction]
pub fn nearest_squares(py: Python<'_>, values: PyReadonlyArray1<'_, f32>, step: f64) -> PyResult<[f64; 3]> {
    let values = values.as_slice()?;
    at_work(py, || Ok(steps::nearest_squares(values, step))).map_err(raise)
}
