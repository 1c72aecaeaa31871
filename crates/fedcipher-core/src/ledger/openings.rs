//! Which aggregate of which round has been opened: one a round, none older than the last, the same again at will.

use super::folder::{Folder, Indexed, Place, read_stamp};
use super::slots::Newest;
use super::stamp::{self, LEN, Magic, Stamp};
use super::{check_date, disk, failed, locked, lost};
use crate::keys::ClientKey;
use crate::{Error, Result, os};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub(super) const MAGIC: Magic = *b"FEDOPEN2";
const ANSWERS: Magic = *b"FEDANSW2";

/// `round u64 | digest | index u64 | 0 u64 | checksum`. A power of two: none crosses a disk sector.
const RECORD: usize = 64;

/// Makes the file of `key` if the folder never had one.
pub(super) fn place(folder: &Folder, key: &ClientKey) -> Result<Place> {
    place_as(folder, key, "opened", MAGIC)
}

fn place_as(folder: &Folder, key: &ClientKey, suffix: &str, magic: Magic) -> Result<Place> {
    let stamp = Stamp::of(magic, folder.identity(), key, 0);
    folder.ensure(key, suffix, stamp, |stamp| stamp.encode().to_vec())
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

    /// What the index says of it.
    fn sum(&self, index: u64) -> u64 {
        let digest = blake3::hash(&self.encode(index));
        u64::from_le_bytes(digest.as_bytes().first_chunk().copied().unwrap_or_default())
    }

    fn decode(bytes: &[u8; RECORD], index: u64) -> Option<Self> {
        let found = Opening { round: stamp::word(bytes, 0)?, digest: bytes[8..40].try_into().ok()? };
        (*bytes == found.encode(index)).then_some(found)
    }
}

/// The openings of one (key set, client), in one file: a record a round, rounds increasing, which the folder's index
/// counts. The file grows by 64 bytes a round; a claim reads the last record, one of an older round as many
/// as a binary search takes, so a million rounds are no slower than one and nothing is kept in memory.
#[derive(Debug, Default)]
pub struct Openings {
    file: Option<Place>,
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
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = match &self.file {
            Some(place) => {
                let log = Log::open(place, &mut seen.records)?;
                log.count.checked_sub(1).map(|index| log.at(index)).transpose()?
            }
            None => seen.openings.last().copied(),
        };
        if last.is_some_and(|last| last.round == CLOSED.round) { Err(Error::Closed) } else { Ok(()) }
    }

    fn record(&self, wanted: Opening) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.file {
            Some(place) => Log::open(place, &mut seen.records)?.claim(wanted, &mut seen.records),
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

/// The file of a ledger's openings, which nobody else changes while this lives: whole, and as the index says.
struct Log<'a> {
    file: File,
    indexed: Indexed<'a>,
    path: &'a Path,
    count: u64,
}

/// Where record `index` lies.
fn offset(index: u64) -> u64 {
    LEN as u64 + index * RECORD as u64
}

impl<'a> Log<'a> {
    /// `seen`: how many records this object has seen.
    fn open(place: &'a Place, seen: &mut u64) -> Result<Self> {
        let path = place.path.as_path();
        let io = |e: std::io::Error| failed(path, e);
        let mut file = locked(path)?;
        read_stamp(&mut file, path, &place.stamp)?;
        let bytes = file.metadata().map_err(io)?.len();
        let count = bytes.saturating_sub(LEN as u64) / RECORD as u64;
        if count < *seen {
            return Err(lost(path, "is older than what this process has written, it has been cut or put back"));
        }
        let mut log = Log { file, indexed: place.indexed()?, path, count };
        log.mend()?;
        *seen = log.count;
        // What a write has left that was cut off by a crash: that aggregate was not released.
        if bytes != offset(log.count) {
            disk::cut(&log.file, offset(log.count)).map_err(io)?;
        }
        Ok(log)
    }

    /// Compares the last record with the index. A record that the index does not count yet was written when the
    /// process or the power ended: if it is whole it stands, else nothing came of it.
    fn mend(&mut self) -> Result<()> {
        let uncounted = self.count.checked_sub(1).filter(|last| *last == self.indexed.count());
        if uncounted.is_some_and(|last| self.at(last).is_err()) {
            self.count -= 1;
        }
        let newest = match self.count.checked_sub(1) {
            Some(last) => Newest::of(self.count, self.at(last)?.sum(last)),
            None => Newest::BORN,
        };
        self.indexed.check(&self.file, newest)
    }

    fn at(&self, index: u64) -> Result<Opening> {
        let mut bytes = [0u8; RECORD];
        os::read_exact_at(&self.file, &mut bytes, offset(index)).map_err(|e| failed(self.path, e))?;
        Opening::decode(&bytes, index).ok_or_else(|| lost(self.path, &format!("opening {index} in it is damaged")))
    }

    fn claim(&mut self, wanted: Opening, seen: &mut u64) -> Result<()> {
        match verdict(wanted, self.count, |index| self.at(index))? {
            Verdict::Again => Ok(()),
            Verdict::New => {
                disk::write(&self.file, &wanted.encode(self.count), offset(self.count))
                    .and_then(|()| disk::sync(&self.file))
                    .map_err(|e| failed(self.path, e))?;
                self.indexed.advance(Newest::of(self.count + 1, wanted.sum(self.count)))?;
                self.count += 1;
                *seen = self.count;
                Ok(())
            }
        }
    }
}
