//! The client's side. Offline: `a s + e` for as many ciphertexts as an update takes. Online: quantise,
//! pack, one scaled addition, bits to the wire.

use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::bits::{BitWriter, packed_len};
use crate::client::Sender;
use crate::codec::{Layout, Update};
use crate::keys::ClientKey;
use crate::mac::{Hash, Stamp};
use crate::prf::{Stream, random_bytes};
use crate::scheme::{Encryptor, Request, Terms};
use crate::stream::{self, Piece, Sealer, Sealing, Threads};
use crate::wire::{Header, Place};
use crate::{Error, Result};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Ready-made `a s + e` under one fresh seed, used for one update and then gone.
struct Offline {
    seed: [u8; 32],
    masks: Vec<Mask>,
    /// Whose it is: a process forked off must not use it again.
    process: u32,
}

pub struct BfvEncryptor {
    derived: Arc<Derived>,
    sender: Sender,
    secret: Arc<SecretNtt>,
    ready: Option<Offline>,
}

/// `a s + e` of one ciphertext, and e, which is in the tag.
pub(crate) struct Mask {
    sum: Zeroizing<Vec<u128>>,
    errors: Zeroizing<Vec<i8>>,
}

/// The mask of ciphertext `index`.
fn mask(d: &Derived, secret: &SecretNtt, seed: &[u8; 32], index: usize, block: &Block) -> Result<Mask> {
    let ring = &d.ring;
    let mut a = ring.zero();
    ring.accumulate_a(seed, index as u64, 1, &mut a)?;
    let mut sum = ring.times_secret(a, secret, block.used);
    let mut draws = Stream::from_os()?;
    let mut errors = Zeroizing::new(vec![0i8; block.used]);
    for (c, e) in sum.iter_mut().zip(errors.iter_mut()) {
        *e = d.error.draw(&mut draws);
        *c = ring.add(*c, ring.lift(*e));
    }
    Ok(Mask { sum, errors })
}

impl BfvEncryptor {
    pub fn new(derived: Arc<Derived>, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let secret = Arc::new(derived.ring.secret_ntt(&key.secret)?);
        let sender = Sender::new(key, derived.params.rules(), state)?;
        Ok(BfvEncryptor { derived, sender, secret, ready: None })
    }

    fn start(&mut self, terms: &Terms<'_>) -> Result<CipherSealer> {
        let d = Arc::clone(&self.derived);
        let blocks = d.shape(terms.layout)?;
        let (header, stamp) = self.sender.start(terms, terms.layout)?;
        let fits = |o: &Offline| {
            o.process == std::process::id()
                && o.masks.len() == blocks.len()
                && o.masks.iter().zip(&blocks).all(|(m, b)| m.sum.len() == b.used)
        };
        let (seed, masks) = match self.ready.take().filter(fits) {
            Some(ready) => (ready.seed, ready.masks),
            None => (*random_bytes::<32>()?, Vec::new()),
        };
        let (secret, prefix) = (Arc::clone(&self.secret), seed.to_vec());
        let pieces = cut(&blocks, prefix.len(), |block| packed_len(block.used, d.wire_bits(d.up_drop)));
        Ok(CipherSealer { derived: d, secret, header, stamp, seed, prefix, masks, blocks, pieces })
    }
}

/// An update: a piece is one ciphertext's c0.
pub(crate) struct CipherSealer {
    pub derived: Arc<Derived>,
    pub secret: Arc<SecretNtt>,
    pub header: Header,
    pub stamp: Stamp,
    /// What a is made of.
    pub seed: [u8; 32],
    pub prefix: Vec<u8>,
    /// Made in the offline phase, or none.
    pub masks: Vec<Mask>,
    pub blocks: Vec<Block>,
    pub pieces: Vec<Piece>,
}

impl Sealer for CipherSealer {
    fn header(&self) -> &Header {
        &self.header
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    fn seal(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<Hash> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        let weight = self.stamp.weight();
        let mut hasher = self.stamp.mac.hasher(block.start);
        let made;
        let mask = match self.masks.get(index) {
            Some(mask) => mask,
            None => {
                made = mask(d, &self.secret, &self.seed, index, block)?;
                &made
            }
        };
        let wire_bits = d.wire_bits(d.up_drop);
        let mut writer = BitWriter::new(out);
        let mut noise = Zeroizing::new(vec![0u32; block.used]);
        let mut slots = mask.sum.iter().zip(mask.errors.iter()).zip(noise.iter_mut());
        // What dropping bits adds is half a unit less the bits that go; the whole is shifted to be no less than zero.
        let half = (1u32 << d.up_drop) >> 1;
        let (low, most) = ((1u32 << d.up_drop) - 1, d.fresh_noise() as u32 + half);
        let step = block.fields.count * 256;
        let mut ints = [0u32; 256 * 32];
        let mut done = 0;
        while done < block.len {
            let n = step.min(block.len - done);
            // A field has at least 4 bits and a coefficient at most 105: 26 fields fit the buffer.
            let ints = &mut ints[..n];
            update.quantise(block.start + done, ints)?;
            hasher.fields(ints);
            block.fields.pack(ints, weight, |m| {
                let Some(((mask, error), noise)) = slots.next() else { return };
                let c0 = d.ring.add(*mask, d.delta.wrapping_mul(m));
                let gone = (c0 as u32).wrapping_add(half) & low;
                *noise = most.wrapping_add_signed(i32::from(*error)).wrapping_sub(gone);
                writer.push(d.compress(c0, d.up_drop), wire_bits);
            });
            done += n;
        }
        ints.zeroize();
        writer.finish();
        let mut hash = self.stamp.weighed(hasher.hash());
        let mut noises = self.stamp.mac.noise_hasher(index * d.ring.n);
        noises.fields(&noise);
        hash += noises.hash();
        Ok(hash)
    }
}

/// One piece a ciphertext, of `bytes(block)` bytes, behind `prefix` bytes.
pub(crate) fn cut(blocks: &[Block], prefix: usize, bytes: impl Fn(&Block) -> usize) -> Vec<Piece> {
    let mut at = prefix;
    let piece = |block: &Block| {
        let piece = Piece { start: block.start, len: block.len, at, bytes: bytes(block) };
        at += piece.bytes;
        piece
    };
    blocks.iter().map(piece).collect()
}

impl Encryptor for BfvEncryptor {
    fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn Place) -> Result<()> {
        stream::seal_all(&self.start(&request.terms())?, request.update, place, Threads::All)
    }

    fn sealer(&mut self, terms: &Terms<'_>) -> Result<Option<Sealing>> {
        Ok(Some(Sealing::new(self.start(terms)?)))
    }

    /// The offline phase for the next update of this layout.
    fn precompute(&mut self, round: u64, layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.sender.reserve(round)?;
        let seed = *random_bytes::<32>()?;
        let blocks = self.derived.shape(layout)?;
        let masks = blocks.par_iter().enumerate().map(|(k, block)| mask(&self.derived, &self.secret, &seed, k, block));
        self.ready = Some(Offline { seed, masks: masks.collect::<Result<_>>()?, process: std::process::id() });
        Ok(())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<()> {
        if state.is_empty() {
            return Ok(());
        }
        Err(Error::Unsupported { scheme: "bfv", operation: "client state", reason: "BFV clients keep none" })
    }
}
