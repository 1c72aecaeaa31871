//! A linearly homomorphic MAC: the decryptor of an aggregate can check it.
//!
//! In each round, client u sends `tag_u = h_r(m_u) + F(u)`. The polynomial `h_r(m) = sum r^(i+1) m_i` over F_p,
//! p = 2^127 - 1, is of the client's plaintext words m_u. The pad F(u) is used once. The server adds tags as it adds
//! ciphertexts, without a key. The decryptor computes `h_r` of the sums, and the pads of the clients in the header.
//!
//! r and the pads are derived from the cohort's secret, the round, and everything its clients must agree on:
//! parameters,
//! epoch, layout, the global model they trained from, the memory their sum counts in. A pad is also derived from its
//! client and that client's weight. So an aggregate opens only if it is the sum of exactly the updates that these
//! clients
//! sent, in this round, from one model. Construction: Agrawal and Boneh, "Homomorphic MACs" (ACNS 2009), with the
//! one-time mask of Catalano and Fiore (Eurocrypt 2013).
//!
//! Assumption: HMAC-SHA256 is a PRF, and no client makes two tags in one round ([`crate::ledger`]). Then a forgery is
//! accepted with probability at most (fields of the update + 1) / p, below 2^-90; each client tries one aggregate a
//! round
//! ([`crate::ledger::OpenedLedger`]). A holder of the cohort's secret can forge: the MAC binds the server, not a
//! client.
//! A signature ([`crate::statement`]) proves which client sent an update, and its content.

pub mod coordinates;
mod dot;
pub mod field;
pub mod hash;
pub mod memory;
pub mod tag;

use crate::bounds::{Bounds, Levels};
use crate::codec::{Layout, Segment};
use crate::shown::shown;
use crate::statement::{END_LEN, Signer};
use crate::wire::{Contribution, Header, MemoryTag, ModelTag};
use crate::{Error, Result, Weight};
use field::Element;
use hash::{Hasher, Powers};
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use memory::MemoryKey;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;
pub use tag::{TAG_LEN, Tag};
use zeroize::{Zeroize, Zeroizing};

/// The side that multiplies an update by its client's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// The client, before it encrypts.
    Client,
    /// The server, by the weight in the update's header.
    Server,
}

impl Weighting {
    /// The factor that the client applies to an update of this weight.
    #[must_use]
    pub fn client_factor(self, weight: Weight) -> u64 {
        match self {
            Weighting::Client => weight.get(),
            Weighting::Server => 1,
        }
    }

    /// The factor that the server applies to an update of this weight.
    #[must_use]
    pub fn server_factor(self, weight: Weight) -> u64 {
        match self {
            Weighting::Client => 1,
            Weighting::Server => weight.get(),
        }
    }
}

/// The MAC's polynomial evaluated over part of an update. The values of all parts add up to the value of the update.
#[derive(Clone, Copy, Default)]
pub struct PolyEval(Element);

impl std::ops::AddAssign for PolyEval {
    fn add_assign(&mut self, other: PolyEval) {
        self.0 += other.0;
    }
}

impl std::iter::Sum for PolyEval {
    fn sum<I: Iterator<Item = PolyEval>>(parts: I) -> PolyEval {
        PolyEval(parts.map(|part| part.0).sum())
    }
}

/// The cohort's MAC keys, derived from its secret with HKDF-SHA256 (RFC 5869) under one label each.
#[derive(Clone)]
pub struct MacKey {
    polynomial: Zeroizing<[u8; 32]>,
    pad: Zeroizing<[u8; 32]>,
    model: Zeroizing<[u8; 32]>,
    memory: MemoryKey,
    coordinates: Zeroizing<[u8; 32]>,
    veil: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MacKey(secret)")
    }
}

fn derive(root: &[u8; 32], label: &str) -> Result<Zeroizing<[u8; 32]>> {
    let mut out = Zeroizing::new([0u8; 32]);
    Hkdf::<Sha256>::new(None, root)
        .expand(label.as_bytes(), out.as_mut_slice())
        .map_err(|e| Error::Key { reason: format!("derivation of {label}: {e}") })?;
    Ok(out)
}

/// The first 16 bytes of HMAC-SHA256 over `parts`.
fn prf(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 16] {
    // HMAC fills a short key with zeros to SHA-256's block (RFC 2104).
    let mut block = Zeroizing::new([0u8; 64]);
    block[..32].copy_from_slice(key);
    let mut mac = <Hmac<Sha256> as KeyInit>::new((&*block).into());
    parts.iter().for_each(|part| mac.update(part));
    let mut full: [u8; 32] = mac.finalize().into_bytes().into();
    let mut out = [0u8; 16];
    out.copy_from_slice(&full[..16]);
    full.zeroize();
    out
}

impl MacKey {
    pub fn new(root: &[u8; 32]) -> Result<Self> {
        Ok(MacKey {
            polynomial: derive(root, "fedcipher v2 mac polynomial")?,
            pad: derive(root, "fedcipher v2 mac pad")?,
            model: derive(root, "fedcipher v2 model")?,
            memory: MemoryKey::new(root)?,
            coordinates: derive(root, "fedcipher v2 mac coordinates")?,
            veil: derive(root, "fedcipher v2 mac veil")?,
        })
    }

    /// The tag of the global model in an update's header. Without the key the tag reveals nothing about the model, and
    /// no guess of the model can be tested against it.
    #[must_use]
    pub fn model_tag(&self, model: &[u8]) -> ModelTag {
        // Headers carry the tag, so it is public.
        shown(prf(&self.model, &[model]))
    }

    /// Fails if the updates of an aggregate were trained from a model other than `model`.
    pub fn check_model(&self, header: &Header, model: &[u8]) -> Result<()> {
        if bool::from(self.model_tag(model).ct_eq(&header.model)) {
            return Ok(());
        }
        Err(Error::Model { round: header.round })
    }

    /// The tag in a header of the memory of the rule of sets that a sum counts in; zeros for no memory.
    #[must_use]
    pub fn memory_tag(&self, memory: &[u8]) -> MemoryTag {
        self.memory.tag(memory)
    }

    /// Fails if an aggregate counts in a memory other than `memory`.
    pub fn check_memory(&self, header: &Header, memory: &[u8]) -> Result<()> {
        if bool::from(self.memory_tag(memory).ct_eq(&header.memory)) {
            return Ok(());
        }
        Err(Error::Memory { round: header.round })
    }

    /// A mask for a sum of clients' pads, known only to holders of the key. `statement` names the member and the sum.
    #[must_use]
    pub fn veil(&self, statement: &[u8]) -> Element {
        Element::from_random(prf(&self.veil, &[statement]))
    }

    /// The MAC of the round in `header`, over updates of `layout`. `associated_data` is known to both ends and absent
    /// from headers. Tags of clients that disagree on it do not add up.
    pub fn round(&self, header: &Header, layout: &Layout, bounds: Bounds, associated_data: &[u8]) -> RoundMac {
        let context: [u8; 32] =
            Sha256::new().chain_update(header.common()).chain_update(Sha256::digest(associated_data)).finalize().into();
        let powers =
            |label: &[u8]| Arc::new(Powers::new(Element::from_random(prf(&self.polynomial, &[&context, label]))));
        let widths = |s: Segment| (s, bounds.field_bits(s.bits));
        let (segments, widths) = layout.segments().into_iter().map(widths).unzip();
        let (words, noise) = (powers(b"words"), powers(b"noise"));
        RoundMac { powers: words, noise, pad: self.pad.clone(), context, segments, widths }
    }
}

/// One round's MAC.
#[derive(Clone)]
pub struct RoundMac {
    powers: Arc<Powers>,
    /// Powers for the noise of ciphertexts, in schemes whose noise a server could probe.
    noise: Arc<Powers>,
    pad: Zeroizing<[u8; 32]>,
    context: [u8; 32],
    segments: Vec<Segment>,
    /// Bits of a sum's field, by segment.
    widths: Vec<u32>,
}

impl RoundMac {
    /// A hasher of the fields from `start` on. They must lie in one segment and begin where the scheme may cut.
    #[must_use]
    pub fn hasher(&self, start: usize) -> Hasher<'_> {
        let index = self.segments.partition_point(|s| s.start <= start).saturating_sub(1);
        Hasher::new(&self.powers, self.widths.get(index).copied().unwrap_or(1), start)
    }

    /// A hasher of the noise of ciphertext coefficients from number `start` on, shifted so that it is never negative.
    #[must_use]
    pub fn noise_hasher(&self, start: usize) -> Hasher<'_> {
        Hasher::new(&self.noise, u64::BITS, start)
    }

    /// The polynomial of the sums from `start` on, in one segment or more. They must begin where the scheme may cut.
    #[must_use]
    pub fn hash_run(&self, start: usize, sums: &[u64]) -> PolyEval {
        let first = self.segments.partition_point(|s| s.start + s.len <= start);
        let (mut rest, mut at, mut hash) = (sums, start, PolyEval::default());
        for segment in &self.segments[first..] {
            let (own, behind) = rest.split_at(rest.len().min(segment.start + segment.len - at));
            if own.is_empty() {
                break;
            }
            let mut hasher = self.hasher(at);
            hasher.sums(own);
            hash += hasher.hash();
            (rest, at) = (behind, at + own.len());
        }
        hash
    }

    /// The polynomial of all fields of an update, at once.
    #[must_use]
    pub fn hash_fields(&self, fields: &[u32]) -> PolyEval {
        self.each(|hasher, range| hasher.fields(fields.get(range).unwrap_or_default()))
    }

    /// The polynomial of all sums, at once.
    #[must_use]
    pub fn hash_sums(&self, sums: &[u64]) -> PolyEval {
        self.each(|hasher, range| hasher.sums(sums.get(range).unwrap_or_default()))
    }

    fn each(&self, mut work: impl FnMut(&mut Hasher<'_>, std::ops::Range<usize>)) -> PolyEval {
        let of_segment = |s: &Segment| {
            let mut hasher = self.hasher(s.start);
            work(&mut hasher, s.start..s.start + s.len);
            hasher.finish()
        };
        PolyEval(self.segments.iter().map(of_segment).sum())
    }

    fn pad(&self, of: &Contribution) -> Element {
        let parts: [&[u8]; 3] = [&self.context, &of.client.to_le_bytes(), &of.weight.to_le_bytes()];
        Element::from_random(prf(&self.pad, &parts))
    }

    /// A client's tag over the polynomial of its update.
    #[must_use]
    pub fn tag(&self, hash: PolyEval, own: &Contribution) -> Tag {
        Tag(hash.0 + self.pad(own))
    }

    /// Fails if sums with polynomial `hash` are not the sums that `contributions` sent.
    pub fn check(&self, hash: PolyEval, contributions: &[Contribution], weighting: Weighting, tag: Tag) -> Result<()> {
        let pad = |c: &Contribution| self.pad(c) * Element::new(u128::from(weighting.server_factor(c.weight)));
        let expected = hash.0 + contributions.iter().map(pad).sum();
        // The outcome is visible to others anyway.
        if shown(bool::from(expected.to_wire().ct_eq(&tag.to_bytes()))) { Ok(()) } else { Err(Error::Tag) }
    }
}

impl Hasher<'_> {
    /// The polynomial of the data hashed so far.
    #[must_use]
    pub fn hash(self) -> PolyEval {
        PolyEval(self.finish())
    }
}

/// Makes the tag and the signature of a client's update.
#[derive(Clone)]
pub struct TagMaker {
    pub mac: RoundMac,
    pub own: Contribution,
    /// The pad that the client has drawn for this tag; zero in schemes without drawn pads.
    pub pad: Zeroizing<Element>,
    pub weighting: Weighting,
    pub levels: Levels,
    pub signer: Signer,
}

impl TagMaker {
    #[must_use]
    pub fn tag(&self, hash: PolyEval) -> Tag {
        self.mac.tag(PolyEval(hash.0 + *self.pad), &self.own)
    }

    /// The end of an update's payload: its tag over `hash`, and a signature that covers `body`, the digest of the rest.
    #[must_use]
    pub fn end(&self, hash: PolyEval, body: &[u8]) -> [u8; END_LEN] {
        self.signer.end(self.own, self.tag(hash), body)
    }

    /// Scales the polynomial of unweighted integers by this client's weight.
    #[must_use]
    pub fn scale_by_weight(&self, hash: PolyEval) -> PolyEval {
        PolyEval(hash.0 * Element::new(u128::from(self.factor())))
    }

    /// The factor that this client applies to its integers.
    #[must_use]
    pub fn factor(&self) -> u64 {
        self.weighting.client_factor(self.own.weight)
    }
}

/// The values that an aggregate's sums are checked against.
#[derive(Clone)]
pub struct Verifier {
    pub mac: RoundMac,
    pub contributions: Vec<Contribution>,
    pub weighting: Weighting,
}

impl Verifier {
    /// The polynomial of a piece's sums.
    #[must_use]
    pub fn hash(&self, start: usize, sums: &[u64]) -> PolyEval {
        self.mac.hash_run(start, sums)
    }

    /// `pads` is the sum of the pads that the clients have drawn; `None` if they draw none.
    pub(crate) fn check(&self, hash: PolyEval, pads: Option<&Element>, tag: Tag) -> Result<()> {
        let hash = pads.map_or(hash, |pads| PolyEval(hash.0 + *pads));
        self.mac.check(hash, &self.contributions, self.weighting, tag)
    }
}
