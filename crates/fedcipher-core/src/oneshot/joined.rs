//! The parties that have joined a roster, as far as a party knows. The maker of a roster could make two, or exchange
//! parties in transit. A party that trusts no maker encrypts only under a roster that all members and most clients have
//! signed. Of two rosters that list the same clients, honest clients sign one, and `corrupt_clients` others sign both.
//! So at most one of them gets more than (clients + `corrupt_clients`) / 2 signatures. Two rosters that list different
//! clients can both get enough.

use super::roster::{Roster, RosterEntry};
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed};
use crate::wire::Reader;
use crate::{ClientId, Error, Result};
use std::collections::BTreeSet;

const MAGIC: [u8; 8] = *b"FEDJOIN1";
/// The number of names that an error lists.
const MAX_NAMES: usize = 8;

/// The numbers of parties whose signatures of the roster's fingerprint have been checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined(pub BTreeSet<ClientId>);

impl Joined {
    /// Reads the part of a party's key after the roster: nothing, if the party trusts the roster's maker.
    pub fn read(mut r: Reader<'_>) -> Result<Option<Self>> {
        if r.clone().rest().is_empty() {
            return Ok(None);
        }
        let damaged = |_| Error::Key { reason: "its list of joined parties is damaged; join again".into() };
        if r.array::<8>().map_err(damaged)? != MAGIC {
            return Err(damaged(Error::frame("")));
        }
        let count = r.u32().map_err(damaged)?;
        let ids = (0..count).map(|_| r.client()).collect::<Result<_>>().map_err(damaged)?;
        r.finish().map_err(damaged)?;
        Ok(Some(Joined(ids)))
    }

    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let ids = self.0.iter().flat_map(|id| id.to_le_bytes());
        [&MAGIC[..], &(self.0.len() as u32).to_le_bytes()].concat().into_iter().chain(ids).collect()
    }

    /// The parties of these signatures and `own`, added to those known.
    pub fn with(
        mut self,
        roster: &Roster,
        fingerprint: &[u8; 32],
        own: ClientId,
        more: &[(ClientId, [u8; SIGNATURE_LEN])],
    ) -> Result<Self> {
        self.0.insert(own);
        for (id, signature) in more {
            let RosterEntry { signing: key, .. } = roster.get(*id).ok_or_else(|| {
                Error::parameter("joined", format!("the roster has no party {id}; take the files of this roster"))
            })?;
            Signed { party: *id, key, purpose: Purpose::Roster, message: fingerprint, signature }.check()?;
            self.0.insert(*id);
        }
        Ok(self)
    }

    /// Fails if a member has not joined the roster, or if no more than (clients + corrupt_clients) / 2 clients have.
    pub fn check(&self, roster: &Roster, corrupt_clients: usize) -> Result<()> {
        let away: Vec<&RosterEntry> = roster.parties().filter(|party| !self.0.contains(&party.id)).collect();
        let members: Vec<&RosterEntry> = away.iter().copied().filter(|party| party.roles.member).collect();
        let clients = roster.cohort().len();
        let have = clients - away.iter().filter(|party| party.roles.client).count();
        let needed = (clients + corrupt_clients) / 2 + 1;
        let mut missing = Vec::new();
        if !members.is_empty() {
            missing.push(format!("without members {}", names(&members)));
        }
        if have < needed {
            let others: Vec<&RosterEntry> = away.into_iter().filter(|party| party.roles.client).collect();
            missing.push(format!("{have} of {clients} clients where {needed} must, without {}", names(&others)));
        }
        if missing.is_empty() { Ok(()) } else { Err(Error::NotJoined { missing: missing.join("; ") }) }
    }
}

fn names(parties: &[&RosterEntry]) -> String {
    let mut names: Vec<String> = parties.iter().take(MAX_NAMES).map(|party| format!("{:?}", party.name)).collect();
    if parties.len() > MAX_NAMES {
        names.push(format!("{} more", parties.len() - MAX_NAMES));
    }
    names.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::oneshot::identity::Identity;
    use crate::oneshot::roster::{Card, Roles};

    fn ids(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<ClientId> {
        ClientId::list(numbers).into_iter().collect()
    }

    fn read(bytes: &[u8]) -> Result<Option<Joined>> {
        Joined::read(Reader::new(bytes))
    }

    #[test]
    fn who_has_joined_is_read_whole_or_not_at_all() {
        let joined = Joined(ids([3, 1, 1 << 31]));
        let bytes = joined.to_bytes();
        assert_eq!(read(&bytes).unwrap(), Some(joined));
        assert_eq!(read(&[]).unwrap(), None);
        for cut in 1..bytes.len() {
            assert!(matches!(read(&bytes[..cut]), Err(Error::Key { .. })), "{cut} bytes");
        }
        assert!(read(&[bytes.as_slice(), &[0]].concat()).is_err());
        assert!(read(&[&MAGIC[..], &[0xff; 8]].concat()).is_err());
    }

    /// For all rosters of up to eight clients: honest clients join one of two, corrupt clients join both.
    #[test]
    fn no_two_rosters_of_one_maker_are_both_joined_by_enough() {
        for clients in 2..=8_u32 {
            let roles = Roles { client: true, member: false, reader: true };
            let card = |id| Card::of(&Identity::generate().unwrap(), id, &format!("site-{id}"), roles);
            let roster = Roster::new(ClientId::list(0..clients).into_iter().map(card).collect()).unwrap();
            for corrupt in 0..clients.min(4) {
                let enough = |ids: BTreeSet<ClientId>| Joined(ids).check(&roster, corrupt as usize).is_ok();
                for first in corrupt..=clients {
                    let (a, b) = (ids(0..first), ids((0..corrupt).chain(first..clients)));
                    assert!(!(enough(a) && enough(b)), "{clients} clients, {corrupt} corrupt, {first} in one");
                }
                assert!(enough(ids(0..clients)));
            }
        }
    }
}
