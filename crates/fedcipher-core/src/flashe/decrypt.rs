//! The client's side: removing the masks that are left in a sum.

use super::mask::{MaskMaker, Masking, chunk_lanes, per_block};
use super::participation::residual;
use super::sparse::permutation;
use super::{Params, Secret, positions};
use crate::Result;
use crate::admission::{check_sums, open_aggregate};
use crate::bits;
use crate::bounds::max_level;
use crate::codec::{Layout, SumSink};
use crate::keys::KeyTag;
use crate::prf::CHUNK_BLOCKS;
use crate::scheme::{Decryptor, Summary};
use crate::wire::{Header, Reader};

pub struct FlasheDecryptor {
    params: Params,
    tag: KeyTag,
    secret: Secret,
}

impl FlasheDecryptor {
    pub fn new(params: Params, tag: KeyTag, secret: Secret) -> Self {
        FlasheDecryptor { params, tag, secret }
    }

    fn dense(&self, header: &Header, layout: &Layout, payload: &[u8], sink: &mut dyn SumSink) -> Result<()> {
        let mut r = Reader::new(payload);
        let masking = Masking::parse(r.u8()?)?;
        let payload = r.rest();
        let lanes = self.params.lanes(layout)?;
        lanes.check(payload)?;
        let clients: Vec<u32> = header.contributions.iter().map(|c| c.client).collect();
        let terms = residual(&clients, masking);
        let weight = header.total_weight();
        sink.begin(layout, weight)?;
        let mut base = 0u32;
        for (segment, width, bytes) in lanes.split(payload) {
            let mut maker = MaskMaker::new(&self.secret.mask, header.round, width);
            let step = chunk_lanes(width);
            let mut chunk = vec![0u8; bits::packed_len(step, width)];
            let mut sums = vec![0u64; step];
            for (k, masked) in bytes.chunks(chunk.len()).enumerate() {
                let n = (segment.len - k * step).min(step);
                let chunk = &mut chunk[..masked.len()];
                chunk.copy_from_slice(masked);
                maker.apply(&terms, true, base.wrapping_add((k * CHUNK_BLOCKS) as u32), n, chunk);
                bits::unpack(chunk, width, &mut sums[..n]);
                check_sums(&sums[..n], weight, segment.bits)?;
                sink.put(segment.start + k * step, &sums[..n])?;
            }
            base = base.wrapping_add(segment.len.div_ceil(per_block(width)) as u32);
        }
        Ok(())
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

impl Decryptor for FlasheDecryptor {
    fn decrypt(&self, frame: &[u8], round: Option<u64>, sink: &mut dyn SumSink) -> Result<Summary> {
        let (header, layout, payload) = open_aggregate(&self.tag, self.params.bounds, frame, round)?;
        let counts = match self.params.top {
            None => {
                self.dense(&header, &layout, payload, sink)?;
                None
            }
            Some(_) => Some(self.sparse(&header, &layout, payload, sink)?),
        };
        Ok(Summary { header, layout, counts })
    }
}
