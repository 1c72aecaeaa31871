//! Prekeys: X-Wing keys that a committee member makes, publishes under its signature and later deletes. Clients encrypt
//! shares to prekeys only. Recorded shares cannot be opened with any party's files once their prekeys are deleted.
//!
//! A prekey serves `rounds` rounds from its first use on, and no longer than `age` after it was made. The name is
//! Signal's
//! (X3DH, "signed prekey").

use super::identity::Identity;
pub use super::params::Life;
use super::roster::Roster;
use super::sealing::{self, HpkePublicKey, HpkeSecretKey, PUBLIC_LEN};
use crate::keys::{ClientKey, KeyTag};
use crate::ledger::erasable::{CONTENT, Content, Erasable};
use crate::ledger::now;
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed};
use crate::wire::{self, Contribution, Header, Kind, Reader};
use crate::{ClientId, Error, Result, RoundId, Weight};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use zeroize::Zeroizing;

const SUFFIX: &str = "prekeys";
const MET_SUFFIX: &str = "met";
/// The number of prekeys that a member has at once: one for its round, one published, and the published ones that were
/// not used.
const MAX_PREKEYS: usize = 8;

/// The bytes that a member signs of a prekey.
fn statement(roster: &[u8; 32], member: ClientId, number: u64, public: &[u8]) -> Vec<u8> {
    [roster.as_slice(), &member.to_le_bytes(), &number.to_le_bytes(), public].concat()
}

fn head(tag: &KeyTag, member: ClientId) -> Header {
    tag.header(Kind::Prekey, RoundId::NONE, vec![Contribution { client: member, weight: Weight::ONE }])
}

/// A published prekey.
#[derive(Debug, Clone)]
pub struct Published {
    pub member: ClientId,
    /// Increases with each prekey of the member.
    pub number: u64,
    pub public: HpkePublicKey,
}

impl Published {
    /// Reads a frame under the key set of `tag`. Fails unless a member of the roster with this digest has signed it.
    pub fn read(frame: &[u8], tag: &KeyTag, roster: &Roster, digest: &[u8; 32]) -> Result<Self> {
        let found = wire::parse_kind(frame, Kind::Prekey)?;
        tag.check(&found.header)?;
        let &[Contribution { client: member, .. }] = found.header.contributions.as_slice() else {
            return Err(Error::frame("a prekey of no member, or of several"));
        };
        if found.header != head(tag, member) {
            return Err(Error::frame("the head of a prekey says more than whose it is"));
        }
        let mut r = Reader::new(found.payload);
        let (number, public, signature) = (r.u64()?, r.bytes(PUBLIC_LEN)?, r.array::<SIGNATURE_LEN>()?);
        r.finish()?;
        let party = roster.get(member).filter(|party| party.roles.member);
        let key =
            &party.ok_or_else(|| Error::frame(format!("party {member} is not a member of the committee")))?.signing;
        let message = statement(digest, member, number, public);
        Signed { party: member, key, purpose: Purpose::Prekey, message: &message, signature: &signature }.check()?;
        if number == 0 {
            return Err(Error::frame(format!("member {member} gives its prekey no number")));
        }
        Ok(Published { member, number, public: HpkePublicKey::parse(public)? })
    }

    /// Like [`Self::read`] for each frame, with all threads: signature checks take most of the time.
    pub fn read_all(frames: &[&[u8]], tag: &KeyTag, roster: &Roster, digest: &[u8; 32]) -> Vec<Result<Self>> {
        frames.par_iter().map(|frame| Self::read(frame, tag, roster, digest)).collect()
    }
}

/// A prekey in its record: `number u64 | made u64 | last round u64 | rounds used u64 | secret 32`. A record without a
/// secret keeps the last number used.
#[derive(Clone)]
struct Prekey {
    number: u64,
    /// Unix seconds.
    made: u64,
    last: RoundId,
    used: u64,
    secret: Zeroizing<[u8; sealing::SECRET_LEN]>,
}

impl Prekey {
    fn decode(content: &Content) -> Option<Self> {
        let mut r = Reader::new(&**content);
        let mut word = || r.u64().ok();
        let (number, made, last, used) = (word()?, word()?, RoundId::new(word()?), word()?);
        let secret = Zeroizing::new(r.array().ok()?);
        (number > 0).then_some(Prekey { number, made, last, used, secret })
    }

    fn encode(&self) -> Content {
        let mut out = Zeroizing::new([0; CONTENT]);
        let words = [self.number, self.made, self.last.get(), self.used];
        out.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(slot, word)| *slot = word.to_le_bytes());
        out[32..64].copy_from_slice(&*self.secret);
        out
    }

    fn has_secret(&self) -> bool {
        self.made > 0
    }

    /// The record after the prekey's deletion.
    fn deleted(&self) -> Self {
        Prekey { number: self.number, made: 0, last: RoundId::NONE, used: 0, secret: Zeroizing::default() }
    }
}

/// All prekeys of a member, in a file that is written in place, or in memory.
#[derive(Debug)]
pub struct Prekeys {
    life: Life,
    file: Option<Erasable>,
    memory: Mutex<Vec<Content>>,
}

impl Prekeys {
    pub fn open(key: &ClientKey, life: Life, state: Option<&Path>) -> Result<Self> {
        let file = state.map(|state| Erasable::of(key, state, SUFFIX, MAX_PREKEYS)).transpose()?;
        let opened = Prekeys { life, file, memory: Mutex::new(vec![Zeroizing::new([0; CONTENT]); MAX_PREKEYS]) };
        opened.expire().map(|()| opened)
    }

    /// Deletes prekeys that are too old, applies `work`, and stores the result durably.
    fn change<T>(&self, work: impl FnOnce(&mut Vec<Prekey>) -> Result<T>) -> Result<T> {
        let change = |records: &mut [Content]| {
            let mut all = Vec::with_capacity(records.len() + 1);
            all.extend(records.iter().filter_map(Prekey::decode));
            let (now, most) = (now(), self.life.hours.saturating_mul(3600));
            delete(&mut all, |prekey| prekey.made.abs_diff(now) >= most);
            let made = work(&mut all)?;
            store(records, all);
            Ok(made)
        };
        match &self.file {
            Some(file) => file.change(true, change),
            None => change(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The frame that publishes the prekey for the next updates: the newest one if it can still serve, otherwise a new
    /// one. A prekey in the second half of its lifetime is replaced, so that it does not expire before its round.
    pub fn publish(&self, tag: &KeyTag, roster: &[u8; 32], member: ClientId, identity: &Identity) -> Result<Vec<u8>> {
        let half = self.life.hours.saturating_mul(1800);
        let (number, secret) = self.change(|all| {
            let newest = all.iter().max_by_key(|prekey| prekey.number);
            let serves = |prekey: &&Prekey| {
                prekey.has_secret() && prekey.used < self.life.rounds && prekey.made.abs_diff(now()) < half
            };
            if let Some(prekey) = newest.filter(serves) {
                return Ok((prekey.number, prekey.secret.clone()));
            }
            // The number comes from the clock. So a member that has lost its file does not reuse a number that clients
            // have seen.
            let number = newest.map_or(0, |prekey| prekey.number.saturating_add(1)).max(now());
            let mut secret = Zeroizing::new([0; sealing::SECRET_LEN]);
            secret.copy_from_slice(&sealing::generate()?.0);
            all.push(Prekey { number, made: now(), last: RoundId::NONE, used: 0, secret: secret.clone() });
            Ok((number, secret))
        })?;
        let public = HpkeSecretKey::parse(&*secret)?.public();
        let signature = identity.sign(Purpose::Prekey, &statement(roster, member, number, &public))?;
        let header = head(tag, member);
        Ok(header.frame(&[&number.to_le_bytes()[..], &public, &signature].concat()))
    }

    /// The available secrets of `numbers`, for shares of `round`; the use is recorded before they are returned. Deletes
    /// prekeys that have served their rounds, and prekeys older than all of `numbers`: an update encrypted to one of
    /// these comes too late. Once a prekey has served, each further round counts against it, whatever prekeys the
    /// request names. This includes earlier rounds, since the server chooses the order of rounds.
    pub fn serve(&self, round: RoundId, numbers: &BTreeSet<u64>) -> Result<BTreeMap<u64, HpkeSecretKey>> {
        self.change(|all| {
            let oldest = numbers.first().copied().unwrap_or_default();
            let another = |prekey: &Prekey| prekey.used > 0 && prekey.last != round;
            let over = |prekey: &Prekey| prekey.used >= self.life.rounds && another(prekey);
            delete(all, |prekey| over(prekey) || prekey.number < oldest);
            let mut found = BTreeMap::new();
            for prekey in all.iter_mut().filter(|prekey| prekey.has_secret()) {
                let named = numbers.contains(&prekey.number);
                if another(prekey) || (named && prekey.used == 0) {
                    (prekey.used, prekey.last) = (prekey.used + 1, round);
                }
                if named {
                    found.insert(prekey.number, HpkeSecretKey::parse(&*prekey.secret)?);
                }
            }
            Ok(found)
        })
    }

    /// Deletes prekeys that are too old.
    pub fn expire(&self) -> Result<()> {
        self.change(|_| Ok(()))
    }

    /// Deletes all prekeys.
    pub fn forget(&self) -> Result<()> {
        self.change(|all| {
            delete(all, |_| true);
            Ok(())
        })
    }
}

/// Deletes the prekeys for which `over` is true. The newest keeps its number.
fn delete(all: &mut Vec<Prekey>, over: impl Fn(&Prekey) -> bool) {
    let newest = all.iter().map(|prekey| prekey.number).max();
    for prekey in all.iter_mut().filter(|prekey| over(prekey)) {
        *prekey = prekey.deleted();
    }
    all.retain(|prekey| prekey.has_secret() || Some(prekey.number) == newest);
}

/// Stores the newest prekeys, each in its former record, so that a deleted prekey is overwritten.
fn store(records: &mut [Content], mut all: Vec<Prekey>) {
    all.sort_by_key(|prekey| std::cmp::Reverse(prekey.number));
    all.truncate(records.len());
    let place = |records: &[Content], number: u64| {
        records.iter().position(|content| Prekey::decode(content).is_some_and(|old| old.number == number))
    };
    let kept: Vec<Option<usize>> = all.iter().map(|prekey| place(records, prekey.number)).collect();
    let mut free: Vec<usize> = (0..records.len()).filter(|at| !kept.contains(&Some(*at))).collect();
    for at in &free {
        records[*at] = Zeroizing::new([0; CONTENT]);
    }
    for (prekey, kept) in all.iter().zip(kept) {
        if let Some(at) = kept.or_else(|| free.pop()) {
            records[at] = prekey.encode();
        }
    }
}

/// A client's view: the prekeys in use, and the greatest number ever seen of each member.
#[derive(Debug)]
pub struct Met {
    file: Option<Erasable>,
    seen: BTreeMap<ClientId, u64>,
    given: BTreeMap<ClientId, Published>,
}

impl Met {
    pub fn open(key: &ClientKey, members: usize, state: Option<&Path>) -> Result<Self> {
        let file = state.map(|state| Erasable::of(key, state, MET_SUFFIX, members)).transpose()?;
        let mut met = Met { file, seen: BTreeMap::new(), given: BTreeMap::new() };
        met.remember().map(|()| met)
    }

    /// Clears the prekeys before new ones are taken. A member that is absent then has none.
    pub fn renew(&mut self) {
        self.given.clear();
    }

    /// Takes a prekey. Fails if it is older than the member's newest: an attacker with an old copy of the member's file
    /// could present it.
    pub fn take(&mut self, prekey: Published) -> Result<()> {
        let seen = self.seen.get(&prekey.member).copied().unwrap_or_default();
        if prekey.number < seen {
            return Err(Error::OldPrekey { member: prekey.member, number: prekey.number, seen });
        }
        self.seen.insert(prekey.member, prekey.number);
        self.given.insert(prekey.member, prekey);
        Ok(())
    }

    /// Stores the numbers, merged with those of other processes, and loads the result. A power cut may undo this: then
    /// an older prekey is accepted once more.
    pub fn remember(&mut self) -> Result<()> {
        let (Some(file), seen) = (&self.file, &mut self.seen) else { return Ok(()) };
        file.change(false, |records| {
            for content in records.iter() {
                let mut r = Reader::new(&**content);
                let (number, member) = (r.u64()?, r.client()?);
                if number > 0 {
                    let seen = seen.entry(member).or_default();
                    *seen = number.max(*seen);
                }
            }
            for (content, (member, number)) in records.iter_mut().zip(seen.iter()) {
                **content = [0; CONTENT];
                content[..8].copy_from_slice(&number.to_le_bytes());
                content[8..12].copy_from_slice(&member.to_le_bytes());
            }
            Ok(())
        })
    }

    /// The prekey of `member`, if one was taken.
    #[must_use]
    pub fn of(&self, member: ClientId) -> Option<&Published> {
        self.given.get(&member)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prekeys(rounds: u64, numbers: std::ops::RangeInclusive<u64>) -> Prekeys {
        let life = Life { rounds, hours: 24 };
        let made = Prekeys { life, file: None, memory: Mutex::new(vec![Zeroizing::new([0; CONTENT]); MAX_PREKEYS]) };
        let new = |number| Prekey {
            number,
            made: now(),
            last: RoundId::NONE,
            used: 0,
            secret: Zeroizing::new([number as u8; sealing::SECRET_LEN]),
        };
        made.change(|all| {
            all.extend(numbers.map(new));
            Ok(())
        })
        .unwrap();
        made
    }

    fn held(prekeys: &Prekeys) -> Vec<u64> {
        let mut held = Vec::new();
        let look = |all: &mut Vec<Prekey>| {
            held = all.iter().filter(|prekey| prekey.has_secret()).map(|prekey| prekey.number).collect();
            Ok(())
        };
        prekeys.change(look).unwrap();
        held.sort_unstable();
        held
    }

    /// A server asks about a round far ahead, in a request that fails after the use is recorded, and then about earlier
    /// rounds.
    #[test]
    fn attack_22_no_order_of_rounds_keeps_a_prekey() {
        let prekeys = prekeys(1, 1..=1);
        prekeys.serve(RoundId::new(1000), &BTreeSet::from([0, 1])).unwrap();
        assert!(prekeys.serve(RoundId::new(1), &BTreeSet::from([1])).unwrap().is_empty() && held(&prekeys).is_empty());
    }

    /// An update that was encrypted to an older prekey comes too late.
    #[test]
    fn prekeys_older_than_all_that_a_request_names_are_deleted() {
        let prekeys = prekeys(1, 1..=4);
        prekeys.serve(RoundId::new(7), &BTreeSet::from([3, 4])).unwrap();
        assert_eq!(held(&prekeys), [3, 4]);
    }

    proptest! {
        /// Once a prekey has served, it stays for requests of that round. It stays until the round has changed as often
        /// as it may serve, whatever the requests name.
        #[test]
        fn a_prekey_that_has_served_is_gone_after_its_rounds_in_any_order(
            rounds in 1u64..4, asked in prop::collection::vec((1u64..5, prop::collection::btree_set(0u64..4, 1..4)), 1..20),
        ) {
            let prekeys = prekeys(rounds, 1..=3);
            // For each prekey: the round of its last request since it has served, and the number of round changes.
            let mut served = BTreeMap::<u64, (u64, u64)>::new();
            for (round, numbers) in asked {
                for (last, changes) in served.values_mut().filter(|(last, _)| *last != round) {
                    (*last, *changes) = (round, *changes + 1);
                }
                let found = prekeys.serve(RoundId::new(round), &numbers).unwrap();
                for number in found.keys() {
                    served.entry(*number).or_insert((round, 1));
                }
                let late: Vec<u64> = served.iter().filter(|(_, (_, n))| *n > rounds).map(|(number, _)| *number).collect();
                prop_assert!(held(&prekeys).iter().all(|number| !late.contains(number)), "{late:?}");
                prop_assert!(found.keys().all(|number| !late.contains(number)));
            }
        }
    }
}
