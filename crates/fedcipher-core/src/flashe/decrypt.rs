//! The client's side: removes the masks that are left in a sum.

use super::mask::{MaskMaker, Masking, Pieces, Term, check_client, chunk_lanes};
use super::participation::residual;
use super::positions::{self, Ranks, SparseSum};
use super::sparse::permutation;
use super::{FlasheParams, Secret};
use crate::admission::check_sums;
use crate::bits;
use crate::bounds::Levels;
use crate::codec::{Layout, SumSink};
use crate::mac::coordinates::{CoordinateMac, places};
use crate::mac::{PolyEval, TAG_LEN};
use crate::prf::CHUNK_BLOCKS;
use crate::protocol::{CheckedHead, ClaimedSum, DecryptKernel, Piece, PieceDecryptor, Proven, Receiver};
use crate::threads::Threads;
use crate::wire::{Header, Reader};
use crate::{ClientId, Error, Result, RoundId, TotalWeight};
use std::sync::Arc;

/// The number of elements of a sparse sum that are put in order at a time.
const RUN: usize = 1 << 16;

pub struct FlasheDecryptor {
    params: FlasheParams,
    receiver: Arc<Receiver>,
    secret: Arc<Secret>,
}

impl FlasheDecryptor {
    pub fn new(params: FlasheParams, receiver: Receiver, secret: Secret) -> Self {
        FlasheDecryptor { params, receiver: Arc::new(receiver), secret: Arc::new(secret) }
    }

    fn dense(&self, checked: &CheckedHead, prefix: &[u8]) -> Result<DensePieceDecryptor> {
        let header = checked.header();
        let masking = Masking::parse(Reader::new(prefix).u8()?)?;
        let lanes = self.params.lanes(checked.layout())?;
        lanes.check_len(checked.payload_len().saturating_sub(1 + TAG_LEN))?;
        let clients: Vec<ClientId> = header.contributions.iter().map(|c| c.client).collect();
        clients.iter().try_for_each(|client| check_client(*client))?;
        Ok(DensePieceDecryptor {
            secret: Arc::clone(&self.secret),
            elements: checked.layout().elements(),
            pieces: Pieces::of(&lanes),
            terms: residual(&clients, masking),
            round: header.round,
            weight: header.total_weight(),
            levels: self.params.bounds.levels(),
        })
    }

    /// Unmasks and checks a sparse sum, and passes the sums to `sink`. Returns the number of senders of each element.
    /// The tag of `header` has been checked, so its clients really sent this layout: memory of the layout's size is no
    /// more than an honest round takes.
    fn sparse(
        &self,
        header: &Header,
        layout: &Layout,
        payload: &[u8],
        mac: &CoordinateMac,
        sink: &mut dyn SumSink,
    ) -> Result<Vec<u32>> {
        let width = self.params.sparse_width(layout)?;
        let mut sum = SparseSum::parse(header, payload, width, self.params.sparse_count(layout))?;
        let masking = Masking::parse(sum.masking)?;
        header.contributions.iter().try_for_each(|c| check_client(c.client))?;
        sum.counts.iter().try_for_each(|count| self.params.bounds.check_contributions(*count as usize))?;
        self.unmask_sparse(header.round, &mut sum, masking, width);
        mac.check(&sum.union, &sum.lanes, &sum.senders, &sum.tags)?;

        // Back to coordinate order. A client that did not send a coordinate counts as zero, which is L / 2.
        let (weight, levels) = (header.total_weight(), self.params.bounds.levels());
        let order = permutation(&self.secret.permutation, header.round, layout.elements())?;
        let ranks = Ranks::of(&sum.union, layout.elements());
        let mut counts = vec![0u32; layout.elements()];
        let (mut sums, mut sent) = (vec![0u64; RUN], vec![TotalWeight::default(); RUN]);
        sink.begin(layout, levels, weight)?;
        for (run, (order, counts)) in order.chunks(RUN).zip(counts.chunks_mut(RUN)).enumerate() {
            let (sums, sent) = (&mut sums[..order.len()], &mut sent[..order.len()]);
            let mut d = 0;
            for (tensor, _, len) in layout.pieces(run * RUN, order.len()) {
                let max = levels.of(layout.tensors()[tensor].bits);
                let zero = max / 2;
                for d in d..d + len {
                    (sums[d], sent[d]) = (weight.get() * zero, TotalWeight::default());
                    if let Some(k) = ranks.of_site(order[d]) {
                        check_sums(&sum.lanes[k..=k], sum.weights[k], max)?;
                        (sent[d], counts[d]) = (sum.weights[k], sum.counts[k]);
                        sums[d] = sum.lanes[k] + weight.without(sent[d]).get() * zero;
                    }
                }
                d += len;
            }
            sink.put_sent(run * RUN, sums, sent)?;
        }
        Ok(counts)
    }

    /// Removes `+F(j)` at the positions that client j sent and, with double masking, `-F(j+1)`. Masks that neighbours
    /// share cancel, and are never computed.
    fn unmask_sparse(&self, round: RoundId, sum: &mut SparseSum, masking: Masking, width: u32) {
        let mut maker = MaskMaker::new(&self.secret.mask, round, width);
        let SparseSum { senders, union, lanes, .. } = sum;
        let set_of = |id: Option<ClientId>| -> &[u32] {
            let found = id.and_then(|id| senders.binary_search_by_key(&id, |(c, _)| c.client).ok());
            found.map_or(&[], |k| senders[k].1.as_slice())
        };
        let mut terms: Vec<ClientId> = senders.iter().map(|(c, _)| c.client).collect();
        if masking == Masking::Double {
            terms.extend(senders.iter().filter_map(|(c, _)| c.client.next()));
            terms.sort_unstable();
            terms.dedup();
        }
        for id in terms {
            let plus = set_of(Some(id));
            let minus = if masking == Masking::Double { set_of(id.previous()) } else { &[] };
            let (mut positive, mut negative) = (Vec::new(), Vec::new());
            for (site, in_plus, in_minus) in positions::merge(plus, minus) {
                match (in_plus, in_minus) {
                    (true, false) => positive.push(site),
                    (false, true) => negative.push(site),
                    _ => {}
                }
            }
            let mut remove = |sites: &[u32], sign: u64| {
                let at = places(union, sites);
                maker.at(id, sites, |k, mask| {
                    let lane = &mut lanes[at[k]];
                    *lane = lane.wrapping_sub(mask.wrapping_mul(sign)) & bits::lane_mask(width);
                });
            };
            remove(&positive, 1);
            remove(&negative, u64::MAX);
        }
    }
}

/// Decrypts the pieces of a dense aggregate. A piece is a run of masked sums.
struct DensePieceDecryptor {
    secret: Arc<Secret>,
    elements: usize,
    pieces: Pieces,
    terms: Vec<Term>,
    round: RoundId,
    weight: TotalWeight,
    levels: Levels,
}

impl PieceDecryptor for DensePieceDecryptor {
    fn prefix(&self) -> usize {
        1
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.cuts.pieces
    }

    fn threads(&self) -> Threads {
        Threads::for_elements(self.elements)
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<PolyEval> {
        let (width, values) = (self.pieces.cuts.widths[index], self.pieces.cuts.bits[index]);
        bits::check_stream(bytes, sums.len(), width)?;
        let mut maker = MaskMaker::new(&self.secret.mask, self.round, width);
        let step = chunk_lanes(width);
        let mut chunk = vec![0u8; bits::packed_len(step, width)];
        let max = self.levels.of(values);
        for (k, (masked, sums)) in bytes.chunks(chunk.len()).zip(sums.chunks_mut(step)).enumerate() {
            let chunk = &mut chunk[..masked.len()];
            chunk.copy_from_slice(masked);
            let first = self.pieces.blocks[index].wrapping_add((k * CHUNK_BLOCKS) as u32);
            maker.apply(&self.terms, true, first, sums.len(), chunk);
            bits::unpack(chunk, width, sums);
            check_sums(sums, self.weight, max)?;
        }
        Ok(PolyEval::default())
    }
}

impl DecryptKernel for FlasheDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn prefix_len(&self, _contributions: usize) -> usize {
        1
    }

    fn opener(&self, checked: &CheckedHead, prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        if self.params.per_client_top.is_some() {
            return Ok(None);
        }
        Ok(Some(Box::new(self.dense(checked, prefix)?)))
    }

    fn open_whole(&self, sum: ClaimedSum, payload: &[u8], sink: &mut dyn SumSink) -> Result<Proven> {
        let mac = sum.checked().verifier().and_then(|verifier| self.receiver.coordinates(verifier));
        let mac = mac.ok_or(Error::Tag)?;
        let proven = sum.verify(PolyEval::default(), None)?;
        let counts = self.sparse(proven.sum().header(), proven.sum().layout(), payload, &mac, sink)?;
        Ok(proven.with_counts(counts))
    }
}
