//! The client's side: `round((c0 + c1 s) / delta)`, with c1 derived from the cohort's seeds.

use super::accelerator::{Decoded, Session, SumJob};
use super::aggregate::{prefix_len, seeds};
use super::encrypt::{cut, device};
use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::admission::check_sums;
use crate::bits::{check_stream, unpack_wide};
use crate::keys::ClientKey;
use crate::mac::field::Element;
use crate::mac::{PolyEval, RoundMac};
use crate::protocol::{CheckedHead, DecryptKernel, Piece, PieceDecryptor, Receiver};
use crate::shown::shown;
use crate::{Error, Result, TotalWeight};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct BfvDecryptor {
    derived: Arc<Derived>,
    receiver: Arc<Receiver>,
    secret: Arc<SecretNtt>,
    session: Option<Arc<Session>>,
}

/// Decrypts the pieces of an aggregate. A piece is one ciphertext.
pub(crate) struct CipherDecryptor {
    derived: Arc<Derived>,
    secret: Arc<SecretNtt>,
    /// A device that has the secret.
    session: Option<Arc<Session>>,
    blocks: Vec<Block>,
    pieces: Vec<Piece>,
    /// `None` for a party without a MAC key.
    mac: Option<RoundMac>,
    /// The sum of the pads that the clients have drawn; `None` if they draw none.
    pub pads: Option<Zeroizing<Element>>,
    /// The seed of each part of c1, with its factor.
    seeds: Vec<([u8; 32], u64)>,
    prefix: usize,
    weight: TotalWeight,
    /// Ciphertexts in the sum.
    terms: u128,
}

impl BfvDecryptor {
    pub fn new(
        derived: Arc<Derived>,
        key: &ClientKey,
        state: Option<&Path>,
        session: Option<Arc<Session>>,
    ) -> Result<Self> {
        let secret = Arc::new(derived.ring.secret_ntt(&key.secret)?);
        let receiver = Arc::new(Receiver::new(key, derived.params.rules(), state)?);
        Ok(BfvDecryptor { derived, receiver, secret, session })
    }
}

impl CipherDecryptor {
    /// A decryptor for a sum of `terms` ciphertexts that begins `prefix` bytes behind the payload's beginning.
    pub fn new(
        derived: &Arc<Derived>,
        secret: Arc<SecretNtt>,
        checked: &CheckedHead,
        seeds: Vec<([u8; 32], u64)>,
        terms: u128,
        prefix: usize,
    ) -> Result<Self> {
        let blocks = derived.shape(checked.layout())?;
        Ok(CipherDecryptor {
            derived: Arc::clone(derived),
            secret,
            session: None,
            pieces: cut(&blocks, prefix, Block::down_bytes),
            blocks,
            mac: checked.verifier().map(|verifier| verifier.mac.clone()),
            pads: None,
            seeds,
            prefix,
            weight: checked.header().total_weight(),
            terms,
        })
    }

    /// Reads the coefficients of a sum mod q from the bytes of its parts.
    fn coefficients(&self, block: &Block, mut c0: &[u8]) -> Result<Vec<u128>> {
        let mut sums = vec![0; block.used()];
        for part in &block.parts {
            let modulus = &part.packing.modulus;
            let short = || Error::frame("a ciphertext ends before its last part");
            let (own, behind) = c0.split_at_checked(part.down_bytes()).ok_or_else(short)?;
            check_stream(own, part.used, modulus.down_bits)?;
            let sums = &mut sums[part.first..part.first + part.used];
            unpack_wide(own, modulus.down_bits, sums);
            for sum in sums {
                *sum = modulus.expand_sum(*sum)?;
            }
            c0 = behind;
        }
        Ok(sums)
    }

    /// The plaintext and noise of each coefficient of ciphertext `index`.
    fn decode(&self, index: usize, c0: &[u8]) -> Result<Decoded> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        let sums = self.coefficients(block, c0)?;
        let public = || -> Result<_> {
            let mut a = d.ring.zero();
            for (seed, scale) in &self.seeds {
                d.ring.accumulate_a(seed, index as u64, *scale, &mut a)?;
            }
            Ok(a)
        };
        if let Some(session) = device(self.session.as_ref(), d, block) {
            let job = || -> Result<_> { Ok(SumJob { a: public()?, c0: sums.clone() }) };
            if let Some(decoded) = session.decrypt(session.host(job)?)? {
                return Ok(decoded);
            }
        }
        let product = d.ring.times_secret(public()?, &self.secret, block.used());
        let mut decoded = Zeroizing::new(Vec::with_capacity(block.used()));
        let mut outside = 0;
        for part in &block.parts {
            let own = part.first..part.first + part.used;
            for (a_s, sum) in product[own.clone()].iter().zip(&sums[own]) {
                let (m, noise, none) = part.packing.modulus.decode(d.ring.sub(*sum, *a_s));
                decoded.push((m, noise));
                outside |= none;
            }
        }
        // A rejection is for the whole ciphertext, so that it does not reveal the coefficient that caused it.
        if shown(outside != 0) {
            return Err(Error::Decrypt { reason: "a coefficient lies outside the plaintext space".into() });
        }
        Ok(decoded)
    }

    /// The noise's part of the tag. If the tag did not cover the noise, the success of opening a changed aggregate would
    /// reveal the size of its noise.
    fn noise(&self, index: usize, decoded: &[(u128, i128)]) -> Result<PolyEval> {
        let mut words = Zeroizing::new(Vec::with_capacity(decoded.len()));
        let mut beyond = false;
        for part in &self.blocks[index].parts {
            let offset = self.terms * part.packing.modulus.fresh_noise;
            let max = (2 * offset).min(u64::MAX.into());
            for (_, noise) in &decoded[part.first..part.first + part.used] {
                let shifted = noise.wrapping_add(offset as i128) as u128;
                beyond |= shifted > max;
                words.push(shifted as u64);
            }
        }
        if shown(beyond) {
            let reason = "a coefficient carries more noise than all clients together can add".into();
            return Err(Error::Decrypt { reason });
        }
        let Some(mac) = &self.mac else { return Ok(PolyEval::default()) };
        let mut hasher = mac.noise_hasher(index * self.derived.ring.n);
        hasher.sums(&words);
        Ok(hasher.hash())
    }
}

impl PieceDecryptor for CipherDecryptor {
    fn prefix(&self) -> usize {
        self.prefix
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn pads(&self) -> Option<&Element> {
        self.pads.as_deref()
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<PolyEval> {
        let (decoded, levels) = (self.decode(index, bytes)?, self.derived.params.bounds.levels());
        let (mut rest, mut above) = (sums, 0);
        for part in &self.blocks[index].parts {
            let (fields, (own, behind)) = (part.packing.fields, rest.split_at_mut(part.len));
            for ((m, _), own) in decoded[part.first..].iter().zip(own.chunks_mut(fields.count)) {
                above |= fields.above(*m, own.len());
                fields.unpack(*m, own);
            }
            check_sums(own, self.weight, levels.of(part.packing.bits))?;
            rest = behind;
        }
        if shown(above != 0) {
            return Err(Error::Decrypt { reason: "a coefficient has bits above its fields".into() });
        }
        self.noise(index, &decoded)
    }
}

impl DecryptKernel for BfvDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn prefix_len(&self, contributions: usize) -> usize {
        prefix_len(contributions)
    }

    fn opener(&self, checked: &CheckedHead, prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        let d = &self.derived;
        let seeds = seeds(d.params.rules().weighting, &checked.header().contributions, prefix)?;
        let terms: u128 = seeds.iter().map(|(_, scale)| u128::from(*scale)).sum();
        let prefix = prefix_len(seeds.len());
        let opener = CipherDecryptor::new(d, Arc::clone(&self.secret), checked, seeds, terms, prefix)?;
        Ok(Some(Box::new(CipherDecryptor { session: self.session.clone(), ..opener })))
    }
}
