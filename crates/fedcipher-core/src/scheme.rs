//! The one interface of all schemes: three objects made from keys, speaking frames.

use crate::bounds::{LaneBits, Levels};
use crate::canonical::{self, Canonical};
use crate::codec::{Layout, Update};
use crate::keys::{ClientKey, KeySet, ServerKey};
use crate::oneshot::identity::Identity;
use crate::oneshot::roster::{Roles, Roster};
use crate::protocol::{Decryptor, Encryptor};
use crate::sign::hybrid::SIGNATURE_LEN;
use crate::wire::{Contribution, Header, Place};
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::Path;

/// What a client is asked to encrypt.
#[derive(Debug)]
pub struct Request<'a> {
    pub round: u64,
    pub weight: u64,
    pub update: &'a Update<'a>,
    /// The server's plan of the round, as made by [`Scheme::plan`]; empty for the default.
    pub plan: &'a [u8],
    /// Names the global model (and what else all clients of the round must have been given alike): updates of
    /// different ones do not add up to anything that opens. The header carries a keyed tag of it.
    pub model: &'a [u8],
    /// Names the memory of the rule of sets that the sum counts in; empty for none. All updates of a sum agree on it,
    /// and the header carries a keyed tag of it.
    pub memory: &'a [u8],
    /// What both ends know and no header carries; who decrypts must give the same.
    pub bound: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request without its data.
    #[must_use]
    pub fn terms(&self) -> Terms<'a> {
        Terms {
            round: self.round,
            weight: self.weight,
            layout: self.update.layout(),
            plan: self.plan,
            model: self.model,
            memory: self.memory,
            bound: self.bound,
        }
    }
}

/// What is known of an update before its data: enough to claim its nonce and make its header.
#[derive(Debug)]
pub struct Terms<'a> {
    pub round: u64,
    pub weight: u64,
    pub layout: &'a Layout,
    pub plan: &'a [u8],
    pub model: &'a [u8],
    pub memory: &'a [u8],
    pub bound: &'a [u8],
}

/// What an aggregate must be, to be opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    pub round: Option<u64>,
    /// The global model that its updates must have been trained from, as in [`Request::model`].
    pub model: Option<&'a [u8]>,
    /// The memory that they must count in, as in [`Request::memory`].
    pub memory: Option<&'a [u8]>,
    /// As in [`Request::bound`].
    pub bound: &'a [u8],
}

/// Server side: one running sum, however many clients.
pub trait Aggregator: Send {
    /// Checks a frame and adds it. A refused frame changes nothing.
    fn add(&mut self, frame: &[u8]) -> Result<Contribution>;

    /// Fixes who is in the sum: what to send next to each member of the committee, whose answers [`Self::answer`] takes.
    /// None where the scheme has no committee.
    fn requests(&mut self) -> Result<Vec<(u32, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// Checks a member's answer and keeps it: whose it is. A refused one changes nothing.
    fn answer(&mut self, _frame: &[u8]) -> Result<u32> {
        Err(Error::frame("an answer to a scheme without a committee"))
    }

    /// Clients that more members accuse of having sealed no share than there are corrupt members: one of them at least
    /// keeps to the protocol. Fewer may be lying, and are as members that have not answered.
    fn accused(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Whether [`Self::requests`] has more to send once no answer is missing: members agree on the set before they answer
    /// for it.
    fn agreeing(&self) -> bool {
        false
    }

    /// Checks the prekeys that the round's clients are given, and takes updates that were sealed to these only. Those that
    /// are refused, each with its reason.
    fn take_prekeys(&mut self, _frames: &[&[u8]]) -> Result<Vec<Error>> {
        Ok(Vec::new())
    }

    /// How many more answers the next step needs: other requests where members are [`Self::agreeing`], else
    /// [`Self::finish`].
    fn missing(&self) -> usize {
        0
    }

    /// The work of [`Self::finish`], for others to do with [`Scheme::work`]; none where adding was all there is.
    fn parts(&self) -> Result<Option<Parts>> {
        Ok(None)
    }

    /// [`Self::finish`] from the results of all [`Self::parts`], in their order.
    fn finish_from(&mut self, _results: &[Vec<u8>]) -> Result<Vec<u8>> {
        Err(Error::frame("results of a scheme that hands out no work"))
    }

    /// The aggregate's frame; the object is spent afterwards.
    fn finish(&mut self) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        self.finish_into(&mut frame, &mut |_, _| true)?;
        Ok(frame)
    }

    /// [`Self::finish`] that makes the frame in `place` and calls `progress(done, total)` from this thread as it
    /// goes; when that says false the work stops with [`crate::Error::Cancelled`] and nothing is lost: it can be
    /// finished later.
    fn finish_into(&mut self, place: &mut dyn Place, progress: &mut Progress<'_>) -> Result<()>;
}

/// What a server's own processes make an aggregate of: each piece, and what all pieces need.
pub struct Parts {
    pub common: Vec<u8>,
    pub pieces: Vec<Vec<u8>>,
}

/// Told how many units of a long job are done of how many; false cancels.
pub type Progress<'a> = dyn FnMut(usize, usize) -> bool + 'a;

/// What a decrypted aggregate says beside its sums.
#[derive(Debug, Clone)]
pub struct Summary {
    pub header: Header,
    pub layout: Layout,
    /// Per element, how many clients contributed; only for sparse updates.
    pub counts: Option<Vec<u32>>,
    /// Members of the committee whose answers do not agree with the others', which the sums were made of.
    pub false_members: Vec<u32>,
}

/// One of a committee that holds shares of what the round's clients have drawn.
pub trait Member: Send + Sync {
    /// The answer to [`Aggregator::requests`]: the same request again gets the same bytes, another of the round one only
    /// where both count in a memory, have no client in common and keep to the rule of sets. Where clients have sent what is no share, a complaint that names them, and nothing is spent.
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>>;

    /// The frame that publishes the prekey for what comes next: for the clients, by [`Encryptor::take_prekeys`].
    fn prekey(&self) -> Result<Vec<u8>>;

    /// Deletes the prekeys that are too old, which every other call does too: for holders that nobody calls.
    fn expire(&self) -> Result<()>;

    /// Deletes all prekeys: nothing that was sealed to them opens any more. For the end of a run.
    fn forget(&self) -> Result<()>;
}

/// A scheme with validated parameters.
pub trait Scheme: Send + Sync {
    fn name(&self) -> &'static str;

    /// Of all parameters that two parties must share.
    fn digest(&self) -> ParamsDigest;

    /// How many levels the values of an update have.
    fn levels(&self) -> Levels;

    /// Bits of the lanes of whole numbers beside an update; none where all values of a frame have lanes of one width.
    fn lane_bits(&self) -> Option<LaneBits>;

    /// Fails, naming the cure, when a round of these values could overflow.
    fn check_layout(&self, layout: &Layout) -> Result<()>;

    fn keygen(&self, cohort: &[u32], epoch: u64) -> Result<KeySet>;

    /// `state` is the folder of the nonce ledger; schemes without nonces ignore it.
    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor>;

    /// `round` fixes the round to accept; otherwise the first frame does.
    fn aggregator(&self, key: &ServerKey, round: Option<u64>) -> Result<Box<dyn Aggregator>>;

    /// Does one of [`Aggregator::parts`]. `key` is the aggregator's.
    fn work(&self, _key: &ServerKey, _common: &[u8], _piece: &[u8]) -> Result<Vec<u8>> {
        Err(Error::Unsupported {
            scheme: self.name(),
            operation: "work in parts",
            reason: "its sums are additions only",
        })
    }

    /// `state` is the folder that remembers which aggregates were opened.
    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor>;

    /// Opens aggregates for a server that may see them.
    fn server_decryptor(&self, _key: &ServerKey) -> Result<Decryptor> {
        Err(Error::Unsupported {
            scheme: self.name(),
            operation: "opening on the server",
            reason: "it takes a client's key; only oneshot opens for a server that has none",
        })
    }

    /// `state` is the folder that remembers which rounds were answered.
    fn member(&self, _key: &ClientKey, _state: Option<&Path>) -> Result<Box<dyn Member>> {
        Err(Error::Unsupported { scheme: self.name(), operation: "a committee", reason: "its clients share a key" })
    }

    /// Most clients that work with the server, where the scheme's parameters say so.
    fn corrupt_clients(&self) -> Option<u64> {
        None
    }

    /// Members of the committee that its rosters have; 0 where clients share a key.
    fn committee(&self) -> usize {
        0
    }

    /// What the holder of `key` does.
    fn roles(&self, _key: &ClientKey) -> Result<Roles> {
        Ok(Roles { client: true, member: false, reader: true })
    }

    /// The key of `identity`'s party in a roster.
    fn join(&self, _roster: &Roster, _identity: &Identity, _epoch: u64) -> Result<ClientKey> {
        Err(no_roster(self.name()))
    }

    /// What names a roster to people, and what its parties sign: more than `KeyTag::key_id`, which two rosters of one
    /// maker could share.
    /// `params` are those of its keys; none: of keys that are made now.
    fn roster_fingerprint(&self, _roster: &Roster, _epoch: u64, _params: Option<[u8; 16]>) -> Result<[u8; 32]> {
        Err(no_roster(self.name()))
    }

    /// The roster in a server's key. Refuses a key that names another roster.
    fn roster_in(&self, _key: &ServerKey) -> Result<Roster> {
        Err(no_roster(self.name()))
    }

    /// `key` of a party that trusts no maker of its roster, with the parties whose signatures `joined` are, beside those
    /// that it has: it encrypts only once these are enough. Refuses a signature that does not hold.
    fn with_joined(&self, _key: &ClientKey, _joined: &[(u32, [u8; SIGNATURE_LEN])]) -> Result<ClientKey> {
        Err(no_roster(self.name()))
    }

    /// The roster in a party's key, and who has joined it as this party knows: none where it trusts the roster's maker.
    fn roster_of(&self, _key: &ClientKey) -> Result<(Roster, Option<BTreeSet<u32>>)> {
        Err(no_roster(self.name()))
    }

    /// The server's key to a roster.
    fn roster_key(&self, _roster: &Roster, _epoch: u64) -> Result<ServerKey> {
        Err(no_roster(self.name()))
    }

    /// An aggregate with what `reader` needs of it, where there is more in it.
    fn addressed(&self, frame: &[u8], _reader: u32) -> Result<Vec<u8>> {
        Ok(frame.to_vec())
    }

    /// What the server tells the sampled clients before a round under `key`.
    fn plan(&self, _key: &ServerKey, _sampled: &[u32]) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// Parameters and derived figures for people: (name, value).
    fn describe(&self) -> Vec<(String, String)>;
}

fn no_roster(scheme: &'static str) -> Error {
    Error::Unsupported {
        scheme,
        operation: "a roster",
        reason: "its clients share a key, which `fedcipher keygen` or an authority makes",
    }
}

/// What names a scheme with its parameters: as this version does, and as builds before 0.1.0 did ([`crate::former`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamsDigest {
    now: [u8; 32],
    former: [u8; 32],
}

impl ParamsDigest {
    #[must_use]
    pub fn of<T: Canonical>(params: &T, former: &str) -> Self {
        ParamsDigest { now: canonical::digest(params), former: Sha256::digest(former.as_bytes()).into() }
    }

    /// In the keys and frames that are made now.
    #[must_use]
    pub fn short(&self) -> [u8; 16] {
        short(&self.now)
    }

    /// All bits of the digest that begins with `params`, as a key has it.
    #[must_use]
    pub fn whole(&self, params: [u8; 16]) -> Option<[u8; 32]> {
        [self.now, self.former].into_iter().find(|whole| short(whole) == params)
    }
}

/// The first half of a digest.
#[must_use]
pub fn short(whole: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|k| whole[k])
}
