//! Limits the memory of messages that have not arrived completely: for all calls together, and for each host.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit in bytes. A semaphore has fewer permits than a machine may have bytes.
const UNIT: usize = 1 << 10;

/// The memory for all calls. One host may use at most half of it, so that it cannot block other hosts.
#[derive(Clone)]
pub struct MemoryBudget {
    free: Arc<Semaphore>,
    of: Arc<Mutex<BTreeMap<String, usize>>>,
    mib: u32,
}

impl MemoryBudget {
    #[must_use]
    pub fn new(mib: u32) -> Self {
        let units = ((mib as usize) << 20) / UNIT;
        MemoryBudget { free: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))), of: Arc::default(), mib }
    }

    /// A reservation of nothing for a call of `host`.
    #[must_use]
    pub fn call(&self, host: &str) -> Reservation {
        Reservation { all: self.clone(), host: host.to_owned(), held: None }
    }

    fn of(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reserved memory of one call. It is returned when dropped.
pub struct Reservation {
    all: MemoryBudget,
    host: String,
    held: Option<OwnedSemaphorePermit>,
}

impl Reservation {
    /// Enlarges the reservation to `bytes`. Fails without waiting if the budget is used up: calls that wait with half a
    /// message could wait for each other.
    pub fn grow_to(&mut self, bytes: usize) -> Result<()> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more @ 1..) = bytes.div_ceil(UNIT).checked_sub(held) else { return Ok(()) };
        let full = || Error::Full { mib: self.all.mib };
        let mut of = self.all.of();
        let own = of.get(&self.host).copied().unwrap_or(0).saturating_add(more);
        if own > ((self.all.mib as usize) << 20).div_ceil(2 * UNIT) {
            return Err(full());
        }
        let more = u32::try_from(more).map_err(|_| full())?;
        let more = Arc::clone(&self.all.free).try_acquire_many_owned(more).map_err(|_| full())?;
        of.insert(self.host.clone(), own);
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let mut of = self.all.of();
        if let Some(own) = of.get_mut(&self.host) {
            *own -= held;
            if *own == 0 {
                of.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn calls_hold_no_more_than_all_may_and_give_it_back() {
        let all = MemoryBudget::new(2);
        let (mut one, mut other) = (all.call("a"), all.call("a"));
        one.grow_to(600 << 10).unwrap();
        // Growing to the same size reserves nothing more.
        one.grow_to(600 << 10).unwrap();
        one.grow_to(1).unwrap();
        assert!(matches!(other.grow_to(500 << 10), Err(Error::Full { mib: 2 })));
        assert!(one.grow_to(usize::MAX).is_err());
        other.grow_to(424 << 10).unwrap();
        assert!(one.grow_to((600 << 10) + 1).is_err());
        // Another host has its own half, but all hosts together have the whole budget.
        let (mut theirs, mut third) = (all.call("b"), all.call("c"));
        theirs.grow_to(1 << 20).unwrap();
        assert!(theirs.grow_to((1 << 20) + 1).is_err());
        assert!(third.grow_to(1).is_err());
        drop(one);
        third.grow_to(600 << 10).unwrap();
        assert!(third.grow_to((600 << 10) + 1).is_err());
        drop((other, theirs));
        third.grow_to(1 << 20).unwrap();
        assert!(third.grow_to((1 << 20) + 1).is_err());
        drop(third);
        assert!(all.of().is_empty());
    }
}
