//! The agreement of a committee on the sums that exist, before it answers for one. Without it, two members that have no
//! sum in common could each keep the rule of sets, while their sums together break it.
//!
//! A member remembers a set, durably, and signs the groups that all sets of its memory then form. It answers for the
//! set
//! only if enough members have signed the same groups. A member's memory only grows. Any two groupings that enough
//! members
//! have signed have an honest member in common, so one of them refines the other. So all sets that are ever answered
//! for
//! are unions of groups in one division, which honest members have checked.
//!
//! A member that remembers other sets, of interrupted rounds or of other rosters, reports them. The server passes them
//! on
//! to the other members.

use super::roster::Roster;
use super::statement::RoundContext;
use crate::sets::{Name, SetMemory};
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed, refused};
use crate::statement::sha256;
use crate::wire::Reader;
use crate::{ClientId, Error, Result};
use std::collections::BTreeMap;

/// Sets of one memory, each with the smallest size that a group of its clients may have.
pub type Sets = Vec<(u64, Vec<Name>)>;

const NAME_LEN: usize = size_of::<Name>();
/// The number of clients in all sets of a proposal.
const MAX_NAMES: usize = 1 << 20;

/// `sets u32 | of each: least u64 | clients u32 | names`.
pub fn write_sets(sets: &Sets) -> Vec<u8> {
    let mut out = (sets.len() as u32).to_le_bytes().to_vec();
    for (least, clients) in sets {
        out.extend(least.to_le_bytes());
        out.extend((clients.len() as u32).to_le_bytes());
        out.extend(clients.iter().flat_map(|name| name.to_le_bytes()));
    }
    out
}

pub fn read_sets(r: &mut Reader<'_>) -> Result<Sets> {
    let (mut sets, mut names) = (Sets::new(), 0);
    for _ in 0..r.u32()? {
        let (least, clients) = (r.u64()?, r.u32()? as usize);
        names += clients;
        if names > MAX_NAMES || least == 0 || clients == 0 {
            return Err(Error::frame("a proposal with empty sets, or with too many clients"));
        }
        let (clients, _) = r.bytes(clients * NAME_LEN)?.as_chunks::<NAME_LEN>();
        sets.push((least, clients.iter().map(|name| Name::from_le_bytes(*name)).collect()));
    }
    Ok(sets)
}

/// The groups of `memory`, written as sets.
fn sets_of(memory: &SetMemory) -> Sets {
    memory.groups().into_iter().map(|clients| (memory.least(&clients), clients)).collect()
}

/// A member's reply to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    pub member: ClientId,
    /// The digest of the groups.
    pub digest: [u8; 32],
    pub signature: [u8; SIGNATURE_LEN],
    /// The groups, unless they consist of the set itself under the committee's minimum.
    pub sets: Sets,
}

impl Agreement {
    /// The agreement of `member` to the `groups` that it remembers. `sign` makes its signatures; `minimum` is the
    /// committee's.
    pub fn make(
        member: ClientId,
        context: &RoundContext,
        groups: &SetMemory,
        minimum: u64,
        sign: impl Fn(&[u8]) -> Result<[u8; SIGNATURE_LEN]>,
    ) -> Result<Self> {
        let (digest, sets) = (digest_of(groups), sets_of(groups));
        let alone = matches!(sets.as_slice(), [(least, _)] if *least == minimum);
        let sets = if alone { Sets::new() } else { sets };
        Ok(Agreement { member, digest, signature: sign(&context.sets(member, &digest))?, sets })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let sets = write_sets(&self.sets);
        [&self.member.to_le_bytes()[..], &self.digest, &self.signature, &sets].concat()
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (member, digest, signature) = (r.client()?, r.array()?, r.array()?);
        let sets = read_sets(&mut r)?;
        r.finish()?;
        Ok(Agreement { member, digest, signature, sets })
    }
}

/// The digest that names groups.
pub fn digest_of(groups: &SetMemory) -> [u8; 32] {
    sha256(&[&groups.to_bytes()])
}

/// The signatures of enough members under one division into groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Certificate(pub BTreeMap<ClientId, [u8; SIGNATURE_LEN]>);

impl Certificate {
    /// `signatures u32 | of each: member u32 | signature`, by member.
    pub fn write(&self) -> Vec<u8> {
        let each = self.0.iter().flat_map(|(member, signature)| [&member.to_le_bytes()[..], signature].concat());
        (self.0.len() as u32).to_le_bytes().into_iter().chain(each).collect()
    }

    pub fn read(r: &mut Reader<'_>, members: usize) -> Result<Self> {
        let count = r.u32()? as usize;
        if count > members {
            return Err(Error::frame(format!("signatures of {count} members, there are {members}")));
        }
        let mut made = BTreeMap::new();
        for _ in 0..count {
            let (member, signature) = (r.client()?, r.array()?);
            if made.last_key_value().is_some_and(|(last, _)| *last >= member) {
                return Err(Error::frame("a member has signed twice, or out of order"));
            }
            made.insert(member, signature);
        }
        Ok(Certificate(made))
    }

    /// Fails if fewer than `needed` members of the roster have signed these groups.
    pub fn check(&self, roster: &Roster, context: &RoundContext, groups: &SetMemory, needed: usize) -> Result<()> {
        let digest = digest_of(groups);
        let messages: Vec<Vec<u8>> = self.0.keys().map(|member| context.sets(*member, &digest)).collect();
        let mut all = Vec::with_capacity(messages.len());
        for ((member, signature), message) in self.0.iter().zip(&messages) {
            let party = roster.get(*member).filter(|party| party.roles.member);
            let key = &party.ok_or(Error::Signature { party: *member })?.signing;
            all.push(Signed { party: *member, key, purpose: Purpose::Sets, message, signature });
        }
        if let Some(party) = refused(&all)?.first() {
            return Err(Error::Signature { party: *party });
        }
        if all.len() < needed {
            return Err(Error::Committee { answers: all.len(), needed });
        }
        Ok(())
    }
}

/// The server's collection of agreements to the current proposal.
#[derive(Debug, Default)]
pub struct Agreements {
    said: BTreeMap<ClientId, Agreement>,
    /// Sets that were proposed in addition to the round's own.
    others: Sets,
}

impl Agreements {
    pub fn keep(&mut self, said: Agreement) {
        self.said.insert(said.member, said);
    }

    /// The signatures under the groups that most members have signed.
    pub fn certificate(&self) -> Certificate {
        let mut by_digest = BTreeMap::<[u8; 32], BTreeMap<ClientId, [u8; SIGNATURE_LEN]>>::new();
        for (member, said) in &self.said {
            by_digest.entry(said.digest).or_default().insert(*member, said.signature);
        }
        Certificate(by_digest.into_values().max_by_key(BTreeMap::len).unwrap_or_default())
    }

    /// The sets to propose next, in addition to the round's own. Members that did not agree have reported the sets that
    /// they remember. Sets reported by more members than may lie come first, and then the sets that any member reports.
    pub fn again(&mut self, corrupt_members: usize) -> &Sets {
        let mut claims = BTreeMap::<&(u64, Vec<Name>), usize>::new();
        for set in self.said.values().flat_map(|said| &said.sets) {
            *claims.entry(set).or_default() += 1;
        }
        let news = |least: usize| -> Sets {
            let new = claims.iter().filter(|(set, count)| **count >= least && !self.others.contains(set));
            new.map(|(set, _)| (*set).clone()).collect()
        };
        let sure = news(corrupt_members + 1);
        let more = if sure.is_empty() { news(1) } else { sure };
        self.others.extend(more);
        self.said.clear();
        &self.others
    }
}
