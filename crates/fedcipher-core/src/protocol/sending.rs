//! A client's sending side: it claims a round before it makes any part of the update.

use crate::admission::{Rules, check_weight};
use crate::codec::Layout;
use crate::frame_digest::FrameDigest;
use crate::keys::{ClientKey, KeyTag};
use crate::ledger::Ledger;
use crate::mac::coordinates::CoordinateMac;
use crate::mac::field::Element;
use crate::mac::{MacKey, TagMaker};
use crate::request::Terms;
use crate::sign::SigningKey;
use crate::statement::{RoundContext, Signer};
use crate::wire::{Contribution, Header, Kind};
use crate::{ClientId, Result, RoundId};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A client that sends updates.
pub struct Sender {
    tag: KeyTag,
    client: ClientId,
    rules: Rules,
    mac: MacKey,
    sign: Arc<SigningKey>,
    /// See [`RoundContext`].
    scope: [u8; 32],
    ledger: Ledger,
}

/// A round that is claimed for one update; on disk if the sender has a folder. Only a claimed round makes the update's
/// tag and signature. Each round of a client has one claim, which cannot be copied.
pub struct ClaimedRound {
    header: Header,
    tag_maker: TagMaker,
}

impl ClaimedRound {
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn tag_maker(&self) -> &TagMaker {
        &self.tag_maker
    }

    /// Sets the pad that the client has drawn for its tag.
    pub(crate) fn with_pad(mut self, pad: Zeroizing<Element>) -> Self {
        self.tag_maker.pad = pad;
        self
    }

    /// The factor that the client applies to its integers.
    #[must_use]
    pub fn factor(&self) -> u64 {
        self.tag_maker.factor()
    }

    /// The frame of a complete payload. `integers` are the values before weighting.
    #[must_use]
    pub fn frame(self, mut payload: Vec<u8>, integers: &[u32]) -> Vec<u8> {
        let hash = self.tag_maker.scale_by_weight(self.tag_maker.mac.hash_fields(integers));
        let end = self.tag_maker.end(hash, &FrameDigest::of(&payload));
        payload.extend_from_slice(&end);
        self.header.frame(&payload)
    }
}

impl Sender {
    /// `state` is the folder of the nonce ledger. Without a folder, this object remembers the nonces.
    pub fn new(key: &ClientKey, rules: Rules, state: Option<&Path>) -> Result<Self> {
        let (tag, client, mac, sign) = (key.tag.clone(), key.client, key.mac()?, Arc::new(key.sign.clone()));
        let ledger = Ledger::open(key, state)?.within(rules.bounds.privacy.map(|p| p.rounds));
        Ok(Sender { tag, client, rules, mac, sign, scope: [0; 32], ledger })
    }

    /// Signs as a party of the roster with digest `scope`.
    pub(crate) fn of_roster(self, scope: [u8; 32]) -> Self {
        Sender { scope, ..self }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Claims the round of `terms` on disk before any part of the update exists. `carried` is the layout of the
    /// integers that are sent; it may be smaller than the header's.
    pub fn claim(&mut self, terms: &Terms<'_>, carried: &Layout) -> Result<ClaimedRound> {
        check_weight(self.client, terms.weight, self.rules.bounds.max_weight)?;
        self.ledger.claim(terms.round)?;
        let own = Contribution { client: self.client, weight: terms.weight };
        let (model, memory) = (self.mac.model_tag(terms.model), self.mac.memory_tag(terms.memory));
        let header = self.tag.round_header(Kind::Update, terms.round, vec![own], terms.layout, model, memory);
        let mac = self.mac.round(&header, carried, self.rules.bounds, terms.associated_data);
        let context = RoundContext::of(self.scope, &header);
        let signer = Signer { key: Arc::clone(&self.sign), context };
        let Rules { weighting, levels, .. } = self.rules;
        let tag_maker = TagMaker { mac, own, pad: Zeroizing::default(), weighting, levels, signer };
        Ok(ClaimedRound { header, tag_maker })
    }

    /// The MAC for the coordinates of a sparse update.
    pub(crate) fn coordinates(&self, tag_maker: &TagMaker) -> CoordinateMac {
        self.mac.coordinates(&tag_maker.mac)
    }

    /// Claims `round` ahead of time, so that its encryption need not wait for the disk.
    pub fn reserve(&mut self, round: RoundId) -> Result<()> {
        self.ledger.reserve(round)
    }

    /// Like [`Self::reserve`], but runs `work` while the claim waits for the disk. If either fails, the call fails.
    pub(crate) fn reserve_during<T>(&mut self, round: RoundId, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let ledger = &mut self.ledger;
        let (claimed, made) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || ledger.reserve(round));
            let made = work();
            (thread.ok().and_then(|thread| thread.join().ok()), made)
        });
        // If no thread could be started, claim here.
        claimed.unwrap_or_else(|| self.ledger.reserve(round))?;
        made
    }
}
