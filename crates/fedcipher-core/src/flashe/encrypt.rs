//! The client's side: encrypts an update as masked lanes.

use super::mask::{MaskMaker, Masking, Pieces, Term, encrypt_run};
use super::sparse::{Residual, permutation};
use super::{FlasheParams, Policy, Secret, positions};
use crate::bits;
use crate::bounds::Levels;
use crate::codec::{Layout, Rounding, Update};
use crate::mac::{PolyEval, coordinates};
use crate::prf::Prf;
use crate::protocol::{
    CarriedResidual, ClaimedRound, EncryptKernel, Encryption, FrameDigest, Piece, PieceEncryptor, Sender,
};
use crate::scheme::{Request, Terms};
use crate::threads::Threads;
use crate::wire::FrameBuffer;
use crate::{Error, Result, RoundId};
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

pub struct FlasheEncryptor {
    params: FlasheParams,
    sender: Sender,
    prf: Arc<Prf>,
    permutation: Zeroizing<[u8; 32]>,
    residual: Residual,
}

impl FlasheEncryptor {
    pub fn new(params: FlasheParams, sender: Sender, secret: Secret) -> Self {
        FlasheEncryptor {
            params,
            sender,
            prf: Arc::new(secret.mask),
            permutation: secret.permutation,
            residual: Residual::default(),
        }
    }

    /// Returns the masking of this round. A fixed policy ignores the server's plan; an adaptive cohort follows it.
    fn masking(&self, round_plan: &[u8]) -> Result<Masking> {
        match (self.params.policy, round_plan) {
            (Policy::Fixed(masking), _) => Ok(masking),
            (Policy::Adaptive, [byte]) => Masking::parse(*byte),
            (Policy::Adaptive, []) => Ok(Masking::Double),
            (Policy::Adaptive, other) => Err(Error::Frame { reason: format!("a plan of {} bytes", other.len()) }),
        }
    }

    fn dense(&mut self, terms: &Terms<'_>) -> Result<DensePieces> {
        let lanes = self.params.lanes(terms.layout)?;
        let masking = self.masking(terms.round_plan)?;
        let elements = terms.layout.elements();
        Ok(DensePieces {
            claimed: self.sender.claim(terms, terms.layout)?,
            elements,
            masking: [masking as u8],
            round: terms.round,
            prf: Arc::clone(&self.prf),
            pieces: Pieces::of(&lanes),
            terms: masking.terms(self.sender.client()),
        })
    }

    fn sparse(&mut self, request: &Request<'_>, top: f64, place: &mut dyn FrameBuffer) -> Result<()> {
        let layout = request.update.layout();
        let masking = self.masking(request.round_plan)?;
        let width = self.params.sparse_width(layout)?;
        let claimed = self.sender.claim(&request.terms(), layout)?;
        let tag_maker = claimed.tag_maker();
        let selection = self.residual.select(request.update, top)?;
        let order = permutation(&self.permutation, request.round, layout.elements())?;

        // The sum of input and residual is quantised, in the same layout.
        let tensors = layout.split(&selection.values)?;
        let corrected = Update::new(layout, tensors, Rounding::Nearest)?;
        let mut ints = vec![0u32; layout.elements()];
        corrected.quantise(tag_maker.levels, 0, &mut ints)?;

        let mut sent: Vec<(u32, u32)> =
            selection.chosen.iter().map(|d| (order[*d as usize], ints[*d as usize])).collect();
        sent.sort_unstable_by_key(|(position, _)| *position);
        let sites: Vec<u32> = sent.iter().map(|(position, _)| *position).collect();
        let weighted = sent.iter().map(|(_, q)| u64::from(*q).wrapping_mul(tag_maker.factor()));
        let mut lanes = Zeroizing::new(weighted.collect::<Vec<u64>>());
        let tags = self.sender.coordinates(tag_maker).tags(&tag_maker.own, &sites, &lanes)?;
        let mut maker = MaskMaker::new(&self.prf, request.round, width);
        for term in masking.terms(self.sender.client()) {
            maker.at(term.client, &sites, |k, mask| {
                let mask = if term.negative { mask.wrapping_neg() } else { mask };
                lanes[k] = lanes[k].wrapping_add(mask) & bits::lane_mask(width);
            });
        }
        let mut payload = vec![masking as u8];
        positions::encode(&sites, layout.elements(), &mut payload);
        let at = payload.len();
        payload.resize(at + bits::packed_len(lanes.len(), width), 0);
        bits::pack(&lanes, width, &mut payload[at..]);
        coordinates::write(&tags, &mut payload);
        let digest = FrameDigest::of(&payload);
        payload.extend_from_slice(&tag_maker.end(PolyEval::default(), &digest));

        let kept = selection
            .chosen
            .iter()
            .map(|d| (*d as usize, dequantised(layout, tag_maker.levels, *d as usize, ints[*d as usize])));
        let kept: Vec<_> = kept.collect();
        ints.zeroize();
        self.residual.keep(selection.values, kept.into_iter());
        claimed.header().build(payload.len(), place, |out| {
            out.copy_from_slice(&payload);
            Ok(())
        })
    }
}

/// Encrypts the pieces of a dense update. A piece is a run of masked lanes.
struct DensePieces {
    claimed: ClaimedRound,
    elements: usize,
    masking: [u8; 1],
    round: RoundId,
    prf: Arc<Prf>,
    terms: Vec<Term>,
    pieces: Pieces,
}

impl PieceEncryptor for DensePieces {
    fn claimed(&self) -> &ClaimedRound {
        &self.claimed
    }

    fn prefix(&self) -> &[u8] {
        &self.masking
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.cuts.pieces
    }

    fn threads(&self) -> Threads {
        Threads::for_elements(self.elements)
    }

    fn encrypt_piece(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<PolyEval> {
        let (piece, width) = (&self.pieces.cuts.pieces[index], self.pieces.cuts.widths[index]);
        let mut maker = MaskMaker::new(&self.prf, self.round, width);
        let tag_maker = self.claimed.tag_maker();
        let mut hasher = tag_maker.mac.hasher(piece.start);
        let source = |d: usize, ints: &mut [u32]| {
            update.quantise(tag_maker.levels, piece.start + d, ints)?;
            hasher.fields(ints);
            Ok(())
        };
        let weight = tag_maker.factor();
        encrypt_run(&mut maker, &self.terms, self.pieces.blocks[index], piece.len, weight, source, out)?;
        Ok(tag_maker.scale_by_weight(hasher.hash()))
    }
}

/// The real value of the integer `q` at element `d`.
fn dequantised(layout: &Layout, levels: Levels, d: usize, q: u32) -> f32 {
    let mut end = 0;
    let tensor = layout.tensors().iter().find(|t| {
        end += t.len();
        d < end
    });
    tensor.map_or(0.0, |t| {
        let levels = levels.of(t.bits) as f64;
        ((f64::from(q) - levels / 2.0) * 2.0 * f64::from(t.alpha) / levels) as f32
    })
}

impl EncryptKernel for FlasheEncryptor {
    fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>> {
        match self.params.per_client_top {
            None => Ok(Some(Encryption::new(self.dense(terms)?))),
            Some(_) => Ok(None),
        }
    }

    fn encrypt_whole(&mut self, request: &Request<'_>, place: &mut dyn FrameBuffer) -> Result<()> {
        let top = self.params.per_client_top.ok_or_else(|| Error::layout("an update that is encrypted by pieces"))?;
        self.sparse(request, top, place)
    }

    /// Computes no masks ahead, because reading them from memory would take as long as computing them. Fails early,
    /// before training and before the round is claimed, for an update that cannot be encrypted.
    fn precompute(&mut self, round: RoundId, layout: &Layout, round_plan: &[u8]) -> Result<()> {
        self.masking(round_plan)?;
        match self.params.per_client_top {
            None => self.params.lanes(layout).map(drop)?,
            Some(_) => self.params.sparse_width(layout).map(drop)?,
        }
        self.sender.reserve(round)
    }

    fn residual(&mut self) -> Option<&mut dyn CarriedResidual> {
        self.params.per_client_top.is_some().then_some(self as &mut dyn CarriedResidual)
    }
}

impl CarriedResidual for FlasheEncryptor {
    fn export_state(&self) -> Vec<u8> {
        self.residual.export()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<()> {
        self.residual.import(state)
    }
}
