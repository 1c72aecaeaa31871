//! The server's side: lane-wise sums mod 2^w, no key.

use super::mask::Masking;
use super::{Params, positions};
use crate::admission::Admission;
use crate::bits;
use crate::keys::ServerKey;
use crate::scheme::{Aggregator, Progress};
use crate::wire::{Contribution, Reader};
use crate::{Error, Result};
use std::collections::BTreeMap;

fn same_masking(expected: &mut Option<Masking>, found: Masking) -> Result<()> {
    match expected {
        Some(expected) if *expected != found => Err(Error::frame(format!(
            "{found:?} masking in a round of {expected:?} masking; the client missed the round's plan"
        ))),
        _ => Ok(()),
    }
}

/// Running sum of dense updates, kept packed.
pub struct Dense {
    params: Params,
    admission: Admission,
    masking: Option<Masking>,
    sum: Vec<u8>,
}

impl Dense {
    pub fn new(params: Params, key: &ServerKey, round: Option<u64>) -> Self {
        let admission = Admission::new(key, params.rules(), round);
        Dense { params, admission, masking: None, sum: Vec::new() }
    }
}

impl Aggregator for Dense {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        let lanes = self.params.lanes(&admitted.layout)?;
        let mut r = Reader::new(admitted.payload);
        let masking = Masking::parse(r.u8()?)?;
        same_masking(&mut self.masking, masking)?;
        let payload = r.rest();
        lanes.check(payload)?;
        if self.sum.is_empty() {
            self.sum = vec![0; lanes.bytes];
        }
        lanes.add(&mut self.sum, payload);
        self.masking = Some(masking);
        Ok(self.admission.commit(admitted))
    }

    fn finish_with(&mut self, _progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let masking = self.masking.ok_or(Error::EmptyCohort)?;
        let sum = std::mem::take(&mut self.sum);
        let mut frame = Vec::new();
        let tag = self.admission.tag().to_bytes();
        header.build(1 + sum.len() + tag.len(), &mut frame, |payload| {
            payload[0] = masking as u8;
            let (lanes, end) = payload[1..].split_at_mut(sum.len());
            lanes.copy_from_slice(&sum);
            end.copy_from_slice(&tag);
            Ok(())
        })?;
        Ok(frame)
    }
}

/// Running sum of sparse updates by permuted position, and who sent what.
pub struct Sparse {
    params: Params,
    admission: Admission,
    masking: Option<Masking>,
    /// Increasing positions and, beside them, their sums.
    union: Vec<u32>,
    sums: Vec<u64>,
    sets: BTreeMap<u32, Vec<u32>>,
}

impl Sparse {
    pub fn new(params: Params, key: &ServerKey, round: Option<u64>) -> Self {
        let admission = Admission::new(key, params.rules(), round);
        Sparse { params, admission, masking: None, union: Vec::new(), sums: Vec::new(), sets: BTreeMap::new() }
    }
}

impl Aggregator for Sparse {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        let width = self.params.sparse_width(&admitted.layout)?;
        let mut r = Reader::new(admitted.payload);
        let masking = Masking::parse(r.u8()?)?;
        same_masking(&mut self.masking, masking)?;
        let sites = positions::decode(&mut r, admitted.layout.elements())?;
        let packed = r.rest();
        bits::check_stream(packed, sites.len(), width)?;
        self.params.check_sparse(&admitted.layout, sites.len())?;
        let mut lanes = vec![0u64; sites.len()];
        bits::unpack(packed, width, &mut lanes);
        let (mut old, mut new) = (self.sums.iter(), lanes.iter());
        let take = |from: bool, lanes: &mut std::slice::Iter<'_, u64>| {
            if from { lanes.next().copied().unwrap_or(0) } else { 0 }
        };
        let (union, sums) = positions::merge(&self.union, &sites)
            .map(|(site, in_old, in_new)| {
                let sum = take(in_old, &mut old).wrapping_add(take(in_new, &mut new));
                (site, sum & bits::lane_mask(width))
            })
            .unzip();
        (self.union, self.sums) = (union, sums);
        self.masking = Some(masking);
        self.sets.insert(admitted.contribution.client, sites);
        Ok(self.admission.commit(admitted))
    }

    fn finish_with(&mut self, _progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let masking = self.masking.ok_or(Error::EmptyCohort)?;
        let layout = self.admission.layout()?;
        let width = self.params.sparse_width(layout)?;
        let mut payload = vec![masking as u8];
        for sites in std::mem::take(&mut self.sets).into_values() {
            positions::encode(&sites, layout.elements(), &mut payload);
        }
        let lanes = std::mem::take(&mut self.sums);
        let at = payload.len();
        payload.resize(at + bits::packed_len(lanes.len(), width), 0);
        bits::pack(&lanes, width, &mut payload[at..]);
        payload.extend_from_slice(&self.admission.tag().to_bytes());
        Ok(header.frame(&payload))
    }
}
