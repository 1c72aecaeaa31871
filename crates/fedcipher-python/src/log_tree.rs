//! The tree of a site's log.

use crate::errors::raise;
use fedcipher_core::log_tree::{self, Head, ROOT_LEN};
use fedcipher_core::sign::{Purpose, SIGNATURE_LEN, Signed, VERIFY_LEN};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The tree of RFC 6962 over a log's lines.
#[pyclass(module = "fedcipher._native")]
pub struct LogTree(log_tree::LogTree);

#[pymethods]
impl LogTree {
    #[new]
    fn new() -> Self {
        LogTree(log_tree::LogTree::default())
    }

    fn push(&mut self, line: &[u8]) {
        self.0.push(line.to_vec());
    }

    fn __len__(&self) -> usize {
        self.0.head().size as usize
    }

    fn root<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.head().root)
    }

    /// The proof that the line `index`, from 0, is in the tree.
    fn inclusion<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.inclusion(index).map_err(raise)?))
    }

    /// The proof that the tree of the first `size` lines is the beginning of this one.
    fn consistency<'py>(&self, py: Python<'py>, size: u64) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.consistency(size).map_err(raise)?))
    }
}

/// Whether `proof` shows that the tree of `size` lines with this `root` has `line` at `index`, from 0.
#[pyfunction]
pub fn log_includes(size: u64, root: [u8; ROOT_LEN], index: u64, line: &[u8], proof: &[u8]) -> bool {
    Head { size, root }.includes(index, line, proof)
}

/// Whether `proof` shows that the tree of `earlier` is the beginning of the tree of `later`. Each is (size, root).
#[pyfunction]
pub fn log_continues(earlier: (u64, [u8; ROOT_LEN]), later: (u64, [u8; ROOT_LEN]), proof: &[u8]) -> bool {
    let [earlier, later] = [earlier, later].map(|(size, root)| Head { size, root });
    later.continues(&earlier, proof)
}

/// Whether `signature` is a result of `ClientKey.sign_log` by the client whose signatures `verify` checks.
#[pyfunction]
pub fn log_signature_holds(verify: [u8; VERIFY_LEN], head: &[u8], signature: [u8; SIGNATURE_LEN]) -> bool {
    let party = crate::committee::NO_PARTY;
    Signed { party, key: &verify, purpose: Purpose::Log, message: head, signature: &signature }.holds()
}
