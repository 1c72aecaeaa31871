//! Two 32-byte slots written in turn: a counter that no write in place can lose.

use super::lost;
use super::stamp::{self, LEN, Stamp};
use crate::{Result, os};
use std::fs::File;
use std::path::Path;

const SLOT: usize = 32;

/// Bytes of both slots, which lie behind the stamp.
pub const BYTES: usize = 2 * SLOT;

/// The newest slot: how many writes there have been, counting the two of birth from 0, and what the last said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Newest {
    sequence: u64,
    value: u64,
}

impl Newest {
    /// As a file is born: sequence 0 and 1, neither says anything.
    pub const BORN: Newest = Newest { sequence: 1, value: 0 };

    /// Values written since birth.
    pub fn count(self) -> u64 {
        self.sequence - 1
    }

    /// The last value, if one was written.
    pub fn value(self) -> Option<u64> {
        (self.count() > 0).then_some(self.value)
    }

    /// What a write of `value` makes of it.
    pub fn next(self, value: u64) -> Self {
        Newest { sequence: self.sequence + 1, value }
    }

    /// In place of the older slot; the caller sees to its durability.
    pub fn write(self, file: &File, stamp: &Stamp) -> std::io::Result<()> {
        let at = LEN as u64 + self.sequence % 2 * SLOT as u64;
        os::write_all_at(file, &self.encode(stamp), at)
    }

    /// `checksum of the stamp | sequence | value | checksum`: a slot of another file does not fit.
    fn encode(self, stamp: &Stamp) -> [u8; SLOT] {
        let mut out = [0u8; SLOT];
        out[..8].copy_from_slice(&stamp.encode()[LEN - 8..]);
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.value.to_le_bytes());
        stamp::seal(&mut out);
        out
    }

    /// The two slots of a file that was just born.
    pub fn born(stamp: &Stamp) -> [u8; BYTES] {
        let mut out = [0u8; BYTES];
        out[..SLOT].copy_from_slice(&Newest { sequence: 0, value: 0 }.encode(stamp));
        out[SLOT..].copy_from_slice(&Newest::BORN.encode(stamp));
        out
    }

    /// From both slots. They are valid from birth on, so an invalid one has been damaged or torn. It may have
    /// held the newest value, which is then unknown: the older one is no answer.
    pub fn read(bytes: &[u8; BYTES], stamp: &Stamp, path: &Path) -> Result<Self> {
        let slot = |at: usize| {
            let bytes = &bytes[at..at + SLOT];
            let found = Newest { sequence: stamp::word(bytes, 8)?, value: stamp::word(bytes, 16)? };
            let valid = bytes == found.encode(stamp) && found.sequence % 2 == (at / SLOT) as u64;
            valid.then_some(found)
        };
        let (Some(a), Some(b)) = (slot(0), slot(SLOT)) else {
            return Err(lost(path, "one of its two entries is damaged, it may be the newest"));
        };
        let (older, newer) = (a.min(b), a.max(b));
        if newer.sequence - older.sequence != 1 || newer.value < older.value {
            return Err(lost(path, "its two entries do not follow each other"));
        }
        Ok(newer)
    }
}
