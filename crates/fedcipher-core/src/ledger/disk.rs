//! Every change that a claim makes to a file. A test can end the process or the power at any of these steps.

use crate::os;
use std::fs::File;
use std::io::Result;

/// Writes all of `bytes` at `offset`, not yet durable.
pub fn write(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    step(&Step::Write { file, offset, len: bytes.len() })?;
    os::write_all_at(file, bytes, offset)
}

/// Makes everything written to `file` durable.
pub fn sync(file: &File) -> Result<()> {
    step(&Step::Sync(file))?;
    // Tests simulate power cuts themselves.
    if cfg!(test) { Ok(()) } else { file.sync_data() }
}

/// Removes the bytes after `len` that a crash has left.
pub fn cut(file: &File, len: u64) -> Result<()> {
    step(&Step::Cut)?;
    file.set_len(len)
}

#[cfg_attr(not(all(test, target_os = "linux")), expect(dead_code, reason = "read by tests"))]
enum Step<'a> {
    Write { file: &'a File, offset: u64, len: usize },
    Sync(&'a File),
    Cut,
}

#[cfg(not(all(test, target_os = "linux")))]
#[expect(clippy::unnecessary_wraps, reason = "a test's fails")]
fn step(_: &Step<'_>) -> Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
use ends::step;

/// Simulated ends of the process and of the power.
#[cfg(all(test, target_os = "linux"))]
pub mod ends {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::Step;
    use crate::os;
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::io::{Error, Result};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    /// A write that a power cut may undo.
    struct Unsynced {
        file: File,
        offset: u64,
        old: Vec<u8>,
        /// The length written, and the length of the file before.
        len: usize,
        whole: u64,
    }

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        static UNSYNCED: RefCell<Vec<Unsynced>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn step(step: &Step<'_>) -> Result<()> {
        let Some(left) = LEFT.get() else { return Ok(()) };
        LEFT.set(Some(left.checked_sub(1).ok_or_else(|| Error::other("the process has ended"))?));
        UNSYNCED.with_borrow_mut(|unsynced| match step {
            Step::Write { file, offset, len } => {
                let whole = file.metadata()?.len();
                let mut old = vec![0; (*len).min(whole.saturating_sub(*offset) as usize)];
                os::read_exact_at(file, &mut old, *offset)?;
                unsynced.push(Unsynced { file: apart(file)?, offset: *offset, old, len: *len, whole });
                Ok(())
            }
            Step::Sync(file) => {
                let inode = |file: &File| file.metadata().unwrap().ino();
                unsynced.retain(|write| inode(&write.file) != inode(file));
                Ok(())
            }
            Step::Cut => Ok(()),
        })
    }

    /// Opens the same file again. A clone would hold the lock of the ended process.
    fn apart(file: &File) -> Result<File> {
        File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// Runs `work` in a process that ends before step `steps`. Returns whether `work` finished before.
    pub fn within<T>(steps: u32, work: impl FnOnce() -> crate::Result<T>) -> bool {
        LEFT.set(Some(steps));
        let done = work().is_ok();
        LEFT.set(None);
        done
    }

    /// Undoes the writes that were not durable and whose bit in `which` is set, also those of ended processes. Returns
    /// the number of such writes.
    pub fn power_cut(which: u32) -> usize {
        let unsynced = UNSYNCED.take();
        for (number, Unsynced { file, offset, old, len, whole }) in unsynced.iter().enumerate().rev() {
            if which >> number & 1 == 0 {
                continue;
            }
            let last = file.metadata().unwrap().len() == offset + *len as u64;
            let mut before = old.clone();
            before.resize(*len, 0);
            os::write_all_at(file, &before, *offset).unwrap();
            if last {
                file.set_len(*whole).unwrap();
            }
        }
        unsynced.len()
    }
}
