//! Work with the GIL released, also in a process forked off (multiprocessing's `fork`).

use fedcipher_core::error::unwound;
use fedcipher_core::{Error, Result};
use pyo3::Python;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The process that imported the module: rayon's own threads live in it.
static IMPORTER: OnceLock<u32> = OnceLock::new();

/// The threads of a process forked off.
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

pub fn remember_this_process() {
    IMPORTER.get_or_init(std::process::id);
}

/// `work` without the GIL, and with threads that exist: those of the parent do not in a process forked off,
/// where the first parallel step would wait for them for ever. A panic is an error: Python's handlers let PyO3's
/// `PanicException` pass, which is no `Exception`.
pub fn at_work<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    py.detach(|| handed(work))
}

/// [`at_work`] on an object that is one thread's at a time. It is waited for without the GIL, which whoever has it may
/// need for a frame's memory, and before the work is handed to a pool: a thread of that which waits for its share of
/// the work takes up the next, and would wait for what it holds itself.
pub fn at_work_on<O: Send, T: Send>(
    py: Python<'_>,
    object: &Mutex<O>,
    work: impl FnOnce(&mut O) -> Result<T> + Send,
) -> Result<T> {
    py.detach(|| {
        let mut held = object.lock().unwrap_or_else(PoisonError::into_inner);
        let object = &mut *held;
        handed(|| work(object))
    })
}

fn handed<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    match threads()? {
        None => unwound(work),
        Some(threads) => threads.install(|| unwound(work)),
    }
}

fn threads() -> Result<Option<Arc<ThreadPool>>> {
    let process = std::process::id();
    if IMPORTER.get().is_none_or(|importer| *importer == process) {
        return Ok(None);
    }
    let mut forked = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, threads)) = &*forked
        && *owner == process
    {
        return Ok(Some(Arc::clone(threads)));
    }
    let fresh = ThreadPoolBuilder::new().build().map(Arc::new).map_err(|_| Error::Unsupported {
        scheme: "any scheme",
        operation: "work after a fork",
        reason: "no threads can be started; use the start method spawn or forkserver",
    })?;
    // A pool of the parent's, where it was forked off itself, has no threads to end.
    std::mem::forget(forked.replace((process, Arc::clone(&fresh))));
    Ok(Some(fresh))
}
