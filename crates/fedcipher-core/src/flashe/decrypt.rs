//! The client's side: removing the masks that are left in a sum.

use super::mask::{MaskMaker, Masking, Pieces, Term, chunk_lanes};
use super::participation::residual;
use super::sparse::permutation;
use super::{Params, Secret, positions};
use crate::Result;
use crate::admission::check_sums;
use crate::bits;
use crate::bounds::max_level;
use crate::client::Receiver;
use crate::codec::{Layout, SumSink};
use crate::ledger::Openings;
use crate::mac::{Hash, TAG_LEN};
use crate::prf::CHUNK_BLOCKS;
use crate::scheme::{Decryptor, Expect, Opening, Summary};
use crate::stream::{self, Opener, Piece, Threads};
use crate::wire::{Head, Header, Reader};
use std::sync::Arc;

pub struct FlasheDecryptor {
    params: Params,
    receiver: Receiver,
    secret: Arc<Secret>,
}

impl FlasheDecryptor {
    pub fn new(params: Params, receiver: Receiver, secret: Secret) -> Self {
        FlasheDecryptor { params, receiver, secret: Arc::new(secret) }
    }

    fn dense(&self, head: &Head, layout: Layout, prefix: &[u8], expect: &Expect<'_>) -> Result<Opening> {
        let header = &head.header;
        let masking = Masking::parse(Reader::new(prefix).u8()?)?;
        let lanes = self.params.lanes(&layout)?;
        lanes.check_len(head.payload_len.saturating_sub(1 + TAG_LEN))?;
        let clients: Vec<u32> = header.contributions.iter().map(|c| c.client).collect();
        let opener = DenseOpener {
            secret: Arc::clone(&self.secret),
            pieces: Pieces::of(&lanes),
            terms: residual(&clients, masking),
            round: header.round,
            weight: header.total_weight(),
        };
        let verifier = self.receiver.verifier(header, &layout, expect.bound);
        Ok(Opening { layout, opener: Box::new(opener), verifier })
    }

    fn sparse(&self, header: &Header, layout: &Layout, payload: &[u8], sink: &mut dyn SumSink) -> Result<Vec<u32>> {
        let parsed = positions::aggregate_positions(header, payload)?;
        let masking = Masking::parse(parsed.masking)?;
        let width = self.params.sparse_width(layout)?;
        let weight = header.total_weight();
        let n = layout.elements();
        // Before anything of size n exists: an honest n is bounded by what the frame carries.
        parsed.sets.iter().try_for_each(|set| self.params.check_sparse(layout, set.len()))?;

        let (mut counts, mut weights) = (vec![0u32; n], vec![0u64; n]);
        for (c, sites) in header.contributions.iter().zip(&parsed.sets) {
            for site in sites {
                counts[*site as usize] += 1;
                weights[*site as usize] += c.weight;
            }
        }
        let union: Vec<u32> = (0..n as u32).filter(|site| counts[*site as usize] > 0).collect();
        bits::check_stream(parsed.values, union.len(), width)?;
        let mut lanes = vec![0u64; union.len()];
        bits::unpack(parsed.values, width, &mut lanes);
        let mut sums = vec![0u64; n];
        for (site, lane) in union.iter().zip(&lanes) {
            sums[*site as usize] = *lane;
        }
        self.unmask_sparse(header, &parsed.sets, masking, width, &mut sums);

        // Back to coordinate order. Whoever did not send a coordinate sent zero, which is L / 2.
        let order = permutation(&self.secret.permutation, header.round, n)?;
        let mut by_element = vec![0u64; n];
        let mut counts_by_element = vec![0u32; n];
        let mut d = 0;
        for tensor in layout.tensors() {
            let levels = max_level(tensor.bits);
            for _ in 0..tensor.len() {
                let site = order[d] as usize;
                let (sum, sent) = (sums[site], weights[site]);
                check_sums(&[sum], sent, tensor.bits)?;
                by_element[d] = sum + (weight - sent) * (levels / 2);
                counts_by_element[d] = counts[site];
                d += 1;
            }
        }
        sink.begin(layout, weight)?;
        sink.put(0, &by_element)?;
        Ok(counts_by_element)
    }

    /// Removes `+F(j)` where j sent and, when double, `-F(j+1)`; what neighbours share cancels and
    /// is never computed.
    fn unmask_sparse(&self, header: &Header, sets: &[Vec<u32>], masking: Masking, width: u32, sums: &mut [u64]) {
        let mut maker = MaskMaker::new(&self.secret.mask, header.round, width);
        let ids: Vec<u32> = header.contributions.iter().map(|c| c.client).collect();
        let set_of = |id: Option<u32>| -> &[u32] {
            id.and_then(|id| ids.binary_search(&id).ok()).map_or(&[], |k| sets[k].as_slice())
        };
        let mut terms = ids.clone();
        if masking == Masking::Double {
            terms.extend(ids.iter().map(|id| id + 1));
            terms.sort_unstable();
            terms.dedup();
        }
        for id in terms {
            let plus = set_of(Some(id));
            let minus = if masking == Masking::Double { set_of(id.checked_sub(1)) } else { &[] };
            let (mut positive, mut negative) = (Vec::new(), Vec::new());
            for (site, in_plus, in_minus) in positions::merge(plus, minus) {
                match (in_plus, in_minus) {
                    (true, false) => positive.push(site),
                    (false, true) => negative.push(site),
                    _ => {}
                }
            }
            let mut remove = |sites: &[u32], sign: u64| {
                maker.at(id, sites, |k, mask| {
                    let sum = &mut sums[sites[k] as usize];
                    *sum = sum.wrapping_sub(mask.wrapping_mul(sign)) & bits::lane_mask(width);
                });
            };
            remove(&positive, 1);
            remove(&negative, u64::MAX);
        }
    }
}

/// A dense aggregate: a piece is a run of masked sums.
struct DenseOpener {
    secret: Arc<Secret>,
    pieces: Pieces,
    terms: Vec<Term>,
    round: u64,
    weight: u64,
}

impl Opener for DenseOpener {
    fn prefix(&self) -> usize {
        1
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces.cuts.pieces
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<()> {
        let (width, values) = (self.pieces.cuts.widths[index], self.pieces.cuts.bits[index]);
        bits::check_stream(bytes, sums.len(), width)?;
        let mut maker = MaskMaker::new(&self.secret.mask, self.round, width);
        let step = chunk_lanes(width);
        let mut chunk = vec![0u8; bits::packed_len(step, width)];
        for (k, (masked, sums)) in bytes.chunks(chunk.len()).zip(sums.chunks_mut(step)).enumerate() {
            let chunk = &mut chunk[..masked.len()];
            chunk.copy_from_slice(masked);
            let first = self.pieces.blocks[index].wrapping_add((k * CHUNK_BLOCKS) as u32);
            maker.apply(&self.terms, true, first, sums.len(), chunk);
            bits::unpack(chunk, width, sums);
            check_sums(sums, self.weight, values)?;
        }
        Ok(())
    }
}

impl Decryptor for FlasheDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let (head, layout, payload, tag) = self.receiver.admit(frame, expect)?;
        if self.params.top.is_some() {
            let counts = Some(self.sparse(&head.header, &layout, payload, sink)?);
            self.receiver.verifier(&head.header, &layout, expect.bound).check(Hash::default(), tag)?;
            return Ok(Summary { header: head.header, layout, counts });
        }
        let opening = self.dense(&head, layout, payload, expect)?;
        stream::open_all(&opening, head.header.total_weight(), payload, tag, sink, Threads::One)?;
        Ok(Summary { header: head.header, layout: opening.layout, counts: None })
    }

    fn prefix_len(&self, _contributions: usize) -> usize {
        1
    }

    fn opener(&self, head: &Head, expect: &Expect<'_>, prefix: &[u8]) -> Result<Option<Opening>> {
        let layout = self.receiver.check(head, expect)?;
        if self.params.top.is_some() {
            return Ok(None);
        }
        self.dense(head, layout, prefix, expect).map(Some)
    }

    fn openings(&self) -> &Openings {
        self.receiver.openings()
    }
}
