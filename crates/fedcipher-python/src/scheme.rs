//! A scheme, and the choices that all schemes have.

use crate::aggregator::Aggregator;
use crate::committee;
use crate::decryptor::Decryptor;
use crate::encryptor::Encryptor;
use crate::errors::raise;
use crate::forked::at_work;
use crate::keys::{ClientKey, ServerKey};
use crate::layout::{Layout, Levels};
use crate::numbers::{Int, bare};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::scheme;
use fedcipher_core::sign::hybrid::SIGNATURE_LEN;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight, registry, sparse};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A scheme of the core with validated parameters.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Scheme(pub Arc<dyn scheme::Scheme>);

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

/// A number of clients, or a fraction of them.
#[derive(FromPyObject)]
pub enum Fewest {
    Count(u64),
    Share(f64),
}

/// The default of `min_contributions`, or the checked choice. `corrupt_clients` belongs to schemes that have it.
#[pyfunction]
#[pyo3(signature = (clients, chosen = None, corrupt_clients = None))]
pub fn min_contributions(clients: u64, chosen: Option<Fewest>, corrupt_clients: Option<u64>) -> PyResult<u64> {
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
pub fn every_scheme() -> Vec<(&'static str, &'static str, &'static str, bool)> {
    registry::every_scheme().map(|v| (v.scheme, v.name, v.params, v.sparse)).collect()
}

/// The indices, through all tensors, of the elements that all clients send in `round`.
#[pyfunction]
#[pyo3(signature = (lengths, reference, round, top))]
pub fn common_set<'py>(
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
