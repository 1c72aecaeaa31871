//! Which aggregate of which round has been opened: one a round, none older than the last, the same again at will.

use super::folder::{Folder, read_stamp};
use super::slots::{BYTES, Newest};
use super::stamp::{self, LEN, Magic, Stamp};
use super::{check_date, failed, locked, lost};
use crate::keys::ClientKey;
use crate::{Error, Result, os};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub(super) const MAGIC: Magic = *b"FEDOPENS";
const ANSWERS: Magic = *b"FEDANSWR";

/// `round u64 | digest | index u64 | 0 u64 | checksum`. A power of two: none crosses a disk sector.
const RECORD: usize = 64;
const FIRST: usize = LEN + BYTES;

/// Makes the file of `key` if the folder never had one.
pub(super) fn place(folder: &Folder, key: &ClientKey) -> Result<(PathBuf, Stamp)> {
    place_as(folder, key, "opened", MAGIC)
}

fn place_as(folder: &Folder, key: &ClientKey, suffix: &str, magic: Magic) -> Result<(PathBuf, Stamp)> {
    let (path, stamp) = (folder.file(key, suffix), Stamp::of(magic, folder.identity(), key, 0));
    folder.ensure(&path, stamp, &Newest::born(&stamp))?;
    Ok((path, stamp))
}

/// After every round: nothing is opened any more.
const CLOSED: Opening = Opening { round: u64::MAX, digest: [u8::MAX; 32] };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opening {
    round: u64,
    digest: [u8; 32],
}

impl Opening {
    fn encode(&self, index: u64) -> [u8; RECORD] {
        let mut out = [0u8; RECORD];
        out[..8].copy_from_slice(&self.round.to_le_bytes());
        out[8..40].copy_from_slice(&self.digest);
        out[40..48].copy_from_slice(&index.to_le_bytes());
        stamp::seal(&mut out);
        out
    }

    fn decode(bytes: &[u8; RECORD], index: u64) -> Option<Self> {
        let found = Opening { round: stamp::word(bytes, 0)?, digest: bytes[8..40].try_into().ok()? };
        (*bytes == found.encode(index)).then_some(found)
    }
}

/// The openings of one (key set, client), in one file: a slot pair that counts, then a record a round, rounds
/// increasing. The file grows by 64 bytes a round; a claim reads the last record, one of an older round as many
/// as a binary search takes, so a million rounds are no slower than one and nothing is kept in memory.
#[derive(Debug, Default)]
pub struct Openings {
    /// The file and what it must begin with.
    file: Option<(PathBuf, Stamp)>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Records that this object has seen on disk: the file never gets shorter.
    records: u64,
    /// Without a file: all openings.
    openings: Vec<Opening>,
}

impl Openings {
    /// The openings of `key` in folder `state`; without a folder they live as long as this object.
    pub fn open(key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let file = state.map(|state| place(&Folder::open(state)?, key)).transpose()?;
        Ok(Openings { file, seen: Mutex::default() })
    }

    /// The answers of `key` as a member of its committee: one set of clients a round, none of an older round.
    pub fn of_answers(key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let file = state.map(|state| place_as(&Folder::open(state)?, key, "answered", ANSWERS)).transpose()?;
        Ok(Openings { file, seen: Mutex::default() })
    }

    /// Claims the opening of the aggregate `digest` in `round`, durably: a round later than all before, or
    /// exactly an opening that was claimed before. A refusal changes nothing.
    pub fn claim(&self, round: u64, digest: &[u8; 32]) -> Result<()> {
        check_date(round)?;
        self.record(Opening { round, digest: *digest })
    }

    /// Opens nothing under this key from here on, durably. `Closed` where that was so already.
    pub fn close(&self) -> Result<()> {
        self.record(CLOSED)
    }

    /// `Closed` where nothing is opened any more.
    pub fn check_open(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = match &self.file {
            Some((path, _)) => {
                let file = locked(path)?;
                let bytes = file.metadata().map_err(|e| failed(path, e))?.len().saturating_sub(FIRST as u64);
                // The claim before this has seen to the rest of the file.
                (bytes / RECORD as u64).checked_sub(1).map(|index| read(&file, path, index)).transpose()?
            }
            None => seen.openings.last().copied(),
        };
        if last.is_some_and(|last| last.round == CLOSED.round) { Err(Error::Closed) } else { Ok(()) }
    }

    fn record(&self, wanted: Opening) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.file {
            Some((path, stamp)) => claim_on_disk(wanted, path, stamp, &mut seen.records),
            None => {
                let openings = &mut seen.openings;
                match verdict(wanted, openings.len() as u64, |k| Ok(openings[k as usize]))? {
                    Verdict::New => openings.push(wanted),
                    Verdict::Again => {}
                }
                Ok(())
            }
        }
    }
}

enum Verdict {
    New,
    Again,
}

/// Whether `wanted` may be opened after `count` openings of increasing rounds.
fn verdict(wanted: Opening, count: u64, at: impl Fn(u64) -> Result<Opening>) -> Result<Verdict> {
    let Some(newest) = count.checked_sub(1) else { return Ok(Verdict::New) };
    let last = at(newest)?.round;
    if last == CLOSED.round {
        return Err(Error::Closed);
    }
    if wanted.round > last {
        return Ok(Verdict::New);
    }
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)?.round < wanted.round { low = middle + 1 } else { high = middle }
    }
    // The newest is no older than what is wanted, so there is one at `low`.
    if at(low)? == wanted { Ok(Verdict::Again) } else { Err(Error::Opened { round: wanted.round, last }) }
}

fn claim_on_disk(wanted: Opening, path: &Path, stamp: &Stamp, seen: &mut u64) -> Result<()> {
    let io = |e: std::io::Error| failed(path, e);
    let mut file = locked(path)?;
    let found = read_stamp(&mut file, path, stamp)?;
    let mut slots = [0u8; BYTES];
    file.read_exact(&mut slots).map_err(|_| lost(path, "has been cut short"))?;
    let newest = Newest::read(&slots, &found, path)?;
    let bytes = file.metadata().map_err(io)?.len().saturating_sub(FIRST as u64);
    let count = bytes / RECORD as u64;
    // The slot is written after its record is durable, and is durable with the next record at the latest.
    if count < newest.count() || count < *seen {
        return Err(lost(path, "has been cut short"));
    }
    if count > newest.count() + 1 {
        return Err(lost(path, "holds more openings than it counts"));
    }
    *seen = count;
    // Without what a write has left that was cut off by a crash: that aggregate was not released.
    file.set_len(FIRST as u64 + count * RECORD as u64).map_err(io)?;
    let at = |index: u64| read(&file, path, index);
    let mut newest = newest;
    if count > newest.count() {
        file.sync_all().map_err(io)?;
        newest = newest.next(at(count - 1)?.round);
        newest.write(&file, &found).map_err(io)?;
    }
    if count > 0 && newest.value() != Some(at(count - 1)?.round) {
        return Err(lost(path, "its last opening is not the one that it counts"));
    }
    match verdict(wanted, count, at)? {
        Verdict::Again => Ok(()),
        Verdict::New => {
            let end = FIRST as u64 + count * RECORD as u64;
            os::write_all_at(&file, &wanted.encode(count), end).and_then(|()| file.sync_all()).map_err(io)?;
            newest.next(wanted.round).write(&file, &found).map_err(io)?;
            *seen = count + 1;
            Ok(())
        }
    }
}

fn read(file: &File, path: &Path, index: u64) -> Result<Opening> {
    let mut bytes = [0u8; RECORD];
    os::read_exact_at(file, &mut bytes, FIRST as u64 + index * RECORD as u64).map_err(|e| failed(path, e))?;
    Opening::decode(&bytes, index).ok_or_else(|| lost(path, &format!("opening {index} in it is damaged")))
}
