//! The interface that all schemes share. A scheme makes three objects from keys: an encryptor, an aggregator and a
//! decryptor. They exchange frames.

use crate::bounds::{LaneBits, Levels};
use crate::codec::Layout;
use crate::committee::{Committee, CommitteeRound};
use crate::keys::{ClientKey, KeySet, ServerKey};
use crate::oneshot::roster::Roles;
use crate::params_digest::ParamsDigest;
use crate::protocol::{Decryptor, Encryptor};
pub use crate::request::{Expect, Request, Summary, Terms};
use crate::wire::{Contribution, FrameBuffer};
use crate::{ClientId, Epoch, Error, Result, RoundId, Weight};
use std::path::Path;

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
    /// Returns [`Scheme::committee`], or an error if the clients share a key.
    pub fn require_committee(&self) -> Result<&dyn Committee> {
        self.committee().ok_or(Error::Unsupported {
            scheme: self.name(),
            operation: "a committee",
            reason: "its clients share a key, which `fedcipher keygen` or an authority makes",
        })
    }

    /// Returns [`Committee::members`]; 0 if the clients share a key.
    #[must_use]
    pub fn members(&self) -> usize {
        self.committee().map_or(0, Committee::members)
    }

    /// Returns [`Committee::roles`]. If the clients share a key, each of them sends updates and opens sums.
    pub fn roles(&self, key: &ClientKey) -> Result<Roles> {
        match self.committee() {
            Some(committee) => committee.roles(key),
            None => Ok(Roles { client: true, member: false, reader: true }),
        }
    }

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
