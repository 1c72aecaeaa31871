//! An encryptor.

use crate::errors::{in_words, raise};
use crate::forked::at_work_on;
use crate::frames::{PythonFrame, borrowed};
use crate::layout::{Layout, rounding, slices};
use crate::numbers::Int;
use fedcipher_core::codec::Update;
use fedcipher_core::protocol;
use fedcipher_core::scheme::Request;
use fedcipher_core::{RoundId, Weight};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Mutex;

#[pyclass(frozen, module = "fedcipher._native")]
pub struct Encryptor(pub Mutex<protocol::Encryptor>);

#[pymethods]
impl Encryptor {
    /// Encrypts an update: (frame, clipped count per tensor, seconds of quantising).
    #[allow(clippy::too_many_arguments, reason = "the Python signature, one to one")]
    fn encrypt<'py>(
        &self,
        py: Python<'py>,
        layout: &Layout,
        arrays: Vec<PyReadonlyArray1<'py, f32>>,
        round: Int<RoundId>,
        weight: Int<Weight>,
        round_plan: &[u8],
        model: &[u8],
        memory: &[u8],
        associated_data: &[u8],
        stochastic: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<u64>, f64)> {
        let slices = slices(&arrays)?;
        let mut buffer = PythonFrame(None);
        let (clipped, seconds) = at_work_on(py, &self.0, |encryptor| {
            let update = Update::new(&layout.0, slices, rounding(stochastic)?)?;
            let request = Request {
                round: round.0,
                weight: weight.0,
                update: &update,
                round_plan,
                model,
                memory,
                associated_data,
            };
            encryptor.encrypt_into(&request, &mut buffer)?;
            Ok((update.clipped(), update.seconds()))
        })
        .map_err(raise)?;
        Ok((buffer.frame(py)?, clipped, seconds))
    }

    /// Takes the committee's prekeys. Returns a reason for each refused prekey.
    fn take_prekeys(&self, py: Python<'_>, frames: Vec<Vec<u8>>) -> PyResult<Vec<String>> {
        at_work_on(py, &self.0, |object| object.take_prekeys(&borrowed(&frames))).map(in_words).map_err(raise)
    }

    fn precompute(&self, py: Python<'_>, round: Int<RoundId>, layout: &Layout, round_plan: &[u8]) -> PyResult<()> {
        at_work_on(py, &self.0, |object| object.precompute(round.0, &layout.0, round_plan)).map_err(raise)
    }

    /// Bytes of the last frame that are sent once in a key epoch.
    fn setup_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        at_work_on(py, &self.0, |object| Ok(object.setup_bytes())).map_err(raise)
    }

    fn export_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = at_work_on(py, &self.0, |object| {
            Ok(object.residual().map(|residual| residual.export_state()).unwrap_or_default())
        })
        .map_err(raise)?;
        Ok(PyBytes::new(py, &state))
    }

    fn import_state(&self, py: Python<'_>, state: &[u8]) -> PyResult<()> {
        at_work_on(py, &self.0, |object| object.import_residual(state)).map_err(raise)
    }
}
