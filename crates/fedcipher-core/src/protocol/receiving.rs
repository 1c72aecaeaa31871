//! The rules for opening aggregates. The round must not be older than the last. Without a memory, one set of clients
//! opens per round; with a memory, disjoint sets that keep its rule open. An aggregate opens only if it is the sum of
//! the updates that its named clients sent.

use crate::admission::{Rules, check_weight, layout_of};
use crate::bounds::Levels;
use crate::codec::Layout;
use crate::frame_digest::FrameDigest;
use crate::keys::{ClientKey, KeyTag, ServerKey};
use crate::ledger::{Holder, OpenedLedger};
use crate::mac::coordinates::CoordinateMac;
use crate::mac::field::Element;
use crate::mac::{MacKey, PolyEval, Tag, Verifier};
use crate::request::{Expect, Summary};
use crate::wire::{self, Frame, Head, Header, Kind};
use crate::{ClientId, Error, Result, RoundId};
use std::path::Path;

/// A party that opens aggregates: a client of the cohort, or the server with `reveal="server"`.
pub struct Receiver {
    tag: KeyTag,
    rules: Rules,
    /// `None` for a server that opens sums it has added itself. It has no MAC key, and may open any of its sums.
    tags: Option<Tags>,
}

/// Checks that an aggregate is the sum of its clients' updates, and remembers which aggregates were opened.
struct Tags {
    mac: MacKey,
    openings: OpenedLedger,
}

/// An aggregate whose head has been checked against a key, its rules, and the expectation. Nothing is claimed.
pub struct CheckedHead {
    head: Head,
    layout: Layout,
    /// `None` for a party without a MAC key.
    verifier: Option<Verifier>,
    levels: Levels,
}

impl CheckedHead {
    pub(crate) fn header(&self) -> &Header {
        &self.head.header
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.head.payload_len
    }

    pub(crate) fn verifier(&self) -> Option<&Verifier> {
        self.verifier.as_ref()
    }

    pub(crate) fn levels(&self) -> Levels {
        self.levels
    }
}

/// A complete aggregate whose clients are claimed for its round. No other aggregate of these clients will open, even if
/// this one fails.
pub struct ClaimedSum {
    checked: CheckedHead,
    tag: Tag,
}

impl ClaimedSum {
    #[must_use]
    pub fn header(&self) -> &Header {
        self.checked.header()
    }

    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.checked.layout()
    }

    /// The levels of the values in the sums.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.checked.levels
    }

    pub(crate) fn checked(&self) -> &CheckedHead {
        &self.checked
    }

    /// Fails if sums with polynomial `hash` are not the sums that the clients sent. `pads` is the sum of the pads that
    /// the clients have drawn; `None` if they draw none.
    pub(crate) fn verify(self, hash: PolyEval, pads: Option<&Element>) -> Result<Proven> {
        if let Some(verifier) = &self.checked.verifier {
            verifier.check(hash, pads, self.tag)?;
        }
        Ok(Proven { sum: self, counts: None, false_members: Vec::new() })
    }

    /// Like `verify`, for all `sums` at once.
    pub fn verify_sums(self, sums: &[u64]) -> Result<Proven> {
        let hash = self.checked.verifier.as_ref().map(|verifier| verifier.mac.hash_sums(sums)).unwrap_or_default();
        self.verify(hash, None)
    }
}

/// A sum that has been verified: it is what its clients sent. Only [`ClaimedSum`] makes it.
pub struct Proven {
    sum: ClaimedSum,
    counts: Option<Vec<u32>>,
    false_members: Vec<ClientId>,
}

impl Proven {
    pub(crate) fn sum(&self) -> &ClaimedSum {
        &self.sum
    }

    /// See [`Summary::counts`].
    pub(crate) fn with_counts(self, counts: Vec<u32>) -> Self {
        Proven { counts: Some(counts), ..self }
    }

    /// See [`Summary::false_members`].
    pub(crate) fn with_false_members(self, false_members: Vec<ClientId>) -> Self {
        Proven { false_members, ..self }
    }
}

/// An opened aggregate with its values.
pub struct Opened<V> {
    summary: Summary,
    values: V,
}

impl<V> std::fmt::Debug for Opened<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("round", &self.summary.header.round).finish_non_exhaustive()
    }
}

impl<V> Opened<V> {
    #[must_use]
    pub fn values(&self) -> &V {
        &self.values
    }

    #[must_use]
    pub fn into_parts(self) -> (Summary, V) {
        (self.summary, self.values)
    }
}

/// Checks the parts of an aggregate's head that need no secret.
fn check_aggregate(head: &Head, tag: &KeyTag, rules: &Rules, round: Option<RoundId>) -> Result<Layout> {
    let (header, bounds) = (&head.header, rules.bounds);
    header.check_kind(Kind::Aggregate)?;
    tag.check(header)?;
    if let Some(expected) = round
        && header.round != expected
    {
        return Err(Error::Round { found: header.round, expected });
    }
    if header.contributions.is_empty() {
        return Err(Error::EmptyCohort);
    }
    bounds.check_contributions(header.contributions.len())?;
    if header.contributions.len() as u64 > bounds.clients {
        let (found, most) = (header.contributions.len(), bounds.clients);
        return Err(Error::frame(format!("{found} contributions where the bound allows {most}")));
    }
    for c in &header.contributions {
        check_weight(c.client, c.weight, bounds.max_weight)?;
    }
    layout_of(header, head.payload_len, rules.density)
}

impl Receiver {
    /// The folder `state` remembers which aggregates were opened; without one this object remembers them.
    pub fn new(key: &ClientKey, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let holder = Holder { key, roster: None, minimum: rules.bounds.min_contributions };
        Self::of(&holder, rules, state)
    }

    /// Like [`Self::new`], for this holder.
    pub(crate) fn of(holder: &Holder<'_>, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let (key, openings) = (holder.key, OpenedLedger::open(holder, state)?);
        Ok(Receiver { tag: key.tag.clone(), rules, tags: Some(Tags { mac: key.mac()?, openings }) })
    }

    /// The receiver of a server that opens sums it has added itself.
    pub(crate) fn of_own_sums(key: &ServerKey, rules: Rules) -> Self {
        Receiver { tag: key.tag.clone(), rules, tags: None }
    }

    /// Checks an aggregate's head against this key, its round, the bounds, the model and the memory.
    pub(crate) fn check(&self, head: Head, expect: &Expect<'_>) -> Result<CheckedHead> {
        let layout = check_aggregate(&head, &self.tag, &self.rules, expect.round)?;
        let verifier =
            self.tags.as_ref().map(|tags| self.verifier(&tags.mac, &head.header, &layout, expect)).transpose()?;
        Ok(CheckedHead { head, layout, verifier, levels: self.rules.levels })
    }

    /// The values that the aggregate's sums are checked against.
    fn verifier(&self, mac: &MacKey, header: &Header, layout: &Layout, expect: &Expect<'_>) -> Result<Verifier> {
        if let Some(model) = expect.model {
            mac.check_model(header, model)?;
        }
        if let Some(memory) = expect.memory {
            mac.check_memory(header, memory)?;
        }
        Ok(Verifier {
            mac: mac.round(header, layout, self.rules.bounds, expect.associated_data),
            contributions: header.contributions.clone(),
            weighting: self.rules.weighting,
        })
    }

    /// The MAC for the coordinates of a sparse aggregate.
    pub(crate) fn coordinates(&self, verifier: &Verifier) -> Option<CoordinateMac> {
        self.tags.as_ref().map(|tags| tags.mac.coordinates(&verifier.mac))
    }

    /// Claims the clients of an aggregate with this `tag`, on disk. `digest` decides whether an aggregate is the same
    /// one again.
    pub(crate) fn claim(
        &self,
        checked: CheckedHead,
        digest: impl FnOnce(&Header) -> Result<[u8; 32]>,
        tag: Tag,
    ) -> Result<ClaimedSum> {
        if let Some(Tags { openings, .. }) = &self.tags {
            let sum = openings.sum(checked.header())?;
            openings.claim(&sum, &digest(checked.header())?)?;
        }
        Ok(ClaimedSum { checked, tag })
    }

    /// Checks and claims a whole frame. Returns the claim and the payload without the tag.
    pub fn admit<'a>(&self, frame: &'a [u8], expect: &Expect<'_>) -> Result<(ClaimedSum, &'a [u8])> {
        self.admit_as(frame, expect, |_, _, _| Ok(FrameDigest::of(frame)))
    }

    /// Like [`Self::admit`], with the caller's `digest` of header, payload and tag.
    pub(crate) fn admit_as<'a>(
        &self,
        frame: &'a [u8],
        expect: &Expect<'_>,
        digest: impl FnOnce(&Header, &[u8], Tag) -> Result<[u8; 32]>,
    ) -> Result<(ClaimedSum, &'a [u8])> {
        let Frame { header, payload } = wire::parse(frame)?;
        let checked = self.check(Head { header, payload_len: payload.len() }, expect)?;
        let (payload, tag) = Tag::split(payload)?;
        Ok((self.claim(checked, |header| digest(header, payload, tag), tag)?, payload))
    }

    /// Returns the `values` if `outcome` is proven. Otherwise reduces the failure to what may be revealed
    /// ([`Rules::closes`]). If several forgeries are checked concurrently, in this process or in others with the same
    /// state, only the first reports `Tag`; all others report `Closed`.
    pub fn settle<V>(&self, outcome: Result<Proven>, values: V) -> Result<Opened<V>> {
        let Proven { sum, counts, false_members } = self.settled(outcome)?;
        let CheckedHead { head, layout, .. } = sum.checked;
        Ok(Opened { summary: Summary { header: head.header, layout, counts, false_members }, values })
    }

    fn settled<T>(&self, outcome: Result<T>) -> Result<T> {
        let Some(Tags { openings, .. }) = &self.tags else { return outcome };
        if !self.rules.closes {
            return outcome;
        }
        match outcome {
            Err(error @ (Error::Tag | Error::Decrypt { .. })) => openings.close().and(Err(error)),
            other => openings.check_open().and(other),
        }
    }

    /// Closes the key on disk: nothing opens under it afterwards. Fails with `Closed` if it was closed already.
    pub fn close(&self) -> Result<()> {
        self.tags.as_ref().map_or(Ok(()), |tags| tags.openings.close())
    }

    /// Fails with `Closed` if the key is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.tags.as_ref().map_or(Ok(()), |tags| tags.openings.check_open())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::codec::Tensor;
    use crate::ledger::Sum;
    use crate::mac::Weighting;
    use crate::plain::Plain;
    use crate::scheme::Scheme;
    use crate::wire::Contribution;
    use crate::{Epoch, Weight};

    fn bounds() -> Bounds {
        Bounds::new(4, Weight::new(2), Some(1)).unwrap()
    }

    fn key() -> ClientKey {
        Plain::new(bounds()).keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap().clients.remove(0)
    }

    fn openings(receiver: &Receiver) -> &OpenedLedger {
        &receiver.tags.as_ref().unwrap().openings
    }

    #[test]
    fn no_memory_is_taken_for_more_than_a_frame_can_carry() {
        let layout = Layout::new(vec![Tensor { dtype: 0, bits: 12, alpha: 1.0, shape: vec![1000] }]).unwrap();
        let tag = &key().tag;
        let header = tag.round_header(
            Kind::Aggregate,
            RoundId::new(1),
            vec![Contribution { client: ClientId::new(0), weight: Weight::ONE }],
            &layout,
            [0; 16],
            [0; 16],
        );
        for (density, least) in [(1.0, 250), (0.01, 3)] {
            let rules = Rules { density, ..Rules::dense(bounds(), Weighting::Client) };
            let found = |payload_len| check_aggregate(&Head { header: header.clone(), payload_len }, tag, &rules, None);
            found(least).unwrap();
            assert!(matches!(found(least - 1), Err(Error::Frame { .. })));
        }
    }

    /// The first failure closes the key if, and only if, failures may leak key bits.
    #[test]
    fn only_what_tells_of_a_key_closes_it() {
        let key = &key();
        for closes in [true, false] {
            let rules = Rules { closes, ..Rules::dense(bounds(), Weighting::Client) };
            for (error, tells) in
                [(Error::Tag, true), (Error::Decrypt { reason: String::new() }, true), (Error::EmptyCohort, false)]
            {
                let receiver = Receiver::new(key, rules, None).unwrap();
                let class = error.class();
                assert_eq!(receiver.settled::<()>(Err(error)).unwrap_err().class(), class);
                let next = openings(&receiver).claim(&Sum::alone(RoundId::new(1)), &[0; 32]);
                assert_eq!(matches!(next, Err(Error::Closed)), closes && tells, "{class}");
            }
        }
    }

    /// Several forgeries are admitted before the first is detected. One of them reports the forgery. A genuine
    /// aggregate that was admitted before is not reported either. So one bit leaks, as with one aggregate at a time.
    #[test]
    fn of_many_forgeries_at_once_one_is_told() {
        let key = &key();
        let rules = Rules { closes: true, ..Rules::dense(bounds(), Weighting::Client) };
        let folder = tempfile::tempdir().unwrap();
        for state in [None, Some(folder.path())] {
            // With a folder, as in two processes.
            let receivers = [(); 2].map(|()| Receiver::new(key, rules, state).unwrap());
            let [first, second] = &receivers;
            let of = |k: usize| if state.is_some() && k % 2 == 1 { second } else { first };
            for round in 1..=16 {
                openings(first).claim(&Sum::alone(RoundId::new(round)), &[0; 32]).unwrap();
            }
            of(0).settled(Ok(())).unwrap();
            let told: Vec<&str> = std::thread::scope(|scope| {
                let forged = |k: usize| scope.spawn(move || of(k).settled::<()>(Err(Error::Tag)).unwrap_err());
                let all: Vec<_> = (0..8).map(forged).collect();
                all.into_iter()
                    .map(|one| if matches!(one.join().unwrap(), Error::Tag) { "forged" } else { "closed" })
                    .collect()
            });
            assert_eq!(told.iter().filter(|said| **said == "forged").count(), 1, "{told:?}");
            for k in 0..2 {
                assert!(matches!(of(k).settled(Ok(())), Err(Error::Closed)));
                assert!(matches!(of(k).settled::<()>(Err(Error::EmptyCohort)), Err(Error::Closed)));
            }
        }
    }
}
