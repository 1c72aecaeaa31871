//! Clients of the offload engine and of the authority, for hosts.

use crate::decryptor::Opened;
use crate::errors::raise_as;
use crate::frames::{Contributions, PythonFrame, contributions};
use crate::layout::{Layout, slices};
use crate::numbers::{Int, bare, ints};
use fedcipher_core::scheme::Expect;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use fedcipher_engine::client::{self, EncryptRequest, Patience, Values};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn raise(error: fedcipher_engine::Error) -> PyErr {
    raise_as(error.class(), &error.to_string())
}

/// Locks a connection, which carries one call at a time. A second thread waits.
fn locked<T>(inner: &Mutex<T>) -> MutexGuard<'_, T> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection to an engine, for one device.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct EngineClient(Mutex<client::EngineClient>);

#[pymethods]
impl EngineClient {
    #[new]
    #[pyo3(signature = (target, device = "", credentials = None, patience = 30.0))]
    fn new(target: &str, device: &str, credentials: Option<PathBuf>, patience: f64) -> PyResult<Self> {
        let patience = Patience::seconds(patience).map_err(raise)?;
        let made = client::EngineClient::new(target, device, credentials.as_deref(), patience).map_err(raise)?;
        Ok(EngineClient(Mutex::new(made)))
    }

    /// (scheme's JSON, client id, key epochs held).
    fn describe(&self, py: Python<'_>) -> PyResult<(String, Int<ClientId>, Vec<Int<Epoch>>)> {
        let described = py.detach(|| locked(&self.0).describe()).map_err(raise)?;
        Ok((described.spec, Int(described.client), ints(described.epochs)))
    }

    /// Encrypts an update: (frame, clipped values, set-up bytes, seconds of quantising, seconds of encrypting).
    #[allow(clippy::too_many_arguments, clippy::type_complexity, reason = "the Python signature, one to one")]
    fn encrypt<'py>(
        &self,
        py: Python<'py>,
        layout: &Layout,
        arrays: Vec<PyReadonlyArray1<'py, f32>>,
        epoch: Int<Epoch>,
        round: Int<RoundId>,
        weight: Int<Weight>,
        round_plan: &[u8],
        model: &[u8],
        memory: &[u8],
        associated_data: &[u8],
        stochastic: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, u64, u64, f64, f64)> {
        let tensors = slices(&arrays)?;
        let mut buffer = PythonFrame(None);
        let request = EncryptRequest {
            epoch: epoch.0,
            round: round.0,
            weight: weight.0,
            layout: &layout.0,
            round_plan,
            model,
            memory,
            associated_data,
            stochastic,
        };
        let done = py.detach(|| locked(&self.0).encrypt(&request, &tensors, &mut buffer)).map_err(raise)?;
        Ok((buffer.frame(py)?, done.clipped, done.setup_bytes, done.encode_seconds, done.encrypt_seconds))
    }

    /// Weighted means: (layout, round, contributions, flat float32 values, counts or None, false
    /// members).
    #[pyo3(signature = (frame, round = None, model = None, memory = None, associated_data = None))]
    fn decrypt<'py>(
        &self,
        py: Python<'py>,
        frame: &[u8],
        round: Option<Int<RoundId>>,
        model: Option<&[u8]>,
        memory: Option<&[u8]>,
        associated_data: Option<&[u8]>,
    ) -> PyResult<Opened<'py>> {
        let expect = Expect {
            round: round.map(|round| round.0),
            model,
            memory,
            associated_data: associated_data.unwrap_or_default(),
        };
        let got = py.detach(|| locked(&self.0).decrypt(frame, &expect, false)).map_err(raise)?;
        let Values::Means(values) = got.values else {
            return Err(PyValueError::new_err("the engine sent sums for means"));
        };
        let counts = got.counts.map(|c| c.into_pyarray(py));
        let values = values.into_pyarray(py);
        let added = contributions(&got.contributions);
        Ok((Layout(got.layout), Int(got.round), added, values, counts, ints(got.false_members)))
    }

    /// The integer sums before division: (contributions, flat uint64 sums).
    #[pyo3(signature = (frame, memory = None, associated_data = None))]
    fn decrypt_sums<'py>(
        &self,
        py: Python<'py>,
        frame: &[u8],
        memory: Option<&[u8]>,
        associated_data: Option<&[u8]>,
    ) -> PyResult<(Contributions, Bound<'py, PyArray1<u64>>)> {
        let expect = Expect { memory, associated_data: associated_data.unwrap_or_default(), ..Expect::default() };
        let got = py.detach(|| locked(&self.0).decrypt(frame, &expect, true)).map_err(raise)?;
        let Values::Sums(values) = got.values else {
            return Err(PyValueError::new_err("the engine sent means for sums"));
        };
        Ok((contributions(&got.contributions), values.into_pyarray(py)))
    }

    /// Returns whether the engine has precomputed the round.
    fn precompute(
        &self,
        py: Python<'_>,
        epoch: Int<Epoch>,
        round: Int<RoundId>,
        layout: &Layout,
        round_plan: &[u8],
    ) -> PyResult<bool> {
        py.detach(|| locked(&self.0).precompute(epoch.0, round.0, &layout.0, round_plan)).map_err(raise)
    }

    fn export_state<'py>(&self, py: Python<'py>, epoch: Int<Epoch>) -> PyResult<Bound<'py, PyBytes>> {
        let state = py.detach(|| locked(&self.0).export_state(epoch.0)).map_err(raise)?;
        Ok(PyBytes::new(py, &state))
    }

    fn import_state(&self, py: Python<'_>, epoch: Int<Epoch>, state: &[u8]) -> PyResult<()> {
        py.detach(|| locked(&self.0).import_state(epoch.0, state)).map_err(raise)
    }

    /// A committee member's answer to a request.
    fn answer<'py>(&self, py: Python<'py>, request: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let answer = py.detach(|| locked(&self.0).answer(request)).map_err(raise)?;
        Ok(PyBytes::new(py, &answer))
    }

    /// Gives the device the committee's prekeys. Returns a reason for each refused prekey.
    fn take_prekeys(&self, py: Python<'_>, epoch: Int<Epoch>, frames: Vec<Vec<u8>>) -> PyResult<Vec<String>> {
        py.detach(|| locked(&self.0).take_prekeys(epoch.0, &frames)).map_err(raise)
    }

    /// The frame that publishes a committee member's prekey for the next updates.
    fn prekey<'py>(&self, py: Python<'py>, epoch: Int<Epoch>) -> PyResult<Bound<'py, PyBytes>> {
        let frame = py.detach(|| locked(&self.0).prekey(epoch.0)).map_err(raise)?;
        Ok(PyBytes::new(py, &frame))
    }

    /// Deletes all prekeys of `epoch`. 0 means all epochs that the engine holds.
    fn forget(&self, py: Python<'_>, epoch: Int<Epoch>) -> PyResult<()> {
        py.detach(|| locked(&self.0).forget(epoch.0)).map_err(raise)
    }
}

/// The aggregator's connection to the authority.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct AuthorityClient(Mutex<client::AuthorityClient>);

#[pymethods]
impl AuthorityClient {
    #[new]
    #[pyo3(signature = (target, credentials, patience = 30.0))]
    fn new(target: &str, credentials: PathBuf, patience: f64) -> PyResult<Self> {
        let patience = Patience::seconds(patience).map_err(raise)?;
        let made = client::AuthorityClient::new(target, &credentials, patience).map_err(raise)?;
        Ok(AuthorityClient(Mutex::new(made)))
    }

    /// (scheme's JSON, (epoch, server key) of epochs not in `held`, usable epochs, revoked client ids).
    #[allow(clippy::type_complexity, reason = "one tuple for one thin call")]
    fn server_keys<'py>(
        &self,
        py: Python<'py>,
        held: Vec<Int<Epoch>>,
    ) -> PyResult<(String, Vec<(Int<Epoch>, Bound<'py, PyBytes>)>, Vec<Int<Epoch>>, Vec<Int<ClientId>>)> {
        let keys = py.detach(|| locked(&self.0).server_keys(&bare(held))).map_err(raise)?;
        let issued = keys.issued.into_iter().map(|(epoch, key)| (Int(epoch), PyBytes::new(py, &key))).collect();
        Ok((keys.spec, issued, ints(keys.usable), ints(keys.revoked)))
    }

    /// Reports that a round under `epoch` is finished, which ends the epochs before it.
    fn finish_epoch(&self, py: Python<'_>, epoch: Int<Epoch>) -> PyResult<()> {
        py.detach(|| locked(&self.0).finish_epoch(epoch.0)).map_err(raise)
    }
}
