//! Who opens aggregates: of no older round than the last, of one set of clients a round (with a memory, of disjoint sets
//! that keep to its rule), and only what proves to be the sum of what the clients it names have sent.

use super::FrameDigest;
use crate::admission::{Rules, check_weight, layout_of};
use crate::bounds::Levels;
use crate::codec::Layout;
use crate::keys::{ClientKey, KeyTag, ServerKey};
use crate::ledger::{Holder, OpenedLedger};
use crate::mac::coordinates::CoordinateMac;
use crate::mac::field::Element;
use crate::mac::{MacKey, PolyEval, Tag, Verifier};
use crate::scheme::{Expect, Summary};
use crate::wire::{self, Frame, Head, Header, Kind};
use crate::{ClientId, Error, Result, RoundId};
use std::path::Path;

/// Who opens aggregates: a client of the cohort, or the server of `reveal="server"`.
pub struct Receiver {
    tag: KeyTag,
    rules: Rules,
    /// None for a server that opens what it has added itself: it has no key for tags, and may open what it likes.
    tags: Option<Tags>,
}

/// What checks that an aggregate is the sum of what its clients have sent, and remembers what was opened.
struct Tags {
    mac: MacKey,
    openings: OpenedLedger,
}

/// An aggregate whose head has been checked against a key, its rules, and what is expected. Nothing is claimed.
pub struct CheckedHead {
    head: Head,
    layout: Layout,
    /// None for who has no key for tags.
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

/// An aggregate that is all here, and whose clients are spent for its round: another of them will not be opened,
/// whatever comes of this one.
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

    /// Levels of the values that were added.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.checked.levels
    }

    pub(crate) fn checked(&self) -> &CheckedHead {
        &self.checked
    }

    /// Refuses sums of polynomial `hash` that are not what the clients have sent. `pads` are those that clients have
    /// drawn, summed; none where they draw none.
    pub(crate) fn verify(self, hash: PolyEval, pads: Option<&Element>) -> Result<Proven> {
        if let Some(verifier) = &self.checked.verifier {
            verifier.check(hash, pads, self.tag)?;
        }
        Ok(Proven { sum: self, counts: None, false_members: Vec::new() })
    }

    /// As `verify`, of all `sums` at once.
    pub fn verify_sums(self, sums: &[u64]) -> Result<Proven> {
        let hash = self.checked.verifier.as_ref().map(|verifier| verifier.mac.hash_sums(sums)).unwrap_or_default();
        self.verify(hash, None)
    }
}

/// Made by [`ClaimedSum`] alone: its sums are what its clients have sent.
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

/// An aggregate that has opened, with its values.
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

/// What of an aggregate's head takes no secret to check.
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
    /// `state` is the folder that remembers which aggregates were opened; without it this object does.
    pub fn new(key: &ClientKey, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let holder = Holder { key, roster: None, minimum: rules.bounds.min_contributions };
        Self::of(&holder, rules, state)
    }

    /// As [`Self::new`], of this holder.
    pub(crate) fn of(holder: &Holder<'_>, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let (key, openings) = (holder.key, OpenedLedger::open(holder, state)?);
        Ok(Receiver { tag: key.tag.clone(), rules, tags: Some(Tags { mac: key.mac()?, openings }) })
    }

    /// The server, of sums that it has added itself.
    pub(crate) fn of_own_sums(key: &ServerKey, rules: Rules) -> Self {
        Receiver { tag: key.tag.clone(), rules, tags: None }
    }

    /// An aggregate's head against this key, its round, the bounds, the model and the memory.
    pub(crate) fn check(&self, head: Head, expect: &Expect<'_>) -> Result<CheckedHead> {
        let layout = check_aggregate(&head, &self.tag, &self.rules, expect.round)?;
        let verifier =
            self.tags.as_ref().map(|tags| self.verifier(&tags.mac, &head.header, &layout, expect)).transpose()?;
        Ok(CheckedHead { head, layout, verifier, levels: self.rules.levels })
    }

    /// What the sums of the aggregate must answer to.
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

    /// The MAC for the coordinates of an aggregate, where the server may leave some out.
    pub(crate) fn coordinates(&self, verifier: &Verifier) -> Option<CoordinateMac> {
        self.tags.as_ref().map(|tags| tags.mac.coordinates(&verifier.mac))
    }

    /// Spends the clients of an aggregate with this `tag`, durably. `digest` says what "the same aggregate again" is.
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

    /// A whole frame, checked and claimed, and its payload without the tag.
    pub fn admit<'a>(&self, frame: &'a [u8], expect: &Expect<'_>) -> Result<(ClaimedSum, &'a [u8])> {
        self.admit_as(frame, expect, |_, _, _| Ok(FrameDigest::of(frame)))
    }

    /// [`Self::admit`] with the `digest` of header, payload and tag.
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

    /// The `values` of a sum, if `outcome` is that they are proven. A refusal that could tell of the key closes it
    /// ([`Rules::closes`]): of many that were under way at once, in this process or in others with the same state, one
    /// says that it was a forgery, and none after it says anything.
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

    /// Opens nothing under this key from here on, durably. `Closed` where that was so already.
    pub fn close(&self) -> Result<()> {
        self.tags.as_ref().map_or(Ok(()), |tags| tags.openings.close())
    }

    /// `Closed` where nothing is opened any more.
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

    /// Where a refusal can tell of the key, and only there, the first is the last.
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

    /// Many that were let in before the first was found to be forged: one of them says so, and what came out right after
    /// that is not said either. It is one bit, as when they come one by one.
    #[test]
    fn of_many_forgeries_at_once_one_is_told() {
        let key = &key();
        let rules = Rules { closes: true, ..Rules::dense(bounds(), Weighting::Client) };
        let folder = tempfile::tempdir().unwrap();
        for state in [None, Some(folder.path())] {
            // On disk those of another process too.
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
