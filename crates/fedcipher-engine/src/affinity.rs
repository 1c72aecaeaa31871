//! The core that each worker thread runs on.
//!
//! An engine is idle between rounds, and then has a few milliseconds of work for every core. A scheduler that packs
//! threads
//! onto active cores needs about as long to spread them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The cores this process may use.
#[derive(Debug)]
pub struct AllowedCores(Vec<usize>);

impl AllowedCores {
    #[must_use]
    pub fn allowed() -> Self {
        let set = sched_getaffinity(None).unwrap_or_default();
        AllowedCores((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Keeps the calling thread on core `index`, counted cyclically over the allowed cores.
    pub fn pin(&self, index: usize) {
        if let Some(core) = self.0.get(index % self.count()) {
            let mut set = CpuSet::new();
            set.set(*core);
            // A failure costs speed only.
            let _ = sched_setaffinity(None, &set);
        }
    }
}

/// Starts the encryption threads: `threads` of them, or one per core for 0. Each stays on its core unless `roam`.
pub fn start_worker_threads(threads: usize, roam: bool) -> Result<(), rayon::ThreadPoolBuildError> {
    let cores = AllowedCores::allowed();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(if threads > 0 { threads } else { cores.count() });
    if roam { pool } else { pool.start_handler(move |index| cores.pin(index)) }.build_global()
}

/// The event loop. A chunk is encrypted on the thread that read its message, while other threads keep reading.
pub fn event_loop(roam: bool) -> std::io::Result<tokio::runtime::Runtime> {
    let cores = AllowedCores::allowed();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(cores.count().max(2)).enable_all();
    if !roam {
        let next = AtomicUsize::new(0);
        runtime.on_thread_start(move || cores.pin(next.fetch_add(1, Ordering::Relaxed)));
    }
    runtime.build()
}
