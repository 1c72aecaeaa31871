//! How much of the machine a piece of work is worth.

use crate::Result;
use rayon::prelude::*;

/// The threads that work on the pieces of an update in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// This thread: a client a core, as simulations run them, gains nothing from more.
    One,
    /// All of rayon's.
    All,
}

/// Elements from which an update is shared out between threads. Below, a client is done in milliseconds, and
/// simulations have one a core; from a million on a client is more likely alone on its machine than not.
const MANY: usize = 1 << 20;
/// Bytes from which memory is shared out.
const MANY_BYTES: usize = 16 << 20;

impl Threads {
    /// For work of some nanoseconds an element.
    #[must_use]
    pub fn for_elements(elements: usize) -> Self {
        Threads::above(elements, MANY)
    }

    /// For work that takes no longer than memory does to give its bytes: waking others takes as long as some megabytes.
    #[must_use]
    pub fn for_bytes(bytes: usize) -> Self {
        Threads::above(bytes, MANY_BYTES)
    }

    fn above(amount: usize, many: usize) -> Self {
        if amount < many { Threads::One } else { Threads::All.there() }
    }

    /// These where rayon has more than one: to hand work to a single other thread and wait gains nothing.
    #[must_use]
    pub(crate) fn there(self) -> Self {
        if rayon::current_num_threads() > 1 { self } else { Threads::One }
    }

    /// The results of `work` for each of `items`, in their order.
    pub fn map<T: Sync, R: Send>(self, items: &[T], work: impl Fn(usize, &T) -> Result<R> + Sync) -> Result<Vec<R>> {
        match self.there() {
            Threads::One => items.iter().enumerate().map(|(k, item)| work(k, item)).collect(),
            Threads::All => items.par_iter().enumerate().map(|(k, item)| work(k, item)).collect(),
        }
    }
}
