//! Where there is no `memfd`, there is no ring: chunks go in the messages themselves, as they do over TCP.

use crate::Result;

/// Chunks on their way, in each direction.
pub const SLOTS: usize = 8;

/// What a system without `memfd` never has.
#[derive(Debug)]
pub enum SharedMemoryRing {}

impl SharedMemoryRing {
    /// None, always.
    pub fn make() -> std::io::Result<Option<Self>> {
        Ok(None)
    }

    /// As in Linux.
    pub fn offer<S>(&self, _: S) -> std::io::Result<()> {
        match *self {}
    }

    /// As in Linux.
    pub fn write_part(&self, _: u64, _: usize, _: &[u8]) -> Result<()> {
        match *self {}
    }

    /// As in Linux.
    pub fn read_reply_slot(&self, _: u64, _: &mut [u8]) -> Result<()> {
        match *self {}
    }

    /// As in Linux.
    pub fn taken(&self, _: u64) -> Result<()> {
        match *self {}
    }
}
