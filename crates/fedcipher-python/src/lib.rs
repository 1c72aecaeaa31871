//! A thin PyO3 layer without logic: numpy in, bytes and numpy out, with the GIL released.

mod bench;
mod committee;
#[cfg(feature = "engine-client")]
mod engine;
mod forked;
mod key_files;
mod library;
mod numbers;
mod sets;

use fedcipher_core::bounds::{Bounds, Levels as Core};
use fedcipher_core::codec::{self, Means, Rounding, Sums, Tensor, Update};
use fedcipher_core::protocol;
use fedcipher_core::rotation::Rotation;
use fedcipher_core::scheme::{self, Expect, Request};
use fedcipher_core::sets::Name;
use fedcipher_core::sign::hybrid::SIGNATURE_LEN;
use fedcipher_core::{
    ClientId, Epoch, Error, RoundId, Weight, keys, memory, noise, prf, registry, sparse, steps, wire,
};
use forked::{at_work, at_work_on};
use numbers::{Int, bare, ints};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Converts an error to the class of `fedcipher.errors` that the core names.
fn raise(error: Error) -> PyErr {
    raise_as(error.class(), &error.to_string())
}

fn raise_as(class: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("fedcipher.errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.call1((message,)));
        match made {
            Ok(instance) => PyErr::from_value(instance),
            Err(import) => import,
        }
    })
}

/// The public description of an update's arrays: `Layout([(dtype_code, bits, alpha, shape), ...])`.
#[pyclass(frozen, eq, module = "fedcipher._native")]
#[derive(Clone, PartialEq)]
struct Layout(codec::Layout);

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
struct Levels(Core);

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

fn slices<'a>(arrays: &'a [PyReadonlyArray1<'_, f32>]) -> PyResult<Vec<&'a [f32]>> {
    arrays.iter().map(|a| Ok(a.as_slice()?)).collect()
}

fn rounding(stochastic: bool) -> fedcipher_core::Result<Rounding> {
    if stochastic { Rounding::stochastic() } else { Ok(Rounding::Nearest) }
}

/// A client's secret key. It is never printed, and zeroised when dropped.
#[pyclass(frozen, module = "fedcipher._native")]
struct ClientKey(keys::ClientKey);

#[pymethods]
impl ClientKey {
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        keys::ClientKey::from_bytes(data).map(ClientKey).map_err(raise)
    }

    /// The serialised key. It holds the secret: store it like a password.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    #[getter]
    fn client(&self) -> Int<ClientId> {
        Int(self.0.client)
    }

    #[getter]
    fn epoch(&self) -> Int<Epoch> {
        Int(self.0.tag.epoch)
    }

    /// The digest of the scheme's parameters that the key set was made for.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.tag.params)
    }

    #[getter]
    fn scheme(&self) -> String {
        wire::scheme_name(&self.0.tag.scheme)
    }

    /// The fingerprint of the key set, equal to the server key's.
    #[getter]
    fn fingerprint(&self) -> String {
        wire::hex(&self.0.tag.key_id)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The aggregator's key: cohort and public parameters, no secret.
#[pyclass(frozen, module = "fedcipher._native")]
struct ServerKey(keys::ServerKey);

#[pymethods]
impl ServerKey {
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        keys::ServerKey::from_bytes(data).map(ServerKey).map_err(raise)
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    #[getter]
    fn cohort(&self) -> Vec<Int<ClientId>> {
        ints(self.0.cohort.keys().copied())
    }

    /// The name of each client in a `SetMemory`, by its number. Names are derived only from clients' signature keys.
    #[getter]
    fn names(&self) -> BTreeMap<Int<ClientId>, Name> {
        self.0.cohort.iter().map(|(client, key)| (Int(*client), fedcipher_core::sets::name(key))).collect()
    }

    #[getter]
    fn epoch(&self) -> Int<Epoch> {
        Int(self.0.tag.epoch)
    }

    /// The digest of the scheme's parameters that the key set was made for.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.tag.params)
    }

    #[getter]
    fn scheme(&self) -> String {
        wire::scheme_name(&self.0.tag.scheme)
    }

    /// The scheme's public material in the key, in addition to the cohort.
    #[getter]
    fn public<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.public)
    }

    /// The fingerprint of the key set. Keys with equal fingerprints belong to one key set.
    #[getter]
    fn fingerprint(&self) -> String {
        wire::hex(&self.0.tag.key_id)
    }

    fn __repr__(&self) -> String {
        format!("ServerKey({}, {} clients, epoch {})", self.scheme(), self.0.cohort.len(), self.0.tag.epoch)
    }
}

/// A scheme of the core with validated parameters.
#[pyclass(frozen, module = "fedcipher._native")]
struct Scheme(Arc<dyn scheme::Scheme>);

#[pymethods]
impl Scheme {
    /// Makes a scheme from JSON with the entries `scheme`, `params` and `codec`, as in a key file.
    #[new]
    fn new(spec: &str) -> PyResult<Self> {
        registry::make(spec).map(Scheme).map_err(raise)
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }

    fn levels(&self) -> Levels {
        Levels(self.0.values().levels)
    }

    /// Bits of the lanes beside an update: (counts, digits). None if all values have lanes of one width.
    fn lane_bits(&self) -> Option<(u32, u32)> {
        self.0.values().lanes.map(|bits| (bits.count, bits.digit))
    }

    fn check_layout(&self, layout: &Layout) -> PyResult<()> {
        self.0.check_layout(&layout.0).map_err(raise)
    }

    fn keygen(
        &self,
        py: Python<'_>,
        cohort: Vec<Int<ClientId>>,
        epoch: Int<Epoch>,
    ) -> PyResult<(Vec<ClientKey>, ServerKey)> {
        let set = at_work(py, || self.0.keygen(&bare(cohort), epoch.0)).map_err(raise)?;
        Ok((set.clients.into_iter().map(ClientKey).collect(), ServerKey(set.server)))
    }

    #[pyo3(signature = (key, state = None))]
    fn encryptor(&self, key: &ClientKey, state: Option<PathBuf>) -> PyResult<Encryptor> {
        self.0.encryptor(&key.0, state.as_deref()).map(|e| Encryptor(Mutex::new(e))).map_err(raise)
    }

    #[pyo3(signature = (key, round = None))]
    fn aggregator(&self, key: &ServerKey, round: Option<Int<RoundId>>) -> PyResult<Aggregator> {
        self.0.aggregator(&key.0, round.map(|round| round.0)).map(|a| Aggregator(Mutex::new(a))).map_err(raise)
    }

    #[pyo3(signature = (key, state = None))]
    fn decryptor(&self, key: &ClientKey, state: Option<PathBuf>) -> PyResult<Decryptor> {
        self.0.decryptor(&key.0, state.as_deref()).map(Decryptor).map_err(raise)
    }

    /// Makes a decryptor for a server that may see aggregates.
    fn server_decryptor(&self, key: &ServerKey) -> PyResult<Decryptor> {
        self.0.require_committee().and_then(|of| of.server_decryptor(&key.0)).map(Decryptor).map_err(raise)
    }

    /// Makes the key of the party in the roster with this identity.
    fn join(
        &self,
        roster: &committee::Roster,
        identity: &committee::Identity,
        epoch: Int<Epoch>,
    ) -> PyResult<ClientKey> {
        self.0.require_committee().and_then(|of| of.join(&roster.0, &identity.0, epoch.0)).map(ClientKey).map_err(raise)
    }

    /// The fingerprint of the roster: people compare it, and parties sign it. `params` is the digest in its keys.
    #[pyo3(signature = (roster, epoch, params = None))]
    fn roster_fingerprint<'py>(
        &self,
        py: Python<'py>,
        roster: &committee::Roster,
        epoch: Int<Epoch>,
        params: Option<[u8; 16]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.0
            .require_committee()
            .and_then(|of| of.roster_fingerprint(&roster.0, epoch.0, params))
            .map(|digest| PyBytes::new(py, &digest))
            .map_err(raise)
    }

    /// The roster in a server's key.
    fn roster_in(&self, key: &ServerKey) -> PyResult<committee::Roster> {
        self.0.require_committee().and_then(|of| of.roster_in(&key.0)).map(committee::Roster).map_err(raise)
    }

    /// Returns the key with the signatures of parties that have joined.
    fn with_joined(&self, key: &ClientKey, joined: Vec<(Int<ClientId>, [u8; SIGNATURE_LEN])>) -> PyResult<ClientKey> {
        let joined: Vec<_> = joined.into_iter().map(|(client, signature)| (client.0, signature)).collect();
        self.0.require_committee().and_then(|of| of.with_joined(&key.0, &joined)).map(ClientKey).map_err(raise)
    }

    /// The roster of a party's key, and the parties whose signatures the key holds. None if the key needs no
    /// signatures.
    fn roster_of(&self, key: &ClientKey) -> PyResult<(committee::Roster, Option<BTreeSet<Int<ClientId>>>)> {
        let (roster, joined) = self.0.require_committee().and_then(|of| of.roster_of(&key.0)).map_err(raise)?;
        Ok((committee::Roster(roster), joined.map(|joined| joined.into_iter().map(Int).collect())))
    }

    /// Makes the server's key for the roster.
    fn roster_key(&self, roster: &committee::Roster, epoch: Int<Epoch>) -> PyResult<ServerKey> {
        self.0.require_committee().and_then(|of| of.roster_key(&roster.0, epoch.0)).map(ServerKey).map_err(raise)
    }

    #[pyo3(signature = (key, state = None))]
    fn member(&self, key: &ClientKey, state: Option<PathBuf>) -> PyResult<committee::Member> {
        self.0
            .require_committee()
            .and_then(|of| of.member(&key.0, state.as_deref()))
            .map(committee::Member)
            .map_err(raise)
    }

    /// The aggregate with only the parts that `reader` needs.
    fn for_reader<'py>(&self, py: Python<'py>, frame: &[u8], reader: Int<ClientId>) -> PyResult<Bound<'py, PyBytes>> {
        let frame = at_work(py, || match self.0.committee() {
            Some(committee) => committee.for_reader(frame, reader.0),
            None => Ok(frame.to_vec()),
        })
        .map_err(raise)?;
        Ok(PyBytes::new(py, &frame))
    }

    /// Runs one piece of an aggregator's parts.
    fn run_work_item<'py>(
        &self,
        py: Python<'py>,
        key: &ServerKey,
        common: &[u8],
        piece: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let result = at_work(py, || self.0.require_workers()?.run_work_item(&key.0, common, piece)).map_err(raise)?;
        Ok(PyBytes::new(py, &result))
    }

    fn round_plan<'py>(
        &self,
        py: Python<'py>,
        key: &ServerKey,
        sampled: Vec<Int<ClientId>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.0.plan(&key.0, &bare(sampled)).map(|plan| PyBytes::new(py, &plan)).map_err(raise)
    }
}

/// Memory of a new Python `bytes` object, in which a frame is made without a copy.
struct PythonFrame(Option<Py<PyBytes>>);

impl PythonFrame {
    fn frame(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let frame = self.0.ok_or_else(|| PyValueError::new_err("no frame was made"))?;
        Ok(frame.into_bound(py))
    }
}

impl wire::FrameBuffer for PythonFrame {
    #[expect(unsafe_code, reason = "PyBytes::new_with would touch every page in one thread first")]
    fn reserve(&mut self, len: usize) -> fedcipher_core::Result<&mut [u8]> {
        let failed = |e: PyErr| Error::Layout { reason: format!("no memory for a frame of {len} bytes: {e}") };
        Python::attach(|py| {
            let size = isize::try_from(len).map_err(|e| failed(PyValueError::new_err(e.to_string())))?;
            // SAFETY: the object is new and referenced only here, so its buffer of `len` bytes may be
            // written; it stays in place while `self.0` owns it, which the returned borrow does not
            // outlive. All bytes are written as `MaybeUninit` before a slice of `u8` exists.
            unsafe {
                let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
                let bytes = Bound::from_owned_ptr_or_err(py, object).map_err(failed)?;
                let buffer = pyo3::ffi::PyBytes_AsString(object).cast::<MaybeUninit<u8>>();
                let fresh = std::slice::from_raw_parts_mut(buffer, len);
                memory::huge_pages(fresh);
                // Without the GIL: another thread of the pool may wait for it with what this one waits for.
                py.detach(|| fresh.par_chunks_mut(1 << 20).for_each(|part| part.fill(MaybeUninit::new(0))));
                self.0 = Some(bytes.cast_into_unchecked::<PyBytes>().unbind());
                Ok(fresh.assume_init_mut())
            }
        })
    }
}

fn borrowed(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(Vec::as_slice).collect()
}

#[allow(clippy::needless_pass_by_value, reason = "it maps results")]
fn in_words(errors: Vec<Error>) -> Vec<String> {
    errors.iter().map(Error::to_string).collect()
}

#[pyclass(frozen, module = "fedcipher._native")]
struct Encryptor(Mutex<protocol::Encryptor>);

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

/// (data that all work items need, each item).
type WorkItems<'py> = (Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>);

#[pyclass(frozen, module = "fedcipher._native")]
struct Aggregator(Mutex<Box<dyn scheme::Aggregator>>);

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

#[pyclass(frozen, module = "fedcipher._native")]
struct Decryptor(protocol::Decryptor);

type Contributions = Vec<(Int<ClientId>, Int<Weight>)>;
/// Layout, round, contributions, flat means, counts of a sparse round, and members whose answers are false.
type Opened<'py> = (
    Layout,
    Int<RoundId>,
    Contributions,
    Bound<'py, PyArray1<f32>>,
    Option<Bound<'py, PyArray1<u32>>>,
    Vec<Int<ClientId>>,
);

fn contributions(of: &[wire::Contribution]) -> Contributions {
    of.iter().map(|c| (Int(c.client), Int(c.weight))).collect()
}

#[pymethods]
impl Decryptor {
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
        let opened = at_work(py, || self.0.decrypt(frame, &expect, Means::default())).map_err(raise)?;
        let (summary, means) = opened.into_parts();
        let added = contributions(&summary.header.contributions);
        let counts = summary.counts.map(|c| c.into_pyarray(py));
        let (values, wrong) = (means.values.into_pyarray(py), ints(summary.false_members));
        Ok((Layout(summary.layout), Int(summary.header.round), added, values, counts, wrong))
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
        let opened = at_work(py, || self.0.decrypt(frame, &expect, Sums::default())).map_err(raise)?;
        let (summary, sums) = opened.into_parts();
        Ok((contributions(&summary.header.contributions), sums.0.into_pyarray(py)))
    }
}

/// A number of clients, or a fraction of them.
#[derive(FromPyObject)]
enum Fewest {
    Count(u64),
    Share(f64),
}

/// The default of `min_contributions`, or the checked choice. `corrupt_clients` belongs to schemes that have it.
#[pyfunction]
#[pyo3(signature = (clients, chosen = None, corrupt_clients = None))]
fn min_contributions(clients: u64, chosen: Option<Fewest>, corrupt_clients: Option<u64>) -> PyResult<u64> {
    let bounds = || {
        let count = match chosen {
            Some(Fewest::Share(share)) => Some(Bounds::share(clients, share)?),
            Some(Fewest::Count(count)) => Some(count),
            None => None,
        };
        match corrupt_clients {
            Some(corrupt) => Bounds::among(clients, Weight::ONE, count, corrupt),
            None => Bounds::new(clients, Weight::ONE, count),
        }
    };
    Ok(bounds().map_err(raise)?.min_contributions)
}

/// All variants of all schemes of this build: (scheme, variant, parameters as JSON, whether the variant is sparse).
#[pyfunction]
fn every_scheme() -> Vec<(&'static str, &'static str, &'static str, bool)> {
    registry::every_scheme().map(|v| (v.scheme, v.name, v.params, v.sparse)).collect()
}

/// The indices, through all tensors, of the elements that all clients send in `round`.
#[pyfunction]
#[pyo3(signature = (lengths, reference, round, top))]
fn common_set<'py>(
    py: Python<'py>,
    lengths: Vec<usize>,
    reference: Option<PyReadonlyArray1<'py, f32>>,
    round: Int<RoundId>,
    top: f64,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let reference = reference.as_ref().map(|r| r.as_slice()).transpose()?;
    let set = py.detach(|| sparse::common_set(&lengths, reference, round.0, top)).map_err(raise)?;
    Ok(set.into_pyarray(py))
}

/// An update with a client's share of noise: (flat float32 values on the grid of `layout`, values cut per tensor, L2
/// norm before it was cut to `clip`). `square` bounds the square of the norm after rounding, in steps; the variance
/// is `numerator / 2^shift` square steps. Only tests give a `key`; the default is random.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the Python signature, one to one")]
#[allow(clippy::type_complexity, reason = "one tuple for one thin call")]
#[pyo3(signature = (layout, arrays, clip, square, numerator, shift, key = None))]
fn add_noise<'py>(
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
fn key_stream<'py>(
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
fn rotate(py: Python<'_>, mut values: PyReadwriteArray1<'_, f32>, seed: [u8; 16], back: bool) -> PyResult<()> {
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
fn divided<'py>(
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
fn cut<'py>(
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
fn multiply(py: Python<'_>, mut values: PyReadwriteArray1<'_, f32>, factor: f64) -> PyResult<()> {
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
fn dot(py: Python<'_>, x: PyReadonlyArray1<'_, f32>, y: PyReadonlyArray1<'_, f32>) -> PyResult<f64> {
    let (x, y) = (x.as_slice()?, y.as_slice()?);
    at_work(py, || steps::dot(x, y)).map_err(raise)
}

/// Multiplies values in place by `factor`, and then each run of these `lengths` by its range.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "what PyO3 extracts")]
fn scale(
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
fn whole_steps(
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
fn mean_square(py: Python<'_>, values: PyReadonlyArray1<'_, f32>) -> PyResult<f64> {
    let values = values.as_slice()?;
    at_work(py, || Ok(steps::mean_square(values))).map_err(raise)
}

/// Mean squares of values, of their nearest whole steps, and of the differences, added in one order.
#[pyfunction]
fn nearest_squares(py: Python<'_>, values: PyReadonlyArray1<'_, f32>, step: f64) -> PyResult<[f64; 3]> {
    let values = values.as_slice()?;
    at_work(py, || Ok(steps::nearest_squares(values, step))).map_err(raise)
}

/// The public header of any frame: (kind, scheme, epoch, round, contributions, elements, payload bytes,
/// keyed tag of the memory that its sum counts in).
#[pyfunction]
#[allow(clippy::type_complexity, reason = "one tuple for one thin call")]
fn inspect<'py>(
    py: Python<'py>,
    frame: &[u8],
) -> PyResult<(u8, String, Int<Epoch>, Int<RoundId>, Contributions, u64, usize, Bound<'py, PyBytes>)> {
    let frame = wire::parse(frame).map_err(raise)?;
    let h = frame.header;
    Ok((
        h.kind as u8,
        wire::scheme_name(&h.scheme),
        Int(h.epoch),
        Int(h.round),
        contributions(&h.contributions),
        h.elements,
        frame.payload.len(),
        PyBytes::new(py, &h.memory),
    ))
}

/// The layout in a frame's header, which describes its arrays.
#[pyfunction]
fn layout_of(frame: &[u8]) -> PyResult<Layout> {
    let frame = wire::parse(frame).map_err(raise)?;
    codec::Layout::decode(&frame.header.layout).map(Layout).map_err(raise)
}

/// The features of this build beyond the core, by the names of `cargo build --features`.
const FEATURES: &[&str] = &[
    #[cfg(feature = "engine-client")]
    "engine-client",
    #[cfg(feature = "hhe")]
    "hhe",
];

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    forked::remember_this_process();
    m.add_class::<Layout>()?;
    m.add_class::<Levels>()?;
    m.add_class::<ClientKey>()?;
    m.add_class::<ServerKey>()?;
    m.add_class::<Scheme>()?;
    m.add_class::<Encryptor>()?;
    m.add_class::<Aggregator>()?;
    m.add_class::<Decryptor>()?;
    m.add_class::<committee::Identity>()?;
    m.add_class::<committee::Roster>()?;
    m.add_class::<committee::Member>()?;
    #[cfg(feature = "engine-client")]
    m.add_class::<engine::EngineClient>()?;
    #[cfg(feature = "engine-client")]
    m.add_class::<engine::AuthorityClient>()?;
    m.add_class::<sets::SetMemory>()?;
    m.add_class::<library::Library>()?;
    m.add_class::<library::Admission>()?;
    m.add_class::<library::Sender>()?;
    m.add_class::<library::Receiver>()?;
    m.add_class::<library::Opened>()?;
    m.add_function(wrap_pyfunction!(inspect, m)?)?;
    m.add_function(wrap_pyfunction!(layout_of, m)?)?;
    m.add_function(wrap_pyfunction!(committee::charter_signature_holds, m)?)?;
    m.add_function(wrap_pyfunction!(committee::roster_signature_holds, m)?)?;
    m.add_function(wrap_pyfunction!(min_contributions, m)?)?;
    m.add_function(wrap_pyfunction!(every_scheme, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::read_key_file, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::replaceable, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::changeable, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::hold_key_file, m)?)?;
    m.add_function(wrap_pyfunction!(common_set, m)?)?;
    m.add_function(wrap_pyfunction!(add_noise, m)?)?;
    m.add_function(wrap_pyfunction!(key_stream, m)?)?;
    m.add_function(wrap_pyfunction!(rotate, m)?)?;
    m.add_function(wrap_pyfunction!(divided, m)?)?;
    m.add_function(wrap_pyfunction!(cut, m)?)?;
    m.add_function(wrap_pyfunction!(multiply, m)?)?;
    m.add_function(wrap_pyfunction!(dot, m)?)?;
    m.add_function(wrap_pyfunction!(scale, m)?)?;
    m.add_function(wrap_pyfunction!(whole_steps, m)?)?;
    m.add_function(wrap_pyfunction!(mean_square, m)?)?;
    m.add_function(wrap_pyfunction!(nearest_squares, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_flashe, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_aes, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_ntt, m)?)?;
    m.add_function(wrap_pyfunction!(numbers::first_round, m)?)?;
    m.add_function(wrap_pyfunction!(numbers::round_date, m)?)?;
    m.add("ROUND_INDEX_BITS", RoundId::INDEX_BITS)?;
    m.add("features", FEATURES)?;
    m.add("version", env!("CARGO_PKG_VERSION"))
}
