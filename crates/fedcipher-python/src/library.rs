//! Keys, frames and admission for schemes that use a Python library's arithmetic. The core checks everything except
//! the payloads, which only the library understands.

use crate::errors::raise;
use crate::forked::at_work;
use crate::frames::{Contributions, contributions};
use crate::keys::{ClientKey, ServerKey};
use crate::layout::{self, Layout};
use crate::numbers::{Int, bare};
use fedcipher_core::admission::{self, Admission as Core, Rules};
use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::keys::{KeySet, KeyTag};
use fedcipher_core::mac::Weighting;
use fedcipher_core::params_digest::ParamsDigest;
use fedcipher_core::protocol::{self, ClaimedSum};
use fedcipher_core::scheme::{Expect, Terms};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, TotalWeight, Weight, codec, registry};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// A scheme's name, parameters and bounds.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Library {
    name: String,
    digest: ParamsDigest,
    bounds: Bounds,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    fn rules(&self) -> Rules {
        // A library's ciphertexts may carry noise that no tag covers, so a forgery closes the key.
        Rules { closes: true, ..Rules::dense(self.bounds, Weighting::Client) }
    }

    fn own_client(&self, key: &ClientKey) -> PyResult<()> {
        key.0.tag.check_scheme(&self.name, self.digest).map_err(raise)
    }

    fn own_server(&self, key: &ServerKey) -> PyResult<()> {
        key.0.tag.check_scheme(&self.name, self.digest).map_err(raise)
    }
}

#[pymethods]
impl Library {
    /// `params` is JSON with all parameters. Their digest is in every key and frame. `privacy` is the codec's, as JSON.
    #[new]
    #[pyo3(signature = (name, params, clients, max_weight, min_contributions = None, privacy = None))]
    fn new(
        name: &str,
        params: &str,
        clients: u64,
        max_weight: Int<Weight>,
        min_contributions: Option<u64>,
        privacy: Option<&str>,
    ) -> PyResult<Self> {
        let bounded = || {
            let privacy = privacy.map(registry::privacy).transpose()?;
            Bounds::new(clients, max_weight.0, min_contributions)?.with_privacy(privacy)
        };
        let bounds = bounded().map_err(raise)?;
        let digest = registry::library(name, params, &bounds).map_err(raise)?;
        Ok(Library { name: name.to_owned(), digest, bounds })
    }

    /// Bits of a sum of `bits`-bit values. Raises `BoundError` above `limit` bits.
    fn field_bits(&self, bits: u32, limit: u32) -> PyResult<u32> {
        self.bounds.checked_field_bits(bits, limit).map_err(raise)
    }

    fn levels(&self) -> layout::Levels {
        layout::Levels(self.rules().levels)
    }

    /// Makes keys: every client of `cohort` gets `secret`, and the server gets `public`.
    fn keygen(
        &self,
        cohort: Vec<Int<ClientId>>,
        epoch: Int<Epoch>,
        secret: &[u8],
        public: &[u8],
    ) -> PyResult<(Vec<ClientKey>, ServerKey)> {
        let cohort = bare(cohort);
        let build = || {
            let tag = KeyTag::fresh(&self.name, self.digest.short(), epoch.0)?;
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

    /// Makes the sender of a client's updates. `state` is the folder of its nonce ledger.
    #[pyo3(signature = (key, state = None))]
    fn sender(&self, key: &ClientKey, state: Option<PathBuf>) -> PyResult<Sender> {
        self.own_client(key)?;
        let sender = protocol::Sender::new(&key.0, self.rules(), state.as_deref()).map_err(raise)?;
        Ok(Sender(Mutex::new(sender)))
    }

    #[pyo3(signature = (key, round = None))]
    fn admission(&self, key: &ServerKey, round: Option<Int<RoundId>>) -> PyResult<Admission> {
        self.own_server(key)?;
        Ok(Admission(Mutex::new(Some(Core::new(&key.0, self.rules(), round.map(|round| round.0))))))
    }

    /// Makes the receiver of a client's aggregates. `state` is the folder that records opened aggregates.
    #[pyo3(signature = (key, state = None))]
    fn receiver(&self, key: &ClientKey, state: Option<PathBuf>) -> PyResult<Receiver> {
        self.own_client(key)?;
        let made = protocol::Receiver::new(&key.0, self.rules(), state.as_deref()).map_err(raise)?;
        Ok(Receiver(Arc::new(made)))
    }
}

/// A client's nonces and tags.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Sender(Mutex<protocol::Sender>);

#[pymethods]
impl Sender {
    /// Claims `round` in advance.
    fn reserve(&self, py: Python<'_>, round: Int<RoundId>) -> PyResult<()> {
        py.detach(|| locked(&self.0).reserve(round.0)).map_err(raise)
    }

    /// Claims the round, calls `seal(integers * weight)` to encrypt, and makes the frame. `integers` are the quantised
    /// values before weighting.
    #[allow(clippy::too_many_arguments, reason = "the Python signature, one to one")]
    fn update<'py>(
        &self,
        py: Python<'py>,
        layout: &Layout,
        integers: PyReadonlyArray1<'py, u32>,
        round: Int<RoundId>,
        weight: Int<Weight>,
        model: &[u8],
        memory: &[u8],
        associated_data: &[u8],
        seal: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let integers = integers.as_slice()?;
        if integers.len() != layout.0.elements() {
            let reason = format!("{} integers for {} elements", integers.len(), layout.0.elements());
            return Err(raise(Error::Layout { reason }));
        }
        let terms = Terms {
            round: round.0,
            weight: weight.0,
            layout: &layout.0,
            round_plan: &[],
            model,
            memory,
            associated_data,
        };
        let claimed = py.detach(|| locked(&self.0).claim(&terms, &layout.0)).map_err(raise)?;
        let factor = claimed.factor();
        let weighted: Vec<u64> = integers.iter().map(|v| u64::from(*v) * factor).collect();
        let sealed = seal.call1((weighted.into_pyarray(py),))?.cast_into::<PyBytes>()?;
        let payload = sealed.as_bytes().to_vec();
        let frame = at_work(py, || Ok(claimed.frame(payload, integers))).map_err(raise)?;
        Ok(PyBytes::new(py, &frame))
    }
}

/// Receives aggregates on a client.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Receiver(Arc<protocol::Receiver>);

#[pymethods]
impl Receiver {
    /// Checks an aggregate and claims its round. Returns (aggregate, payload to decrypt).
    #[pyo3(signature = (frame, round = None, model = None, memory = None, associated_data = None))]
    fn open<'py>(
        &self,
        py: Python<'py>,
        frame: &[u8],
        round: Option<Int<RoundId>>,
        model: Option<&[u8]>,
        memory: Option<&[u8]>,
        associated_data: Option<&[u8]>,
    ) -> PyResult<(Opened, Bound<'py, PyBytes>)> {
        let expect = Expect {
            round: round.map(|round| round.0),
            model,
            memory,
            associated_data: associated_data.unwrap_or_default(),
        };
        let (sum, payload) = py.detach(|| self.0.admit(frame, &expect)).map_err(raise)?;
        let opened = Opened {
            round: Int(sum.header().round),
            contributions: contributions(&sum.header().contributions),
            layout: sum.layout().clone(),
            sum: Mutex::new(Some(sum)),
            receiver: Arc::clone(&self.0),
        };
        Ok((opened, PyBytes::new(py, payload)))
    }
}

/// An aggregate under decryption.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Opened {
    #[pyo3(get)]
    round: Int<RoundId>,
    #[pyo3(get)]
    contributions: Contributions,
    layout: codec::Layout,
    /// None after the first call of `means`.
    sum: Mutex<Option<ClaimedSum>>,
    receiver: Arc<protocol::Receiver>,
}

#[pymethods]
impl Opened {
    #[getter]
    fn layout(&self) -> Layout {
        Layout(self.layout.clone())
    }

    /// Closes the key. A library calls this for an invalid sum. Raises `KeyClosedError` if the key was closed already.
    fn fail(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.receiver.close()).map_err(raise)
    }

    /// Checks that `sums` are the sums that the clients sent, and returns their means. Can be called once.
    fn means<'py>(&self, py: Python<'py>, sums: PyReadonlyArray1<'py, u64>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let sums = sums.as_slice()?;
        let claimed = locked(&self.sum)
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("means can be called only once; open the aggregate again"))?;
        let (levels, weight) = (claimed.levels(), claimed.header().total_weight());
        let opened = py.detach(|| {
            let mut means = vec![0f32; self.layout.elements()];
            let outcome = check(&self.layout, levels, weight, sums).and_then(|()| claimed.verify_sums(sums));
            if outcome.is_ok() {
                codec::means(&self.layout, levels, weight, 0, sums, &mut means);
            }
            self.receiver.settle(outcome, means)
        });
        Ok(opened.map_err(raise)?.into_parts().1.into_pyarray(py))
    }
}

fn check(layout: &codec::Layout, levels: Levels, weight: TotalWeight, sums: &[u64]) -> Result<(), Error> {
    if sums.len() != layout.elements() {
        return Err(Error::Decrypt { reason: format!("{} sums for {} elements", sums.len(), layout.elements()) });
    }
    let segment = |s: codec::Segment| admission::check_sums(&sums[s.start..s.start + s.len], weight, levels.of(s.bits));
    layout.segments().into_iter().try_for_each(segment)
}

/// The frames in one round's sum. None while a frame is being added, which runs Python.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Admission(Mutex<Option<Core>>);

impl Admission {
    fn with<T>(&self, work: impl FnOnce(&mut Core) -> PyResult<T>) -> PyResult<T> {
        let mut core = self.state().take().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this aggregator is adding a frame in another thread; use one thread for each round",
            )
        })?;
        let result = work(&mut core);
        *self.state() = Some(core);
        result
    }

    fn state(&self) -> MutexGuard<'_, Option<Core>> {
        locked(&self.0)
    }
}

#[pymethods]
impl Admission {
    /// Checks `frame`, calls `add(payload, layout)`, and counts the frame only if that returns.
    fn admit(&self, py: Python<'_>, frame: &[u8], add: &Bound<'_, PyAny>) -> PyResult<(Int<ClientId>, Int<Weight>)> {
        self.with(|core| {
            let admitted = at_work(py, || core.check(frame)).map_err(raise)?;
            add.call1((PyBytes::new(py, admitted.payload), Layout(admitted.layout.clone())))?;
            let added = core.commit(admitted);
            Ok((Int(added.client), Int(added.weight)))
        })
    }

    /// Makes the frame of the sum with the ciphertexts `payload`. Nothing can be admitted afterwards. Raises
    /// `EmptyCohortError` if nothing was admitted.
    fn aggregate<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|core| {
            let header = core.aggregate_header().map_err(raise)?;
            Ok(PyBytes::new(py, &header.frame(&[payload, core.close().to_bytes().as_slice()].concat())))
        })
    }
}
