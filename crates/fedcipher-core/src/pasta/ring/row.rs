//! A row, and the reuse of its memory.
//!
//! A chunk makes and drops hundreds of megabytes of rows. An allocator would give such pages back to the system and fetch
//! them again, zeroed, which takes a seventh of a chunk's time. So while a [`PoolGuard`] exists, a new row reuses the
//! memory of a dropped one.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// N residues modulo one prime: coefficients, or values in the order of fhe.rs's transform.
#[derive(Debug, PartialEq, Eq)]
pub struct Row(Vec<u64>);

/// Memory of dropped rows, by size.
struct RowPool {
    guards: usize,
    rows: BTreeMap<usize, Vec<Vec<u64>>>,
}

static POOL: Mutex<RowPool> = Mutex::new(RowPool { guards: 0, rows: BTreeMap::new() });

fn pool() -> MutexGuard<'static, RowPool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While a guard exists, the memory of dropped rows stays in the pool. The last guard gives all of the memory back.
#[must_use]
pub struct PoolGuard(());

pub fn keep_rows() -> PoolGuard {
    pool().guards += 1;
    PoolGuard(())
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.guards -= 1;
        let rows = if pool.guards == 0 { std::mem::take(&mut pool.rows) } else { BTreeMap::new() };
        // Giving the memory back takes long, so the lock is released first.
        drop(pool);
        drop(rows);
    }
}

impl Row {
    /// An empty row with room for `n` values.
    fn empty(n: usize) -> Self {
        let found = pool().rows.get_mut(&n).and_then(Vec::pop);
        Row(found.unwrap_or_else(|| Vec::with_capacity(n)))
    }

    pub fn zeros(n: usize) -> Self {
        let mut row = Self::empty(n);
        row.0.resize(n, 0);
        row
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let (n, mut pool) = (self.0.capacity(), pool());
        if pool.guards > 0 && n > 0 {
            let mut row = std::mem::take(&mut self.0);
            row.clear();
            pool.rows.entry(n).or_default().push(row);
        }
    }
}

impl Clone for Row {
    fn clone(&self) -> Self {
        self.iter().copied().collect()
    }
}

impl FromIterator<u64> for Row {
    // Inlined, so that the compiler uses the caller's vector instructions.
    #[inline(always)]
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let values = values.into_iter();
        let mut row = Self::empty(values.size_hint().0);
        row.0.extend(values);
        row
    }
}

impl From<Vec<u64>> for Row {
    fn from(values: Vec<u64>) -> Self {
        Row(values)
    }
}

impl<'a> IntoIterator for &'a Row {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Deref for Row {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length that other tests do not use.
    const N: usize = 12_345;

    fn rows_left() -> usize {
        pool().rows.get(&N).map_or(0, Vec::len)
    }

    #[test]
    fn memory_goes_from_row_to_row_while_it_is_kept_and_values_do_not() {
        drop(Row::zeros(N));
        assert_eq!(rows_left(), 0);
        let (first, second) = (keep_rows(), keep_rows());
        let row: Row = (0..N as u64).collect();
        let at = row.as_ptr();
        drop(row);
        let again = Row::zeros(N);
        assert!(again.as_ptr() == at && again.iter().all(|x| *x == 0));
        drop(again);
        let copied = (N as u64..2 * N as u64).collect::<Row>().clone();
        assert!(copied.iter().copied().eq(N as u64..2 * N as u64));
        drop(copied);
        assert_eq!(rows_left(), 2);
        drop(first);
        assert_eq!(rows_left(), 2);
        drop(second);
        assert_eq!(rows_left(), 0);
    }
}
