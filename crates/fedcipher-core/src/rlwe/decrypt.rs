//! The client's side: `round((c0 + c1 s) / delta)`, with c1 derived from the cohort's seeds or received.

use super::aggregate::{Parts, parse};
use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::admission::{check_sums, open_aggregate};
use crate::bits::read_bits;
use crate::codec::SumSink;
use crate::keys::{ClientKey, KeyTag};
use crate::scheme::{Decryptor, Summary};
use crate::{Error, Result};
use rayon::prelude::*;
use std::sync::Arc;

/// Ciphertexts decrypted before their sums go to the sink: bounds memory for large models.
const BATCH: usize = 64;

pub struct BfvDecryptor {
    derived: Arc<Derived>,
    tag: KeyTag,
    secret: SecretNtt,
}

impl BfvDecryptor {
    pub fn new(derived: Arc<Derived>, key: &ClientKey) -> Result<Self> {
        let secret = derived.ring.secret_ntt(&key.secret)?;
        Ok(BfvDecryptor { derived, tag: key.tag.clone(), secret })
    }

    /// The plaintext coefficients of ciphertext `index`.
    fn plaintext(&self, parts: &Parts<'_>, index: usize, block: &Block) -> Result<Vec<u128>> {
        let d = &self.derived;
        let read = |bytes: &[u8], k: usize, bits: u32| read_bits(bytes, k * bits as usize, bits);
        match parts {
            Parts::Derive { seeds, c0 } => {
                let mut a = d.ring.zero();
                for (seed, scale) in seeds {
                    d.ring.accumulate_a(seed, index as u64, *scale, &mut a)?;
                }
                let product = d.ring.times_secret(a, &self.secret, block.used);
                let bits = d.wire_bits(d.down_drop);
                let c0 = c0[index];
                let coefficient = |(k, a_s): (usize, &u128)| {
                    let c0 = d.expand(read(c0, k, bits), d.down_drop)?;
                    d.decode(d.ring.sub(c0, *a_s))
                };
                product.iter().enumerate().map(coefficient).collect()
            }
            Parts::Full { switched, bits, c0, c1 } => {
                let small = d.small_ring.as_ref().filter(|_| *switched);
                let ring = small.unwrap_or(&d.ring);
                let coefficient = |bytes: &[u8], k: usize| {
                    Some(read(bytes, k, *bits))
                        .filter(|x| *x < ring.q)
                        .ok_or_else(|| Error::Frame { reason: "a ciphertext coefficient is not below q".into() })
                };
                let c1 = (0..ring.n).map(|k| coefficient(c1[index], k)).collect::<Result<Vec<_>>>()?;
                let first;
                let secret = if small.is_some() {
                    first = self.secret.first();
                    &first
                } else {
                    &self.secret
                };
                let product = ring.times_secret(ring.residues(&c1), secret, block.used);
                let plaintext = |(k, c1_s): (usize, &u128)| {
                    let x = ring.add(coefficient(c0[index], k)?, *c1_s);
                    if small.is_some() { Ok(d.decode_switched(x, ring.q)) } else { d.decode(x) }
                };
                product.iter().enumerate().map(plaintext).collect()
            }
        }
    }

    fn sums(&self, parts: &Parts<'_>, index: usize, block: &Block, weight: u64) -> Result<Vec<u64>> {
        let mut sums = vec![0u64; block.len];
        let plaintext = self.plaintext(parts, index, block)?;
        for (m, fields) in plaintext.iter().zip(sums.chunks_mut(block.fields.count)) {
            block.fields.check(*m)?;
            block.fields.unpack(*m, fields);
        }
        check_sums(&sums, weight, block.bits)?;
        Ok(sums)
    }
}

impl Decryptor for BfvDecryptor {
    fn decrypt(&self, frame: &[u8], round: Option<u64>, sink: &mut dyn SumSink) -> Result<Summary> {
        let d = &self.derived;
        let (header, layout, payload) = open_aggregate(&self.tag, d.params.bounds, frame, round)?;
        let blocks = d.shape(&layout)?;
        let parts = parse(d, &blocks, header.contributions.len(), payload)?;
        let weight = header.total_weight();
        sink.begin(&layout, weight)?;
        for (batch, group) in blocks.chunks(BATCH).enumerate() {
            let first = batch * BATCH;
            let sums = group.par_iter().enumerate().map(|(k, block)| self.sums(&parts, first + k, block, weight));
            for (block, sums) in group.iter().zip(sums.collect::<Result<Vec<_>>>()?) {
                sink.put(block.start, &sums)?;
            }
        }
        Ok(Summary { header, layout, counts: None })
    }
}
