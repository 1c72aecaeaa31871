//! `plain`: no encryption, same codec, bounds and frames. The yardstick, and nothing to deploy.

use crate::admission::{self, Admission};
use crate::bits;
use crate::bounds::{Bounds, MAX_FIELD_BITS};
use crate::codec::{Layout, Segment, SumSink};
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::scheme::{self, Aggregator, Decryptor, Encryptor, Progress, Request, Scheme, Summary};
use crate::wire::{Contribution, Kind, Place};
use crate::{Error, Result};
use std::path::Path;
use zeroize::Zeroizing;

const NAME: &str = "plain";
const CHUNK: usize = 4096;

/// Packs integers in `field_bits` lanes and adds them in the clear.
#[derive(Debug, Clone)]
pub struct Plain {
    bounds: Bounds,
}

impl Plain {
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Plain { bounds }
    }
}

/// Lane widths of a layout's segments, and where each begins in the payload.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    pub segments: Vec<(Segment, u32, usize)>,
    pub bytes: usize,
}

impl Lanes {
    pub fn of(layout: &Layout, width: impl Fn(u32) -> Result<u32>) -> Result<Self> {
        let mut bytes = 0;
        let mut segments = Vec::new();
        for segment in layout.segments() {
            let width = width(segment.bits)?;
            segments.push((segment, width, bytes));
            bytes += bits::packed_len(segment.len, width);
        }
        Ok(Lanes { segments, bytes })
    }

    /// Each segment with its slice of a payload.
    pub fn split<'a>(&self, payload: &'a [u8]) -> impl Iterator<Item = (Segment, u32, &'a [u8])> {
        self.segments
            .iter()
            .map(move |(s, width, at)| (*s, *width, &payload[*at..*at + bits::packed_len(s.len, *width)]))
    }

    pub fn check(&self, payload: &[u8]) -> Result<()> {
        if payload.len() != self.bytes {
            return Err(Error::frame(format!("payload has {} bytes instead of {}", payload.len(), self.bytes)));
        }
        self.split(payload).try_for_each(|(s, width, bytes)| bits::check_stream(bytes, s.len, width))
    }

    /// Adds payload `x` into `acc`, lane by lane.
    pub fn add(&self, acc: &mut [u8], x: &[u8]) {
        for (s, width, at) in &self.segments {
            let range = *at..*at + bits::packed_len(s.len, *width);
            bits::add_assign(&mut acc[range.clone()], &x[range], *width, s.len);
        }
    }
}

fn lanes(bounds: Bounds, layout: &Layout) -> Result<Lanes> {
    Lanes::of(layout, |b| bounds.checked_field_bits(b, MAX_FIELD_BITS))
}

impl Scheme for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> [u8; 16] {
        scheme::digest(&format!("{NAME}|{:?}", self.bounds))
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        lanes(self.bounds, layout).map(drop)
    }

    fn keygen(&self, cohort: &[u32], epoch: u64) -> Result<KeySet> {
        let tag = KeyTag::fresh(NAME, self.digest(), epoch)?;
        KeySet::build(tag, cohort, Vec::new(), |_| Ok(Zeroizing::new(Vec::new())))
    }

    fn encryptor(&self, key: &ClientKey, _state: Option<&Path>) -> Result<Box<dyn Encryptor>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Box::new(PlainEncryptor { bounds: self.bounds, tag: key.tag.clone(), client: key.client }))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<u64>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        let admission = Admission::new(key, self.bounds, round);
        Ok(Box::new(PlainAggregator { bounds: self.bounds, admission, sum: Vec::new() }))
    }

    fn decryptor(&self, key: &ClientKey) -> Result<Box<dyn Decryptor>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Box::new(PlainDecryptor { bounds: self.bounds, tag: key.tag.clone() }))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![("clients".into(), self.bounds.clients.to_string())]
    }
}

struct PlainEncryptor {
    bounds: Bounds,
    tag: KeyTag,
    client: u32,
}

impl Encryptor for PlainEncryptor {
    fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn Place) -> Result<()> {
        admission::check_weight(self.client, request.weight, self.bounds.max_weight)?;
        let layout = request.update.layout();
        let lanes = lanes(self.bounds, layout)?;
        let own = vec![Contribution { client: self.client, weight: request.weight }];
        let header = self.tag.round_header(Kind::Update, request.round, own, layout);
        header.build(lanes.bytes, place, |payload| {
            let mut ints = vec![0u32; CHUNK];
            for (segment, width, at) in &lanes.segments {
                let out = &mut payload[*at..*at + bits::packed_len(segment.len, *width)];
                for (k, chunk) in out.chunks_mut(bits::packed_len(CHUNK, *width)).enumerate() {
                    let n = (segment.len - k * CHUNK).min(CHUNK);
                    request.update.quantise(segment.start + k * CHUNK, &mut ints[..n])?;
                    bits::pack_scaled(&ints[..n], request.weight, *width, chunk);
                }
            }
            Ok(())
        })
    }
}

struct PlainAggregator {
    bounds: Bounds,
    admission: Admission,
    sum: Vec<u8>,
}

impl Aggregator for PlainAggregator {
    fn add(&mut self, frame: &[u8], scale: u64) -> Result<Contribution> {
        let admitted = self.admission.check(frame, scale)?;
        let lanes = lanes(self.bounds, &admitted.layout)?;
        lanes.check(admitted.payload)?;
        if self.sum.is_empty() {
            self.sum = vec![0; lanes.bytes];
        }
        if scale == 1 {
            lanes.add(&mut self.sum, admitted.payload);
        } else {
            let mut scaled = admitted.payload.to_vec();
            for (s, width, at) in &lanes.segments {
                let bytes = &mut scaled[*at..*at + bits::packed_len(s.len, *width)];
                let mut values = vec![0u64; s.len];
                bits::unpack(bytes, *width, &mut values);
                values.iter_mut().for_each(|v| *v = v.wrapping_mul(scale) & bits::lane_mask(*width));
                bits::pack(&values, *width, bytes);
            }
            lanes.add(&mut self.sum, &scaled);
        }
        Ok(self.admission.commit(admitted))
    }

    fn finish_with(&mut self, _progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        Ok(header.frame(&std::mem::take(&mut self.sum)))
    }
}

struct PlainDecryptor {
    bounds: Bounds,
    tag: KeyTag,
}

impl Decryptor for PlainDecryptor {
    fn decrypt(&self, frame: &[u8], round: Option<u64>, sink: &mut dyn SumSink) -> Result<Summary> {
        let (header, layout, payload) = admission::open_aggregate(&self.tag, self.bounds, frame, round)?;
        let lanes = lanes(self.bounds, &layout)?;
        lanes.check(payload)?;
        let weight = header.total_weight();
        sink.begin(&layout, weight)?;
        let mut sums = vec![0u64; CHUNK];
        for (segment, width, bytes) in lanes.split(payload) {
            for (k, chunk) in bytes.chunks(bits::packed_len(CHUNK, width)).enumerate() {
                let n = (segment.len - k * CHUNK).min(CHUNK);
                bits::unpack(chunk, width, &mut sums[..n]);
                admission::check_sums(&sums[..n], weight, segment.bits)?;
                sink.put(segment.start + k * CHUNK, &sums[..n])?;
            }
        }
        Ok(Summary { header, layout, counts: None })
    }
}
