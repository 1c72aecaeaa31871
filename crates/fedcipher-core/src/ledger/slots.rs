//! Two 32-byte slots written in turn behind a header: a counter that no write in place can lose.
//!
//! A `.nonce` file is one such counter, and so is each entry of a folder's index.

use super::header::{self, LEN, LedgerHeader, Magic};
use super::{disk, failed, lost};
use crate::{Result, os};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

const SLOT: usize = 32;

/// Bytes of a header with both slots. A power of two: none crosses a disk sector.
pub const BYTES: usize = LEN + 2 * SLOT;

/// The newest slot: the number of writes, counting the two at creation from 0, and the value of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    sequence: u64,
    value: u64,
}

impl Newest {
    /// As a file is born: sequence 0 and 1, neither says anything.
    pub const BORN: Newest = Newest { sequence: 1, value: 0 };

    /// The slot of a ledger with `count` claims, the last of which has `value`.
    pub fn of(count: u64, value: u64) -> Self {
        Newest { sequence: count.saturating_add(1), value }
    }

    /// Values written since birth.
    pub fn count(self) -> u64 {
        self.sequence.saturating_sub(1)
    }

    /// The last value, if one was written.
    pub fn value(self) -> Option<u64> {
        (self.count() > 0).then_some(self.value)
    }

    /// The next slot after a write of `value`.
    pub fn next(self, value: u64) -> Self {
        Newest { sequence: self.sequence.saturating_add(1), value }
    }

    /// `checksum of the header | sequence | value | checksum`: a slot of another file does not fit.
    fn encode(self, header: &LedgerHeader) -> [u8; SLOT] {
        let mut out = [0u8; SLOT];
        out[..8].copy_from_slice(&header.encode()[LEN - 8..]);
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.value.to_le_bytes());
        header::write_checksum(&mut out);
        out
    }

    fn decode(bytes: &[u8], header: &LedgerHeader) -> Option<Self> {
        let found = Newest { sequence: header::word(bytes, 8)?, value: header::word(bytes, 16)? };
        (bytes == found.encode(header)).then_some(found)
    }
}

/// A header and its newest slot, at one place of a file.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    pub header: LedgerHeader,
    pub newest: Newest,
    at: u64,
}

impl Counter {
    /// As it is born.
    pub fn born(header: &LedgerHeader) -> [u8; BYTES] {
        let mut out = [0u8; BYTES];
        out[..LEN].copy_from_slice(&header.encode());
        out[LEN..LEN + SLOT].copy_from_slice(&Newest { sequence: 0, value: 0 }.encode(header));
        out[LEN + SLOT..].copy_from_slice(&Newest::BORN.encode(header));
        out
    }

    /// The counter at byte `at` of `file`. Its slots are valid from creation on, so an invalid one has been damaged. It
    /// may have held the newest value, so the older value cannot be used.
    pub fn read(file: &File, path: &Path, at: u64, magic: Magic) -> Result<Self> {
        let mut bytes = [0u8; BYTES];
        os::read_exact_at(file, &mut bytes, at).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => lost(path, "has been cut short"),
            _ => failed(path, e),
        })?;
        let (head, slots) = bytes.split_at(LEN);
        let header = LedgerHeader::decode(head, magic).ok_or_else(|| lost(path, "does not begin as a ledger does"))?;
        let (first, second) = slots.split_at(SLOT);
        let slot = |bytes, parity| Newest::decode(bytes, &header).filter(|found| found.sequence % 2 == parity);
        let (Some(a), Some(b)) = (slot(first, 0), slot(second, 1)) else {
            return Err(lost(path, "one of its two entries is damaged, it may be the newest"));
        };
        let (older, newest) = if a.sequence < b.sequence { (a, b) } else { (b, a) };
        if newest.sequence - older.sequence != 1 {
            return Err(lost(path, "its two entries do not follow each other"));
        }
        Ok(Counter { header, newest, at })
    }

    /// Writes `newest` in place of the older slot; the caller sees to its durability.
    pub fn write(&mut self, file: &File, newest: Newest) -> std::io::Result<()> {
        let at = self.at + LEN as u64 + newest.sequence % 2 * SLOT as u64;
        disk::write(file, &newest.encode(&self.header), at)?;
        self.newest = newest;
        Ok(())
    }
}
