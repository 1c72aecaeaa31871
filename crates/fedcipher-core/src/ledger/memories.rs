//! Which sets of clients have been opened, or answered for, in which memory of the rule of sets.

use crate::mac::memory::MemoryId;
use crate::sets::{Name, SetMemory};
use crate::wire::Reader;
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap};

/// Memories that are kept at least, beside the pinned ones; twice as many are dropped to these.
const KEPT: usize = 256;
/// Keys whose newest round's sets are kept at least, to tell which clients are in it already.
const KEYS: usize = 8;

/// In place of a digest, of what is kept for its memory only.
const NONE: [u8; 32] = [0; 32];

/// A sum that is to be opened, or answered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    pub key: [u8; 16],
    pub round: u64,
    /// Clients that every group of the rule of sets must have, if one of `clients` is in it.
    minimum: u64,
    /// None where it counts in no memory.
    memory: Option<MemoryId>,
    /// In order.
    clients: Vec<Name>,
}

impl Sum {
    #[must_use]
    pub fn new(key: [u8; 16], round: u64, minimum: u64, memory: Option<MemoryId>, mut clients: Vec<Name>) -> Self {
        clients.sort_unstable();
        Sum { key, round, minimum, memory, clients }
    }

    /// Of a round, in no memory.
    #[must_use]
    pub fn alone(round: u64) -> Self {
        Sum::new([0; 16], round, 1, None, Vec::new())
    }

    /// A set of the same memory, of no key's round.
    fn beside(&self, minimum: u64, clients: Vec<Name>) -> Self {
        Sum::new([0; 16], 0, minimum, self.memory, clients)
    }

    /// Whether the rule of sets is for it.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
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
    /// Of a set that is remembered, and was not answered for.
    fn of_set(sum: Sum) -> Self {
        Entry { sum, digest: NONE, answer: Vec::new() }
    }

    /// `key | round | minimum u64 | memory, or zeros | digest | runs u32 | of each: first name u128, names u32 | answer`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Sum { key, round, minimum, memory, clients } = &self.sum;
        let memory = memory.map_or([0; 16], MemoryId::to_bytes);
        let mut out = [&key[..], &round.to_le_bytes(), &minimum.to_le_bytes(), &memory, &self.digest].concat();
        let runs: Vec<&[Name]> = clients.chunk_by(|a, b| a.checked_add(1) == Some(*b)).collect();
        out.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        for run in runs {
            out.extend_from_slice(&run.first().copied().unwrap_or_default().to_le_bytes());
            out.extend_from_slice(&(run.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.answer);
        out
    }

    /// From bytes whose checksum is right.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (key, round, minimum) = (r.array()?, r.u64()?, r.u64()?);
        let (memory, digest) = (r.array()?, r.array()?);
        let damaged = || Error::frame("a memory that nobody names so");
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

/// The sets of one memory.
#[derive(Debug, Default)]
struct Memory {
    /// Each with the largest minimum that it was admitted under.
    sets: BTreeMap<Vec<Name>, u64>,
    /// Number of its last entry.
    newest: u64,
}

/// What a party remembers of all sums that it has opened, or answered for.
#[derive(Debug, Default)]
pub struct Memories {
    memories: HashMap<MemoryId, Memory>,
    /// By key, the entries of its newest round; and the number of the last.
    rounds: BTreeMap<[u8; 16], (u64, Vec<Entry>)>,
    entries: u64,
}

impl Memories {
    pub fn push(&mut self, entry: Entry) {
        self.entries += 1;
        let sum = &entry.sum;
        if let Some(id) = sum.memory {
            let memory = self.memories.entry(id).or_default();
            memory.newest = self.entries;
            let minimum = memory.sets.entry(sum.clients.clone()).or_default();
            *minimum = sum.minimum.max(*minimum);
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

    /// The groups that the sets of this sum's memory make; one encoding, whatever the order of the sets.
    pub fn groups(&self, sum: &Sum) -> Result<SetMemory> {
        let mut groups = SetMemory::new(1)?;
        let own = sum.memory.and_then(|id| self.memories.get(&id));
        for (set, minimum) in own.into_iter().flat_map(|memory| &memory.sets) {
            groups.remember(set, *minimum);
        }
        Ok(groups)
    }

    /// The sets that the memory of `sum` lacks: of `others`, each with its minimum, and the set of `sum`. Refuses sets that
    /// break the rule of sets.
    pub fn missing(&self, sum: &Sum, others: Vec<(u64, Vec<Name>)>) -> Result<Vec<Entry>> {
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

    /// Refuses a sum of which a client is in another sum of the round already, or whose set breaks the rule of sets.
    /// `begun`: whether its round has other sums.
    pub fn check(&self, sum: &Sum, digest: &[u8; 32], begun: bool) -> Result<()> {
        let others = self.rounds.get(&sum.key).map(|(_, newest)| newest.as_slice()).unwrap_or_default();
        let mut others = others.iter().filter(|entry| entry.sum.round == sum.round).peekable();
        let unknown = begun && others.peek().is_none();
        if unknown || others.any(|entry| entry.digest != *digest && entry.sum.shares_a_client(sum)) {
            return Err(Error::Opened { round: sum.round, last: sum.round });
        }
        self.groups(sum)?.with_minimum(sum.minimum)?.admit(&sum.clients, &[])
    }

    /// Whether there are so many that [`Self::kept`] is a good part less.
    pub fn overfull(&self) -> bool {
        self.unpinned() >= 2 * KEPT
    }

    fn unpinned(&self) -> usize {
        self.memories.keys().filter(|id| !id.pinned()).count()
    }

    /// Forgets all that is not in [`Self::kept`].
    pub fn forget(&mut self) {
        let kept = std::mem::take(self).kept();
        kept.into_iter().for_each(|entry| self.push(entry));
    }

    /// Entries that say all that is to be remembered, in order: the newest memories and the pinned ones, without the
    /// sets that follow from others of theirs; and the newest rounds.
    pub fn kept(&self) -> Vec<Entry> {
        let mut memories: Vec<(&MemoryId, &Memory)> = self.memories.iter().collect();
        memories.sort_by_key(|(_, memory)| memory.newest);
        let mut spare = self.unpinned().saturating_sub(KEPT);
        memories.retain(|(id, _)| {
            let dropped = !id.pinned() && spare > 0;
            spare -= usize::from(dropped);
            !dropped
        });
        let mut rounds: Vec<&(u64, Vec<Entry>)> = self.rounds.values().collect();
        rounds.sort_by_key(|(number, _)| *number);
        let rounds = rounds.split_off(rounds.len().saturating_sub(KEYS));
        let rounds = rounds.into_iter().flat_map(|(_, entries)| entries.iter().cloned());
        memories.into_iter().flat_map(|(id, memory)| memory.entries(*id)).chain(rounds).collect()
    }
}

impl Memory {
    /// As few entries as say which sets the memory `id` has; of no key's round.
    fn entries(&self, id: MemoryId) -> Vec<Entry> {
        let mut groups = SetMemory::new(1).ok();
        let mut says = |set: &[Name], minimum| groups.as_mut().is_none_or(|groups| groups.remember(set, minimum));
        let sets = self.sets.iter().filter(|(set, minimum)| says(set, **minimum));
        let sum = |(set, minimum): (&Vec<Name>, &u64)| Sum::new([0; 16], 0, *minimum, Some(id), set.clone());
        sets.map(|set| Entry::of_set(sum(set))).collect()
    }
}
