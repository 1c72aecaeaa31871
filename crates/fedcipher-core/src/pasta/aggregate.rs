//! The server's side: the clients in the sum and the meaning of their ciphertexts. The work itself is in `work_item`.

use super::known::{Known, digests};
use super::ring::keep_rows;
use super::shared::Shared;
use super::transcipher::ServerKeys;
use super::work_item::{self, Common, Summand, WorkItem};
use crate::admission::Admission;
use crate::keys::ServerKey;
use crate::scheme::{Aggregator, PartedSum, Parts, Progress};
use crate::wire::{Contribution, FrameBuffer, Header, Reader};
use crate::{ClientId, Error, Result, RoundId, Weight};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Holds the small PASTA ciphertexts until [`Aggregator::finish`], which works chunk by chunk. Its memory is one chunk's
/// diagonals and two BFV sums. Other processes can do the work instead: see [`Aggregator::parted`].
pub struct PastaAggregator {
    shared: Arc<Shared>,
    known: Arc<Known>,
    keys: Arc<ServerKeys>,
    key_id: [u8; 16],
    admission: Admission,
    digests: BTreeMap<ClientId, [u8; 32]>,
    updates: Vec<Update>,
}

struct Update {
    client: ClientId,
    weight: Weight,
    packed: Vec<u8>,
}

impl PastaAggregator {
    pub fn new(shared: &Arc<Shared>, known: &Arc<Known>, key: &ServerKey, round: Option<RoundId>) -> Result<Self> {
        Ok(PastaAggregator {
            keys: known.evaluation_keys(&shared.context, key)?,
            shared: Arc::clone(shared),
            known: Arc::clone(known),
            key_id: key.tag.key_id,
            admission: Admission::new(key, shared.params.rules(), round),
            digests: digests(key)?,
            updates: Vec::new(),
        })
    }

    fn common(&self, round: RoundId) -> Result<Common> {
        let summand = |u: &Update| Ok(Summand { weight: u.weight, key: self.known.of(self.key_id, u.client)? });
        Ok(Common { round, summands: self.updates.iter().map(summand).collect::<Result<_>>()? })
    }

    fn words(&self) -> Result<usize> {
        Ok(self.shared.padded(self.admission.layout()?.elements()))
    }

    fn packed(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.updates.iter().map(|update| update.packed.as_slice())
    }

    fn frame(&mut self, header: &Header, payload: &[u8], place: &mut dyn FrameBuffer) -> Result<()> {
        self.updates.clear();
        header.build_from(&[payload, &self.admission.close().to_bytes()], place)
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
        work_item::check_words(&self.shared.context, packed, self.shared.padded(admitted.layout.elements()))?;
        let Contribution { client, weight } = admitted.contribution;
        if !key.is_empty() {
            self.known.learn(&self.shared.context, self.key_id, client, key, self.digests.get(&client))?;
        }
        self.known.of(self.key_id, client)?;
        self.updates.push(Update { client, weight, packed: packed.to_vec() });
        Ok(self.admission.commit(admitted))
    }

    fn parted(&mut self) -> Option<&mut dyn PartedSum> {
        Some(self)
    }

    /// Transciphers and adds. Progress counts pairs of client and chunk.
    fn finish_into(&mut self, place: &mut dyn FrameBuffer, progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        let (words, common) = (self.words()?, self.common(header.round)?);
        let c = &self.shared.context;
        let (mut done, total) = (0, self.shared.chunks(words) * self.updates.len());
        let mut step = |count: usize| {
            done += count;
            if progress(done, total) { Ok(()) } else { Err(Error::Cancelled { done, total }) }
        };
        step(0)?;
        let _guard = keep_rows();
        let mut payload = Vec::new();
        for index in 0..work_item::count(c, words) {
            let piece = WorkItem::of(c, words, index, self.packed());
            payload.extend(piece.compute(c, &self.keys, &common, &mut step)?);
        }
        self.frame(&header, &payload, place)
    }
}

impl PartedSum for PastaAggregator {
    fn parts(&self) -> Result<Parts> {
        let common = self.common(self.admission.aggregate_header()?.round)?;
        Ok(work_item::parts(&self.shared.context, &common, self.words()?, self.packed()))
    }

    fn finish_from(&mut self, results: &[Vec<u8>]) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let pieces = work_item::count(&self.shared.context, self.words()?);
        if results.len() != pieces {
            return Err(Error::frame(format!("{} results of {pieces} parts", results.len())));
        }
        results.par_iter().try_for_each(|result| work_item::check_result(&self.shared.context, result))?;
        let mut frame = Vec::new();
        self.frame(&header, &results.concat(), &mut frame)?;
        Ok(frame)
    }
}
