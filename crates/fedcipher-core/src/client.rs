//! What a client does alike in every scheme: claim its nonce and stamp what it sends, check what it is given.

use crate::admission::{Rules, check_weight, layout_of};
use crate::codec::Layout;
use crate::keys::{ClientKey, KeyTag};
use crate::ledger::{Holder, Ledger, Openings};
use crate::mac::coordinates::CoordinateMac;
use crate::mac::{MacKey, Stamp, Tag, Verifier};
use crate::scheme::{Expect, Terms};
use crate::sign::SigningKey;
use crate::statement::{RoundContext, Signer};
use crate::stream::Threads;
use crate::wire::{self, Contribution, Frame, Head, Header, Kind};
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A client that sends updates.
pub struct Sender {
    tag: KeyTag,
    client: u32,
    rules: Rules,
    mac: MacKey,
    sign: Arc<SigningKey>,
    /// See [`RoundContext`].
    scope: [u8; 32],
    ledger: Ledger,
}

impl Sender {
    /// `state` is the folder of the nonce ledger; without it nonces are remembered as long as this object lives.
    pub fn new(key: &ClientKey, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let (tag, client, mac, sign) = (key.tag.clone(), key.client, key.mac()?, Arc::new(key.sign.clone()));
        let ledger = Ledger::open(key, state)?.within(rules.bounds.privacy.map(|p| p.rounds));
        Ok(Sender { tag, client, rules, mac, sign, scope: [0; 32], ledger })
    }

    /// Signs as a party of the roster with digest `scope`.
    #[must_use]
    pub fn of_roster(self, scope: [u8; 32]) -> Self {
        Sender { scope, ..self }
    }

    #[must_use]
    pub fn client(&self) -> u32 {
        self.client
    }

    /// Claims the round of `terms`, on disk before anything of it exists, and makes the update's header and stamp.
    /// `carried` is the layout of the integers that are sent, where that is not all of the header's.
    pub fn start(&mut self, terms: &Terms<'_>, carried: &Layout) -> Result<(Header, Stamp)> {
        check_weight(self.client, terms.weight, self.rules.bounds.max_weight)?;
        self.ledger.claim(terms.round)?;
        let own = Contribution { client: self.client, weight: terms.weight };
        let (model, memory) = (self.mac.model_tag(terms.model), self.mac.memory_tag(terms.memory));
        let header = self.tag.round_header(Kind::Update, terms.round, vec![own], terms.layout, model, memory);
        let mac = self.mac.round(&header, carried, self.rules.bounds, terms.bound);
        let context = RoundContext::of(self.scope, &header);
        let signer = Signer { key: Arc::clone(&self.sign), context };
        let Rules { weighting, levels, .. } = self.rules;
        Ok((header, Stamp { mac, own, pad: Zeroizing::default(), weighting, levels, signer }))
    }

    /// The MAC for the coordinates of an update with this stamp, where the server may leave some out.
    #[must_use]
    pub fn coordinates(&self, stamp: &Stamp) -> CoordinateMac {
        self.mac.coordinates(&stamp.mac)
    }

    /// Claims `round` ahead, so that its encryption need not wait for the disk.
    pub fn reserve(&mut self, round: u64) -> Result<()> {
        self.ledger.reserve(round)
    }

    /// As [`Self::reserve`], during `work`: a claim waits for the disk and takes no processor. Neither leaves alone:
    /// where one fails nothing is returned.
    pub fn reserve_during<T>(&mut self, round: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let ledger = &mut self.ledger;
        let (claimed, made) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || ledger.reserve(round));
            let made = work();
            (thread.ok().and_then(|thread| thread.join().ok()), made)
        });
        // No thread could be started: then here.
        claimed.unwrap_or_else(|| self.ledger.reserve(round))?;
        made
    }
}

/// A client that opens aggregates: of no older round than the last, of one set of clients a round (with a memory, of
/// disjoint sets that keep to its rule), and only what proves to be the sum of what the clients it names have sent.
pub struct Receiver {
    tag: KeyTag,
    rules: Rules,
    mac: MacKey,
    openings: Openings,
}

/// A digest of a frame's bytes, in parts: what "the same bytes again" means, and what a signature covers.
#[derive(Default)]
pub struct Digest(blake3::Hasher);

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of `bytes`, by as many threads as their number is worth.
    #[must_use]
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        let mut digest = Digest::default();
        digest.update_by_many(bytes);
        digest.finish()
    }

    /// [`Self::update`] by as many threads as the number of `bytes` is worth.
    pub fn update_by_many(&mut self, bytes: &[u8]) {
        match Threads::for_bytes(bytes.len()) {
            Threads::One => self.update(bytes),
            Threads::All => self.update_by_all(bytes),
        }
    }

    /// [`Self::update`] by all of rayon's threads.
    pub fn update_by_all(&mut self, bytes: &[u8]) {
        self.0.update_rayon(bytes);
    }

    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// What of an aggregate's head takes no secret to check.
pub fn check_aggregate(head: &Head, tag: &KeyTag, rules: &Rules, round: Option<u64>) -> Result<Layout> {
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
    pub fn of(holder: &Holder<'_>, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let key = holder.key;
        Ok(Receiver { tag: key.tag.clone(), rules, mac: key.mac()?, openings: Openings::open(holder, state)? })
    }

    /// An aggregate's head against this key, its round, the bounds, the model and the memory.
    pub fn check(&self, head: &Head, expect: &Expect<'_>) -> Result<Layout> {
        let layout = check_aggregate(head, &self.tag, &self.rules, expect.round)?;
        if let Some(model) = expect.model {
            self.mac.check_model(&head.header, model)?;
        }
        if let Some(memory) = expect.memory {
            self.mac.check_memory(&head.header, memory)?;
        }
        Ok(layout)
    }

    /// What the sums of the aggregate must answer to; `carried` as in [`Sender::start`].
    #[must_use]
    pub fn verifier(&self, header: &Header, carried: &Layout, bound: &[u8]) -> Verifier {
        Verifier {
            mac: self.mac.round(header, carried, self.rules.bounds, bound),
            contributions: header.contributions.clone(),
            pad: Zeroizing::default(),
            weighting: self.rules.weighting,
            levels: self.rules.levels,
        }
    }

    /// As [`Sender::coordinates`].
    #[must_use]
    pub fn coordinates(&self, verifier: &Verifier) -> CoordinateMac {
        self.mac.coordinates(&verifier.mac)
    }

    /// A whole frame: (head, layout, payload without its tag, tag). From here on its clients are spent for the round:
    /// another aggregate of them will not be opened, whatever comes of this one.
    pub fn admit<'a>(&self, frame: &'a [u8], expect: &Expect<'_>) -> Result<(Head, Layout, &'a [u8], Tag)> {
        let Frame { header, payload } = wire::parse(frame)?;
        let head = Head { header, payload_len: payload.len() };
        let layout = self.check(&head, expect)?;
        let (payload, tag) = Tag::split(payload)?;
        self.openings.claim(&self.openings.sum(&head.header)?, &Digest::of(frame))?;
        Ok((head, layout, payload, tag))
    }

    /// What of an outcome after [`Self::admit`] anybody may learn: see [`Rules::closes`]. Of many that were under way
    /// at once, in this process or in others with the same state, one says that it was a forgery, and none after it
    /// says anything.
    pub fn settled<T>(&self, outcome: Result<T>) -> Result<T> {
        if !self.rules.closes {
            return outcome;
        }
        match outcome {
            Err(error @ (Error::Tag | Error::Decrypt { .. })) => self.openings.close().and(Err(error)),
            other => self.openings.check_open().and(other),
        }
    }

    #[must_use]
    pub fn openings(&self) -> &Openings {
        &self.openings
    }
}
