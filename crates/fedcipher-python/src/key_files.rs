//! Client key files: the core's rules about who may read one, and who may use it at a time.

use crate::{ClientKey, raise};
use fedcipher_core::key_file::{self, InUse, Sharing};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Key files by marker and key set.
type Held = HashMap<(PathBuf, [u8; 16]), InUse>;

/// Those that this process encrypts with: their locks end with the process.
static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// The bytes of a client's key file, where nobody else can read or replace it.
#[pyfunction]
pub fn read_key_file<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    key_file::read(&path).map(|bytes| PyBytes::new(py, &bytes)).map_err(raise)
}

/// Why another user could put something of his own in the place of what is at `path`; none where nobody can.
#[pyfunction]
pub fn replaceable(path: PathBuf) -> PyResult<Option<String>> {
    Ok(key_file::replaceable(&path)?)
}

/// Why another user could put files into the folder at `path`, or another folder in its place; none where nobody can.
#[pyfunction]
pub fn changeable(path: PathBuf) -> PyResult<Option<String>> {
    Ok(key_file::changeable(&path)?)
}

/// Takes a key file into use for this process's life, with the ledgers of folder `state`. What to warn of, where
/// that folder alone knows of the key's use from now on.
#[pyfunction]
pub fn hold_key_file(py: Python<'_>, path: PathBuf, key: &ClientKey, state: PathBuf) -> PyResult<Option<String>> {
    let key = &key.0;
    py.detach(|| {
        let taken = key_file::take(&path, key, &state, Sharing::Workers)?;
        let said = taken.first_in_state().then(|| key_file::only_in(&path, &state));
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_default().insert((key_file::marker(&path)?, key.tag.key_id), taken);
        Ok(said)
    })
    .map_err(raise)
}
