//! The server's side: transcipher, multiply by the weights, add, fold two results into one ciphertext.

use super::scheme::{Shared, locked, parsed};
use super::transcipher::{Context, Diagonals, EvaluationKeys, Transcipher, he};
use crate::admission::Admission;
use crate::bits::{check_stream, read_bits};
use crate::keys::ServerKey;
use crate::scheme::{Aggregator, Progress};
use crate::wire::{Contribution, Reader};
use crate::{Error, Result};
use fhe::bfv::{Ciphertext, Encoding, Plaintext};
use fhe_traits::{DeserializeParametrized, FheEncoder, Serialize};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Holds the small PASTA ciphertexts until [`Aggregator::finish`], which does the work chunk by chunk:
/// its memory is one chunk's diagonals and one BFV sum a chunk.
pub struct PastaAggregator {
    shared: Arc<Shared>,
    keys: Arc<EvaluationKeys>,
    key_id: [u8; 16],
    admission: Admission,
    digests: BTreeMap<u32, [u8; 32]>,
    updates: Vec<Update>,
}

struct Update {
    client: u32,
    weight: u64,
    packed: Vec<u8>,
}

impl PastaAggregator {
    pub fn new(shared: &Arc<Shared>, key: &ServerKey, round: Option<u64>) -> Result<Self> {
        let mut digests = BTreeMap::new();
        let mut r = Reader::new(&key.public);
        for client in &key.cohort {
            digests.insert(*client, r.array()?);
        }
        Ok(PastaAggregator {
            keys: shared.evaluation_keys(key)?,
            shared: Arc::clone(shared),
            key_id: key.tag.key_id,
            admission: Admission::new(key, shared.params.rules(), round),
            digests,
            updates: Vec::new(),
        })
    }

    /// Takes up a client's encrypted PASTA key, if it is the one the authority made for it.
    fn learn_key(&self, client: u32, bytes: &[u8]) -> Result<()> {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        if self.digests.get(&client) != Some(&digest) {
            return Err(Error::Key {
                reason: format!("client {client} sent a PASTA key that is not the one issued to it in this epoch"),
            });
        }
        let ciphertext = parsed("encrypted PASTA key", || Ciphertext::from_bytes(bytes, &self.shared.context.par))?;
        locked(&self.shared.client_keys).insert((self.key_id, client), Arc::new(ciphertext));
        Ok(())
    }

    fn key_of(&self, client: u32) -> Result<Arc<Ciphertext>> {
        locked(&self.shared.client_keys).get(&(self.key_id, client)).cloned().ok_or_else(|| Error::Key {
            reason: format!(
                "client {client} has not sent its encrypted PASTA key in this epoch; it must send it again"
            ),
        })
    }

    /// The weighted sum of one chunk over all clients.
    fn chunk(
        &self,
        nonce: u64,
        chunk: usize,
        padded: usize,
        step: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Ciphertext> {
        let c = &self.shared.context;
        let values = c.capacity().min(padded - chunk * c.capacity());
        let diagonals = Diagonals::new(c, nonce, chunk, values / c.variant.t)?;
        let transcipher = Transcipher::new(c, &self.keys)?;
        let bits = c.field.bits();
        let mut sum: Option<Ciphertext> = None;
        // As many clients side by side as there are cores: their sequential parts overlap.
        for group in self.updates.chunks(rayon::current_num_threads()) {
            let done = group
                .par_iter()
                .map(|update| {
                    let first = chunk * c.capacity();
                    let words: Vec<u64> = (first..first + values)
                        .map(|k| read_bits(&update.packed, k * bits as usize, bits) as u64)
                        .collect();
                    let result = transcipher.decipher(&words, &*self.key_of(update.client)?, &diagonals)?;
                    if update.weight == 1 {
                        return Ok(result);
                    }
                    let scalar =
                        Plaintext::try_encode(&[update.weight], Encoding::poly_at_level(1), &c.par).map_err(he)?;
                    Ok(&result * &scalar)
                })
                .collect::<Result<Vec<_>>>()?;
            let count = done.len();
            for part in done {
                match &mut sum {
                    None => sum = Some(part),
                    Some(sum) => *sum += &part,
                }
            }
            step(count)?;
        }
        sum.ok_or(Error::EmptyCohort)
    }
}

impl Aggregator for PastaAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        self.shared.check_layout(&admitted.layout)?;
        let field = self.shared.context.field;
        let mut r = Reader::new(admitted.payload);
        let length = r.length()?;
        let key = r.bytes(length)?;
        let packed = r.rest();
        let words = self.shared.padded(admitted.layout.elements());
        check_stream(packed, words, field.bits())?;
        let bits = field.bits();
        if (0..words).any(|k| read_bits(packed, k * bits as usize, bits) >= u128::from(field.p())) {
            return Err(Error::frame("a ciphertext word is not below p"));
        }
        let Contribution { client, weight } = admitted.contribution;
        if !key.is_empty() {
            self.learn_key(client, key)?;
        }
        self.key_of(client)?;
        self.updates.push(Update { client, weight, packed: packed.to_vec() });
        Ok(self.admission.commit(admitted))
    }

    /// Transciphers and adds; progress counts (client, chunk) pairs.
    fn finish_with(&mut self, progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let shared = Arc::clone(&self.shared);
        let c = &shared.context;
        let padded = shared.padded(self.admission.layout()?.elements());
        let chunks = shared.chunks(padded);
        let (mut done, total) = (0, chunks * self.updates.len());
        let mut step = |count: usize| {
            done += count;
            if progress(done, total) { Ok(()) } else { Err(Error::Cancelled { done, total }) }
        };
        step(0)?;
        let mut payload = Vec::new();
        let mut pending: Option<Ciphertext> = None;
        for chunk in 0..chunks {
            let sum = self.chunk(header.round, chunk, padded, &mut step)?;
            match pending.take() {
                None if chunk + 1 < chunks => pending = Some(sum),
                None => append(&shared, sum, &mut payload)?,
                Some(first) => append(&shared, fold(c, &first, &sum)?, &mut payload)?,
            }
        }
        self.updates.clear();
        payload.extend_from_slice(&self.admission.close().to_bytes());
        Ok(header.frame(&payload))
    }
}

/// Two results in one ciphertext: row 0 of the first, row 1 of the second (both rows of each are equal).
fn fold(c: &Context, first: &Ciphertext, second: &Ciphertext) -> Result<Ciphertext> {
    let half = c.capacity();
    let mask = |row: usize| -> Result<Plaintext> {
        let slots: Vec<u64> = (0..2 * half).map(|slot| u64::from(slot / half == row)).collect();
        Plaintext::try_encode(&slots, Encoding::simd_at_level(1), &c.par).map_err(he)
    };
    let mut folded = first * &mask(0)?;
    folded += &(second * &mask(1)?);
    Ok(folded)
}

/// Switches to the last primes and appends `length u64 | ciphertext`.
fn append(shared: &Shared, mut sum: Ciphertext, payload: &mut Vec<u8>) -> Result<()> {
    let level = shared.context.par.max_level() + 1 - shared.final_primes();
    sum.switch_to_level(level).map_err(he)?;
    let bytes = sum.to_bytes();
    payload.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    payload.extend_from_slice(&bytes);
    Ok(())
}
