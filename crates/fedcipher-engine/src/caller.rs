//! The other end of an accepted connection.

use crate::connection_limiter::{CallTracker, Origin, Work};
use crate::ring::SharedMemoryRing;
use std::sync::Arc;

/// The caller of a connection, and the ring that it has brought.
#[derive(Debug, Clone)]
pub struct Caller {
    pub origin: Origin,
    pub ring: Option<Arc<SharedMemoryRing>>,
    pub tracker: CallTracker,
}

impl Caller {
    /// Counts a call of this caller. The call is active until the result is dropped.
    #[must_use]
    pub fn call(&self) -> Work {
        self.tracker.call()
    }
}
