//! Schemes whose clients share no key: their rosters, and the committee that holds shares of the clients' secrets. A
//! scheme, an aggregator and an encryptor each return their committee part, or `None`.

use crate::keys::{ClientKey, ServerKey};
use crate::oneshot::identity::Identity;
use crate::oneshot::roster::{Roles, Roster};
use crate::protocol::Decryptor;
use crate::sign::hybrid::SIGNATURE_LEN;
use crate::{ClientId, Epoch, Error, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// The rosters and the committee of a scheme, returned by [`crate::scheme::Scheme::committee`].
pub trait Committee {
    /// The number of committee members in a roster.
    fn members(&self) -> usize;

    /// The largest number of clients that may collude with the server.
    fn corrupt_clients(&self) -> u64;

    /// The roles of the party that holds `key`.
    fn roles(&self, key: &ClientKey) -> Result<Roles>;

    /// The committee member that holds `key`. The folder `state` remembers which rounds it has answered.
    fn member(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Member>>;

    /// The decryptor of a server that may see aggregates, if the parameters allow it.
    fn server_decryptor(&self, key: &ServerKey) -> Result<Decryptor>;

    /// The aggregate, with only the answers that `reader` needs.
    fn for_reader(&self, frame: &[u8], reader: ClientId) -> Result<Vec<u8>>;

    /// The key of the party `identity` in a roster.
    fn join(&self, roster: &Roster, identity: &Identity, epoch: Epoch) -> Result<ClientKey>;

    /// The fingerprint of a roster: people compare it, and parties sign it. `KeyTag::key_id` is not enough, because two
    /// rosters of one maker could share it. `params` is the parameter digest in the roster's keys; `None` stands for
    /// keys that this version makes.
    fn roster_fingerprint(&self, roster: &Roster, epoch: Epoch, params: Option<[u8; 16]>) -> Result<[u8; 32]>;

    /// The roster in a server's key. Rejects a key that names another roster.
    fn roster_in(&self, key: &ServerKey) -> Result<Roster>;

    /// Returns `key` with more signatures of parties that have joined the roster. The party does not trust the roster's
    /// maker, so it encrypts only once enough parties have joined. Rejects an invalid signature.
    fn with_joined(&self, key: &ClientKey, joined: &[(ClientId, [u8; SIGNATURE_LEN])]) -> Result<ClientKey>;

    /// The roster in a party's key, and the parties that have joined it as far as this party knows. The second is
    /// `None` if the party trusts the roster's maker.
    fn roster_of(&self, key: &ClientKey) -> Result<(Roster, Option<BTreeSet<ClientId>>)>;

    /// The server's key for a roster.
    fn roster_key(&self, roster: &Roster, epoch: Epoch) -> Result<ServerKey>;
}

/// A member of the committee that holds shares of the secrets of the round's clients.
pub trait Member: Send + Sync {
    /// Answers a request made by [`CommitteeRound::requests`]. The same request again gets the same bytes. A different
    /// request of the same round is answered only if both count in a memory, have no client in common and keep the rule
    /// of sets. If clients have sent invalid shares, the answer is a complaint that names them; the round then stays
    /// unanswered.
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>>;

    /// The frame that publishes the member's prekey for the next updates. Clients take it with
    /// [`Prekeys::take_prekeys`].
    fn prekey(&self) -> Result<Vec<u8>>;

    /// Deletes prekeys that are too old. Every other call does this too; this one is for members that receive no calls.
    fn expire(&self) -> Result<()>;

    /// Deletes all prekeys at the end of a run. Shares that were encrypted to them cannot be opened any more.
    fn forget(&self) -> Result<()>;
}

/// An aggregator's exchange with the committee, returned by [`crate::scheme::Aggregator::committee`].
pub trait CommitteeRound {
    /// Fixes the clients in the sum, and returns the next message for each member. [`Self::answer`] takes the answers.
    fn requests(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>>;

    /// Checks a member's answer and keeps it. Returns the member's number. A rejected answer changes nothing.
    fn answer(&mut self, frame: &[u8]) -> Result<ClientId>;

    /// Clients accused of invalid shares by more members than may be corrupt. At least one accuser is then honest, so
    /// the accusation stands. With fewer accusers the accusation is ignored, and the accusers count as absent.
    fn accused(&self) -> Vec<ClientId>;

    /// Whether [`Self::requests`] has more to send once no answer is missing. Members agree on the set before they
    /// answer for it.
    fn agreeing(&self) -> bool;

    /// The number of answers still missing for the next step. The next step is another set of requests while members
    /// are [`Self::agreeing`], and [`crate::scheme::Aggregator::finish`] afterwards.
    fn missing(&self) -> usize;

    /// Checks the prekeys that the round's clients receive. The aggregator then accepts only updates encrypted to
    /// these. Returns the error of each rejected prekey.
    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>>;
}
