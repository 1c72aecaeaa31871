//! The scheme `oneshot`: additive BFV. Each client draws a fresh secret per round and shares it with a committee. No
//! single key decrypts anything.
//!
//! A client sends `c0 = a s + e + delta M` under a secret s that it draws for this round. It also sends shares of s,
//! each
//! encrypted to one member of the committee. The server adds the c0. Once per round it shows each member which shares
//! to
//! add. The sums of enough members give the sum of all s, which decrypts the sum of all c0 and nothing else. A client
//! sends
//! one message. A client that drops out before the cut-off is not in the sum. A client that drops out later is not
//! needed.
//!
//! Lineage: LERNA (Li, Lin, Polychroniadou, Tessaro, Asiacrypt 2023), Willow (Bell-Clark et al., ePrint 2024/936),
//! OPA (Karthikeyan and Polychroniadou, arXiv 2410.22303), and for the committee's one answer Flamingo (Ma et al.,
//! IEEE S&P 2023). The sum of secrets and, in the opened aggregate, the sum of errors become known: Hint-RLWE (Kim,
//! Lee,
//! Seo, Song, Crypto 2023). Both are drawn with sigma 4.58. With one other honest client in the sum the theorem leaves
//! 2.29; that half of the variance is left, the 3.24 of `bfv`, is a heuristic.

mod aggregate;
mod agree;
mod answer;
pub mod committee;
mod decode;
mod decrypt;
mod encrypt;
pub mod field;
pub mod identity;
mod joined;
mod member;
pub mod pads;
pub mod params;
pub mod prekeys;
pub mod roster;
pub mod sealed_share;
pub mod sealing;
pub mod sharing;
pub mod statement;

use crate::canonical::{Canonical, Fields};
use crate::codec::Layout;
use crate::committee::{Committee, Member};
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::ledger::Holder;
use crate::mac::MacKey;
use crate::params_digest::{self, ParamsDigest};
use crate::protocol::{Decryptor, Encryptor};
use crate::rlwe::params::{BfvParams as Ring, Derived};
use crate::rlwe::ring::Binomial;
use crate::scheme::{Aggregator, Scheme, Values, Variant};
use crate::sign::hybrid::SIGNATURE_LEN;
use crate::statement::sha256;
use crate::wire::Reader;
use crate::{ClientId, Epoch, Error, Result, RoundId, wire};
use identity::Identity;
use joined::Joined;
pub use params::{OneshotParams, Reveal};
use roster::{Card, Roles, Roster};
use sharing::Sharing;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

const NAME: &str = "oneshot";
/// See [`Variant`]. Each client is of the committee, and two of the three answers are enough but where all are needed.
pub const VARIANTS: &[Variant] = &[
    Variant::new(
        NAME,
        NAME,
        r#"{"preset": "compact", "members": 3, "threshold": 2, "corrupt_clients": 0, "corrupt_members": 0, "pack": 1,
            "reveal": "clients", "prekey_rounds": 1, "prekey_hours": 24}"#,
    ),
    Variant::new(
        "oneshot-fast",
        NAME,
        r#"{"preset": "fast", "members": 3, "threshold": 3, "corrupt_clients": 1, "corrupt_members": 1, "pack": 1,
            "reveal": "clients", "prekey_rounds": 1, "prekey_hours": 24}"#,
    ),
    Variant::new(
        "oneshot-server",
        NAME,
        r#"{"preset": "fast", "members": 3, "threshold": 2, "corrupt_clients": 0, "corrupt_members": 0, "pack": 1,
            "reveal": "server", "prekey_rounds": 1, "prekey_hours": 24}"#,
    ),
    Variant::new(
        "oneshot-packed",
        NAME,
        r#"{"preset": "fast", "members": 3, "threshold": 2, "corrupt_clients": 0, "corrupt_members": 0, "pack": 2,
            "reveal": "clients", "prekey_rounds": 1, "prekey_hours": 24}"#,
    ),
];
/// Validated parameters and values derived from them.
struct Setting {
    params: OneshotParams,
    derived: Arc<Derived>,
    sharing: Sharing,
}

/// The scheme `oneshot`.
#[derive(Clone)]
pub struct Oneshot {
    setting: Arc<Setting>,
}

impl Oneshot {
    pub fn new(params: OneshotParams) -> Result<Self> {
        params.check()?;
        let OneshotParams { bounds, preset, members, threshold, pack, .. } = params;
        let ring = Ring { bounds, preset, bits: params.bits.clone(), server_weights: false };
        let derived = Arc::new(Derived::new(ring, Binomial::SUMMED)?);
        // The sum of secrets lies between -bound and bound, times the number of clients.
        let values = 2 * Binomial::SUMMED.bound() as u64 * bounds.clients + 1;
        let sharing = Sharing::new(derived.ring.n, values, members, threshold, pack)?;
        Ok(Oneshot { setting: Arc::new(Setting { params, derived, sharing }) })
    }

    /// The tag of the roster's keys. A party rejects frames and keys of another roster. `params` is the parameter
    /// digest in these keys.
    fn tag(&self, roster: &Roster, epoch: Epoch, params: [u8; 16]) -> Result<KeyTag> {
        self.setting.check_roster(roster)?;
        let key_id = params_digest::short(&roster.digest(params, epoch));
        Ok(KeyTag { scheme: wire::scheme_id(NAME)?, params, key_id, epoch })
    }
}

impl Setting {
    fn check_roster(&self, roster: &Roster) -> Result<()> {
        let members = roster.members().count();
        if members != self.params.members {
            return Err(Error::parameter(
                "roster",
                format!("it has {members} members, the scheme {}; make one of them fit", self.params.members),
            ));
        }
        if self.params.reveal == Reveal::Clients && roster.readers().next().is_none() {
            return Err(Error::parameter("roster", "it has no reader, so no party could open an aggregate"));
        }
        Ok(())
    }
}

/// The bytes that a client signs beside its tag: the digest of its ciphertexts, and one digest per share. A member can
/// so check the signature with its own share.
fn signed(ciphertexts: &[u8; 32], shares: &[u8]) -> Vec<u8> {
    [ciphertexts.as_slice(), shares].concat()
}

/// A party in a roster: the roster, which must be that of the party's key, and the party's identity.
struct RosterSeat {
    identity: Identity,
    roster: Roster,
    digest: [u8; 32],
    mac: MacKey,
    /// `None` if this party trusts the roster's maker.
    joined: Option<Joined>,
}

impl RosterSeat {
    /// Fails if party `own` of the roster lacks the role.
    fn check_role(&self, own: ClientId, name: &str, has: impl Fn(Roles) -> bool) -> Result<()> {
        if self.roster.get(own).is_some_and(|party| has(party.roles)) {
            return Ok(());
        }
        Err(Error::Key { reason: format!("party {own} of the roster is not a {name}") })
    }

    /// Calls `make` with this party as the holder of a ledger. `key` is the party's key.
    fn as_holder<T>(
        &self,
        key: &ClientKey,
        setting: &Setting,
        make: impl FnOnce(&Holder<'_>) -> Result<T>,
    ) -> Result<T> {
        let (identity, cohort) = (self.identity.verify_key(), self.roster.cohort());
        make(&Holder { key, roster: Some((&identity, &cohort)), minimum: setting.params.bounds.min_contributions })
    }
}

impl Oneshot {
    fn place(&self, key: &ClientKey) -> Result<RosterSeat> {
        key.tag.check_scheme(NAME, self.digest())?;
        let short = || Error::Key { reason: "it is shorter than an identity".into() };
        let (sealing, roster) = key.secret.split_at_checked(sealing::SECRET_LEN).ok_or_else(short)?;
        let mut r = Reader::new(roster);
        let (identity, roster, joined) = (Identity::of(&key.sign, sealing)?, Roster::read(&mut r)?, Joined::read(r)?);
        if roster.get(key.client).is_none_or(|party| party.signing != identity.verify_keys()) {
            return Err(Error::Key { reason: format!("its identity is not that of party {}", key.client) });
        }
        let digest = self.check_key(&key.tag, &roster)?;
        Ok(RosterSeat { identity, roster, digest, mac: key.mac()?, joined })
    }

    /// The roster in a server's key, and its digest.
    fn server_place(&self, key: &ServerKey) -> Result<(Roster, [u8; 32])> {
        key.tag.check_scheme(NAME, self.digest())?;
        let roster = Roster::parse(&key.public)?;
        let digest = self.check_key(&key.tag, &roster)?;
        if *key.cohort != roster.cohort() {
            return Err(Error::Key { reason: "its clients are not those of the roster that it holds".into() });
        }
        Ok((roster, digest))
    }

    /// Returns the digest of the roster; fails if the key belongs to another one.
    fn check_key(&self, tag: &KeyTag, roster: &Roster) -> Result<[u8; 32]> {
        if self.tag(roster, tag.epoch, tag.params)? == *tag {
            return Ok(roster.digest(tag.params, tag.epoch));
        }
        Err(Error::Key { reason: "it does not belong to the roster that it holds; join the roster again".into() })
    }
}

impl Canonical for Oneshot {
    const DOMAIN: &'static str = "fedcipher scheme oneshot";

    fn fields(&self, to: &mut Fields) {
        let Setting { params: p, derived, .. } = &*self.setting;
        // The version of updates, requests and answers.
        to.number(1, 3);
        to.part(2, &p.bounds);
        to.number(3, p.preset.number());
        to.numbers(4, p.bits.iter().map(|bits| u64::from(*bits)));
        to.number(5, p.members as u64);
        to.number(6, p.threshold as u64);
        to.number(7, p.corrupt_clients as u64);
        to.number(8, p.corrupt_members as u64);
        to.number(9, p.pack as u64);
        to.number(
            10,
            match p.reveal {
                Reveal::Clients => 0,
                Reveal::Server => 1,
            },
        );
        to.number(11, p.life.rounds);
        to.number(12, p.life.hours);
        to.numbers(13, derived.ring.primes.iter().copied());
    }
}

impl Scheme for Oneshot {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> ParamsDigest {
        let Setting { params, derived, .. } = &*self.setting;
        ParamsDigest::of(self, &former::oneshot(params, &derived.ring.primes))
    }

    fn values(&self) -> Values {
        Values { levels: self.setting.params.rules().levels, lanes: Some(self.setting.derived.lanes) }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.setting.derived.shape(layout).map(drop)
    }

    /// Makes all identities in one place, for a simulation. The first `members` clients are the committee.
    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet> {
        if cohort.len() < self.setting.params.members {
            return Err(Error::parameter(
                "members",
                format!("{} clients cannot give a committee of {}", cohort.len(), self.setting.params.members),
            ));
        }
        let mut ids = cohort.to_vec();
        ids.sort_unstable();
        let identities = ids.iter().map(|_| Identity::generate()).collect::<Result<Vec<_>>>()?;
        let card = |(place, (id, identity)): (usize, (&ClientId, &Identity))| {
            let roles = Roles { client: true, member: place < self.setting.params.members, reader: true };
            Card::of(identity, *id, &format!("client-{id}"), roles)
        };
        let roster = Roster::new(ids.iter().zip(&identities).enumerate().map(card).collect())?;
        let clients = identities.iter().map(|i| self.join(&roster, i, epoch)).collect::<Result<_>>()?;
        Ok(KeySet { clients, server: self.roster_key(&roster, epoch)? })
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor> {
        Ok(Encryptor::new(encrypt::OneshotEncryptor::new(Arc::clone(&self.setting), self.place(key)?, key, state)?))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>> {
        let (roster, digest) = self.server_place(key)?;
        Ok(Box::new(aggregate::OneshotAggregator::new(Arc::clone(&self.setting), roster, digest, key, round)))
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor> {
        Ok(Decryptor::new(decrypt::OneshotDecryptor::new(Arc::clone(&self.setting), self.place(key)?, key, state)?))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let (s, p) = (&self.setting.sharing, &self.setting.params);
        let mut out = self.setting.derived.describe();
        out.extend([
            ("committee".into(), format!("{} of {} members answer", s.needed(), p.members)),
            (
                "withstands".into(),
                format!("{} clients and {} members with the server", p.corrupt_clients, p.corrupt_members),
            ),
            ("shares modulo".into(), s.field.p().to_string()),
            ("opened by".into(), format!("{:?}", p.reveal).to_lowercase()),
        ]);
        out.extend(p.bounds.describe());
        out
    }

    fn committee(&self) -> Option<&dyn Committee> {
        Some(self)
    }
}

impl Committee for Oneshot {
    fn corrupt_clients(&self) -> u64 {
        self.setting.params.corrupt_clients as u64
    }

    fn members(&self) -> usize {
        self.setting.params.members
    }

    fn roles(&self, key: &ClientKey) -> Result<Roles> {
        let place = self.place(key)?;
        Ok(place.roster.get(key.client).map(|party| party.roles).unwrap_or_default())
    }

    fn join(&self, roster: &Roster, identity: &Identity, epoch: Epoch) -> Result<ClientKey> {
        let tag = self.tag(roster, epoch, self.digest().short())?;
        let (client, root) = roster.join(identity)?;
        let sign = identity.signing.clone();
        let secret = Zeroizing::new([identity.sealing(), roster.to_bytes()].concat());
        Ok(ClientKey { tag, client, root, sign, secret })
    }

    fn roster_fingerprint(&self, roster: &Roster, epoch: Epoch, params: Option<[u8; 16]>) -> Result<[u8; 32]> {
        self.setting.check_roster(roster)?;
        let params = params.unwrap_or_else(|| self.digest().short());
        // Includes the full parameter digest. Frames carry 128 bits of it, for which a collision could be found.
        let whole =
            self.digest().whole(params).ok_or_else(|| Error::Key { reason: "it has other parameters".into() })?;
        Ok(sha256(&[b"fedcipher oneshot v1 fingerprint", &whole, &roster.digest(params, epoch)]))
    }

    fn roster_in(&self, key: &ServerKey) -> Result<Roster> {
        self.server_place(key).map(|(roster, _)| roster)
    }

    fn with_joined(&self, key: &ClientKey, joined: &[(ClientId, [u8; SIGNATURE_LEN])]) -> Result<ClientKey> {
        let RosterSeat { identity, roster, joined: before, .. } = self.place(key)?;
        let fingerprint = self.roster_fingerprint(&roster, key.tag.epoch, Some(key.tag.params))?;
        let now = before.unwrap_or_default().with(&roster, &fingerprint, key.client, joined)?;
        let secret = [identity.sealing(), roster.to_bytes(), &now.to_bytes()].concat();
        Ok(ClientKey { secret: Zeroizing::new(secret), ..key.clone() })
    }

    fn roster_of(&self, key: &ClientKey) -> Result<(Roster, Option<BTreeSet<ClientId>>)> {
        let place = self.place(key)?;
        Ok((place.roster, place.joined.map(|joined| joined.0)))
    }

    fn roster_key(&self, roster: &Roster, epoch: Epoch) -> Result<ServerKey> {
        let tag = self.tag(roster, epoch, self.digest().short())?;
        Ok(ServerKey { tag, cohort: Arc::new(roster.cohort()), public: roster.to_bytes().to_vec() })
    }

    fn server_decryptor(&self, key: &ServerKey) -> Result<Decryptor> {
        if self.setting.params.reveal != Reveal::Server {
            return Err(Error::Unsupported {
                scheme: NAME,
                operation: "opening on the server",
                reason: "the committee answers the roster's readers only; make the scheme with reveal=\"server\" where \
                         the server may see each round's mean",
            });
        }
        let (roster, digest) = self.server_place(key)?;
        Ok(Decryptor::new(decrypt::ServerDecryptor::new(Arc::clone(&self.setting), roster, digest, key)))
    }

    fn member(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Member>> {
        Ok(Box::new(member::CommitteeMember::new(Arc::clone(&self.setting), self.place(key)?, key, state)?))
    }

    fn for_reader(&self, frame: &[u8], reader: ClientId) -> Result<Vec<u8>> {
        aggregate::for_reader(&self.setting, frame, reader)
    }
}
