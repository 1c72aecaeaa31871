//! The rule of sets: which sums may exist together.
//!
//! A *memory* stands for what several sums have in common, if their differences could reveal single clients. Examples:
//! one
//! position of a run, the first models of a window, its queries. If a run returns to the same model, that is another
//! position and another memory. Group the clients of a memory's sets by the sets that contain them: *every group has at
//! least k clients*, where k is the largest minimum of the sums with these clients. Everything that follows from the
//! sums
//! is then constant on groups. So every difference of sums, sum of differences and so on concerns at least k clients.
//! To
//! check differences of two sets is not enough: {1, 2, 3, 7}, {1, 2, 3, 4, 5, 6} and {4, 5, 6} reveal client 7.

use crate::wire::Reader;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The name of a client in a memory: [`name`] of its verification key, or its number in a key set without such keys.
pub type Name = u128;

/// The name of the client with verification key `verify`. It does not depend on the client's number in a roster.
#[must_use]
pub fn name(verify: &[u8; 32]) -> Name {
    let digest = blake3::derive_key("fedcipher v1 name of a client", verify);
    digest.first_chunk().copied().map(Name::from_le_bytes).unwrap_or_default()
}

/// The sets of one memory, stored as groups: clients in the same sets form a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetMemory {
    k: u64,
    /// The group of each client.
    groups: BTreeMap<Name, Group>,
    /// Clients with a proven lie. Anyone who knows their updates already knows them, so these clients hide no other
    /// client.
    exempt: BTreeSet<Name>,
}

/// A group of clients that are in the same sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    /// The group's lowest client.
    name: Name,
    /// The largest k of the sets that contain these clients.
    least: u64,
}

/// One side of a group that a set divides.
struct Part {
    group: Group,
    /// The number of clients that count.
    clients: u64,
}

/// Parts by their former group, and by whether they are inside the set.
type Parts = HashMap<(Option<Name>, bool), Part>;

impl SetMemory {
    /// An empty memory. Every group must have at least `k` clients.
    pub fn new(k: u64) -> Result<Self> {
        if k == 0 {
            return Err(Error::parameter("k", "a group has at least one client"));
        }
        Ok(SetMemory { k, groups: BTreeMap::new(), exempt: BTreeSet::new() })
    }

    /// The same memory, whose next sets are made under `k`. Existing groups keep their minimum.
    pub fn with_minimum(self, k: u64) -> Result<Self> {
        Ok(SetMemory { k: Self::new(k)?.k, ..self })
    }

    /// Remembers `set`. On an error it remembers nothing; the same set again changes nothing. The `exempt` clients
    /// count in no group from now on, and a group of exempt clients alone is ignored.
    pub fn admit(&mut self, set: &[Name], exempt: &[Name]) -> Result<()> {
        if set.is_empty() {
            return Err(Error::EmptyCohort);
        }
        let exempt = self.exempt.iter().chain(exempt).copied().collect();
        let (groups, parts) = self.refined(set, self.k, &exempt);
        self.check(&parts)?;
        (self.groups, self.exempt) = (groups, exempt);
        Ok(())
    }

    /// Remembers a set that was admitted under `k`. Returns whether this changed anything.
    pub(crate) fn remember(&mut self, set: &[Name], k: u64) -> bool {
        let (groups, _) = self.refined(set, k, &self.exempt);
        let changes = groups != self.groups;
        self.groups = groups;
        changes
    }

    /// Whether [`Self::admit`] would take all of `sets`, one after the other.
    pub fn would_admit(&self, sets: &[&[Name]], exempt: &[Name]) -> Result<()> {
        let mut tried = self.clone();
        sets.iter().try_for_each(|set| tried.admit(set, exempt))
    }

    /// The largest minimum of the groups of `clients`; 0 if they are in no group.
    #[must_use]
    pub fn least(&self, clients: &[Name]) -> u64 {
        let groups = clients.iter().filter_map(|client| self.groups.get(client));
        groups.map(|group| group.least).max().unwrap_or_default()
    }

    /// The clients of `wanted` that can be in a sum now; the others must sit out. Of a group, it takes as many wanted
    /// clients as leave enough or none behind, the lowest first, if they are enough themselves. Of the clients without
    /// a group, it takes all, if they are `k` or more.
    #[must_use]
    pub fn largest_fitting(&self, wanted: &[Name], exempt: &[Name]) -> Vec<Name> {
        let counts = |client: &Name| !self.exempt.contains(client) && !exempt.contains(client);
        let wanted: BTreeSet<Name> = wanted.iter().copied().collect();
        let group = |client: &Name| self.groups.get(client).copied();
        let name = |client: &Name| group(client).map(|group| group.name);
        let mut whole = HashMap::<Name, u64>::new();
        let mut asked = HashMap::<Option<Name>, (Option<Group>, u64)>::new();
        for (_, group) in self.groups.iter().filter(|(client, _)| counts(client)) {
            *whole.entry(group.name).or_default() += 1;
        }
        for client in wanted.iter().filter(|client| counts(client)) {
            asked.entry(name(client)).or_insert((group(client), 0)).1 += 1;
        }
        let fits = |(name, (group, asked)): (Option<Name>, (Option<Group>, u64))| {
            let least = group.map_or(self.k, |group| group.least.max(self.k));
            let behind = group.and_then(|group| Some((*whole.get(&group.name)?, group.least)));
            let most = match behind {
                Some((whole, left)) if whole > asked => asked.min(whole.saturating_sub(left)),
                // A whole group with an unchanged minimum is accepted, however few of its clients still count.
                Some(_) if group.is_some_and(|group| group.least == least) => return (name, asked),
                _ => asked,
            };
            (name, if most >= least { most } else { 0 })
        };
        let mut room: HashMap<Option<Name>, u64> = asked.into_iter().map(fits).collect();
        let mut sits = |client: &Name| match room.get_mut(&name(client)) {
            _ if !counts(client) => true,
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        wanted.into_iter().filter(|client| sits(client)).collect()
    }

    /// The groups, each in order, sorted by lowest client.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<Name>> {
        self.listed().into_values().map(|(_, clients)| clients).collect()
    }

    /// The minimum and the clients of each group, by its lowest client.
    fn listed(&self) -> BTreeMap<Name, (u64, Vec<Name>)> {
        let mut groups = BTreeMap::<Name, (u64, Vec<Name>)>::new();
        for (client, group) in &self.groups {
            groups.entry(group.name).or_insert((group.least, Vec::new())).1.push(*client);
        }
        groups
    }

    /// The groups after `set`, which is made under `k`; and the parts that it makes of each former group, or of clients
    /// without one.
    fn refined(&self, set: &[Name], k: u64, exempt: &BTreeSet<Name>) -> (BTreeMap<Name, Group>, Parts) {
        let inside: BTreeSet<Name> = set.iter().copied().collect();
        let all: BTreeSet<Name> = self.groups.keys().chain(&inside).copied().collect();
        let (mut groups, mut parts) = (BTreeMap::new(), Parts::new());
        for client in all {
            let (before, within) = (self.groups.get(&client), inside.contains(&client));
            let least = before.map_or(0, |group| group.least).max(if within { k } else { 0 });
            let part = parts.entry((before.map(|group| group.name), within));
            let part = part.or_insert(Part { group: Group { name: client, least }, clients: 0 });
            part.clients += u64::from(!exempt.contains(&client));
            groups.insert(client, part.group);
        }
        (groups, parts)
    }

    /// Fails if a set makes a group too small. Groups that the set does not divide stay valid, unless the set asks for
    /// a larger minimum.
    fn check(&self, parts: &Parts) -> Result<()> {
        for ((group, within), part) in parts {
            // If a group is not divided, its other side is empty or has exempt clients only.
            let other = parts.get(&(*group, !within)).map_or(0, |other| other.clients);
            let divided = group.is_none() || other > 0;
            // A group that is large enough for a smaller k may be too small for a larger one.
            let raised =
                group.and_then(|name| self.groups.get(&name)).is_some_and(|before| part.group.least > before.least);
            let minimum = part.group.least;
            if (divided || raised) && (1..minimum).contains(&part.clients) {
                return Err(Error::Set { found: part.clients, minimum });
            }
        }
        Ok(())
    }

    /// `k u64 | exempt | groups u32 | of each: least u64 | its clients`, in order: one encoding. Clients are
    /// `count u32 | each u128`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let list = |clients: &[Name]| -> Vec<u8> {
            let names = clients.iter().flat_map(|name| name.to_le_bytes());
            (clients.len() as u32).to_le_bytes().into_iter().chain(names).collect()
        };
        let groups = self.listed();
        let exempt: Vec<Name> = self.exempt.iter().copied().collect();
        let mut out = [self.k.to_le_bytes().as_slice(), &list(&exempt), &(groups.len() as u32).to_le_bytes()].concat();
        for (least, clients) in groups.values() {
            out.extend(least.to_le_bytes());
            out.extend(list(clients));
        }
        out
    }

    /// Fails for bytes that [`Self::to_bytes`] does not make.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let mut memory = SetMemory::new(r.u64()?)?;
        memory.exempt = list(&mut r)?.into_iter().collect();
        for _ in 0..r.u32()? {
            let (least, clients) = (r.u64()?, list(&mut r)?);
            let name = clients.first().copied().filter(|_| least > 0);
            let group = Group { name: name.ok_or_else(|| Error::frame("a group without clients"))?, least };
            memory.groups.extend(clients.into_iter().map(|client| (client, group)));
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
