//! Keys, frames and admission for schemes whose arithmetic is a Python library's: the checks of the core,
//! around payloads it does not understand.

use crate::{ClientKey, Contributions, Layout, ServerKey, contributions, raise};
use fedcipher_core::admission::{self, Admission as Core};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::keys::{KeySet, KeyTag};
use fedcipher_core::wire::{Contribution, Kind};
use fedcipher_core::{Error, codec, scheme};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// A scheme's name, parameters and bounds.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Library {
    name: String,
    digest: [u8; 16],
    bounds: Bounds,
}

impl Library {
    fn own_client(&self, key: &ClientKey) -> PyResult<()> {
        key.0.tag.check_scheme(&self.name, self.digest).map_err(raise)
    }

    fn own_server(&self, key: &ServerKey) -> PyResult<()> {
        key.0.tag.check_scheme(&self.name, self.digest).map_err(raise)
    }
}

#[pymethods]
impl Library {
    /// `params` is a canonical text of all parameters: its digest is in every key and frame.
    #[new]
    fn new(name: &str, params: &str, clients: u64, max_weight: u64) -> PyResult<Self> {
        let bounds = Bounds::new(clients, max_weight).map_err(raise)?;
        Ok(Library { name: name.to_owned(), digest: scheme::digest(&format!("{name}|{params}")), bounds })
    }

    /// Bits of a sum of `bits`-bit values; `BoundError` beyond `limit`.
    fn field_bits(&self, bits: u32, limit: u32) -> PyResult<u32> {
        self.bounds.checked_field_bits(bits, limit).map_err(raise)
    }

    /// Every client of `cohort` gets `secret`, the server `public`.
    fn keygen(
        &self,
        cohort: Vec<u32>,
        epoch: u64,
        secret: &[u8],
        public: &[u8],
    ) -> PyResult<(Vec<ClientKey>, ServerKey)> {
        let build = || {
            let tag = KeyTag::fresh(&self.name, self.digest, epoch)?;
            KeySet::build(tag, &cohort, public.to_vec(), |_| Ok(Zeroizing::new(secret.to_vec())))
        };
        let set = build().map_err(raise)?;
        Ok((set.clients.into_iter().map(ClientKey).collect(), ServerKey(set.server)))
    }

    /// The library's own key material in `key`.
    fn secret<'py>(&self, py: Python<'py>, key: &ClientKey) -> PyResult<Bound<'py, PyBytes>> {
        self.own_client(key)?;
        Ok(PyBytes::new(py, &key.0.secret))
    }

    fn public<'py>(&self, py: Python<'py>, key: &ServerKey) -> PyResult<Bound<'py, PyBytes>> {
        self.own_server(key)?;
        Ok(PyBytes::new(py, &key.0.public))
    }

    /// Refuses a weight beyond the bound, before anything is encrypted.
    fn check_weight(&self, key: &ClientKey, weight: u64) -> PyResult<()> {
        admission::check_weight(key.0.client, weight, self.bounds.max_weight).map_err(raise)
    }

    /// The frame of an update whose ciphertexts are `payload`.
    fn update<'py>(
        &self,
        py: Python<'py>,
        key: &ClientKey,
        layout: &Layout,
        round: u64,
        weight: u64,
        payload: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.own_client(key)?;
        self.check_weight(key, weight)?;
        let own = vec![Contribution { client: key.0.client, weight }];
        Ok(PyBytes::new(py, &key.0.tag.round_header(Kind::Update, round, own, &layout.0).frame(payload)))
    }

    #[pyo3(signature = (key, round = None))]
    fn admission(&self, key: &ServerKey, round: Option<u64>) -> PyResult<Admission> {
        self.own_server(key)?;
        Ok(Admission(Mutex::new(Some(Core::new(&key.0, self.bounds, round)))))
    }

    /// An aggregate's (layout, round, contributions, ciphertexts).
    #[pyo3(signature = (key, frame, round = None))]
    fn open<'py>(
        &self,
        py: Python<'py>,
        key: &ClientKey,
        frame: &[u8],
        round: Option<u64>,
    ) -> PyResult<(Layout, u64, Contributions, Bound<'py, PyBytes>)> {
        self.own_client(key)?;
        let (header, layout, payload) =
            admission::open_aggregate(&key.0.tag, self.bounds, frame, round).map_err(raise)?;
        Ok((Layout(layout), header.round, contributions(&header), PyBytes::new(py, payload)))
    }

    /// Means of `sums`, which are checked against what clients of this total weight can have sent.
    fn means<'py>(
        &self,
        py: Python<'py>,
        layout: &Layout,
        weight: u64,
        sums: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let sums = sums.as_slice()?;
        check(&layout.0, weight, sums).map_err(raise)?;
        let mut means = vec![0f32; layout.0.elements()];
        codec::means(&layout.0, weight, 0, sums, &mut means);
        Ok(means.into_pyarray(py))
    }
}

fn check(layout: &codec::Layout, weight: u64, sums: &[u64]) -> Result<(), Error> {
    if sums.len() != layout.elements() {
        return Err(Error::Decrypt { reason: format!("{} sums for {} elements", sums.len(), layout.elements()) });
    }
    let segment = |s: codec::Segment| admission::check_sums(&sums[s.start..s.start + s.len], weight, s.bits);
    layout.segments().into_iter().try_for_each(segment)
}

/// Which frames have entered one round's sum; none while a frame is being added, which runs Python.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Admission(Mutex<Option<Core>>);

impl Admission {
    fn with<T>(&self, work: impl FnOnce(&mut Core) -> PyResult<T>) -> PyResult<T> {
        let mut core = self.state().take().ok_or_else(|| {
            PyRuntimeError::new_err("this aggregator is adding a frame in another thread; use one thread a round")
        })?;
        let result = work(&mut core);
        *self.state() = Some(core);
        result
    }

    fn state(&self) -> MutexGuard<'_, Option<Core>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Admission {
    /// Checks `frame`, calls `add(payload, layout, scale)`, and counts the frame only if that returns.
    fn admit(&self, py: Python<'_>, frame: &[u8], scale: u64, add: &Bound<'_, PyAny>) -> PyResult<(u32, u64)> {
        self.with(|core| {
            let admitted = core.check(frame, scale).map_err(raise)?;
            add.call1((PyBytes::new(py, admitted.payload), Layout(admitted.layout.clone()), scale))?;
            let added = core.commit(admitted);
            Ok((added.client, added.weight))
        })
    }

    /// The frame of the sum, whose ciphertexts are `payload`; `EmptyCohortError` when nothing was admitted.
    fn aggregate<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|core| Ok(PyBytes::new(py, &core.aggregate_header().map_err(raise)?.frame(payload))))
    }
}
