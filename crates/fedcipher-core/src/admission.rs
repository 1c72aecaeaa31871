//! The checks that every aggregator and decryptor makes before arithmetic: which frames may enter a sum.

use crate::bounds::{Bounds, Levels};
use crate::codec::Layout;
use crate::frame_digest::FrameDigest;
use crate::keys::{Cohort, KeyTag, ServerKey};
use crate::mac::{Tag, Weighting};
use crate::shown::shown;
use crate::sign::{Purpose, SIGNATURE_LEN, Signed, VERIFY_LEN};
use crate::statement::{self, RoundContext};
use crate::wire::{self, Contribution, Frame, Header, Kind, MemoryTag, ModelTag};
use crate::{ClientId, Error, Result, RoundId, TotalWeight, Weight};
use multiversion::multiversion;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rules that the frames of a scheme must keep.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub bounds: Bounds,
    pub weighting: Weighting,
    /// The share of the elements that an update carries.
    pub density: f64,
    /// True if a decryption failure may leak key bits, because ciphertexts carry noise that no tag covers. The key is
    /// then closed after the first failed aggregate.
    pub closes: bool,
    /// The levels of every value of an update.
    pub levels: Levels,
}

impl Rules {
    /// The rules of a scheme whose updates carry every element.
    #[must_use]
    pub fn dense(bounds: Bounds, weighting: Weighting) -> Self {
        Rules { bounds, weighting, density: 1.0, closes: false, levels: bounds.levels() }
    }
}

/// The properties that all frames of a sum must share.
#[derive(Debug)]
struct Common {
    layout: Layout,
    model: ModelTag,
    memory: MemoryTag,
}

/// The state of one round's admission. [`Self::check`] changes nothing, [`Self::commit`] counts.
#[derive(Debug)]
pub struct Admission {
    tag: KeyTag,
    cohort: Arc<Cohort>,
    /// See [`RoundContext`].
    scope: [u8; 32],
    rules: Rules,
    round: Option<RoundId>,
    common: Option<Common>,
    weights: BTreeMap<ClientId, Weight>,
    sum: Tag,
    /// True once the sum has been handed out.
    closed: bool,
}

/// A frame that has passed the checks. Add its payload, then [`Admission::commit`] it.
#[derive(Debug)]
pub struct Admitted<'a> {
    pub header: Header,
    pub contribution: Contribution,
    pub layout: Layout,
    /// The payload without tag and signature.
    pub payload: &'a [u8],
    /// The factor that the payload must be multiplied by.
    pub factor: u64,
    pub tag: Tag,
}

/// An update's signature and the data that it must cover.
#[derive(Debug)]
pub struct Claim<'a, const N: usize> {
    /// The client's verification key, from the cohort.
    pub key: [u8; VERIFY_LEN],
    pub context: RoundContext,
    pub own: Contribution,
    pub tag: Tag,
    /// The payload without tag and signature.
    pub body: &'a [u8],
    pub signature: &'a [u8; N],
}

impl Claim<'_, SIGNATURE_LEN> {
    /// Fails if the signature is invalid under the client's key.
    fn check(&self) -> Result<()> {
        let Claim { key, context, own, tag, body, signature } = self;
        let message = context.update(*own, *tag, &FrameDigest::of(body));
        Signed { party: own.client, key, purpose: Purpose::Update, message: &message, signature }.check()
    }
}

impl Admission {
    #[must_use]
    pub fn new(key: &ServerKey, rules: Rules, round: Option<RoundId>) -> Self {
        Admission {
            tag: key.tag.clone(),
            cohort: Arc::clone(&key.cohort),
            scope: [0; 32],
            rules,
            round,
            common: None,
            weights: BTreeMap::new(),
            sum: Tag::default(),
            closed: false,
        }
    }

    /// Admits parties of the roster with digest `scope`.
    #[must_use]
    pub fn of_roster(self, scope: [u8; 32]) -> Self {
        Admission { scope, ..self }
    }

    /// Checks every field of an update's header against this round, and the client's signature.
    pub fn check<'a>(&self, bytes: &'a [u8]) -> Result<Admitted<'a>> {
        Ok(self.check_as(bytes, |claim: &Claim<'_, SIGNATURE_LEN>, _| claim.check())?.0)
    }

    /// Like [`Self::check`], but the caller's `check` verifies the signature of `N` bytes. Returns the result of
    /// `check` too.
    pub fn check_as<'a, const N: usize, T>(
        &self,
        bytes: &'a [u8],
        check: impl FnOnce(&Claim<'a, N>, &Layout) -> Result<T>,
    ) -> Result<(Admitted<'a>, T)> {
        let Frame { header, payload } = wire::parse_kind(bytes, Kind::Update)?;
        self.tag.check(&header)?;
        self.check_open()?;
        let round = self.round.unwrap_or(header.round);
        if header.round != round {
            return Err(Error::Round { found: header.round, expected: round });
        }
        let &[Contribution { client, weight }] = header.contributions.as_slice() else {
            return Err(Error::frame(format!("an update names one client, this one {}", header.contributions.len())));
        };
        let key = self.cohort.get(&client).ok_or(Error::UnknownClient { client })?;
        if self.weights.contains_key(&client) {
            return Err(Error::DuplicateClient { client, round });
        }
        if self.weights.len() as u64 >= self.rules.bounds.clients {
            return Err(Error::parameter(
                "clients",
                format!("this round already has the {} clients its modulus was chosen for", self.rules.bounds.clients),
            ));
        }
        check_weight(client, weight, self.rules.bounds.max_weight)?;
        let layout = layout_of(&header, payload.len(), self.rules.density)?;
        if let Some(common) = &self.common {
            if common.layout != layout {
                return Err(Error::layout(format!(
                    "client {client} sent {}; all clients of a round must agree",
                    common.layout.difference(&layout)
                )));
            }
            if common.model != header.model {
                return Err(Error::Model { round });
            }
            if common.memory != header.memory {
                return Err(Error::Memory { round });
            }
        }
        let (payload, tag, signature) = statement::split(payload)?;
        let own = Contribution { client, weight };
        let context = RoundContext::of(self.scope, &header);
        let made = check(&Claim { key: *key, context, own, tag, body: payload, signature }, &layout)?;
        let factor = self.rules.weighting.server_factor(weight);
        Ok((Admitted { header, contribution: own, layout, payload, factor, tag }, made))
    }

    /// Counts a frame whose payload has been added.
    pub fn commit(&mut self, admitted: Admitted<'_>) -> Contribution {
        let Contribution { client, weight } = admitted.contribution;
        self.round = Some(admitted.header.round);
        self.weights.insert(client, weight);
        self.sum.add(admitted.tag, admitted.factor);
        let Header { model, memory, .. } = admitted.header;
        self.common.get_or_insert(Common { layout: admitted.layout, model, memory });
        admitted.contribution
    }

    /// The sum of all committed tags, for the end of the aggregate's payload. No frame is accepted afterwards: a later
    /// frame would start a second sum under the same names.
    pub fn close(&mut self) -> Tag {
        self.closed = true;
        self.sum
    }

    fn check_open(&self) -> Result<()> {
        match self.round {
            Some(round) if self.closed => Err(Error::Finished { round }),
            _ => Ok(()),
        }
    }

    /// The header of the sum of all committed frames. Fails if too few are committed.
    pub fn aggregate_header(&self) -> Result<Header> {
        self.check_open()?;
        let (Some(round), Some(Common { layout, model, memory })) = (self.round, &self.common) else {
            return Err(Error::EmptyCohort);
        };
        self.rules.bounds.check_contributions(self.weights.len())?;
        let contributions =
            self.weights.iter().map(|(client, weight)| Contribution { client: *client, weight: *weight }).collect();
        Ok(self.tag.round_header(Kind::Aggregate, round, contributions, layout, *model, *memory))
    }

    /// The layout all committed frames share.
    pub fn layout(&self) -> Result<&Layout> {
        self.common.as_ref().map(|common| &common.layout).ok_or(Error::EmptyCohort)
    }
}

/// Checks a client's weight against the bound.
pub fn check_weight(client: ClientId, weight: Weight, max_weight: Weight) -> Result<()> {
    if (Weight::ONE..=max_weight).contains(&weight) {
        return Ok(());
    }
    Err(Error::Weight { client, weight, max_weight, divisor: weight.get().div_ceil(max_weight.get()).max(1) })
}

/// The layout of a header, if `payload_len` bytes can carry the share `density` of its elements. A value has at least
/// two bits on the wire. So a multiple of `payload_len` bounds the memory that is allocated from here on.
pub(crate) fn layout_of(header: &Header, payload_len: usize, density: f64) -> Result<Layout> {
    let layout = Layout::decode(&header.layout)?;
    if layout.elements() as u64 != header.elements {
        return Err(Error::frame(format!(
            "it announces {} elements but its layout has {}",
            header.elements,
            layout.elements()
        )));
    }
    if layout.elements() as f64 * density / 4.0 > payload_len as f64 {
        return Err(Error::frame(format!("{payload_len} bytes cannot carry {} elements", layout.elements())));
    }
    Ok(layout)
}

/// Fails if a sum exceeds the maximum that its clients can have sent. A wrong key or damage has this effect.
pub fn check_sums(sums: &[u64], total_weight: TotalWeight, levels: u64) -> Result<()> {
    let most = total_weight.get().saturating_mul(levels);
    // The rejection is visible to others anyway.
    if !shown(exceed(sums, most)) {
        return Ok(());
    }
    let found = sums.iter().max().copied().unwrap_or_default();
    Err(Error::Decrypt {
        reason: format!("a sum of {found} exceeds the largest possible {most} for total weight {total_weight}"),
    })
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn exceed(sums: &[u64], most: u64) -> bool {
    sums.iter().fold(false, |found, sum| found | (*sum > most))
}
