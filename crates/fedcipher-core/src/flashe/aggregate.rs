//! The server's side: lane-wise sums mod 2^w, without a key.

use super::mask::Masking;
use super::{FlasheParams, positions};
use crate::admission::Admission;
use crate::bits;
use crate::keys::ServerKey;
use crate::mac::coordinates;
use crate::memory::zeros;
use crate::scheme::{Aggregator, Progress};
use crate::wire::{Contribution, FrameBuffer, Reader};
use crate::{ClientId, Error, Result, RoundId};
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
    params: FlasheParams,
    admission: Admission,
    masking: Option<Masking>,
    sum: Vec<u8>,
}

impl Dense {
    pub fn new(params: FlasheParams, key: &ServerKey, round: Option<RoundId>) -> Self {
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
            self.sum = zeros(lanes.bytes);
        }
        lanes.add(&mut self.sum, payload);
        self.masking = Some(masking);
        Ok(self.admission.commit(admitted))
    }

    fn finish_into(&mut self, place: &mut dyn FrameBuffer, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        let masking = self.masking.ok_or(Error::EmptyCohort)?;
        let sum = std::mem::take(&mut self.sum);
        header.build_from(&[&[masking as u8], &sum, &self.admission.close().to_bytes()], place)
    }
}

/// The sums at one permuted position.
#[derive(Clone, Copy, Default)]
struct Site {
    position: u32,
    sum: u64,
    tag: u64,
    senders: u64,
}

/// Running sum of sparse updates by permuted position, and the positions that each client sent.
pub struct Sparse {
    params: FlasheParams,
    admission: Admission,
    masking: Option<Masking>,
    /// Increasing by position.
    sites: Vec<Site>,
    sets: BTreeMap<ClientId, Vec<u32>>,
}

impl Sparse {
    pub fn new(params: FlasheParams, key: &ServerKey, round: Option<RoundId>) -> Self {
        let admission = Admission::new(key, params.rules(), round);
        Sparse { params, admission, masking: None, sites: Vec::new(), sets: BTreeMap::new() }
    }

    /// Adds the sites `new` to the sum so far, and returns the new sum.
    fn with(&self, new: &[Site], width: u32) -> Vec<Site> {
        let mut out = Vec::with_capacity(self.sites.len() + new.len());
        let (mut old, mut new) = (self.sites.iter().peekable(), new.iter().peekable());
        loop {
            let next = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) if a.position == b.position => Site {
                    position: a.position,
                    sum: a.sum.wrapping_add(b.sum) & bits::lane_mask(width),
                    tag: coordinates::add(a.tag, b.tag),
                    senders: a.senders + b.senders,
                },
                (Some(a), Some(b)) if a.position < b.position => **a,
                (Some(a), None) => **a,
                (_, Some(b)) => **b,
                (None, None) => return out,
            };
            old.next_if(|site| site.position == next.position);
            new.next_if(|site| site.position == next.position);
            out.push(next);
        }
    }
}

impl Aggregator for Sparse {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        let admitted = self.admission.check(frame)?;
        let width = self.params.sparse_width(&admitted.layout)?;
        let mut r = Reader::new(admitted.payload);
        let masking = Masking::parse(r.u8()?)?;
        same_masking(&mut self.masking, masking)?;
        let expected = self.params.sparse_count(&admitted.layout);
        let positions = positions::decode(&mut r, admitted.layout.elements(), expected)?;
        self.params.check_sparse(&admitted.layout, positions.len())?;
        let packed = r.bytes(bits::packed_len(positions.len(), width))?;
        bits::check_stream(packed, positions.len(), width)?;
        let tags = coordinates::parse(r.rest(), positions.len())?;
        let mut lanes = vec![0u64; positions.len()];
        bits::unpack(packed, width, &mut lanes);
        let parts = positions.iter().zip(lanes).zip(tags);
        let new: Vec<Site> =
            parts.map(|((position, sum), tag)| Site { position: *position, sum, tag, senders: 1 }).collect();
        self.sites = self.with(&new, width);
        self.masking = Some(masking);
        self.sets.insert(admitted.contribution.client, positions);
        Ok(self.admission.commit(admitted))
    }

    /// Leaves out coordinates that fewer than the minimum of clients sent. A sum of one is that client's value, and the
    /// decryptor learns who sent each coordinate.
    fn finish_into(&mut self, place: &mut dyn FrameBuffer, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        let masking = self.masking.ok_or(Error::EmptyCohort)?;
        let layout = self.admission.layout()?;
        let width = self.params.sparse_width(layout)?;
        let mut sites = std::mem::take(&mut self.sites);
        sites.retain(|site| site.senders >= self.params.bounds.min_contributions);
        let mut payload = vec![masking as u8];
        for mut set in std::mem::take(&mut self.sets).into_values() {
            let mut left = sites.iter().peekable();
            set.retain(|position| {
                while left.next_if(|site| site.position < *position).is_some() {}
                left.peek().is_some_and(|site| site.position == *position)
            });
            positions::encode(&set, layout.elements(), &mut payload);
        }
        let lanes: Vec<u64> = sites.iter().map(|site| site.sum).collect();
        let tags: Vec<u64> = sites.iter().map(|site| site.tag).collect();
        let at = payload.len();
        payload.resize(at + bits::packed_len(lanes.len(), width), 0);
        bits::pack(&lanes, width, &mut payload[at..]);
        coordinates::write(&tags, &mut payload);
        header.build_from(&[&payload, &self.admission.close().to_bytes()], place)
    }
}
