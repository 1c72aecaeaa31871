//! The sets of clients that have been opened, or answered for, in each memory of the rule of sets.

use crate::mac::memory::MemoryId;
use crate::sets::{Name, SetMemory};
use crate::wire::Reader;
use crate::{Error, Result, RoundId};
use std::collections::{BTreeMap, HashMap};

/// A client sends updates from a position for this many round numbers after its first update from there.
/// `_MAX_NUMBERS_AT_POSITION` of `federation/client/model.py` is the same number.
const MAX_NUMBERS: u64 = 128;
/// A memory is kept while its last round is fewer numbers than this before the newest round of its key. So a forgotten
/// memory is older than everything that honest clients still sign, and a continuing run is never rejected.
const KEPT: u64 = 2 * MAX_NUMBERS;
/// The number of memories that are dropped at a time.
const DROPPED: usize = 256;
/// The number of keys whose memories and newest sets are kept.
const KEYS: usize = 8;

/// The digest of an entry that is kept for its memory only.
const NONE: [u8; 32] = [0; 32];

/// A sum to open, or to answer for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    pub key: [u8; 16],
    pub round: RoundId,
    /// The minimum size of a group of the rule of sets with one of `clients` in it.
    minimum: u64,
    /// `None` if the sum counts in no memory.
    memory: Option<MemoryId>,
    /// The clients, in order.
    clients: Vec<Name>,
}

impl Sum {
    #[must_use]
    pub fn new(key: [u8; 16], round: RoundId, minimum: u64, memory: Option<MemoryId>, mut clients: Vec<Name>) -> Self {
        clients.sort_unstable();
        Sum { key, round, minimum, memory, clients }
    }

    /// The sum of a round that counts in no memory.
    #[must_use]
    pub fn alone(round: RoundId) -> Self {
        Sum::new([0; 16], round, 1, None, Vec::new())
    }

    /// Another set of the same memory and round.
    fn beside(&self, minimum: u64, clients: Vec<Name>) -> Self {
        Sum::new(self.key, self.round, minimum, self.memory, clients)
    }

    /// Whether the rule of sets applies to the sum.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    fn shares_a_client(&self, other: &Sum) -> bool {
        self.clients.iter().any(|client| other.clients.binary_search(client).is_ok())
    }
}

/// A remembered sum that was opened or answered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub sum: Sum,
    /// The digest of the aggregate or of the request.
    pub digest: [u8; 32],
    /// The answer that was given.
    pub answer: Vec<u8>,
}

impl Entry {
    /// The entry of a set that is remembered but was not answered for.
    fn of_set(sum: Sum) -> Self {
        Entry { sum, digest: NONE, answer: Vec::new() }
    }

    /// `0 | key | round | minimum u64 | memory, or zeros | digest | runs u32 | of each: first name u128, names u32 | answer`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Sum { key, round, minimum, memory, clients } = &self.sum;
        let memory = memory.map_or([0; 16], MemoryId::to_bytes);
        let mut out =
            [&[ENTRY], &key[..], &round.to_le_bytes(), &minimum.to_le_bytes(), &memory, &self.digest].concat();
        let runs: Vec<&[Name]> = clients.chunk_by(|a, b| a.checked_add(1) == Some(*b)).collect();
        out.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        for run in runs {
            out.extend_from_slice(&run.first().copied().unwrap_or_default().to_le_bytes());
            out.extend_from_slice(&(run.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.answer);
        out
    }

    fn read(mut r: Reader<'_>) -> Result<Self> {
        let (key, round, minimum) = (r.array()?, r.round()?, r.u64()?);
        let (memory, digest) = (r.array()?, r.array()?);
        let damaged = || Error::frame("an invalid name of a memory");
        let memory = (memory != [0; 16]).then(|| MemoryId::parse(memory).ok_or_else(damaged)).transpose()?;
        let runs = r.u32()? as usize;
        let mut clients = Vec::new();
        for run in r.bytes(runs.saturating_mul(20))?.chunks(20) {
            let mut run = Reader::new(run);
            let (first, len) = (Name::from_le_bytes(run.array()?), run.u32()?);
            clients.extend((0..len).map_while(|n| first.checked_add(Name::from(n))));
        }
        Ok(Entry { sum: Sum::new(key, round, minimum, memory, clients), digest, answer: r.rest().to_vec() })
    }
}

/// The first byte of a record.
const ENTRY: u8 = 0;
const FORGOTTEN: u8 = 1;

/// A record about memories in a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Entry(Entry),
    /// Memories may lack sums up to this round of a key, because these were forgotten.
    Forgotten {
        key: [u8; 16],
        round: RoundId,
    },
}

impl Record {
    /// An entry, or `1 | key | round`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Record::Entry(entry) => entry.to_bytes(),
            Record::Forgotten { key, round } => [&[FORGOTTEN], &key[..], &round.to_le_bytes()].concat(),
        }
    }

    /// Parses bytes whose checksum is valid.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        match r.array::<1>()? {
            [ENTRY] => Entry::read(r).map(Record::Entry),
            [FORGOTTEN] => Ok(Record::Forgotten { key: r.array()?, round: r.round()? }),
            _ => Err(Error::frame("an invalid record of memories")),
        }
    }
}

/// The sets of one memory.
#[derive(Debug, Default)]
struct Memory {
    /// The sets, each with the largest minimum that it was admitted under.
    sets: BTreeMap<Vec<Name>, u64>,
    /// The last round of each key.
    rounds: BTreeMap<[u8; 16], RoundId>,
    /// The number of the memory's last entry.
    newest: u64,
}

/// A party's memory of all sums that it has opened, or answered for.
#[derive(Debug, Default)]
pub struct Memories {
    memories: HashMap<MemoryId, Memory>,
    /// The entries of the newest round of each key, and the number of the last entry.
    rounds: BTreeMap<[u8; 16], (u64, Vec<Entry>)>,
    /// For each key, the last round before which memories may have been forgotten.
    forgotten: BTreeMap<[u8; 16], RoundId>,
    entries: u64,
}

/// Records `round` for `key` if it is later than the recorded one.
fn later(rounds: &mut BTreeMap<[u8; 16], RoundId>, key: [u8; 16], round: RoundId) {
    let last = rounds.entry(key).or_insert(round);
    *last = round.max(*last);
}

impl Memories {
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Entry(entry) => self.push(entry),
            Record::Forgotten { key, round } => later(&mut self.forgotten, key, round),
        }
    }

    pub fn push(&mut self, entry: Entry) {
        self.entries += 1;
        let sum = &entry.sum;
        if let Some(id) = sum.memory {
            let memory = self.memories.entry(id).or_default();
            memory.newest = self.entries;
            later(&mut memory.rounds, sum.key, sum.round);
            let minimum = memory.sets.entry(sum.clients.clone()).or_default();
            *minimum = sum.minimum.max(*minimum);
        }
        // The entry is kept for its memory only.
        if entry.digest == NONE {
            return;
        }
        let (number, newest) = self.rounds.entry(sum.key).or_default();
        if newest.first().is_some_and(|last| last.sum.round < sum.round) {
            newest.clear();
        }
        *number = self.entries;
        newest.push(entry);
    }

    /// The entry of the request with this digest, if it is in its key's newest round.
    pub fn entry(&self, sum: &Sum, digest: &[u8; 32]) -> Option<&Entry> {
        let (_, newest) = self.rounds.get(&sum.key)?;
        newest.iter().find(|entry| entry.sum.round == sum.round && entry.digest == *digest)
    }

    /// The groups that the sets of this sum's memory form. The encoding does not depend on the order of the sets.
    pub fn groups(&self, sum: &Sum) -> Result<SetMemory> {
        let mut groups = SetMemory::new(1)?;
        let own = sum.memory.and_then(|id| self.memories.get(&id));
        for (set, minimum) in own.into_iter().flat_map(|memory| &memory.sets) {
            groups.remember(set, *minimum);
        }
        Ok(groups)
    }

    /// Fails if the sum's memory may have been forgotten. An existing memory is not enough, because late clients may
    /// have made it anew.
    fn check_known(&self, sum: &Sum) -> Result<()> {
        let kept = sum.memory.is_none_or(MemoryId::pinned);
        let forgotten = self.forgotten.get(&sum.key).is_some_and(|last| sum.round <= *last);
        if !kept && forgotten { Err(Error::Forgotten { round: sum.round }) } else { Ok(()) }
    }

    /// The sets that the memory of `sum` lacks, out of the set of `sum` and `others`, each with its minimum. Fails if a
    /// set breaks the rule of sets, or if the memory may have been forgotten.
    pub fn missing(&self, sum: &Sum, others: Vec<(u64, Vec<Name>)>) -> Result<Vec<Entry>> {
        self.check_known(sum)?;
        let mut groups = self.groups(sum)?;
        let mut entries = Vec::new();
        for set in others.into_iter().map(|(minimum, clients)| sum.beside(minimum, clients)).chain([sum.clone()]) {
            groups.clone().with_minimum(set.minimum)?.admit(&set.clients, &[])?;
            if groups.remember(&set.clients, set.minimum) {
                entries.push(Entry::of_set(sum.beside(set.minimum, set.clients)));
            }
        }
        Ok(entries)
    }

    /// The entries to remember before members answer for `sum`: those of [`Self::missing`], and the use of the memory
    /// in this round.
    pub fn news(&self, sum: &Sum, others: Vec<(u64, Vec<Name>)>) -> Result<Vec<Entry>> {
        let mut entries = self.missing(sum, others)?;
        let used = sum.memory.and_then(|id| self.memories.get(&id)?.rounds.get(&sum.key));
        if entries.is_empty() && used.is_none_or(|last| *last < sum.round) {
            entries.push(Entry::of_set(sum.clone()));
        }
        Ok(entries)
    }

    /// Fails if a client of the sum is in another sum of the round, if its set breaks the rule of sets, or if its
    /// memory may have been forgotten. `begun` says whether the round has other sums.
    pub fn check(&self, sum: &Sum, digest: &[u8; 32], begun: bool) -> Result<()> {
        self.check_known(sum)?;
        let others = self.rounds.get(&sum.key).map(|(_, newest)| newest.as_slice()).unwrap_or_default();
        let mut others = others.iter().filter(|entry| entry.sum.round == sum.round).peekable();
        let unknown = begun && others.peek().is_none();
        if unknown || others.any(|entry| entry.digest != *digest && entry.sum.shares_a_client(sum)) {
            return Err(Error::Opened { round: sum.round, last: sum.round });
        }
        self.groups(sum)?.with_minimum(sum.minimum)?.admit(&sum.clients, &[])
    }

    /// Whether there are so many memories that [`Self::kept`] is much shorter.
    pub fn overfull(&self) -> bool {
        self.divided().1.len() >= DROPPED
    }

    /// Forgets everything that is not in [`Self::kept`].
    pub fn forget(&mut self) {
        let kept = std::mem::take(self).kept();
        kept.into_iter().for_each(|record| self.take(record));
    }

    /// The newest round of each recently used key, among rounds that count in memories which may be forgotten.
    fn newest_rounds(&self) -> BTreeMap<[u8; 16], RoundId> {
        let mut keys = BTreeMap::<[u8; 16], (u64, RoundId)>::new();
        for memory in self.memories.iter().filter(|(id, _)| !id.pinned()).map(|(_, memory)| memory) {
            for (key, round) in &memory.rounds {
                let (number, newest) = keys.entry(*key).or_insert((0, *round));
                (*number, *newest) = (memory.newest.max(*number), round.max(newest).to_owned());
            }
        }
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by_key(|(_, (number, _))| *number);
        keys.split_off(keys.len().saturating_sub(KEYS)).into_iter().map(|(key, (_, newest))| (key, newest)).collect()
    }

    /// The memories that stay, and the memories that may be forgotten, each in order.
    #[allow(clippy::type_complexity, reason = "two lists of the same")]
    fn divided(&self) -> (Vec<(&MemoryId, &Memory)>, Vec<(&MemoryId, &Memory)>) {
        let newest = self.newest_rounds();
        let fresh =
            |(key, round): (&[u8; 16], &RoundId)| newest.get(key).is_some_and(|newest| round.later_by(KEPT) > *newest);
        let mut memories: Vec<(&MemoryId, &Memory)> = self.memories.iter().collect();
        memories.sort_by_key(|(_, memory)| memory.newest);
        memories.into_iter().partition(|(id, memory)| id.pinned() || memory.rounds.iter().any(fresh))
    }

    /// The records that replace the journal, in order: the rounds up to which memories are dropped; the remaining
    /// memories, without sets that follow from their other sets; and the newest rounds.
    pub fn kept(&self) -> Vec<Record> {
        let (kept, dropped) = self.divided();
        let mut forgotten = self.forgotten.clone();
        for (key, round) in dropped.iter().flat_map(|(_, memory)| &memory.rounds) {
            later(&mut forgotten, *key, round.later_by(MAX_NUMBERS));
        }
        let mut rounds: Vec<&(u64, Vec<Entry>)> = self.rounds.values().collect();
        rounds.sort_by_key(|(number, _)| *number);
        let rounds = rounds.split_off(rounds.len().saturating_sub(KEYS));
        let rounds = rounds.into_iter().flat_map(|(_, entries)| entries.iter().cloned());
        let entries = kept.into_iter().flat_map(|(id, memory)| memory.entries(*id)).chain(rounds);
        let forgotten = forgotten.into_iter().map(|(key, round)| Record::Forgotten { key, round });
        forgotten.chain(entries.map(Record::Entry)).collect()
    }
}

impl Memory {
    /// The fewest entries that give the sets of memory `id`, and its last round of each key.
    fn entries(&self, id: MemoryId) -> Vec<Entry> {
        let mut groups = SetMemory::new(1).ok();
        let mut says = |set: &[Name], minimum| groups.as_mut().is_none_or(|groups| groups.remember(set, minimum));
        let sets: Vec<_> = self.sets.iter().filter(|(set, minimum)| says(set, **minimum)).collect();
        let keys: Vec<_> = self.rounds.iter().collect();
        let entry = |k: usize| {
            let ((set, minimum), (key, round)) = (sets[k.min(sets.len() - 1)], keys[k.min(keys.len() - 1)]);
            Entry::of_set(Sum::new(*key, *round, *minimum, Some(id), set.clone()))
        };
        (0..sets.len().max(keys.len())).map(entry).collect()
    }
}
