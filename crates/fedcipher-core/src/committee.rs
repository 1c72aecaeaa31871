//! What schemes have whose clients share no key: rosters, and a committee that holds shares of what clients have drawn.
//! A scheme, an aggregator and an encryptor each give theirs, or nothing.

use crate::keys::{ClientKey, ServerKey};
use crate::oneshot::identity::Identity;
use crate::oneshot::roster::{Roles, Roster};
use crate::protocol::Decryptor;
use crate::scheme::Scheme;
use crate::sign::hybrid::SIGNATURE_LEN;
use crate::{ClientId, Epoch, Error, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// A scheme's parties: by [`Scheme::committee`].
pub trait Committee {
    /// Members that its rosters have.
    fn members(&self) -> usize;

    /// Most clients that work with the server.
    fn corrupt_clients(&self) -> u64;

    /// What the holder of `key` does.
    fn roles(&self, key: &ClientKey) -> Result<Roles>;

    /// The member that holds `key`. `state` is the folder that remembers which rounds were answered.
    fn member(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Member>>;

    /// Opens aggregates for a server that may see them, where the parameters say so.
    fn server_decryptor(&self, key: &ServerKey) -> Result<Decryptor>;

    /// An aggregate with what `reader` needs of it.
    fn for_reader(&self, frame: &[u8], reader: ClientId) -> Result<Vec<u8>>;

    /// The key of `identity`'s party in a roster.
    fn join(&self, roster: &Roster, identity: &Identity, epoch: Epoch) -> Result<ClientKey>;

    /// What names a roster to people, and what its parties sign: more than `KeyTag::key_id`, which two rosters of one
    /// maker could share.
    /// `params` are those of its keys; none: of keys that are made now.
    fn roster_fingerprint(&self, roster: &Roster, epoch: Epoch, params: Option<[u8; 16]>) -> Result<[u8; 32]>;

    /// The roster in a server's key. Refuses a key that names another roster.
    fn roster_in(&self, key: &ServerKey) -> Result<Roster>;

    /// `key` of a party that trusts no maker of its roster, with the parties whose signatures `joined` are, beside those
    /// that it has: it encrypts only once these are enough. Refuses a signature that does not hold.
    fn with_joined(&self, key: &ClientKey, joined: &[(ClientId, [u8; SIGNATURE_LEN])]) -> Result<ClientKey>;

    /// The roster in a party's key, and who has joined it as this party knows: none where it trusts the roster's maker.
    fn roster_of(&self, key: &ClientKey) -> Result<(Roster, Option<BTreeSet<ClientId>>)>;

    /// The server's key to a roster.
    fn roster_key(&self, roster: &Roster, epoch: Epoch) -> Result<ServerKey>;
}

impl dyn Scheme + '_ {
    /// [`Scheme::committee`]. Fails where clients share a key.
    pub fn require_committee(&self) -> Result<&dyn Committee> {
        self.committee().ok_or(Error::Unsupported {
            scheme: self.name(),
            operation: "a committee",
            reason: "its clients share a key, which `fedcipher keygen` or an authority makes",
        })
    }

    /// [`Committee::members`]; 0 where clients share a key.
    #[must_use]
    pub fn members(&self) -> usize {
        self.committee().map_or(0, Committee::members)
    }

    /// [`Committee::roles`]. Whoever shares a key with the others sends updates and opens sums.
    pub fn roles(&self, key: &ClientKey) -> Result<Roles> {
        match self.committee() {
            Some(committee) => committee.roles(key),
            None => Ok(Roles { client: true, member: false, reader: true }),
        }
    }
}

/// One of a committee that holds shares of what the round's clients have drawn.
pub trait Member: Send + Sync {
    /// The answer to [`CommitteeRound::requests`]: the same request again gets the same bytes, another of the round one
    /// only where both count in a memory, have no client in common and keep to the rule of sets. Where clients have sent
    /// what is no share, a complaint that names them, and nothing is spent.
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>>;

    /// The frame that publishes the prekey for what comes next: for the clients, by [`Prekeys::take_prekeys`].
    fn prekey(&self) -> Result<Vec<u8>>;

    /// Deletes the prekeys that are too old, which every other call does too: for holders that nobody calls.
    fn expire(&self) -> Result<()>;

    /// Deletes all prekeys: nothing that was sealed to them opens any more. For the end of a run.
    fn forget(&self) -> Result<()>;
}

/// An aggregator's work with the committee: by [`crate::scheme::Aggregator::committee`].
pub trait CommitteeRound {
    /// Fixes who is in the sum: what to send next to each member, whose answers [`Self::answer`] takes.
    fn requests(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>>;

    /// Checks a member's answer and keeps it: whose it is. A refused one changes nothing.
    fn answer(&mut self, frame: &[u8]) -> Result<ClientId>;

    /// Clients that more members accuse of having sealed no share than there are corrupt members: one of them at least
    /// keeps to the protocol. Fewer may be lying, and are as members that have not answered.
    fn accused(&self) -> Vec<ClientId>;

    /// Whether [`Self::requests`] has more to send once no answer is missing: members agree on the set before they answer
    /// for it.
    fn agreeing(&self) -> bool;

    /// How many more answers the next step needs: other requests where members are [`Self::agreeing`], else
    /// [`crate::scheme::Aggregator::finish`].
    fn missing(&self) -> usize;

    /// Checks the prekeys that the round's clients are given, and takes updates that were sealed to these only. Those that
    /// are refused, each with its reason.
    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>>;
}

/// A client's side of the committee: by [`crate::protocol::Encryptor::take_prekeys`].
pub trait Prekeys {
    /// Takes the prekeys that members have published, as [`Member::prekey`] made them: the next updates' shares are
    /// sealed to these, and to none that were taken before. Those that are refused, each with its reason, change nothing.
    /// Fails where too few members are known then.
    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>>;
}
