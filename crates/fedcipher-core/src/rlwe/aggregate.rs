//! The server's side: c0 added mod q; c1 only when clients do not derive it.

use super::Form;
use super::params::{Block, Derived};
use crate::admission::Admission;
use crate::bits::{BitWriter, check_stream, packed_len, read_bits};
use crate::keys::ServerKey;
use crate::scheme::{Aggregator, Progress};
use crate::wire::{Contribution, Reader};
use crate::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct BfvAggregator {
    derived: Arc<Derived>,
    admission: Admission,
    /// Running sum of c0, one vector a ciphertext.
    sum: Vec<Vec<u128>>,
    seeds: BTreeMap<u32, ([u8; 32], u64)>,
}

impl BfvAggregator {
    pub fn new(derived: Arc<Derived>, key: &ServerKey, round: Option<u64>) -> Self {
        let admission = Admission::new(key, derived.params.rules(), round);
        BfvAggregator { derived, admission, sum: Vec::new(), seeds: BTreeMap::new() }
    }

    /// `sum scale * a` of one ciphertext, as coefficients mod q, negated: the aggregate's c1.
    fn c1(&self, index: usize) -> Result<Vec<u128>> {
        let ring = &self.derived.ring;
        let mut a = ring.zero();
        for (seed, scale) in self.seeds.values() {
            ring.accumulate_a(seed, index as u64, *scale, &mut a)?;
        }
        Ok(ring.coefficients(&a).into_iter().map(|x| ring.sub(0, x)).collect())
    }
}

/// Coefficients in the wire's bits.
fn pack(values: impl ExactSizeIterator<Item = u128>, bits: u32) -> Vec<u8> {
    let mut out = vec![0u8; packed_len(values.len(), bits)];
    let mut writer = BitWriter::new(&mut out);
    values.for_each(|v| writer.push(v, bits));
    writer.finish();
    out
}

impl Aggregator for BfvAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let d = Arc::clone(&self.derived);
        let admitted = self.admission.check(frame)?;
        let factor = admitted.factor;
        let blocks = d.shape(&admitted.layout)?;
        let mut r = Reader::new(admitted.payload);
        let seed = r.array()?;
        let wire_bits = d.wire_bits(d.up_drop);
        let mut parts = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let bytes = r.bytes(packed_len(block.used, wire_bits))?;
            check_stream(bytes, block.used, wire_bits)?;
            parts.push(bytes);
        }
        r.finish()?;
        let limit = d.compress(d.ring.q - 1, d.up_drop);
        let valid = parts.par_iter().zip(&blocks).all(|(bytes, block)| {
            (0..block.used).all(|k| read_bits(bytes, k * wire_bits as usize, wire_bits) <= limit)
        });
        if !valid {
            return Err(Error::Frame { reason: "a ciphertext coefficient is not below q".into() });
        }
        if self.sum.is_empty() {
            self.sum = blocks.iter().map(|b| vec![0; b.used]).collect();
        }
        self.sum.par_iter_mut().zip(&parts).try_for_each(|(sum, bytes)| {
            for (k, slot) in sum.iter_mut().enumerate() {
                let c0 = d.expand(read_bits(bytes, k * wire_bits as usize, wire_bits), d.up_drop)?;
                let c0 = if factor == 1 { c0 } else { d.ring.scale(c0, factor) };
                *slot = d.ring.add(*slot, c0);
            }
            Ok::<(), Error>(())
        })?;
        self.seeds.insert(admitted.contribution.client, (seed, factor));
        Ok(self.admission.commit(admitted))
    }

    fn finish_with(&mut self, _progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let d = Arc::clone(&self.derived);
        let header = self.admission.aggregate_header()?;
        let sums = std::mem::take(&mut self.sum);
        let mut payload = Vec::new();
        if d.derive_c1 {
            payload.push(Form::Derive as u8);
            for (seed, scale) in self.seeds.values() {
                payload.extend_from_slice(seed);
                payload.extend_from_slice(&scale.to_le_bytes());
            }
            let bits = d.wire_bits(d.down_drop);
            let parts: Vec<_> =
                sums.par_iter().map(|c0| pack(c0.iter().map(|x| d.compress(*x, d.down_drop)), bits)).collect();
            parts.iter().for_each(|part| payload.extend_from_slice(part));
        } else {
            let (form, bits) = (d.form(), d.small_ring.as_ref().unwrap_or(&d.ring).log_q());
            let switch = |x: u128| if form == Form::Switched { d.ring.switch(x) } else { x };
            payload.push(form as u8);
            let parts = sums.par_iter().enumerate().map(|(index, c0)| {
                let c1 = self.c1(index)?;
                Ok([pack(c0.iter().map(|x| switch(*x)), bits), pack(c1.iter().map(|x| switch(*x)), bits)])
            });
            let parts = parts.collect::<Result<Vec<_>>>()?;
            parts.iter().flatten().for_each(|part| payload.extend_from_slice(part));
        }
        payload.extend_from_slice(&self.admission.tag().to_bytes());
        Ok(header.frame(&payload))
    }
}

/// How an aggregate gives its c1; in the payload each c0 is followed by its c1, if that is sent.
pub enum Second {
    /// Seeds and scales of all clients.
    Derive(Vec<([u8; 32], u64)>),
    Sent {
        switched: bool,
    },
}

impl Second {
    /// Most bytes before the first ciphertext of an aggregate of `clients` contributions.
    pub fn prefix_len(clients: usize) -> usize {
        1 + 40 * clients
    }

    /// Parses the beginning of a payload: (c1, bytes before the first ciphertext). Only the form that the parameters
    /// prescribe, and only the scales that the header's weights do: with another form or scale a server could have
    /// any ciphertext of its making decrypted.
    pub fn parse(d: &Derived, contributions: &[Contribution], payload: &[u8]) -> Result<(Self, usize)> {
        let mut r = Reader::new(payload);
        let form = Form::parse(r.u8()?)?;
        if form != d.form() {
            return Err(Error::Frame {
                reason: format!("an aggregate in form {form:?} where these parameters have {:?}", d.form()),
            });
        }
        if form != Form::Derive {
            return Ok((Second::Sent { switched: form == Form::Switched }, 1));
        }
        let weighting = d.params.rules().weighting;
        let mut seeds = Vec::with_capacity(contributions.len());
        for c in contributions {
            let (seed, scale) = (r.array()?, r.u64()?);
            if scale != weighting.factor(c.weight) {
                return Err(Error::Frame {
                    reason: format!("client {} is scaled by another number than its weight", c.client),
                });
            }
            seeds.push((seed, scale));
        }
        Ok((Second::Derive(seeds), Self::prefix_len(contributions.len())))
    }

    /// Wire bits of a coefficient.
    pub fn bits(&self, d: &Derived) -> u32 {
        match (self, &d.small_ring) {
            (Second::Derive(_), _) => d.wire_bits(d.down_drop),
            (Second::Sent { switched: true }, Some(small)) => small.log_q(),
            (Second::Sent { .. }, _) => d.ring.log_q(),
        }
    }

    /// Bytes of a ciphertext's c0 and c1.
    pub fn lens(&self, d: &Derived, block: &Block) -> [usize; 2] {
        let bits = self.bits(d);
        let second = match self {
            Second::Derive(_) => 0,
            Second::Sent { .. } => packed_len(d.ring.n, bits),
        };
        [packed_len(block.used, bits), second]
    }
}
