//! The server's side: who is in the sum and of what their ciphertexts are; the work itself is in `piece`.

use super::piece::{self, Common, Piece, Summand};
use super::scheme::{Shared, locked, parsed};
use super::transcipher::EvaluationKeys;
use crate::admission::Admission;
use crate::keys::ServerKey;
use crate::scheme::{Aggregator, Parts, Progress};
use crate::wire::{Contribution, Header, Reader};
use crate::{Error, Result};
use fhe::bfv::Ciphertext;
use fhe_traits::DeserializeParametrized;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Holds the small PASTA ciphertexts until [`Aggregator::finish`], which does the work chunk by chunk:
/// its memory is one chunk's diagonals and two BFV sums. Or other processes do it: [`Aggregator::parts`].
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

    fn common(&self, round: u64) -> Result<Common> {
        let summand = |u: &Update| Ok(Summand { weight: u.weight, key: self.key_of(u.client)? });
        Ok(Common { round, summands: self.updates.iter().map(summand).collect::<Result<_>>()? })
    }

    fn words(&self) -> Result<usize> {
        Ok(self.shared.padded(self.admission.layout()?.elements()))
    }

    fn packed(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.updates.iter().map(|update| update.packed.as_slice())
    }

    fn sealed(&mut self, header: &Header, mut payload: Vec<u8>) -> Vec<u8> {
        self.updates.clear();
        payload.extend_from_slice(&self.admission.close().to_bytes());
        header.frame(&payload)
    }
}

impl Aggregator for PastaAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        self.shared.check_layout(&admitted.layout)?;
        let mut r = Reader::new(admitted.payload);
        let length = r.length()?;
        let key = r.bytes(length)?;
        let packed = r.rest();
        piece::check_words(&self.shared.context, packed, self.shared.padded(admitted.layout.elements()))?;
        let Contribution { client, weight } = admitted.contribution;
        if !key.is_empty() {
            self.learn_key(client, key)?;
        }
        self.key_of(client)?;
        self.updates.push(Update { client, weight, packed: packed.to_vec() });
        Ok(self.admission.commit(admitted))
    }

    fn parts(&self) -> Result<Option<Parts>> {
        let common = self.common(self.admission.aggregate_header()?.round)?;
        Ok(Some(piece::parts(&self.shared.context, &common, self.words()?, self.packed())))
    }

    fn finish_from(&mut self, results: &[Vec<u8>]) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let pieces = piece::count(&self.shared.context, self.words()?);
        if results.len() != pieces {
            return Err(Error::frame(format!("{} results of {pieces} parts", results.len())));
        }
        results.par_iter().try_for_each(|result| piece::check_result(&self.shared, result))?;
        Ok(self.sealed(&header, results.concat()))
    }

    /// Transciphers and adds; progress counts (client, chunk) pairs.
    fn finish_with(&mut self, progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let (words, common) = (self.words()?, self.common(header.round)?);
        let c = &self.shared.context;
        let (mut done, total) = (0, self.shared.chunks(words) * self.updates.len());
        let mut step = |count: usize| {
            done += count;
            if progress(done, total) { Ok(()) } else { Err(Error::Cancelled { done, total }) }
        };
        step(0)?;
        let mut payload = Vec::new();
        for index in 0..piece::count(c, words) {
            let piece = Piece::of(c, words, index, self.packed());
            payload.extend(piece.compute(&self.shared, &self.keys, &common, &mut step)?);
        }
        Ok(self.sealed(&header, payload))
    }
}
