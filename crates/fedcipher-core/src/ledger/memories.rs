//! Which sets of clients have been opened, or answered for, in which memory of the rule of sets.

use crate::sets::SetMemory;
use crate::wire::{Header, MemoryTag, Reader};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Memories that are kept at least, beside the pinned ones; twice as many are dropped to these.
const KEPT: usize = 256;
/// Keys whose newest round's sets are kept at least, to tell which clients are in it already.
const KEYS: usize = 8;
/// The first byte of the id of a memory that is never forgotten: first positions, queries.
const PINNED: u8 = 1;

/// In place of a digest, of what is kept for its memory only.
const NONE: [u8; 32] = [0; 32];

/// A sum that is to be opened, or answered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    pub key: [u8; 16],
    pub round: u64,
    /// Zeros where it counts in no memory.
    pub memory: MemoryTag,
    /// The digest of the memory's id, where that is known; and whether it is pinned.
    id: Option<([u8; 32], bool)>,
    clients: Vec<u32>,
}

impl Sum {
    /// Of an aggregate, or a request. `memory`: the id that the header's tag was checked against, if any.
    #[must_use]
    pub fn of(header: &Header, memory: Option<&[u8]>) -> Self {
        let id = memory.map(|id| (*blake3::hash(id).as_bytes(), id.first() == Some(&PINNED)));
        let clients = header.contributions.iter().map(|c| c.client).collect();
        Sum { key: header.key_id, round: header.round, memory: header.memory, id, clients }
    }

    /// Of a round, in no memory.
    #[must_use]
    pub fn alone(round: u64) -> Self {
        Sum { key: [0; 16], round, memory: MemoryTag::default(), id: None, clients: Vec::new() }
    }

    /// Whether the rule of sets is for it.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.memory != MemoryTag::default()
    }

    fn shares_a_client(&self, other: &Sum) -> bool {
        self.clients.iter().any(|client| other.clients.binary_search(client).is_ok())
    }
}

/// A sum that was opened or answered for: what must be remembered of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub sum: Sum,
    /// Of the aggregate, or of the request.
    pub digest: [u8; 32],
    /// What was answered.
    pub answer: Vec<u8>,
}

impl Entry {
    /// `key | round | memory | id | known, pinned u8 | digest | runs u32 | of each: first u32, clients u32 | answer`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Sum { key, round, memory, id, clients } = &self.sum;
        let (id, flags) = id.map_or(([0; 32], 0), |(id, pinned)| (id, 1 | u8::from(pinned) << 1));
        let mut out = [&key[..], &round.to_le_bytes(), memory, &id, &[flags], &self.digest].concat();
        let runs: Vec<&[u32]> = clients.chunk_by(|a, b| a.checked_add(1) == Some(*b)).collect();
        out.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        for run in runs {
            let first = run.first().copied().unwrap_or_default();
            out.extend([first, run.len() as u32].into_iter().flat_map(u32::to_le_bytes));
        }
        out.extend_from_slice(&self.answer);
        out
    }

    /// From bytes whose checksum is right.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (key, round, memory) = (r.array()?, r.u64()?, r.array()?);
        let (id, flags, digest) = (r.array()?, r.u8()?, r.array()?);
        let runs = r.u32()? as usize;
        let mut clients = Vec::new();
        for run in r.bytes(runs.saturating_mul(8))?.chunks(8) {
            let mut run = Reader::new(run);
            let (first, len) = (run.u32()?, run.u32()?);
            clients.extend((0..len).map_while(|n| first.checked_add(n)));
        }
        let id = (flags & 1 == 1).then_some((id, flags & 2 == 2));
        Ok(Entry { sum: Sum { key, round, memory, id, clients }, digest, answer: r.rest().to_vec() })
    }
}

/// One memory, by the tags and the id that it is known by: each key has its own tags.
#[derive(Debug, Default)]
struct Memory {
    tags: Vec<MemoryTag>,
    id: Option<([u8; 32], bool)>,
    /// Different ones.
    sets: Vec<Vec<u32>>,
    /// Number of its last entry.
    newest: u64,
}

impl Memory {
    fn is_of(&self, sum: &Sum) -> bool {
        self.tags.contains(&sum.memory) || self.id.zip(sum.id).is_some_and(|(own, other)| own.0 == other.0)
    }

    /// Without an id nobody can say that it may be forgotten.
    fn pinned(&self) -> bool {
        self.id.is_none_or(|(_, pinned)| pinned)
    }

    fn join(&mut self, other: Memory) {
        self.tags.extend(other.tags);
        self.id = self.id.or(other.id);
        for set in other.sets {
            self.take(set);
        }
        self.newest = self.newest.max(other.newest);
    }

    fn take(&mut self, set: Vec<u32>) {
        if !self.sets.contains(&set) {
            self.sets.push(set);
        }
    }
}

/// What a party remembers of all sums that it has opened, or answered for.
#[derive(Debug, Default)]
pub struct Memories {
    memories: Vec<Memory>,
    /// By key, the entries of its newest round; and the number of the last.
    rounds: BTreeMap<[u8; 16], (u64, Vec<Entry>)>,
    entries: u64,
}

impl Memories {
    pub fn push(&mut self, entry: Entry) {
        self.entries += 1;
        let sum = &entry.sum;
        if sum.has_memory() {
            let all = std::mem::take(&mut self.memories).into_iter();
            let (own, others): (Vec<Memory>, Vec<Memory>) = all.partition(|memory| memory.is_of(sum));
            self.memories = others;
            let mut joined = Memory::default();
            own.into_iter().for_each(|memory| joined.join(memory));
            if !joined.tags.contains(&sum.memory) {
                joined.tags.push(sum.memory);
            }
            joined.id = joined.id.or(sum.id);
            joined.take(sum.clients.clone());
            joined.newest = self.entries;
            self.memories.push(joined);
        }
        // Kept for its memory only.
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

    /// What was answered to the request of this digest, in its key's newest round.
    pub fn entry(&self, sum: &Sum, digest: &[u8; 32]) -> Option<&Entry> {
        let (_, newest) = self.rounds.get(&sum.key)?;
        newest.iter().find(|entry| entry.sum.round == sum.round && entry.digest == *digest)
    }

    /// Refuses a sum of which a client is in another sum of the round already, or whose set breaks the rule: every group
    /// of clients that are in the same sets has at least `minimum`. `begun`: whether its round has other sums.
    pub fn check(&self, sum: &Sum, digest: &[u8; 32], begun: bool, minimum: u64) -> Result<()> {
        let others = self.rounds.get(&sum.key).map(|(_, newest)| newest.as_slice()).unwrap_or_default();
        let mut others = others.iter().filter(|entry| entry.sum.round == sum.round).peekable();
        let unknown = begun && others.peek().is_none();
        if unknown || others.any(|entry| entry.digest != *digest && entry.sum.shares_a_client(sum)) {
            return Err(Error::Opened { round: sum.round, last: sum.round });
        }
        let mut memory = SetMemory::new(minimum.max(1))?;
        for set in self.memories.iter().filter(|memory| memory.is_of(sum)).flat_map(|memory| &memory.sets) {
            memory.remember(set);
        }
        memory.admit(&sum.clients, &[])
    }

    /// Whether there are so many that [`Self::kept`] is a good part less.
    pub fn overfull(&self) -> bool {
        self.memories.iter().filter(|memory| !memory.pinned()).count() >= 2 * KEPT
    }

    /// Forgets all that is not in [`Self::kept`].
    pub fn forget(&mut self) {
        let kept = std::mem::take(self).kept();
        kept.into_iter().for_each(|entry| self.push(entry));
    }

    /// Entries that say all that is to be remembered, in order: the newest memories and the pinned ones, without the
    /// sets that follow from others of theirs; and the newest rounds.
    pub fn kept(&self) -> Vec<Entry> {
        let mut memories: Vec<&Memory> = self.memories.iter().collect();
        memories.sort_by_key(|memory| memory.newest);
        let mut spare = memories.iter().filter(|memory| !memory.pinned()).count().saturating_sub(KEPT);
        memories.retain(|memory| {
            let dropped = !memory.pinned() && spare > 0;
            spare -= usize::from(dropped);
            !dropped
        });
        let mut rounds: Vec<&(u64, Vec<Entry>)> = self.rounds.values().collect();
        rounds.sort_by_key(|(number, _)| *number);
        let rounds = rounds.split_off(rounds.len().saturating_sub(KEYS));
        let rounds = rounds.into_iter().flat_map(|(_, entries)| entries.iter().cloned());
        memories.into_iter().flat_map(Memory::entries).chain(rounds).collect()
    }
}

impl Memory {
    /// As few entries as say which sets it has, and all that it is known by; of no key's round.
    fn entries(&self) -> Vec<Entry> {
        let mut groups = SetMemory::new(1).ok();
        let mut says = |set: &Vec<u32>| groups.as_mut().is_none_or(|groups| groups.remember(set));
        let sets: Vec<&Vec<u32>> = self.sets.iter().filter(|set| says(set)).collect();
        let count = sets.len().max(self.tags.len());
        let entry = |number: usize| {
            let memory = *self.tags.get(number).or(self.tags.last())?;
            let clients = (*sets.get(number).or(sets.last())?).clone();
            let sum = Sum { key: [0; 16], round: 0, memory, id: self.id, clients };
            Some(Entry { sum, digest: NONE, answer: Vec::new() })
        };
        (0..count).filter_map(entry).collect()
    }
}
