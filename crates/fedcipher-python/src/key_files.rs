//! Client key files: the core's rules on which users may read one, and which processes may use one at a time.

use crate::errors::raise;
use crate::keys::ClientKey;
use fedcipher_core::key_file::{self, InUse, Sharing};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Most key files that a process holds. Each takes a descriptor, and a simulation has thousands of clients.
const MAX_HELD: usize = 64;

/// A key file, identified by its marker and key set.
type Slot = (PathBuf, [u8; 16]);

/// The key files that this process holds, in order of their last use. Their locks end with the process.
static HELD: Mutex<Vec<(Slot, InUse)>> = Mutex::new(Vec::new());

/// The bytes of a client's key file. Fails if another user can read or replace the file.
#[pyfunction]
pub fn read_key_file<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    key_file::read(&path).map(|bytes| PyBytes::new(py, &bytes)).map_err(raise)
}

/// The way in which another user could replace the file at `path`; none if no other user can.
#[pyfunction]
pub fn replaceable(path: PathBuf) -> PyResult<Option<String>> {
    Ok(key_file::replaceable(&path)?)
}

/// The way in which another user could write to the folder at `path` or replace it; none if no other user can.
#[pyfunction]
pub fn changeable(path: PathBuf) -> PyResult<Option<String>> {
    Ok(key_file::changeable(&path)?)
}

/// Locks a key file for use with the ledgers of folder `state`, until the process ends or has taken `MAX_HELD` other
/// key files. A lock may end early because the ledger itself keeps rounds unique. Returns a warning if only that folder
/// records the key's use from now on.
#[pyfunction]
pub fn hold_key_file(py: Python<'_>, path: PathBuf, key: &ClientKey, state: PathBuf) -> PyResult<Option<String>> {
    let key = &key.0;
    py.detach(|| {
        let taken = key_file::take(&path, key, &state, Sharing::Workers)?;
        let warning = taken.first_in_state().then(|| key_file::only_in(&path, &state));
        let slot = (key_file::marker(&path)?, key.tag.key_id);
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|(other, _)| *other != slot);
        held.push((slot, taken));
        let before = held.len().saturating_sub(MAX_HELD);
        held.drain(..before);
        Ok(warning)
    })
    .map_err(raise)
}
