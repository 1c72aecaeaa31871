//! Which sums may exist together: the rule of sets.
//!
//! A *memory* is what the sums have in common whose differences would tell of single clients: one model, the first
//! models of a window, its queries. Group the clients of a memory's sets by which of these sets they are in: *every
//! group has at least k clients*. All that follows from the sums is then constant on groups, so a difference of sums, a
//! sum of differences and so on speak of at least k clients. Differences of two sets are not enough to look at: {1, 2, 3,
//! 7}, {1, 2, 3, 4, 5, 6} and {4, 5, 6} give client 7.

use crate::wire::Reader;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a client is known by: its number where only the key set gives it one, else [`name`] of what it signs with.
pub type Name = u128;

/// The name of a client that signs with `verify`, under whichever number.
#[must_use]
pub fn name(verify: &[u8; 32]) -> Name {
    let digest = blake3::derive_key("fedcipher v1 name of a client", verify);
    digest.first_chunk().copied().map(Name::from_le_bytes).unwrap_or_default()
}

/// The sets of one memory, as the groups that they make: what is in the same sets stays together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetMemory {
    k: u64,
    /// Each client's group, called by its lowest client.
    groups: BTreeMap<Name, Name>,
    /// Clients with a proven lie: whoever knows theirs knows it already, so that they hide nobody.
    exempt: BTreeSet<Name>,
}

/// One side of a group that a set divides.
struct Part {
    /// Its lowest client.
    name: Name,
    /// Clients that count.
    clients: u64,
}

/// By the group that a part was of, and whether it is inside of the set.
type Parts = HashMap<(Option<Name>, bool), Part>;

impl SetMemory {
    /// An empty memory, whose groups are to have `k` clients or more.
    pub fn new(k: u64) -> Result<Self> {
        if k == 0 {
            return Err(Error::parameter("k", "a group has at least one client"));
        }
        Ok(SetMemory { k, groups: BTreeMap::new(), exempt: BTreeSet::new() })
    }

    /// The same groups, where those that are made from here on have `k` clients or more.
    pub fn with_minimum(self, k: u64) -> Result<Self> {
        Ok(SetMemory { k: Self::new(k)?.k, ..self })
    }

    /// Remembers `set`, or refuses it and remembers nothing; the same set again changes nothing. The `exempt`, now and
    /// from here on, count in no group, and a group of theirs alone is none.
    pub fn admit(&mut self, set: &[Name], exempt: &[Name]) -> Result<()> {
        if set.is_empty() {
            return Err(Error::EmptyCohort);
        }
        let exempt = self.exempt.iter().chain(exempt).copied().collect();
        let (groups, parts) = self.refined(set, &exempt);
        self.check(&parts)?;
        (self.groups, self.exempt) = (groups, exempt);
        Ok(())
    }

    /// Remembers a set that was admitted before, under whatever rule; whether it changes anything.
    pub(crate) fn remember(&mut self, set: &[Name]) -> bool {
        let (groups, _) = self.refined(set, &self.exempt);
        let changes = groups != self.groups;
        self.groups = groups;
        changes
    }

    /// Whether [`Self::admit`] would take all of `sets`, one after the other.
    pub fn would_admit(&self, sets: &[&[Name]], exempt: &[Name]) -> Result<()> {
        let mut tried = self.clone();
        sets.iter().try_for_each(|set| tried.admit(set, exempt))
    }

    /// The clients of `wanted` that can be in a sum now; the others must sit out. Of a group those that are wanted, as
    /// many as leave `k` or nobody behind, the lowest first; those that are in no group yet if they are `k` or more.
    #[must_use]
    pub fn largest_fitting(&self, wanted: &[Name], exempt: &[Name]) -> Vec<Name> {
        let counts = |client: &Name| !self.exempt.contains(client) && !exempt.contains(client);
        let wanted: BTreeSet<Name> = wanted.iter().copied().collect();
        let group = |client: &Name| self.groups.get(client).copied();
        let mut whole = HashMap::<Option<Name>, u64>::new();
        let mut asked = HashMap::<Option<Name>, u64>::new();
        self.groups.keys().filter(|c| counts(c)).for_each(|c| *whole.entry(group(c)).or_default() += 1);
        wanted.iter().filter(|c| counts(c)).for_each(|c| *asked.entry(group(c)).or_default() += 1);
        let fits = |(group, asked): (Option<Name>, u64)| {
            let most = match whole.get(&group) {
                Some(whole) if *whole > asked => asked.min(whole.saturating_sub(self.k)),
                _ => asked,
            };
            let undivided = group.is_some() && whole.get(&group) == Some(&asked);
            (group, if undivided || most >= self.k { most } else { 0 })
        };
        let mut room: HashMap<Option<Name>, u64> = asked.into_iter().map(fits).collect();
        let mut sits = |client: &Name| match room.get_mut(&group(client)) {
            _ if !counts(client) => true,
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        wanted.into_iter().filter(|client| sits(client)).collect()
    }

    /// The groups, each in order and by their lowest clients.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<Name>> {
        let mut groups = BTreeMap::<Name, Vec<Name>>::new();
        for (client, name) in &self.groups {
            groups.entry(*name).or_default().push(*client);
        }
        groups.into_values().collect()
    }

    /// The groups after `set`, and the sides that it has of each group before, or of none.
    fn refined(&self, set: &[Name], exempt: &BTreeSet<Name>) -> (BTreeMap<Name, Name>, Parts) {
        let inside: BTreeSet<Name> = set.iter().copied().collect();
        let all: BTreeSet<Name> = self.groups.keys().chain(&inside).copied().collect();
        let (mut groups, mut parts) = (BTreeMap::new(), Parts::new());
        for client in all {
            let side = (self.groups.get(&client).copied(), inside.contains(&client));
            let part = parts.entry(side).or_insert(Part { name: client, clients: 0 });
            part.clients += u64::from(!exempt.contains(&client));
            groups.insert(client, part.name);
        }
        (groups, parts)
    }

    /// Refuses a set that makes a group too small. Groups that it leaves whole are as they were.
    fn check(&self, parts: &Parts) -> Result<()> {
        for ((group, within), part) in parts {
            // A group that is not divided has its other side empty, or of the exempt alone.
            let other = parts.get(&(*group, !within)).map_or(0, |other| other.clients);
            let divided = group.is_none() || other > 0;
            if divided && (1..self.k).contains(&part.clients) {
                return Err(Error::Set { found: part.clients, minimum: self.k });
            }
        }
        Ok(())
    }

    /// `k u64 | exempt u32 | each u128 | groups u32 | of each: clients u32 | each u128`, in order: one encoding.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let list = |clients: &[Name]| -> Vec<u8> {
            let names = clients.iter().flat_map(|name| name.to_le_bytes());
            (clients.len() as u32).to_le_bytes().into_iter().chain(names).collect()
        };
        let groups = self.groups();
        let exempt: Vec<Name> = self.exempt.iter().copied().collect();
        let mut out = [self.k.to_le_bytes().as_slice(), &list(&exempt), &(groups.len() as u32).to_le_bytes()].concat();
        groups.iter().for_each(|group| out.extend(list(group)));
        out
    }

    /// Refuses whatever [`Self::to_bytes`] does not make.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let mut memory = SetMemory::new(r.u64()?)?;
        memory.exempt = list(&mut r)?.into_iter().collect();
        for _ in 0..r.u32()? {
            let group = list(&mut r)?;
            let name = group.first().copied().ok_or_else(|| Error::frame("a group of nobody"))?;
            memory.groups.extend(group.into_iter().map(|client| (client, name)));
        }
        r.finish()?;
        if memory.to_bytes() == bytes { Ok(memory) } else { Err(Error::frame("groups that are not in their order")) }
    }
}

fn list(r: &mut Reader<'_>) -> Result<Vec<Name>> {
    let len = r.u32()? as usize;
    let (clients, _) = r.bytes(len.saturating_mul(16))?.as_chunks::<16>();
    Ok(clients.iter().map(|client| Name::from_le_bytes(*client)).collect())
}
