//! The interface that all schemes share. A scheme makes three objects from keys: an encryptor, an aggregator and a
//! decryptor. They exchange frames.

use crate::bounds::{LaneBits, Levels};
use crate::canonical::{self, Canonical};
use crate::codec::{Layout, Update};
use crate::committee::{Committee, CommitteeRound};
use crate::keys::{ClientKey, KeySet, ServerKey};
use crate::protocol::{Decryptor, Encryptor};
use crate::wire::{Contribution, FrameBuffer, Header};
use crate::{ClientId, Epoch, Error, Result, RoundId, Weight};
use sha2::{Digest, Sha256};
use std::path::Path;

/// A request to encrypt one update.
#[derive(Debug)]
pub struct Request<'a> {
    pub round: RoundId,
    pub weight: Weight,
    pub update: &'a Update<'a>,
    /// The server's plan of the round, from [`RoundPlan::plan`]; empty for the default.
    pub round_plan: &'a [u8],
    /// Names the global model, and anything else that all clients of the round must have received alike. Updates that
    /// name different models add up to an aggregate that does not open. The header carries a keyed tag of the name.
    pub model: &'a [u8],
    /// Names the memory of the rule of sets that the sum counts in; empty for none. All updates of a sum must agree on
    /// it. The header carries a keyed tag of the name.
    pub memory: &'a [u8],
    /// Associated data: both ends know it and no header carries it. The decryptor must give the same bytes.
    pub associated_data: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request without its data.
    #[must_use]
    pub fn terms(&self) -> Terms<'a> {
        Terms {
            round: self.round,
            weight: self.weight,
            layout: self.update.layout(),
            round_plan: self.round_plan,
            model: self.model,
            memory: self.memory,
            associated_data: self.associated_data,
        }
    }
}

/// The part of a [`Request`] that is known before the data. It is enough to claim the nonce and to make the header.
#[derive(Debug)]
pub struct Terms<'a> {
    pub round: RoundId,
    pub weight: Weight,
    pub layout: &'a Layout,
    pub round_plan: &'a [u8],
    pub model: &'a [u8],
    pub memory: &'a [u8],
    pub associated_data: &'a [u8],
}

/// The properties that an aggregate must have to be opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    pub round: Option<RoundId>,
    /// The global model that the updates must have been trained from, as in [`Request::model`].
    pub model: Option<&'a [u8]>,
    /// The memory that the updates must count in, as in [`Request::memory`].
    pub memory: Option<&'a [u8]>,
    /// The associated data of the updates, as in [`Request::associated_data`].
    pub associated_data: &'a [u8],
}

/// The server's side: one running sum, for any number of clients.
pub trait Aggregator: Send {
    /// Checks a frame and adds it. A rejected frame changes nothing.
    fn add(&mut self, frame: &[u8]) -> Result<Contribution>;

    /// The committee's part of this round; `None` if the scheme has no committee.
    fn committee(&mut self) -> Option<&mut dyn CommitteeRound> {
        None
    }

    /// The work of [`Self::finish`] in parts that other processes can do with [`Workers::run_work_item`]; `None` if the
    /// sum is complete after the additions.
    fn parted(&mut self) -> Option<&mut dyn PartedSum> {
        None
    }

    /// Returns the aggregate's frame. The aggregator accepts nothing afterwards.
    fn finish(&mut self) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        self.finish_into(&mut frame, &mut |_, _| true)?;
        Ok(frame)
    }

    /// Like [`Self::finish`], but writes the frame to `place` and calls `progress(done, total)` from this thread. If
    /// `progress` returns false, the call fails with [`crate::Error::Cancelled`]. The sum is kept and can be finished
    /// later.
    fn finish_into(&mut self, place: &mut dyn FrameBuffer, progress: &mut Progress<'_>) -> Result<()>;
}

impl dyn Aggregator + '_ {
    /// Returns [`Aggregator::committee`], or an error if the scheme has no committee.
    pub fn require_committee(&mut self) -> Result<&mut dyn CommitteeRound> {
        self.committee().ok_or_else(|| Error::frame("an answer to a scheme without a committee"))
    }

    /// Calls [`CommitteeRound::requests`]; returns an empty list if the scheme has no committee.
    pub fn requests(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>> {
        self.committee().map_or(Ok(Vec::new()), CommitteeRound::requests)
    }

    /// Calls [`CommitteeRound::agreeing`]; returns false if the scheme has no committee.
    pub fn agreeing(&mut self) -> bool {
        self.committee().is_some_and(|round| round.agreeing())
    }

    /// Returns [`Aggregator::parted`], or an error if the sum has no parts.
    pub fn require_parts(&mut self) -> Result<&mut dyn PartedSum> {
        self.parted().ok_or_else(|| Error::frame("results of a scheme that hands out no work"))
    }
}

/// A sum whose work can be divided among other processes.
pub trait PartedSum {
    fn parts(&self) -> Result<Parts>;

    /// Makes the frame of [`Aggregator::finish`] from the results of all [`Self::parts`], in the order of the parts.
    fn finish_from(&mut self, results: &[Vec<u8>]) -> Result<Vec<u8>>;
}

/// The work of one aggregate: data that all work items need, and the work items.
pub struct Parts {
    pub common: Vec<u8>,
    pub pieces: Vec<Vec<u8>>,
}

/// A callback with the units done and the units in total of a long job. It returns false to cancel the job.
pub type Progress<'a> = dyn FnMut(usize, usize) -> bool + 'a;

/// The content of a decrypted aggregate other than its sums.
#[derive(Debug, Clone)]
pub struct Summary {
    pub header: Header,
    pub layout: Layout,
    /// The number of contributing clients per element; only for sparse updates.
    pub counts: Option<Vec<u32>>,
    /// Committee members whose answers disagree with the answers that the sums were made from.
    pub false_members: Vec<ClientId>,
}

/// The number of steps of a value, and the lanes for whole numbers.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    pub levels: Levels,
    /// Bits of the lanes that carry whole numbers beside an update; `None` if all lanes of a frame have one width.
    pub lanes: Option<LaneBits>,
}

/// Runs the parts of a [`PartedSum`].
pub trait Workers {
    /// Runs one work item. `key` is the aggregator's key.
    fn run_work_item(&self, key: &ServerKey, common: &[u8], piece: &[u8]) -> Result<Vec<u8>>;
}

/// The message that the server sends to the sampled clients before a round.
pub trait RoundPlan {
    /// Makes the plan. `key` is the aggregator's key.
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

    /// The text of a key file about this scheme, for [`crate::registry::make`]. Without `least` the minimum of a sum is the
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

    /// The digest of all parameters that two parties must share.
    fn digest(&self) -> ParamsDigest;

    /// The value range of an update.
    fn values(&self) -> Values;

    /// Fails if a round of these values could overflow. The error says how to avoid the overflow.
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

    /// The scheme's rosters and committee; `None` if the clients share a key.
    fn committee(&self) -> Option<&dyn Committee> {
        None
    }

    /// The workers of an aggregation; `None` if aggregation only adds.
    fn workers(&self) -> Option<&dyn Workers> {
        None
    }

    /// The maker of round plans; `None` if the scheme announces nothing before a round.
    fn round_plan(&self) -> Option<&dyn RoundPlan> {
        None
    }
}

impl dyn Scheme + '_ {
    /// Returns [`Scheme::workers`], or an error if aggregation only adds.
    pub fn require_workers(&self) -> Result<&dyn Workers> {
        self.workers().ok_or(Error::Unsupported {
            scheme: self.name(),
            operation: "work in parts",
            reason: "its sums are additions only",
        })
    }

    /// The plan for the `sampled` clients of a round under `key`; empty if the scheme announces nothing.
    pub fn plan(&self, key: &ServerKey, sampled: &[ClientId]) -> Result<Vec<u8>> {
        self.round_plan().map_or(Ok(Vec::new()), |round| round.plan(key, sampled))
    }
}

/// The digests that name a scheme with its parameters: the digest of this version, and the digest of builds before
/// 0.1.0 ([`crate::former`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamsDigest {
    now: [u8; 32],
    former: [u8; 32],
}

impl ParamsDigest {
    /// The digest of a scheme that no build before 0.1.0 had.
    #[must_use]
    pub fn new<T: Canonical>(params: &T) -> Self {
        let now = canonical::digest(params);
        ParamsDigest { now, former: now }
    }

    /// The digest of a scheme that builds before 0.1.0 had, which named these parameters by the text `former`.
    #[must_use]
    pub fn of<T: Canonical>(params: &T, former: &str) -> Self {
        ParamsDigest { now: canonical::digest(params), former: Sha256::digest(former.as_bytes()).into() }
    }

    /// The digest in keys and frames that this version makes.
    #[must_use]
    pub fn short(&self) -> [u8; 16] {
        short(&self.now)
    }

    /// The full digest that begins with `params`, which a key carries.
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
