//! `plain`: no encryption, same codec, bounds, frames and tags. The yardstick, and nothing to deploy.

use crate::admission::{self, Admission, Rules};
use crate::bits;
use crate::bounds::{Bounds, LaneBits, Levels, MAX_FIELD_BITS};
use crate::canonical::{Canonical, Fields};
use crate::codec::{Layout, Update};
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::lanes::{Cuts, Lanes};
use crate::mac::{PolyEval, TAG_LEN, Weighting};
use crate::memory::zeros;
use crate::params_digest::ParamsDigest;
use crate::protocol::{
    CheckedHead, ClaimedRound, DecryptKernel, Decryptor, EncryptKernel, Encryption, Encryptor, Piece, PieceDecryptor,
    PieceEncryptor, Receiver, Sender,
};
use crate::scheme::{Aggregator, Progress, Scheme, Terms, Values, Variant};
use crate::threads::Threads;
use crate::wire::{Contribution, FrameBuffer};
use crate::{ClientId, Epoch, Result, RoundId, TotalWeight};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

const NAME: &str = "plain";
/// See [`Variant`].
pub const VARIANTS: &[Variant] = &[Variant::new(NAME, NAME, "{}")];
const CHUNK: usize = 4096;
/// Lanes of a piece: a quarter of a megabyte of floats.
const PIECE: usize = 16 * CHUNK;

/// Packs integers in `field_bits` lanes and adds them in the clear.
#[derive(Debug, Clone)]
pub struct Plain {
    bounds: Bounds,
}

impl Plain {
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Plain { bounds }
    }
}

fn lanes(bounds: Bounds, layout: &Layout) -> Result<Lanes> {
    Lanes::of(layout, |b| bounds.checked_field_bits(b, MAX_FIELD_BITS))
}

impl Plain {
    fn rules(&self) -> Rules {
        Rules::dense(self.bounds, Weighting::Client)
    }
}

impl Canonical for Plain {
    const DOMAIN: &'static str = "fedcipher scheme plain";

    fn fields(&self, to: &mut Fields) {
        to.part(1, &self.bounds);
    }
}

impl Scheme for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> ParamsDigest {
        ParamsDigest::of(self, &former::plain(&self.bounds))
    }

    fn values(&self) -> Values {
        let (levels, fits) = (self.bounds.levels(), |bits| self.bounds.field_bits(bits) <= MAX_FIELD_BITS);
        Values { levels, lanes: Some(LaneBits::widest(self.bounds, levels, fits)) }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        lanes(self.bounds, layout).map(drop)
    }

    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet> {
        let tag = KeyTag::fresh(NAME, self.digest().short(), epoch)?;
        KeySet::build(tag, cohort, Vec::new(), |_| Ok(Zeroizing::new(Vec::new())))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor> {
        key.tag.check_scheme(NAME, self.digest())?;
        let sender = Sender::new(key, self.rules(), state)?;
        Ok(Encryptor::new(PlainEncryptor { bounds: self.bounds, sender }))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        let admission = Admission::new(key, self.rules(), round);
        Ok(Box::new(PlainAggregator { bounds: self.bounds, admission, sum: Vec::new() }))
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor> {
        key.tag.check_scheme(NAME, self.digest())?;
        let receiver = Arc::new(Receiver::new(key, self.rules(), state)?);
        Ok(Decryptor::new(PlainDecryptor { bounds: self.bounds, receiver }))
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.bounds.describe()
    }
}

struct PlainEncryptor {
    bounds: Bounds,
    sender: Sender,
}

impl EncryptKernel for PlainEncryptor {
    fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>> {
        let cuts = lanes(self.bounds, terms.layout)?.cut(0, |_| PIECE);
        let claimed = self.sender.claim(terms, terms.layout)?;
        Ok(Some(Encryption::new(PlainPieces { claimed, cuts })))
    }

    fn precompute(&mut self, round: RoundId, _layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.sender.reserve(round)
    }
}

struct PlainPieces {
    claimed: ClaimedRound,
    cuts: Cuts,
}

impl PieceEncryptor for PlainPieces {
    fn claimed(&self) -> &ClaimedRound {
        &self.claimed
    }

    fn prefix(&self) -> &[u8] {
        &[]
    }

    fn pieces(&self) -> &[Piece] {
        &self.cuts.pieces
    }

    fn threads(&self) -> Threads {
        Threads::One
    }

    fn encrypt_piece(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<PolyEval> {
        let (piece, width, tag_maker) = (&self.cuts.pieces[index], self.cuts.widths[index], self.claimed.tag_maker());
        let mut ints = vec![0u32; CHUNK];
        let mut hasher = tag_maker.mac.hasher(piece.start);
        for (k, chunk) in out.chunks_mut(bits::packed_len(CHUNK, width)).enumerate() {
            let n = (piece.len - k * CHUNK).min(CHUNK);
            update.quantise(tag_maker.levels, piece.start + k * CHUNK, &mut ints[..n])?;
            hasher.fields(&ints[..n]);
            bits::pack_scaled(&ints[..n], tag_maker.factor(), width, chunk);
        }
        Ok(tag_maker.scale_by_weight(hasher.hash()))
    }
}

struct PlainAggregator {
    bounds: Bounds,
    admission: Admission,
    sum: Vec<u8>,
}

impl Aggregator for PlainAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        let lanes = lanes(self.bounds, &admitted.layout)?;
        lanes.check(admitted.payload)?;
        if self.sum.is_empty() {
            self.sum = zeros(lanes.bytes);
        }
        lanes.add(&mut self.sum, admitted.payload);
        Ok(self.admission.commit(admitted))
    }

    fn finish_into(&mut self, place: &mut dyn FrameBuffer, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        let sum = std::mem::take(&mut self.sum);
        header.build_from(&[&sum, &self.admission.close().to_bytes()], place)
    }
}

struct PlainDecryptor {
    bounds: Bounds,
    receiver: Arc<Receiver>,
}

impl DecryptKernel for PlainDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn opener(&self, checked: &CheckedHead, _prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        let lanes = lanes(self.bounds, checked.layout())?;
        lanes.check_len(checked.payload_len().saturating_sub(TAG_LEN))?;
        Ok(Some(Box::new(PlainOpener {
            cuts: lanes.cut(0, |_| PIECE),
            weight: checked.header().total_weight(),
            levels: self.bounds.levels(),
        })))
    }
}

struct PlainOpener {
    cuts: Cuts,
    weight: TotalWeight,
    levels: Levels,
}

impl PieceDecryptor for PlainOpener {
    fn prefix(&self) -> usize {
        0
    }

    fn pieces(&self) -> &[Piece] {
        &self.cuts.pieces
    }

    fn threads(&self) -> Threads {
        Threads::One
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<PolyEval> {
        let (width, values) = (self.cuts.widths[index], self.cuts.bits[index]);
        bits::check_stream(bytes, sums.len(), width)?;
        bits::unpack(bytes, width, sums);
        admission::check_sums(sums, self.weight, self.levels.of(values))?;
        Ok(PolyEval::default())
    }
}
