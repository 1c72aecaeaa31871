//! Work without the GIL, also in forked processes (multiprocessing's `fork`).

use fedcipher_core::error::unwound;
use fedcipher_core::{Error, Result};
use pyo3::Python;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The process that imported the module. Rayon's own threads live in it.
static IMPORTER: OnceLock<u32> = OnceLock::new();

/// The thread pool of a forked process.
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

pub fn remember_this_process() {
    IMPORTER.get_or_init(std::process::id);
}

/// Runs `work` without the GIL and on threads that exist. The parent's threads do not exist in a forked process, so the
/// first parallel step would otherwise wait without end. A panic becomes an error: Python's handlers for `Exception` do
/// not catch PyO3's `PanicException`.
pub fn at_work<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    py.detach(|| on_pool(work))
}

/// Like [`at_work`], on an object that one thread uses at a time. The lock is taken without holding the GIL: its holder
/// may need the GIL to allocate a frame. It is also taken before work is handed to the pool: a pool thread that starts
/// the next job while it waits would deadlock on its own lock.
pub fn at_work_on<O: Send, T: Send>(
    py: Python<'_>,
    object: &Mutex<O>,
    work: impl FnOnce(&mut O) -> Result<T> + Send,
) -> Result<T> {
    py.detach(|| {
        let mut guard = object.lock().unwrap_or_else(PoisonError::into_inner);
        let object = &mut *guard;
        on_pool(|| work(object))
    })
}

/// Runs `work` on threads of this process. A panic becomes an error.
fn on_pool<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
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
    // A forked process's copy of its parent's pool has no threads to end.
    std::mem::forget(forked.replace((process, Arc::clone(&fresh))));
    Ok(Some(fresh))
}
