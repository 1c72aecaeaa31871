//! Keys of clients and of the server.

use crate::errors::raise;
use crate::numbers::{Int, ints};
use fedcipher_core::sets::Name;
use fedcipher_core::sign::Purpose;
use fedcipher_core::{ClientId, Epoch, keys, wire};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;

/// A client's secret key. It is never printed, and zeroised when dropped.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct ClientKey(pub keys::ClientKey);

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

    /// This client's signature of the head of its log.
    fn sign_log<'py>(&self, py: Python<'py>, head: &[u8]) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.sign.sign(Purpose::Log, head))
    }

    /// The public key that checks this client's signatures.
    #[getter]
    fn verify_key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.sign.verify_key())
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
pub struct ServerKey(pub keys::ServerKey);

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

    /// The public key of each client that checks its signatures, by the client's number.
    #[getter]
    fn verify_keys<'py>(&self, py: Python<'py>) -> BTreeMap<Int<ClientId>, Bound<'py, PyBytes>> {
        self.0.cohort.iter().map(|(client, key)| (Int(*client), PyBytes::new(py, key))).collect()
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
