//! The aggregates that have been opened. The round must not be older than the last; the same aggregate may be opened
//! again. Without a memory of the rule of sets, one aggregate opens per round. With one, several open if they have no
//! client in common and keep the rule.

use super::folder::{Folder, Indexed, LedgerFile, read_header};
use super::header::{self, LEN, LedgerHeader, Magic};
use super::journal::{Held, Journal, Position};
use super::memories::{Entry, Memories, Record, Sum};
use super::slots::Newest;
use super::{check_date, disk, failed, locked, lost};
use crate::keys::{ClientKey, Cohort};
use crate::mac::memory::MemoryKey;
use crate::sets::{self, Name, SetMemory};
use crate::wire::{Contribution, Header};
use crate::{ClientId, Error, Result, RoundId, os};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) const MAGIC: Magic = *b"FEDOPEN2";
const ANSWERS: Magic = *b"FEDANSW2";
const OPENED_SETS: Magic = *b"FEDSETS7";
const ANSWERED_SETS: Magic = *b"FEDSETS8";

/// `round u64 | digest | index u64 | counts in a memory u64 | checksum`. A power of two: none crosses a disk sector.
const RECORD: usize = 64;

/// The file of `key`; it is made if the folder never had one.
pub(super) fn place(folder: &Folder, key: &ClientKey) -> Result<LedgerFile> {
    place_as(folder, key, "opened", MAGIC)
}

fn place_as(folder: &Folder, key: &ClientKey, suffix: &str, magic: Magic) -> Result<LedgerFile> {
    let header = LedgerHeader::of(magic, folder.identity(), key, 0);
    folder.ensure(suffix, header, |header| header.encode().to_vec())
}

/// A record after every round: the key is closed.
const CLOSED: OpenedRecord = OpenedRecord { round: RoundId::LAST, digest: [u8::MAX; 32], memory: false };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenedRecord {
    round: RoundId,
    digest: [u8; 32],
    /// Whether the opening counts in a memory.
    memory: bool,
}

impl OpenedRecord {
    fn encode(&self, index: u64) -> [u8; RECORD] {
        let mut out = [0u8; RECORD];
        out[..8].copy_from_slice(&self.round.to_le_bytes());
        out[8..40].copy_from_slice(&self.digest);
        out[40..48].copy_from_slice(&index.to_le_bytes());
        out[48..56].copy_from_slice(&u64::from(self.memory).to_le_bytes());
        header::write_checksum(&mut out);
        out
    }

    /// The checksum of the record in the index.
    fn sum(&self, index: u64) -> u64 {
        let digest = blake3::hash(&self.encode(index));
        u64::from_le_bytes(digest.as_bytes().first_chunk().copied().unwrap_or_default())
    }

    fn decode(bytes: &[u8; RECORD], index: u64) -> Option<Self> {
        let digest = bytes[8..40].try_into().ok()?;
        let found = OpenedRecord {
            round: RoundId::new(header::word(bytes, 0)?),
            digest,
            memory: header::word(bytes, 48)? == 1,
        };
        (*bytes == found.encode(index)).then_some(found)
    }
}

/// The party that opens aggregates.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    pub key: &'a ClientKey,
    /// The holder's verification key, and those of all clients, if a roster lists them. The sets are then remembered
    /// under these keys, across rosters and epochs.
    pub roster: Option<(&'a [u8; 32], &'a Cohort)>,
    /// The minimum number of clients in every group of the rule of sets.
    pub minimum: u64,
}

/// The openings of one (key set, client). The file has one record per opening, in non-decreasing rounds, and the
/// folder's index counts the records. It grows by 64 bytes per opening. A claim reads the last record; for an older
/// round it also does a binary search. So memory use and speed do not depend on the number of rounds. A journal beside
/// the file remembers the clients, as far as the rules need them.
#[derive(Debug, Default)]
pub struct OpenedLedger {
    files: Option<(LedgerFile, Journal)>,
    /// `None` if nothing is claimed.
    memory: Option<MemoryKey>,
    /// The name of each client; empty if clients are known by their numbers.
    names: BTreeMap<ClientId, Name>,
    minimum: u64,
    /// Whether each opening is kept with its answer.
    answers: bool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The number of records that this object has seen on disk. The file never gets shorter.
    records: u64,
    /// All openings, if there is no file.
    openings: Vec<OpenedRecord>,
    position: Position,
    memories: Memories,
}

impl OpenedLedger {
    /// The openings of `holder` in folder `state`. Without a folder, they live as long as this object.
    pub fn open(holder: &Holder<'_>, state: Option<&Path>) -> Result<Self> {
        Self::of(holder, state, false)
    }

    /// The answers of `holder` as a committee member, under the same rules.
    pub fn of_answers(holder: &Holder<'_>, state: Option<&Path>) -> Result<Self> {
        Self::of(holder, state, true)
    }

    fn of(holder: &Holder<'_>, state: Option<&Path>, answers: bool) -> Result<Self> {
        let (suffix, magic) = if answers { ("answered", ANSWERS) } else { ("opened", MAGIC) };
        let (sets, sets_magic) = if answers { ("answered-sets", ANSWERED_SETS) } else { ("sets", OPENED_SETS) };
        let open = |state: &Path| {
            let folder = Folder::open(state)?;
            let mut header = LedgerHeader::of(sets_magic, folder.identity(), holder.key, 0);
            if let Some((identity, _)) = holder.roster {
                let name = blake3::derive_key("fedcipher ledger of an identity", identity);
                (header.key_id, header.client) = (name.first_chunk().copied().unwrap_or_default(), ClientId::new(0));
            }
            Ok((place_as(&folder, holder.key, suffix, magic)?, Journal::open(&folder, sets, header)?))
        };
        let files = state.map(open).transpose()?;
        let memory = Some(MemoryKey::new(&holder.key.root)?);
        let clients = holder.roster.into_iter().flat_map(|(_, cohort)| cohort);
        let names = clients.map(|(client, key)| (*client, sets::name(key))).collect();
        Ok(OpenedLedger { files, memory, names, minimum: holder.minimum, answers, seen: Mutex::default() })
    }

    /// The sum in this header of an aggregate or request. Fails if its tag deciphers to no memory, or if a client is
    /// not in the roster.
    pub fn sum(&self, header: &Header) -> Result<Sum> {
        let memory = self.memory.as_ref().map(|key| key.read(header.memory, header.round)).transpose()?.flatten();
        let name = |of: &Contribution| match self.names.get(&of.client) {
            Some(name) => Ok(*name),
            None if self.names.is_empty() => Ok(Name::from(of.client.get())),
            None => Err(Error::UnknownClient { client: of.client }),
        };
        let clients = header.contributions.iter().map(name).collect::<Result<_>>()?;
        Ok(Sum::new(header.key_id, header.round, self.minimum.max(1), memory, clients))
    }

    /// Claims the opening of the aggregate `digest` with sum `sum`, durably. It must be of a later round than all
    /// before, or the same as an earlier opening, or of the newest round if the memory of `sum` allows it. A failed
    /// claim changes nothing.
    pub fn claim(&self, sum: &Sum, digest: &[u8; 32]) -> Result<()> {
        self.answer(sum, digest, Vec::new()).map(drop)
    }

    /// Claims the request `digest` like [`Self::claim`]. Returns the answer to send: `answer`, or the earlier one if
    /// the request was answered before.
    pub fn answer(&self, sum: &Sum, digest: &[u8; 32], answer: Vec<u8>) -> Result<Vec<u8>> {
        check_date(sum.round)?;
        let wanted = OpenedRecord { round: sum.round, digest: *digest, memory: sum.has_memory() };
        let seen = &mut *self.seen();
        let entry = Entry { sum: sum.clone(), digest: *digest, answer };
        match &self.files {
            Some((place, journal)) => {
                let mut log = Log::open(place, &mut seen.records)?;
                self.record(&mut log, journal, wanted, entry, &mut seen.position, &mut seen.memories)
            }
            None => {
                let openings = &mut seen.openings;
                let verdict = verdict(wanted, openings.len() as u64, |k| Ok(openings[k as usize]))?;
                if let Verdict::New { begun } = verdict {
                    self.check(&seen.memories, &entry, begun)?;
                    openings.push(wanted);
                    if self.keeps(sum) {
                        seen.memories.push(entry.clone());
                    }
                    forget(&mut seen.memories);
                }
                self.given(&seen.memories, &entry)
            }
        }
    }

    /// Remembers the set of `sum` and the sets `others`, each with its minimum, durably and before any answer. Returns
    /// the groups of the memory. Fails if a set breaks the rule of sets, or if the memory may have been forgotten.
    pub fn agree(&self, sum: &Sum, others: Vec<(u64, Vec<Name>)>) -> Result<SetMemory> {
        check_date(sum.round)?;
        let Seen { position, memories, .. } = &mut *self.seen();
        let Some((_, journal)) = &self.files else {
            memories.news(sum, others)?.into_iter().for_each(|entry| memories.push(entry));
            let groups = memories.groups(sum);
            forget(memories);
            return groups;
        };
        let mut held = journal.hold(position, &mut |record| taken(memories, record))?;
        for entry in memories.news(sum, others)? {
            held.append(position, &entry.to_bytes())?;
            held.settle(position)?;
            memories.push(entry);
        }
        let groups = memories.groups(sum);
        shorten(held, position, memories)?;
        groups
    }

    /// The groups of the memory of `sum`; `None` if the set of `sum` is not in the memory.
    pub fn agreed(&self, sum: &Sum) -> Result<Option<SetMemory>> {
        let Seen { position, memories, .. } = &mut *self.seen();
        if let Some((_, journal)) = &self.files {
            journal.hold(position, &mut |record| taken(memories, record))?;
        }
        let there = memories.missing(sum, Vec::new())?.is_empty();
        if there { memories.groups(sum).map(Some) } else { Ok(None) }
    }

    /// The earlier answer to the request `digest`, if there is one.
    pub fn answered(&self, sum: &Sum, digest: &[u8; 32]) -> Result<Option<Vec<u8>>> {
        let seen = &mut *self.seen();
        if let Some((place, journal)) = &self.files {
            let log = Log::open(place, &mut seen.records)?;
            journal.hold(&mut seen.position, &mut |record| taken(&mut seen.memories, record))?;
            if !log.has(OpenedRecord { round: sum.round, digest: *digest, memory: sum.has_memory() })? {
                return Ok(None);
            }
        }
        Ok(seen.memories.entry(sum, digest).map(|entry| entry.answer.clone()))
    }

    /// Closes the key on disk: nothing opens under it afterwards. Fails with `Closed` if it was closed already.
    pub fn close(&self) -> Result<()> {
        let seen = &mut *self.seen();
        match &self.files {
            Some((place, _)) => {
                let mut log = Log::open(place, &mut seen.records)?;
                match verdict(CLOSED, log.count, |index| log.at(index))? {
                    Verdict::Again => Ok(()),
                    Verdict::New { .. } => log.append(CLOSED),
                }
            }
            None => {
                let openings = &mut seen.openings;
                verdict(CLOSED, openings.len() as u64, |k| Ok(openings[k as usize]))?;
                openings.push(CLOSED);
                Ok(())
            }
        }
    }

    /// Fails with `Closed` if the key is closed.
    pub fn check_open(&self) -> Result<()> {
        let seen = &mut *self.seen();
        let last = match &self.files {
            Some((place, _)) => {
                let log = Log::open(place, &mut seen.records)?;
                log.count.checked_sub(1).map(|index| log.at(index)).transpose()?
            }
            None => seen.openings.last().copied(),
        };
        if last.is_some_and(|last| last.round == CLOSED.round) { Err(Error::Closed) } else { Ok(()) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether more is remembered of a sum than its opening.
    fn keeps(&self, sum: &Sum) -> bool {
        self.answers || sum.has_memory()
    }

    fn check(&self, memories: &Memories, entry: &Entry, begun: bool) -> Result<()> {
        if entry.sum.has_memory() { memories.check(&entry.sum, &entry.digest, begun) } else { Ok(()) }
    }

    /// The answer for a claim that stands.
    fn given(&self, memories: &Memories, entry: &Entry) -> Result<Vec<u8>> {
        match memories.entry(&entry.sum, &entry.digest) {
            Some(found) => Ok(found.answer.clone()),
            None if !self.answers => Ok(Vec::new()),
            // The round is older than the newest one. It is over, and its answers are not kept.
            None => Err(Error::Opened { round: entry.sum.round, last: entry.sum.round }),
        }
    }

    fn record(
        &self,
        log: &mut Log<'_>,
        journal: &Journal,
        wanted: OpenedRecord,
        entry: Entry,
        position: &mut Position,
        memories: &mut Memories,
    ) -> Result<Vec<u8>> {
        let verdict = verdict(wanted, log.count, |index| log.at(index))?;
        if !self.keeps(&entry.sum) {
            if matches!(verdict, Verdict::New { .. }) {
                log.append(wanted)?;
            }
            return Ok(entry.answer);
        }
        let mut held = journal.hold(position, &mut |record| taken(memories, record))?;
        if let Verdict::New { begun } = verdict {
            self.check(memories, &entry, begun)?;
            // The set is written first, because the log refers to memories in the journal. If an earlier claim was
            // interrupted between the two, the set is there already.
            if memories.entry(&entry.sum, &entry.digest).is_none() {
                held.append(position, &entry.to_bytes())?;
                held.count(position)?;
                memories.push(entry.clone());
            }
            log.append(wanted)?;
            journal.note_durable(position);
        }
        let given = self.given(memories, &entry);
        shorten(held, position, memories)?;
        given
    }
}

/// For use without a journal.
fn forget(memories: &mut Memories) {
    if memories.overfull() {
        memories.forget();
    }
}

/// Rewrites a long journal without the entries that are no longer needed.
fn shorten(held: Held<'_>, position: &mut Position, memories: &Memories) -> Result<()> {
    if !held.is_long(position) && !memories.overfull() {
        return Ok(());
    }
    let kept: Vec<Vec<u8>> = memories.kept().iter().map(Record::to_bytes).collect();
    held.rewrite(position, &kept)
}

/// Takes a journal's record, or `None` if all earlier records are replaced.
fn taken(memories: &mut Memories, record: Option<&[u8]>) -> Result<()> {
    match record {
        Some(bytes) => memories.take(Record::parse(bytes)?),
        None => *memories = Memories::default(),
    }
    Ok(())
}

enum Verdict {
    /// `begun`: other sums of the round were opened, and all of them count in a memory.
    New {
        begun: bool,
    },
    Again,
}

/// Decides whether `wanted` may be opened after `count` openings in non-decreasing rounds.
fn verdict(wanted: OpenedRecord, count: u64, at: impl Fn(u64) -> Result<OpenedRecord>) -> Result<Verdict> {
    let Some(newest) = count.checked_sub(1) else { return Ok(Verdict::New { begun: false }) };
    let last = at(newest)?.round;
    if last == CLOSED.round {
        return Err(Error::Closed);
    }
    if wanted.round > last {
        return Ok(Verdict::New { begun: false });
    }
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)?.round < wanted.round { low = middle + 1 } else { high = middle }
    }
    let mut several = wanted.memory && wanted.round == last;
    for index in low..count {
        let found = at(index)?;
        if found.round != wanted.round {
            break;
        }
        if found == wanted {
            return Ok(Verdict::Again);
        }
        several &= found.memory;
    }
    if several { Ok(Verdict::New { begun: true }) } else { Err(Error::Opened { round: wanted.round, last }) }
}

/// The file of a ledger's openings: locked, whole, and consistent with the index.
struct Log<'a> {
    file: File,
    indexed: Indexed<'a>,
    path: &'a Path,
    count: u64,
}

/// The offset of record `index`.
fn offset(index: u64) -> u64 {
    LEN as u64 + index * RECORD as u64
}

impl<'a> Log<'a> {
    /// `seen` is the number of records that this object has seen.
    fn open(place: &'a LedgerFile, seen: &mut u64) -> Result<Self> {
        let path = place.path.as_path();
        let io = |e: std::io::Error| failed(path, e);
        let mut file = locked(path)?;
        read_header(&mut file, path, &place.header)?;
        let bytes = file.metadata().map_err(io)?.len();
        let count = bytes.saturating_sub(LEN as u64) / RECORD as u64;
        if count < *seen {
            return Err(lost(path, "is older than what this process has written, it has been cut or put back"));
        }
        let mut log = Log { file, indexed: place.indexed()?, path, count };
        log.mend()?;
        *seen = log.count;
        // The remainder of a write that a crash cut off. That aggregate was not released.
        if bytes != offset(log.count) {
            disk::cut(&log.file, offset(log.count)).map_err(io)?;
        }
        Ok(log)
    }

    /// Compares the last record with the index. A record that the index does not count was being written when the
    /// process or the power ended. A whole record stands; a torn one is removed.
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

    fn at(&self, index: u64) -> Result<OpenedRecord> {
        let mut bytes = [0u8; RECORD];
        os::read_exact_at(&self.file, &mut bytes, offset(index)).map_err(|e| failed(self.path, e))?;
        OpenedRecord::decode(&bytes, index).ok_or_else(|| lost(self.path, &format!("opening {index} in it is damaged")))
    }

    /// Whether `wanted` was claimed.
    fn has(&self, wanted: OpenedRecord) -> Result<bool> {
        Ok(matches!(verdict(wanted, self.count, |index| self.at(index)), Ok(Verdict::Again)))
    }

    /// Appends an opening, durably, here and in the index.
    fn append(&mut self, wanted: OpenedRecord) -> Result<()> {
        disk::write(&self.file, &wanted.encode(self.count), offset(self.count))
            .and_then(|()| disk::sync(&self.file))
            .map_err(|e| failed(self.path, e))?;
        self.indexed.advance(Newest::of(self.count + 1, wanted.sum(self.count)))?;
        self.count += 1;
        Ok(())
    }
}
