//! What calls hold of messages that have not come to their end: bounded for all of them together.

use crate::error::{Error, Result};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in these: a semaphore's permits are fewer than a machine's bytes.
const UNIT: usize = 1 << 10;

/// The bytes that all calls may hold.
#[derive(Clone)]
pub struct Unfinished {
    free: Arc<Semaphore>,
    mib: u32,
}

impl Unfinished {
    #[must_use]
    pub fn new(mib: u32) -> Self {
        let units = ((mib as usize) << 20) / UNIT;
        Unfinished { free: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))), mib }
    }

    /// A call that holds nothing yet.
    #[must_use]
    pub fn call(&self) -> Held {
        Held { all: self.clone(), held: None }
    }
}

/// One call's share, given back when it is dropped.
pub struct Held {
    all: Unfinished,
    held: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// Takes what is missing to `bytes`. Refused, and not waited for, where others hold it: who waits with half a
    /// message would wait for others that do the same.
    pub fn grow_to(&mut self, bytes: usize) -> Result<()> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more @ 1..) = bytes.div_ceil(UNIT).checked_sub(held) else { return Ok(()) };
        let full = || Error::Full { mib: self.all.mib };
        let more = u32::try_from(more).map_err(|_| full())?;
        let more = Arc::clone(&self.all.free).try_acquire_many_owned(more).map_err(|_| full())?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn calls_hold_no_more_than_all_may_and_give_it_back() {
        let all = Unfinished::new(1);
        let (mut one, mut other) = (all.call(), all.call());
        one.grow_to(600 << 10).unwrap();
        // What it has already it does not take again.
        one.grow_to(600 << 10).unwrap();
        one.grow_to(1).unwrap();
        assert!(matches!(other.grow_to(500 << 10), Err(Error::Full { mib: 1 })));
        assert!(one.grow_to(usize::MAX).is_err());
        other.grow_to(424 << 10).unwrap();
        assert!(one.grow_to((600 << 10) + 1).is_err());
        drop(one);
        other.grow_to(1 << 20).unwrap();
        assert!(other.grow_to((1 << 20) + 1).is_err());
    }
}
