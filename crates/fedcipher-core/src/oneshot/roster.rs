//! Rosters: the number, name, keys and roles of each party. A roster is public. All parties of a round have the same
//! one,
//! since its digest names the key set and is part of everything that is signed.
//!
//! A roster contains a digest of the cohort's secret. Without it, the roster's maker could encrypt another secret to
//! some
//! parties. They would decipher memories of the rule of sets differently ([`crate::mac::memory`]), and would know no
//! earlier sum.

use super::identity::{self, Identity};
use super::sealing::{self, HpkePublicKey};
use crate::keys::Cohort;
use crate::prf::random_bytes;
use crate::sign::{VERIFY_LEN, hybrid};
use crate::statement::sha256;
use crate::wire::Reader;
use crate::{ClientId, Epoch, Error, Result};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

const MAGIC: [u8; 8] = *b"FEDROST3";
const ROOT_LEN: usize = 32;
const SEALED_ROOT: usize = ROOT_LEN + sealing::OVERHEAD;
const MAX_PARTIES: usize = 1 << 20;

/// The roles of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Sends updates.
    pub client: bool,
    /// Holds shares, and answers for one set of clients per round.
    pub member: bool,
    /// Opens aggregates.
    pub reader: bool,
}

impl Roles {
    fn byte(self) -> u8 {
        u8::from(self.client) | u8::from(self.member) << 1 | u8::from(self.reader) << 2
    }

    fn parse(byte: u8) -> Option<Self> {
        let made = Roles { client: byte & 1 != 0, member: byte & 2 != 0, reader: byte & 4 != 0 };
        (made.byte() == byte && byte != 0).then_some(made)
    }
}

/// The public entry of one party.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RosterEntry {
    pub id: ClientId,
    pub name: String,
    pub roles: Roles,
    /// The Ed25519 half of `signing`. It names the party.
    pub verify: [u8; VERIFY_LEN],
    /// The party's verification keys.
    pub signing: Vec<u8>,
    /// Checked only when it is used: a roster may have thousands of parties, of which few are needed.
    sealing: Vec<u8>,
    /// The cohort's secret for tags, encrypted to this party.
    root: Vec<u8>,
}

impl RosterEntry {
    pub fn sealing(&self) -> Result<HpkePublicKey> {
        HpkePublicKey::parse(&self.sealing)
    }

    /// The bytes of the party's HPKE public key.
    #[must_use]
    pub fn sealed_to(&self) -> &[u8] {
        &self.sealing
    }

    /// The same fingerprint as [`Identity::fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        identity::fingerprint(&self.signing, &self.sealing)
    }
}
/// A party's own statement of its name and keys, for the maker of a roster.
#[derive(Debug, Clone)]
pub struct Card {
    pub id: ClientId,
    pub name: String,
    pub roles: Roles,
    /// The same bytes as [`Identity::verify_keys`].
    pub signing: Vec<u8>,
    pub sealing: Vec<u8>,
}

impl Card {
    /// Fails unless these are public keys of an identity. For use before the keys are stored.
    pub fn check(signing: &[u8], sealing: &[u8]) -> Result<()> {
        HpkePublicKey::parse(sealing)?;
        if hybrid::is_key(signing) {
            return Ok(());
        }
        Err(Error::Key { reason: "a card holds no key to check signatures with".into() })
    }

    #[must_use]
    pub fn of(identity: &Identity, id: ClientId, name: &str, roles: Roles) -> Self {
        let (signing, sealing) = (identity.verify_keys().to_vec(), identity.secret.public());
        Card { id, name: name.into(), roles, signing, sealing }
    }
}

/// All parties, by increasing number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    /// The digest of the cohort's secret.
    root: [u8; 32],
    parties: Vec<RosterEntry>,
    bytes: Vec<u8>,
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::parameter("roster", reason)
}

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn cut(error: Error) -> Error {
    invalid(format!("it is damaged: {error}"))
}

/// The last bytes of the verification keys: the Ed25519 key.
fn curve_half(signing: &[u8]) -> [u8; VERIFY_LEN] {
    signing.last_chunk().copied().unwrap_or_default()
}

fn root_info(id: ClientId) -> Vec<u8> {
    [b"fedcipher oneshot v1 root".as_slice(), &id.to_le_bytes()].concat()
}

/// A digest that hides `root`, which has 256 random bits.
fn root_digest(root: &[u8; ROOT_LEN]) -> [u8; 32] {
    sha256(&[b"fedcipher oneshot v2 digest of the root", root])
}

impl Roster {
    /// Makes a roster from the parties' cards. Draws the cohort's secret for tags and encrypts it to each party. The
    /// secret opens no update, but the roster's maker could forge aggregates with it. The server must not make the
    /// roster.
    pub fn new(mut cards: Vec<Card>) -> Result<Self> {
        cards.sort_by_key(|card| card.id);
        let root = random_bytes::<ROOT_LEN>()?;
        let party = |card: Card| {
            if !hybrid::is_key(&card.signing) {
                return Err(invalid(format!("{:?} has no key to check signatures with", card.name)));
            }
            let verify = curve_half(&card.signing);
            let sealed = HpkePublicKey::parse(&card.sealing)?.hpke_seal(&root_info(card.id), root.as_slice())?;
            let Card { id, name, roles, signing, sealing } = card;
            Ok(RosterEntry { id, name, roles, verify, signing, sealing, root: sealed })
        };
        let parties: Vec<RosterEntry> = cards.into_iter().map(party).collect::<Result<_>>()?;
        let root = root_digest(&root);
        let mut bytes = [&MAGIC[..], &root, &(parties.len() as u32).to_le_bytes()].concat();
        for party in &parties {
            let name = party.name.as_bytes();
            let length = u8::try_from(name.len()).map_err(|_| invalid(format!("{:?} is too long", party.name)))?;
            bytes.extend_from_slice(&party.id.to_le_bytes());
            bytes.extend_from_slice(&[party.roles.byte(), length]);
            for part in [name, &party.signing, &party.sealing, &party.root] {
                bytes.extend_from_slice(part);
            }
        }
        Roster::checked(root, parties, bytes)
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let roster = Roster::read(&mut r)?;
        r.finish().map_err(cut)?;
        Ok(roster)
    }

    /// Reads a roster from the front of `r`.
    pub fn read(r: &mut Reader<'_>) -> Result<Self> {
        let whole = r.clone().rest();
        if r.array::<8>().map_err(cut)? != MAGIC {
            return Err(invalid("this is not a roster of this version"));
        }
        let root = r.array().map_err(cut)?;
        let count = r.u32().map_err(cut)? as usize;
        let mut parties = Vec::new();
        for _ in 0..count.min(MAX_PARTIES) {
            parties.push(Roster::party(r).map_err(cut)?);
        }
        let after = r.clone().rest().len();
        Roster::checked(root, parties, whole[..whole.len() - after].to_vec())
    }

    fn party(r: &mut Reader<'_>) -> Result<RosterEntry> {
        let id = r.client()?;
        let roles = Roles::parse(r.u8()?).ok_or_else(|| Error::frame("a party has no role, or an unknown one"))?;
        let length = usize::from(r.u8()?);
        let name = std::str::from_utf8(r.bytes(length)?).map_err(|_| Error::frame("a name is not text (UTF-8)"))?;
        let signing = r.bytes(hybrid::VERIFY_LEN)?.to_vec();
        Ok(RosterEntry {
            id,
            name: name.to_owned(),
            roles,
            verify: curve_half(&signing),
            signing,
            sealing: r.bytes(sealing::PUBLIC_LEN)?.to_vec(),
            root: r.bytes(SEALED_ROOT)?.to_vec(),
        })
    }

    fn checked(root: [u8; 32], parties: Vec<RosterEntry>, bytes: Vec<u8>) -> Result<Self> {
        if let Some(pair) = parties.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Err(invalid(format!("number {} is given to two parties, or out of order", pair[1].id)));
        }
        let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for party in &parties {
            if party.name.is_empty() || party.name.chars().any(char::is_control) {
                return Err(invalid(format!("party {} has no name, or one that cannot be shown", party.id)));
            }
            if !names.insert(party.name.as_str()) {
                return Err(invalid(format!("two parties are called {:?}; give one another name", party.name)));
            }
            // Both halves of the verification keys must be unique. Otherwise an attacker who breaks one signature
            // scheme could pose as two parties.
            let lattice = sha256(&[&party.signing[..hybrid::VERIFY_LEN - VERIFY_LEN]]);
            if ![party.verify, lattice, sha256(&[&party.sealing])].into_iter().all(|key| keys.insert(key)) {
                return Err(invalid(format!("{:?} has the keys of another party", party.name)));
            }
        }
        Ok(Roster { root, parties, bytes })
    }

    #[must_use]
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The roster's name in signatures. It includes the scheme's parameters and the epoch, so that parties agree on
    /// these too.
    #[must_use]
    pub fn digest(&self, params: [u8; 16], epoch: Epoch) -> [u8; 32] {
        sha256(&[b"fedcipher oneshot v1 roster", &params, &epoch.to_le_bytes(), &self.bytes])
    }

    pub fn parties(&self) -> impl Iterator<Item = &RosterEntry> {
        self.parties.iter()
    }

    /// The party with this number.
    #[must_use]
    pub fn get(&self, id: ClientId) -> Option<&RosterEntry> {
        self.parties.binary_search_by_key(&id, |party| party.id).ok().map(|at| &self.parties[at])
    }

    /// The committee, in the order of its shares.
    pub fn members(&self) -> impl Iterator<Item = &RosterEntry> {
        self.parties.iter().filter(|party| party.roles.member)
    }

    pub fn readers(&self) -> impl Iterator<Item = &RosterEntry> {
        self.parties.iter().filter(|party| party.roles.reader)
    }

    /// The clients that send updates.
    #[must_use]
    pub fn cohort(&self) -> Cohort {
        self.parties.iter().filter(|party| party.roles.client).map(|party| (party.id, party.verify)).collect()
    }

    /// The number of the party `identity`, and the cohort's secret, decrypted by this party.
    pub fn join(&self, identity: &Identity) -> Result<(ClientId, Zeroizing<[u8; ROOT_LEN]>)> {
        let own = identity.verify_keys();
        let party =
            self.parties.iter().find(|party| party.signing == own).ok_or_else(|| {
                invalid("this identity is not in it; send its public half to the maker of the roster")
            })?;
        let root = identity.secret.open(&root_info(party.id), &party.root);
        let root = root.and_then(|root| <[u8; ROOT_LEN]>::try_from(root.as_slice()).ok()).ok_or_else(|| {
            invalid(format!("what it holds for {:?} was sealed to other keys; have it made anew", party.name))
        })?;
        let root = Zeroizing::new(root);
        if root_digest(&root) != self.root {
            return Err(invalid(format!(
                "its maker has sealed another secret to {:?} than it says; do not join, and ask its maker why",
                party.name
            )));
        }
        Ok((party.id, root))
    }
}
