//! The rule of sets, for Python.

use crate::errors::raise;
use fedcipher_core::sets::{self, Name};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The sets of clients whose sums may exist together.
#[pyclass(module = "fedcipher._native", eq)]
#[derive(PartialEq)]
pub struct SetMemory(sets::SetMemory);

#[pymethods]
impl SetMemory {
    #[new]
    fn new(k: u64) -> PyResult<Self> {
        sets::SetMemory::new(k).map(SetMemory).map_err(raise)
    }

    /// Restores a memory. `k` replaces the minimum in `data` for later sets. It does not lower the minimum of existing
    /// groups.
    #[staticmethod]
    #[pyo3(signature = (data, k = None))]
    fn from_bytes(data: &[u8], k: Option<u64>) -> PyResult<Self> {
        let memory = sets::SetMemory::from_bytes(data).map_err(raise)?;
        match k {
            Some(k) => memory.with_minimum(k).map(SetMemory).map_err(raise),
            None => Ok(SetMemory(memory)),
        }
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Records `set`. If it breaks the rule, raises `SetRuleError` and records nothing.
    #[pyo3(signature = (set, exempt = Vec::new()))]
    #[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
    fn admit(&mut self, set: Vec<Name>, exempt: Vec<Name>) -> PyResult<()> {
        self.0.admit(&set, &exempt).map_err(raise)
    }

    /// Raises the error that `admit` would raise for `sets`, one after another. Records nothing.
    #[pyo3(signature = (sets, exempt = Vec::new()))]
    #[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
    fn would_admit(&self, sets: Vec<Vec<Name>>, exempt: Vec<Name>) -> PyResult<()> {
        let sets: Vec<&[Name]> = sets.iter().map(Vec::as_slice).collect();
        self.0.would_admit(&sets, &exempt).map_err(raise)
    }

    /// The clients of `wanted` that can be in a sum now; the others sit out.
    #[pyo3(signature = (wanted, exempt = Vec::new()))]
    #[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
    fn largest_fitting(&self, wanted: Vec<Name>, exempt: Vec<Name>) -> Vec<Name> {
        self.0.largest_fitting(&wanted, &exempt)
    }

    /// The largest minimum of the groups of `clients`; 0 if they are in no group.
    #[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
    fn least(&self, clients: Vec<Name>) -> u64 {
        self.0.least(&clients)
    }

    /// The groups of clients that are in the same sets.
    fn groups(&self) -> Vec<Vec<Name>> {
        self.0.groups()
    }
}
