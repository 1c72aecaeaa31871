//! Memory for data as large as a model: in huge pages, if the system has any.
//!
//! Fresh memory costs a page fault for every 4 KiB. For an update of 250 MB, that is a third of an encryption and most
//! of a
//! sum's first addition.

use crate::threads::Threads;
use crate::{Error, Result};
use rayon::prelude::*;

/// Values that a thread copies, or scales, at a time.
pub(crate) const SHARED: usize = 1 << 18;
/// Huge pages of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE: usize = 2 << 20;
/// As numpy: smaller arrays rarely hold a whole huge page.
const FROM: usize = 4 << 20;

/// So many zeros, no page of which is touched before it is written.
pub fn zeros<T: Copy + Default>(len: usize) -> Vec<T> {
    let mut fresh = vec![T::default(); len];
    huge_pages(&mut fresh);
    fresh
}

/// Runs of these lengths, which follow each other in `rest`.
pub fn runs<T>(mut rest: &mut [T], lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = &mut [T]> {
    lengths.map(move |length| {
        let (run, behind) = std::mem::take(&mut rest).split_at_mut(length);
        rest = behind;
        run
    })
}

/// Refuses `len` values that are not of runs of these `lengths`, or not so many runs.
pub(crate) fn check_runs(len: usize, lengths: &[usize], count: usize) -> Result<()> {
    let expected = lengths.iter().try_fold(0usize, |all, length| all.checked_add(*length));
    if expected != Some(len) || count != lengths.len() {
        return Err(Error::layout(format!("{len} values are not of arrays of {lengths:?}")));
    }
    Ok(())
}

/// The same values in memory of their own.
pub fn copied<T: Copy + Default + Send + Sync>(values: &[T]) -> Vec<T> {
    match Threads::for_bytes(size_of_val(values)) {
        // Smaller memory may be had without fresh pages.
        Threads::One => values.to_vec(),
        Threads::All => {
            let mut fresh = zeros(values.len());
            let parts = fresh.par_chunks_mut(SHARED).zip(values.par_chunks(SHARED));
            parts.for_each(|(to, from)| to.copy_from_slice(from));
            fresh
        }
    }
}

/// Asks for huge pages under memory that has not been written yet. The system may decline; this is not an error.
pub fn huge_pages<T>(fresh: &mut [T]) {
    if size_of_val(fresh) >= FROM {
        advise(fresh);
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no crate has this advice for memory that it has not mapped itself")]
fn advise<T>(fresh: &mut [T]) {
    let bytes = fresh.as_mut_ptr_range();
    let from = bytes.start.cast::<u8>();
    let (skip, end) = (from.align_offset(HUGE), bytes.end.addr());
    if skip < size_of_val(fresh) {
        let len = (end - from.addr() - skip) / HUGE * HUGE;
        // SAFETY: the range is of whole pages and within `fresh`, which is borrowed alone; this advice changes
        // neither what is there nor who may read it.
        unsafe { libc::madvise(from.add(skip).cast(), len, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_fresh: &mut [T]) {}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::panic, clippy::unwrap_used, reason = "what is tested")]
mod tests {
    use super::*;

    /// The kernel's description of the mapping that contains `address`.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range.filter(|(from, _)| u64::from_str_radix(from, 16).is_ok()) {
                let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
                inside = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| inside) {
                return flags.to_owned();
            }
        }
        panic!("no mapping of {address:#x}");
    }

    #[test]
    fn large_memory_is_advised_and_zero() {
        let fresh = zeros::<u32>(4 * FROM / 4);
        let middle = fresh[fresh.len() / 2..].as_ptr().addr();
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(flags(middle).split(' ').any(|flag| flag == "hg"), "{}", flags(middle));
        }
        assert!(fresh.iter().all(|&value| value == 0));
        assert_eq!(fresh.len(), FROM);
    }

    #[test]
    fn any_length_at_any_offset_stays_as_it_is() {
        let mut all: Vec<u8> = (0..FROM + 3 * HUGE).map(|i| (i % 251) as u8).collect();
        for (from, len) in [(0, FROM), (1, FROM + 1), (4095, FROM + HUGE - 1), (HUGE - 1, FROM + 2 * HUGE), (5, 0)] {
            huge_pages(&mut all[from..from + len]);
        }
        assert!(all.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8));
    }
}
