//! Parties without a shared key: identities, rosters, and members of a committee.

use crate::errors::raise;
use crate::forked::at_work;
use crate::numbers::Int;
use fedcipher_core::ClientId;
use fedcipher_core::oneshot::{identity, roster};
use fedcipher_core::sign::Purpose;
use fedcipher_core::sign::hybrid::Signed;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A party's own secret keys.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Identity(pub identity::Identity);

#[pymethods]
impl Identity {
    /// Makes new keys from random bytes of the operating system.
    #[staticmethod]
    fn generate() -> PyResult<Self> {
        identity::Identity::generate().map(Identity).map_err(raise)
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        identity::Identity::from_bytes(data).map(Identity).map_err(raise)
    }

    /// The serialised identity. It holds the secrets: store it like a password.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.to_bytes())
    }

    /// The public keys: for verification, and for encryption to this party.
    fn public<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        (PyBytes::new(py, &self.0.verify_keys()), PyBytes::new(py, &self.0.secret.public()))
    }

    /// A coordinator's signature of a charter with this digest.
    fn sign_charter<'py>(&self, py: Python<'py>, digest: [u8; 32]) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.sign(Purpose::Charter, &digest).map_err(raise)?))
    }

    /// This party's signature that it has joined the roster with this fingerprint.
    fn sign_roster<'py>(&self, py: Python<'py>, fingerprint: [u8; 32]) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.sign(Purpose::Roster, &fingerprint).map_err(raise)?))
    }

    fn __repr__(&self) -> &'static str {
        "Identity(secret)"
    }
}

/// A placeholder for a party's number, which errors do not name here.
pub const NO_PARTY: ClientId = ClientId::new(0);

/// Whether `signature` is a result of `Identity.sign_charter` by the holder of the key `verify`.
#[pyfunction]
pub fn charter_signature_holds(verify: &[u8], digest: [u8; 32], signature: &[u8]) -> bool {
    Signed { party: NO_PARTY, key: verify, purpose: Purpose::Charter, message: &digest, signature }.holds()
}

/// Whether `signature` is a result of `Identity.sign_roster` by the holder of the key `verify`.
#[pyfunction]
pub fn roster_signature_holds(verify: &[u8], fingerprint: [u8; 32], signature: &[u8]) -> bool {
    Signed { party: NO_PARTY, key: verify, purpose: Purpose::Roster, message: &fingerprint, signature }.holds()
}

/// Number, name, roles (client, member, reader), verify key, sealing key.
type Card = (Int<ClientId>, String, (bool, bool, bool), Vec<u8>, Vec<u8>);

/// Number, name, roles (client, member, reader).
type Listed = (Int<ClientId>, String, (bool, bool, bool));

/// The roster of all parties. Every party of a round has the same one.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Roster(pub roster::Roster);

#[pymethods]
impl Roster {
    #[new]
    fn new(py: Python<'_>, cards: Vec<Card>) -> PyResult<Self> {
        let card = |(id, name, (client, member, reader), signing, sealing): Card| roster::Card {
            id: id.0,
            name,
            roles: roster::Roles { client, member, reader },
            signing,
            sealing,
        };
        let cards = cards.into_iter().map(card).collect();
        py.detach(|| roster::Roster::new(cards)).map(Roster).map_err(raise)
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        roster::Roster::parse(data).map(Roster).map_err(raise)
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.to_bytes())
    }

    /// (number, name, (client, member, reader)) of each party.
    fn parties(&self) -> Vec<Listed> {
        let of =
            |p: &roster::RosterEntry| (Int(p.id), p.name.clone(), (p.roles.client, p.roles.member, p.roles.reader));
        self.0.parties().map(of).collect()
    }

    /// The public keys of each party, in the order of `parties`: for verification, and for encryption.
    fn keys<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let of = |p: &roster::RosterEntry| (PyBytes::new(py, &p.signing), PyBytes::new(py, p.sealed_to()));
        self.0.parties().map(of).collect()
    }

    /// Raises `ParameterError` if a party's encryption key is invalid.
    fn check_keys(&self) -> PyResult<()> {
        self.0.parties().try_for_each(|p| roster::Card::check(&p.signing, p.sealed_to())).map_err(raise)
    }
}

/// A member of a scheme's committee.
#[pyclass(frozen, module = "fedcipher._native")]
pub struct Member(pub Box<dyn fedcipher_core::committee::Member>);

#[pymethods]
impl Member {
    fn answer<'py>(&self, py: Python<'py>, request: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let answer = at_work(py, || self.0.answer(request)).map_err(raise)?;
        Ok(PyBytes::new(py, &answer))
    }

    /// The frame that publishes the member's prekey for the next updates.
    fn prekey<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &at_work(py, || self.0.prekey()).map_err(raise)?))
    }

    /// Deletes all prekeys.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        at_work(py, || self.0.forget()).map_err(raise)
    }
}
