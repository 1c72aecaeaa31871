//! The client's side. Offline: `a s + e` for as many ciphertexts as an update takes. Online: quantise,
//! pack, one scaled addition, bits to the wire.

use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::admission::check_weight;
use crate::bits::{BitWriter, packed_len};
use crate::codec::Layout;
use crate::keys::{ClientKey, KeyTag};
use crate::prf::{Stream, random_bytes};
use crate::scheme::{Encryptor, Request};
use crate::wire::{Contribution, Kind, Place};
use crate::{Error, Result};
use rayon::prelude::*;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Ready-made `a s + e` under one fresh seed, used for one update and then gone.
struct Offline {
    seed: [u8; 32],
    masks: Vec<Zeroizing<Vec<u128>>>,
}

pub struct BfvEncryptor {
    derived: Arc<Derived>,
    tag: KeyTag,
    client: u32,
    secret: SecretNtt,
    ready: Option<Offline>,
}

impl BfvEncryptor {
    pub fn new(derived: Arc<Derived>, key: &ClientKey) -> Result<Self> {
        let secret = derived.ring.secret_ntt(&key.secret)?;
        Ok(BfvEncryptor { derived, tag: key.tag.clone(), client: key.client, secret, ready: None })
    }

    fn offline(&self, blocks: &[Block]) -> Result<Offline> {
        let ring = &self.derived.ring;
        let seed = *random_bytes::<32>()?;
        let mask = |(index, block): (usize, &Block)| {
            let mut a = ring.zero();
            ring.accumulate_a(&seed, index as u64, 1, &mut a)?;
            let mut mask = ring.times_secret(a, &self.secret, block.used);
            let mut errors = Stream::from_os()?;
            for c in mask.iter_mut() {
                *c = ring.add(*c, ring.error(&mut errors));
            }
            Ok(mask)
        };
        let masks = blocks.par_iter().enumerate().map(mask).collect::<Result<_>>()?;
        Ok(Offline { seed, masks })
    }

    /// One ciphertext's c0 into its slice of the payload.
    fn online(&self, request: &Request<'_>, block: &Block, mask: &[u128], out: &mut [u8]) -> Result<()> {
        let d = &self.derived;
        let weight = if d.params.server_weights { 1 } else { request.weight };
        let wire_bits = d.wire_bits(d.up_drop);
        let mut writer = BitWriter::new(out);
        let mut masks = mask.iter();
        let step = block.fields.count * 256;
        let mut ints = [0u32; 256 * 32];
        let mut done = 0;
        while done < block.len {
            let n = step.min(block.len - done);
            // A field has at least 4 bits and a coefficient at most 108: 27 fields fit the buffer.
            let ints = &mut ints[..n];
            request.update.quantise(block.start + done, ints)?;
            block.fields.pack(ints, weight, |m| {
                let mask = masks.next().copied().unwrap_or_default();
                let c0 = d.ring.add(mask, d.delta.wrapping_mul(m));
                writer.push(d.compress(c0, d.up_drop), wire_bits);
            });
            done += n;
        }
        ints.zeroize();
        writer.finish();
        Ok(())
    }
}

impl Encryptor for BfvEncryptor {
    fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn Place) -> Result<()> {
        let d = Arc::clone(&self.derived);
        check_weight(self.client, request.weight, d.params.bounds.max_weight)?;
        let layout = request.update.layout();
        let blocks = d.shape(layout)?;
        let fits =
            |o: &Offline| o.masks.len() == blocks.len() && o.masks.iter().zip(&blocks).all(|(m, b)| m.len() == b.used);
        let offline = match self.ready.take().filter(fits) {
            Some(ready) => ready,
            None => self.offline(&blocks)?,
        };
        let own = vec![Contribution { client: self.client, weight: request.weight }];
        let header = self.tag.round_header(Kind::Update, request.round, own, layout);

        let sizes: Vec<usize> = blocks.iter().map(|b| packed_len(b.used, d.wire_bits(d.up_drop))).collect();
        let total: usize = sizes.iter().sum();
        header.build(offline.seed.len() + total, place, |payload| {
            let (seed, mut rest) = payload.split_at_mut(offline.seed.len());
            seed.copy_from_slice(&offline.seed);
            let mut jobs = Vec::with_capacity(blocks.len());
            for ((block, mask), size) in blocks.iter().zip(offline.masks).zip(&sizes) {
                let (slice, tail) = rest.split_at_mut(*size);
                rest = tail;
                jobs.push((block, mask, slice));
            }
            let encrypt = |(block, mask, slice): (&Block, Zeroizing<Vec<u128>>, &mut [u8])| {
                self.online(request, block, &mask, slice)
            };
            jobs.into_par_iter().try_for_each(encrypt)
        })
    }

    /// The offline phase for the next update of this layout.
    fn precompute(&mut self, _round: u64, layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.ready = Some(self.offline(&self.derived.shape(layout)?)?);
        Ok(())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<()> {
        if state.is_empty() {
            return Ok(());
        }
        Err(Error::Unsupported { scheme: "bfv", operation: "client state", reason: "BFV clients keep none" })
    }
}
