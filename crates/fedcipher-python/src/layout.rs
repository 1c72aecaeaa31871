//! Descriptions of arrays and of their values.

use crate::errors::raise;
use crate::forked::at_work;
use fedcipher_core::Error;
use fedcipher_core::bounds::Levels as Core;
use fedcipher_core::codec::{self, Rounding, Tensor, Update};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

/// The public description of an update's arrays: `Layout([(dtype_code, bits, alpha, shape), ...])`.
#[pyclass(frozen, eq, module = "fedcipher._native")]
#[derive(Clone, PartialEq)]
pub struct Layout(pub codec::Layout);

#[pymethods]
impl Layout {
    #[new]
    fn new(tensors: Vec<(u8, u32, f32, Vec<u32>)>) -> PyResult<Self> {
        let tensors =
            tensors.into_iter().map(|(dtype, bits, alpha, shape)| Tensor { dtype, bits, alpha, shape }).collect();
        codec::Layout::new(tensors).map(Layout).map_err(raise)
    }

    #[getter]
    fn tensors(&self) -> Vec<(u8, u32, f32, Vec<u32>)> {
        self.0.tensors().iter().map(|t| (t.dtype, t.bits, t.alpha, t.shape.clone())).collect()
    }

    #[getter]
    fn elements(&self) -> usize {
        self.0.elements()
    }

    /// Quantises flat float32 arrays. Returns (uint32 array, clipped count per tensor). ``levels`` defaults to the
    /// levels of the bits alone.
    #[pyo3(signature = (arrays, stochastic = false, levels = None))]
    fn quantise<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<PyReadonlyArray1<'py, f32>>,
        stochastic: bool,
        levels: Option<&Levels>,
    ) -> PyResult<(Bound<'py, PyArray1<u32>>, Vec<u64>)> {
        let (slices, levels) = (slices(&arrays)?, levels.map(|found| found.0).unwrap_or_default());
        let (ints, clipped) = at_work(py, || {
            let update = Update::new(&self.0, slices, rounding(stochastic)?)?;
            let mut ints = vec![0u32; self.0.elements()];
            update.quantise(levels, 0, &mut ints)?;
            Ok((ints, update.clipped()))
        })
        .map_err(raise)?;
        Ok((ints.into_pyarray(py), clipped))
    }
}

/// The numbers of quantisation levels of values, by their bits.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Levels(pub Core);

#[pymethods]
impl Levels {
    /// The levels of the bits alone, `2^bits - 2`. A scheme has more levels if the fields of its sums have room.
    #[new]
    fn new() -> Self {
        Levels(Core::default())
    }

    /// The largest integer of a value of `bits` bits. Half of it stands for zero.
    fn of(&self, bits: u32) -> PyResult<u64> {
        if codec::BITS.contains(&bits) {
            return Ok(self.0.of(bits));
        }
        Err(raise(Error::Parameter { name: "bits", reason: format!("{bits} is outside 2..=24") }))
    }
}

pub fn slices<'a>(arrays: &'a [PyReadonlyArray1<'_, f32>]) -> PyResult<Vec<&'a [f32]>> {
    arrays.iter().map(|a| Ok(a.as_slice()?)).collect()
}

pub fn rounding(stochastic: bool) -> fedcipher_core::Result<Rounding> {
    if stochastic { Rounding::stochastic() } else { Ok(Rounding::Nearest) }
}
