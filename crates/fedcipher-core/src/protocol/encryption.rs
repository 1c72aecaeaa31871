//! Encryption of an update: header, every piece once and in order, then tag and signature.

use super::Prekeys;
use super::pieces::{slots, whole};
use super::{ClaimedRound, FrameDigest, Piece};
use crate::codec::{Layout, Update};
use crate::mac::PolyEval;
use crate::request::{Request, Terms};
use crate::statement::END_LEN;
use crate::threads::Threads;
use crate::wire::{Checksum, FrameBuffer};
use crate::{Error, Result, RoundId};
use rayon::prelude::*;

/// One scheme's part of an update's encryption. [`Encryptor`] drives it.
pub(crate) trait EncryptKernel: Send {
    /// Claims the round and begins an update of independent pieces. `None` if all bytes depend on all values.
    fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>>;

    /// Encrypts one update at once, if [`Self::start`] returns `None`.
    fn encrypt_whole(&mut self, _request: &Request<'_>, _place: &mut dyn FrameBuffer) -> Result<()> {
        Err(Error::layout("an update that is encrypted by pieces"))
    }

    /// See [`Encryptor::precompute`].
    fn precompute(&mut self, round: RoundId, layout: &Layout, plan: &[u8]) -> Result<()>;

    /// The taker of the committee's prekeys; `None` if the scheme has no committee.
    fn prekeys(&mut self) -> Option<&mut dyn Prekeys> {
        None
    }

    /// See [`Encryptor::setup_bytes`].
    fn setup_bytes(&self) -> usize {
        0
    }

    /// See [`Encryptor::residual`].
    fn residual(&mut self) -> Option<&mut dyn CarriedResidual> {
        None
    }
}

/// The residual of error feedback. The client must carry it across processes and keep it secret.
pub trait CarriedResidual {
    fn export_state(&self) -> Vec<u8>;

    fn import_state(&mut self, state: &[u8]) -> Result<()>;
}

/// Encrypts a client's updates.
pub struct Encryptor(Box<dyn EncryptKernel>);

impl Encryptor {
    pub(crate) fn new(kernel: impl EncryptKernel + 'static) -> Self {
        Encryptor(Box::new(kernel))
    }

    /// Claims the round and begins an update that is encrypted piece by piece. `None` if a piece depends on the whole
    /// update.
    pub fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>> {
        self.0.start(terms)
    }

    /// Encrypts one update into one frame, in memory from `place`.
    pub fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn FrameBuffer) -> Result<()> {
        match self.0.start(&request.terms())? {
            Some(frame) => frame.encrypt_all(request.update, place),
            None => self.0.encrypt_whole(request, place),
        }
    }

    /// Encrypts one update into one frame.
    pub fn encrypt(&mut self, request: &Request<'_>) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        self.encrypt_into(request, &mut frame)?;
        Ok(frame)
    }

    /// Does the work that does not depend on the data: claims `round`, and precomputes if the scheme can.
    pub fn precompute(&mut self, round: RoundId, layout: &Layout, plan: &[u8]) -> Result<()> {
        self.0.precompute(round, layout, plan)
    }

    /// Calls [`Prekeys::take_prekeys`]; does nothing if the scheme has no committee.
    pub fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>> {
        self.0.prekeys().map_or(Ok(Vec::new()), |prekeys| prekeys.take_prekeys(frames))
    }

    /// Bytes of the last frame that are sent only once per key epoch.
    #[must_use]
    pub fn setup_bytes(&self) -> usize {
        self.0.setup_bytes()
    }

    /// The part of its updates that the client has held back; `None` if it sends everything.
    pub fn residual(&mut self) -> Option<&mut dyn CarriedResidual> {
        self.0.residual()
    }

    /// Calls [`CarriedResidual::import_state`]. Without a residual, only an empty state is accepted.
    pub fn import_residual(&mut self, state: &[u8]) -> Result<()> {
        match self.residual() {
            Some(residual) => residual.import_state(state),
            None if state.is_empty() => Ok(()),
            None => Err(Error::layout("state of a client that keeps part of its updates, and this one keeps none")),
        }
    }
}

/// One scheme's part of an update whose round is claimed. An [`Encryption`] drives it. To encrypt a piece twice would
/// put two messages under one mask.
pub(crate) trait PieceEncryptor: Send + Sync {
    fn claimed(&self) -> &ClaimedRound;

    /// Payload bytes before the first piece.
    fn prefix(&self) -> &[u8];

    /// The pieces: contiguous and increasing, in elements and in bytes.
    fn pieces(&self) -> &[Piece];

    /// Encrypts piece `index` of `update`, which must hold that piece's elements. Returns the piece's part of the tag's
    /// polynomial.
    fn encrypt_piece(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<PolyEval>;

    /// The threads that encrypt an update in memory.
    fn threads(&self) -> Threads {
        Threads::All
    }

    /// The payload's last bytes, from the polynomial of all pieces and the digest of prefix and pieces.
    fn end(&self, hash: PolyEval, digest: &[u8; 32]) -> Result<Vec<u8>> {
        Ok(self.claimed().tag_maker().end(hash, digest).to_vec())
    }

    /// The length of [`Self::end`] in bytes.
    fn end_len(&self) -> usize {
        END_LEN
    }
}

/// An update during its encryption; its round is claimed.
pub struct Encryption {
    sealer: Box<dyn PieceEncryptor>,
    /// Whether header and prefix have been written.
    begun: bool,
    /// The number of pieces encrypted.
    next: usize,
    hash: PolyEval,
    digest: FrameDigest,
    checksum: Checksum,
}

impl Encryption {
    pub(crate) fn new(sealer: impl PieceEncryptor + 'static) -> Self {
        let mut digest = FrameDigest::default();
        digest.update(sealer.prefix());
        Encryption {
            sealer: Box::new(sealer),
            begun: false,
            next: 0,
            hash: PolyEval::default(),
            digest,
            checksum: Checksum::default(),
        }
    }

    fn payload_len(&self) -> usize {
        Piece::end(self.sealer.pieces(), self.sealer.prefix().len()) + self.sealer.end_len()
    }

    /// Bytes of the whole frame.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        self.sealer.claimed().header().frame_len(self.payload_len())
    }

    /// The number of values that whole pieces take of the next `elements` values.
    #[must_use]
    pub fn whole(&self, elements: usize) -> usize {
        whole(self.sealer.pieces(), self.next, elements, |piece| piece.len).1
    }

    /// Appends the frame's next bytes to `out`: the whole pieces in `window`. Uses all threads.
    pub fn push(&mut self, window: &Update<'_>, out: &mut Vec<u8>) -> Result<()> {
        let at = out.len();
        self.begin(out);
        let range = window.range();
        let (count, used) = whole(self.sealer.pieces(), self.next, range.len(), |piece| piece.len);
        let pieces = &self.sealer.pieces()[self.next..self.next + count];
        if used != range.len() || pieces.first().is_some_and(|piece| piece.start != range.start) {
            return Err(Error::layout("values that are not those of the next pieces"));
        }
        // Counted first: even after an error, no piece is encrypted again.
        let first = self.next;
        self.next += count;
        let begun = out.len();
        out.resize(begun + pieces.iter().map(|piece| piece.bytes).sum::<usize>(), 0);
        let slots = slots(pieces, &mut out[begun..]).into_par_iter().enumerate();
        self.hash +=
            slots.map(|(k, slot)| self.sealer.encrypt_piece(first + k, window, slot)).sum::<Result<PolyEval>>()?;
        self.digest.update(&out[begun..]);
        self.checksum.update(&out[at..]);
        Ok(())
    }

    /// Writes header and prefix before the first piece.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&self.sealer.claimed().header().head(self.payload_len()));
            out.extend_from_slice(self.sealer.prefix());
        }
    }

    /// The frame's last bytes: tag, signature, checksum. Fails while pieces are missing.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        if self.next < self.sealer.pieces().len() {
            return Err(Error::layout("an update that ends before its last piece"));
        }
        let mut end = Vec::new();
        self.begin(&mut end);
        end.extend_from_slice(&self.sealer.end(self.hash, &self.digest.finish())?);
        self.checksum.update(&end);
        end.extend_from_slice(&self.checksum.finish());
        Ok(end)
    }

    /// Encrypts an update in memory into a whole frame in `place`.
    fn encrypt_all(self, update: &Update<'_>, place: &mut dyn FrameBuffer) -> Result<()> {
        let payload_len = self.payload_len();
        let Encryption { sealer, mut digest, .. } = self;
        sealer.claimed().header().build(payload_len, place, |payload| {
            let (head, rest) = payload.split_at_mut(sealer.prefix().len());
            head.copy_from_slice(sealer.prefix());
            let (pieces, end) = rest.split_at_mut(rest.len() - sealer.end_len());
            let mut hash = PolyEval::default();
            match sealer.threads().there() {
                Threads::One => {
                    for (index, slot) in slots(sealer.pieces(), pieces).into_iter().enumerate() {
                        hash += sealer.encrypt_piece(index, update, slot)?;
                        // While the piece is in the cache.
                        digest.update(slot);
                    }
                }
                Threads::All => {
                    let slots = slots(sealer.pieces(), pieces).into_par_iter().enumerate();
                    hash = slots
                        .map(|(index, slot)| sealer.encrypt_piece(index, update, slot))
                        .sum::<Result<PolyEval>>()?;
                    digest.update_by_all(pieces);
                }
            }
            end.copy_from_slice(&sealer.end(hash, &digest.finish())?);
            Ok(())
        })
    }
}
