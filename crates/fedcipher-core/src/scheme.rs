//! The one interface of all schemes: three objects made from keys, speaking frames.

use crate::bounds::{LaneBits, Levels};
use crate::canonical::{self, Canonical};
use crate::codec::{Layout, Update};
use crate::committee::{Committee, CommitteeRound};
use crate::keys::{ClientKey, KeySet, ServerKey};
use crate::protocol::{Decryptor, Encryptor};
use crate::wire::{Contribution, Header, Place};
use crate::{ClientId, Epoch, Error, Result, RoundId, Weight};
use sha2::{Digest, Sha256};
use std::path::Path;

/// What a client is asked to encrypt.
#[derive(Debug)]
pub struct Request<'a> {
    pub round: RoundId,
    pub weight: Weight,
    pub update: &'a Update<'a>,
    /// The server's plan of the round, as made by [`RoundPlan::plan`]; empty for the default.
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
    pub round: RoundId,
    pub weight: Weight,
    pub layout: &'a Layout,
    pub plan: &'a [u8],
    pub model: &'a [u8],
    pub memory: &'a [u8],
    pub bound: &'a [u8],
}

/// What an aggregate must be, to be opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    pub round: Option<RoundId>,
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

    /// Its work with the committee; none where the scheme has no committee.
    fn committee(&mut self) -> Option<&mut dyn CommitteeRound> {
        None
    }

    /// The work of [`Self::finish`], for others to do with [`Workers::work`]; none where adding was all there is.
    fn parted(&mut self) -> Option<&mut dyn PartedSum> {
        None
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

impl dyn Aggregator + '_ {
    /// [`Aggregator::committee`]. Fails where there is none.
    pub fn require_committee(&mut self) -> Result<&mut dyn CommitteeRound> {
        self.committee().ok_or_else(|| Error::frame("an answer to a scheme without a committee"))
    }

    /// [`CommitteeRound::requests`]; empty where there is no committee.
    pub fn requests(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>> {
        self.committee().map_or(Ok(Vec::new()), CommitteeRound::requests)
    }

    /// [`CommitteeRound::agreeing`]; not where there is no committee.
    pub fn agreeing(&mut self) -> bool {
        self.committee().is_some_and(|round| round.agreeing())
    }

    /// [`Aggregator::parted`]. Fails where there are no parts.
    pub fn require_parts(&mut self) -> Result<&mut dyn PartedSum> {
        self.parted().ok_or_else(|| Error::frame("results of a scheme that hands out no work"))
    }
}

/// A sum whose work other processes do.
pub trait PartedSum {
    fn parts(&self) -> Result<Parts>;

    /// [`Aggregator::finish`] from the results of all [`Self::parts`], in their order.
    fn finish_from(&mut self, results: &[Vec<u8>]) -> Result<Vec<u8>>;
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
    pub false_members: Vec<ClientId>,
}

/// How many steps values have, and what fits beside them.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    pub levels: Levels,
    /// Bits of the lanes of whole numbers beside an update; none where all values of a frame have lanes of one width.
    pub lanes: Option<LaneBits>,
}

/// Does one of [`PartedSum::parts`].
pub trait Workers {
    /// `key` is the aggregator's.
    fn work(&self, key: &ServerKey, common: &[u8], piece: &[u8]) -> Result<Vec<u8>>;
}

/// What the server tells the sampled clients before a round.
pub trait RoundPlan {
    /// For the aggregator of `key`.
    fn plan(&self, key: &ServerKey, sampled: &[ClientId]) -> Result<Vec<u8>>;
}

/// A way to make a scheme. Each scheme states its own beside its code, and tests, fuzz targets and measurements try all
/// of them ([`crate::registry::every_scheme`]).
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// Unique among all schemes. The first of a scheme has the scheme's name.
    pub name: &'static str,
    pub scheme: &'static str,
    /// The parameters of this scheme alone, as a key file has them: a JSON object. It fits three clients.
    pub params: &'static str,
    /// Whether each client chooses which coordinates it sends.
    pub sparse: bool,
}

impl Variant {
    #[must_use]
    pub const fn new(name: &'static str, scheme: &'static str, params: &'static str) -> Self {
        Variant { name, scheme, params, sparse: false }
    }

    #[must_use]
    pub const fn sparse(self) -> Self {
        Variant { sparse: true, ..self }
    }

    /// What a key file says of this scheme, for [`crate::registry::make`]. Without `least` the minimum of a sum is the
    /// scheme's usual one.
    #[must_use]
    pub fn spec(&self, clients: u64, max_weight: Weight, least: Option<u64>, bits: &[u32]) -> String {
        let least = least.map_or("null".into(), |least| least.to_string());
        let own = self.params.trim().trim_start_matches('{').trim_end_matches('}').trim();
        let comma = if own.is_empty() { "" } else { ", " };
        format!(
            r#"{{"scheme": "{}", "params": {{"clients": {clients}, "max_weight": {}, "min_contributions": {least}{comma}{own}}}, "codec": {{"bits": {bits:?}}}}}"#,
            self.scheme,
            max_weight.get(),
        )
    }
}

/// A scheme with validated parameters.
pub trait Scheme: Send + Sync {
    fn name(&self) -> &'static str;

    /// Of all parameters that two parties must share.
    fn digest(&self) -> ParamsDigest;

    /// Of an update.
    fn values(&self) -> Values;

    /// Fails, naming the cure, when a round of these values could overflow.
    fn check_layout(&self, layout: &Layout) -> Result<()>;

    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet>;

    /// `state` is the folder of the nonce ledger; schemes without nonces ignore it.
    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor>;

    /// `round` fixes the round to accept; otherwise the first frame does.
    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>>;

    /// `state` is the folder that remembers which aggregates were opened.
    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor>;

    /// Parameters and derived figures for people: (name, value).
    fn describe(&self) -> Vec<(String, String)>;

    /// Its rosters and its committee; none where clients share a key.
    fn committee(&self) -> Option<&dyn Committee> {
        None
    }

    /// Who does an aggregation's work; none where its sums are additions only.
    fn workers(&self) -> Option<&dyn Workers> {
        None
    }

    /// What is told before a round; none where that is nothing.
    fn round_plan(&self) -> Option<&dyn RoundPlan> {
        None
    }
}

impl dyn Scheme + '_ {
    /// [`Scheme::workers`]. Fails where an aggregation is no work.
    pub fn require_workers(&self) -> Result<&dyn Workers> {
        self.workers().ok_or(Error::Unsupported {
            scheme: self.name(),
            operation: "work in parts",
            reason: "its sums are additions only",
        })
    }

    /// What the server tells the `sampled` clients before a round under `key`; empty where that is nothing.
    pub fn plan(&self, key: &ServerKey, sampled: &[ClientId]) -> Result<Vec<u8>> {
        self.round_plan().map_or(Ok(Vec::new()), |round| round.plan(key, sampled))
    }
}

/// What names a scheme with its parameters: as this version does, and as builds before 0.1.0 did ([`crate::former`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamsDigest {
    now: [u8; 32],
    former: [u8; 32],
}

impl ParamsDigest {
    /// Of a scheme that no build before 0.1.0 had.
    #[must_use]
    pub fn new<T: Canonical>(params: &T) -> Self {
        let now = canonical::digest(params);
        ParamsDigest { now, former: now }
    }

    /// Of a scheme that builds before 0.1.0 had, which named these parameters by the text `former`.
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
