//! An aggregator.

use crate::errors::{in_words, raise};
use crate::forked::at_work_on;
use crate::frames::{PythonFrame, borrowed};
use crate::numbers::{Int, ints};
use fedcipher_core::scheme;
use fedcipher_core::{ClientId, Weight};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Mutex;

/// (data that all work items need, each item).
pub type WorkItems<'py> = (Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>);

#[pyclass(frozen, module = "fedcipher._native")]
pub struct Aggregator(pub Mutex<Box<dyn scheme::Aggregator>>);

#[pymethods]
impl Aggregator {
    /// Checks and adds a frame. Returns (client, weight).
    fn add(&self, py: Python<'_>, frame: &[u8]) -> PyResult<(Int<ClientId>, Int<Weight>)> {
        let added = at_work_on(py, &self.0, |object| object.add(frame)).map_err(raise)?;
        Ok((Int(added.client), Int(added.weight)))
    }

    /// Takes the prekeys for the round's clients. Returns a reason for each refused prekey.
    fn take_prekeys(&self, py: Python<'_>, frames: Vec<Vec<u8>>) -> PyResult<Vec<String>> {
        at_work_on(py, &self.0, |object| match object.committee() {
            Some(committee) => committee.take_prekeys(&borrowed(&frames)),
            None => Ok(Vec::new()),
        })
        .map(in_words)
        .map_err(raise)
    }

    /// Fixes the clients of the sum. Returns (member, request) for each member.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Int<ClientId>, Bound<'py, PyBytes>)>> {
        let requests = at_work_on(py, &self.0, |object| object.requests()).map_err(raise)?;
        Ok(requests.into_iter().map(|(member, frame)| (Int(member), PyBytes::new(py, &frame))).collect())
    }

    /// Checks and stores a member's answer. Returns the member's number.
    fn answer(&self, py: Python<'_>, frame: &[u8]) -> PyResult<Int<ClientId>> {
        at_work_on(py, &self.0, |object| object.require_committee()?.answer(frame)).map(Int).map_err(raise)
    }

    /// Clients that more than `corrupt_members` members accuse.
    #[getter]
    fn accused(&self, py: Python<'_>) -> PyResult<Vec<Int<ClientId>>> {
        at_work_on(py, &self.0, |object| Ok(object.committee().map(|round| round.accused()).unwrap_or_default()))
            .map(ints)
            .map_err(raise)
    }

    /// Whether the next requests are proposals: members agree on the set before they send sums.
    #[getter]
    fn agreeing(&self, py: Python<'_>) -> PyResult<bool> {
        at_work_on(py, &self.0, |object| Ok(object.agreeing())).map_err(raise)
    }

    /// The number of answers that the next step still needs.
    #[getter]
    fn missing(&self, py: Python<'_>) -> PyResult<usize> {
        at_work_on(py, &self.0, |object| Ok(object.committee().map(|round| round.missing()).unwrap_or_default()))
            .map_err(raise)
    }

    /// The work of `finish` for other processes: (data that all work items need, each item).
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<WorkItems<'py>> {
        let parts = at_work_on(py, &self.0, |object| object.require_parts()?.parts()).map_err(raise)?;
        let bytes = |bytes: &Vec<u8>| PyBytes::new(py, bytes);
        Ok((bytes(&parts.common), parts.pieces.iter().map(bytes).collect()))
    }

    /// `finish` from the results of all parts, in their order.
    fn finish_from<'py>(&self, py: Python<'py>, results: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyBytes>> {
        let frame = at_work_on(py, &self.0, |object| object.require_parts()?.finish_from(&results)).map_err(raise)?;
        Ok(PyBytes::new(py, &frame))
    }

    /// `progress(done, total)` is called during a long aggregation. If it raises, the work is cancelled.
    #[pyo3(signature = (progress = None))]
    fn finish<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyBytes>> {
        let mut raised: Option<PyErr> = None;
        let mut buffer = PythonFrame(None);
        let result = at_work_on(py, &self.0, |aggregator| {
            aggregator.finish_into(&mut buffer, &mut |done, total| {
                Python::attach(|py| {
                    let called = match &progress {
                        Some(call) => call.call1(py, (done, total)).map(drop),
                        None => Ok(()),
                    };
                    // Ctrl-C arrives here, between two steps.
                    match called.and_then(|()| py.check_signals()) {
                        Ok(()) => true,
                        Err(error) => {
                            raised = Some(error);
                            false
                        }
                    }
                })
            })
        });
        match (result, raised) {
            (_, Some(error)) => Err(error),
            (Ok(()), None) => buffer.frame(py),
            (Err(error), None) => Err(raise(error)),
        }
    }
}
