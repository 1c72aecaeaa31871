//! The jail of one app, as a function for the process that the guard starts for it.

use fedcipher_jail::{Jail, Limits};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// Runs `argv` in a jail and returns its exit status. `guard` is the descriptor of a socket to the guard, and `limits`
/// are bytes of memory, processes, bytes of a file and open files. The caller must have one thread.
#[pyfunction]
#[allow(unsafe_code)]
#[allow(clippy::too_many_arguments, reason = "they are what a jail has")]
pub fn run_in_jail(
    py: Python<'_>,
    guard: i32,
    read_only: Vec<PathBuf>,
    work: PathBuf,
    limits: (u64, u64, u64, u64),
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    port: u16,
) -> PyResult<i32> {
    if guard < 0 || argv.is_empty() {
        return Err(PyValueError::new_err("a jail needs a socket to the guard, and a program"));
    }
    let (memory, processes, file_size, open_files) = limits;
    let limits = Limits { memory, processes, file_size, open_files };
    // SAFETY: the caller keeps its descriptor open during this statement, and the jail gets a copy.
    let guard = unsafe { BorrowedFd::borrow_raw(guard) }.try_clone_to_owned()?;
    let jail = Jail { read_only, work, argv, env, port, limits };
    Ok(py.detach(|| fedcipher_jail::run(&jail, guard)))
}
