//! The server's side: adds c0 mod q. The server never has c1.

use super::params::{Block, Derived, Modulus, Part};
use crate::admission::Admission;
use crate::bits::{BitWriter, check_stream, packed_len, unpack_wide};
use crate::codec::Layout;
use crate::keys::ServerKey;
use crate::mac::Weighting;
use crate::scheme::{Aggregator, Progress};
use crate::threads::Threads;
use crate::wire::{Contribution, FrameBuffer, Reader};
use crate::{ClientId, Error, Result, RoundId};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct BfvAggregator {
    admission: Admission,
    sum: CipherSum,
    seeds: BTreeMap<ClientId, [u8; 32]>,
}

impl BfvAggregator {
    pub fn new(derived: Arc<Derived>, key: &ServerKey, round: Option<RoundId>) -> Self {
        let admission = Admission::new(key, derived.params.rules(), round);
        BfvAggregator { admission, sum: CipherSum::new(derived), seeds: BTreeMap::new() }
    }
}

/// A running sum of c0: one vector for each part of a ciphertext.
pub(crate) struct CipherSum {
    derived: Arc<Derived>,
    sum: Vec<(Part, Vec<u128>)>,
}

impl CipherSum {
    pub fn new(derived: Arc<Derived>) -> Self {
        CipherSum { derived, sum: Vec::new() }
    }

    /// Reads the ciphertexts of an update of this layout from the rest of `reader`, and adds them `factor` times. An
    /// error changes nothing.
    pub fn add(&mut self, layout: &Layout, mut reader: Reader<'_>, factor: u64) -> Result<()> {
        let d = &self.derived;
        let parts: Vec<Part> = d.shape(layout)?.into_iter().flat_map(|Block { parts }| parts).collect();
        let mut sent = Vec::with_capacity(parts.len());
        for part in &parts {
            let bytes = reader.bytes(part.up_bytes())?;
            check_stream(bytes, part.used, part.packing.modulus.up_bits)?;
            sent.push(bytes);
        }
        reader.finish()?;
        let reason = || Error::Frame { reason: "a ciphertext coefficient is not below q".into() };
        let below = |limit: u128, some: &[u128]| some.iter().fold(true, |below, sent| below & (*sent <= limit));
        let threads = Threads::for_elements(layout.elements());
        threads.map(&sent, |k, bytes| {
            let (modulus, used) = (&parts[k].packing.modulus, parts[k].used);
            let limit = modulus.most_sent();
            read(bytes, modulus.up_bits, used, |_, some| below(limit, some).then_some(()).ok_or_else(reason))
        })?;
        if self.sum.is_empty() {
            self.sum = parts.iter().map(|part| (part.clone(), vec![0; part.used])).collect();
        }
        let add = |((part, sum), bytes): (&mut (Part, Vec<u128>), &&[u8])| {
            let modulus: &Modulus = &part.packing.modulus;
            read(bytes, modulus.up_bits, sum.len(), |at, some| {
                let sum = sum[at..].iter_mut().zip(some);
                // Each case has its own loop: one loop that tests every coefficient takes a third longer.
                match (modulus.sums_whole(), factor) {
                    // The sum of all clients with their largest weights stays below q.
                    (true, _) => sum.for_each(|(slot, sent)| *slot += *sent * u128::from(factor)),
                    (false, 1) => sum.for_each(|(slot, sent)| *slot = d.ring.add(*slot, modulus.expand(*sent))),
                    (false, _) => sum.for_each(|(slot, sent)| {
                        *slot = d.ring.add(*slot, d.ring.scale(modulus.expand(*sent), factor));
                    }),
                }
                Ok(())
            })
        };
        match threads {
            Threads::One => self.sum.iter_mut().zip(&sent).try_for_each(add),
            Threads::All => self.sum.par_iter_mut().zip(&sent).try_for_each(add),
        }
    }

    /// Takes the sums out, packed for the broadcast, part by part.
    pub fn take(&mut self) -> Result<Vec<Vec<u8>>> {
        let sum = std::mem::take(&mut self.sum);
        let threads = Threads::for_elements(sum.iter().map(|(part, _)| part.used).sum());
        threads.map(&sum, |_, (part, c0)| Ok(pack(c0.iter().copied(), part.packing.modulus.down_bits)))
    }
}

/// Coefficients that are read at once. Their number is a multiple of 8, so that they end on a byte.
const SOME: usize = 256;

/// Reads `count` coefficients. Calls `each` with up to [`SOME`] of them at a time, and the number of the first one.
fn read(bytes: &[u8], bits: u32, count: usize, mut each: impl FnMut(usize, &[u128]) -> Result<()>) -> Result<()> {
    let mut some = [0; SOME];
    for at in (0..count).step_by(SOME) {
        let some = &mut some[..SOME.min(count - at)];
        unpack_wide(&bytes[at / 8 * bits as usize..], bits, some);
        each(at, some)?;
    }
    Ok(())
}

/// Packs coefficients with `bits` bits each.
fn pack(values: impl ExactSizeIterator<Item = u128>, bits: u32) -> Vec<u8> {
    let mut out = vec![0u8; packed_len(values.len(), bits)];
    let mut writer = BitWriter::new(&mut out);
    values.for_each(|v| writer.push(v, bits));
    writer.finish();
    out
}

impl Aggregator for BfvAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        let mut r = Reader::new(admitted.payload);
        let seed = r.array()?;
        self.sum.add(&admitted.layout, r, admitted.factor)?;
        self.seeds.insert(admitted.contribution.client, seed);
        Ok(self.admission.commit(admitted))
    }

    fn finish_into(&mut self, place: &mut dyn FrameBuffer, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        let (sum, tag) = (self.sum.take()?, self.admission.close().to_bytes());
        let seeds = self.seeds.values().map(<[u8; 32]>::as_slice);
        let parts: Vec<&[u8]> = seeds.chain(sum.iter().map(Vec::as_slice)).chain([&tag[..]]).collect();
        header.build_from(&parts, place)
    }
}

/// Bytes of a payload before its first ciphertext: one seed for each client.
pub fn prefix_len(clients: usize) -> usize {
    32 * clients
}

/// The seeds of all clients, in header order, each with the factor of its update.
pub fn seeds(weighting: Weighting, contributions: &[Contribution], payload: &[u8]) -> Result<Vec<([u8; 32], u64)>> {
    let mut r = Reader::new(payload);
    contributions.iter().map(|c| Ok((r.array()?, weighting.server_factor(c.weight)))).collect()
}
