//! `plain`: no encryption, same codec, bounds and frames. The yardstick, and nothing to deploy.

use crate::admission::{self, Admission};
use crate::bits;
use crate::bounds::{Bounds, MAX_FIELD_BITS};
use crate::codec::{Layout, Segment, SumSink, Update};
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::scheme::{self, Aggregator, Decryptor, Encryptor, Opening, Progress, Request, Scheme, Summary, Terms};
use crate::stream::{self, Opener, Piece, Sealer, Sealing, Threads};
use crate::wire::{self, Contribution, Frame, Header, Kind, Place};
use crate::{Error, Result};
use std::path::Path;
use zeroize::Zeroizing;

const NAME: &str = "plain";
const CHUNK: usize = 4096;
/// Lanes of a piece: a quarter of a megabyte of floats.
const PIECE: usize = 16 * CHUNK;

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

/// A payload of lanes cut into pieces that begin on a byte, each with its lane width and value bits.
#[derive(Debug)]
pub(crate) struct Cuts {
    pub pieces: Vec<Piece>,
    pub widths: Vec<u32>,
    pub bits: Vec<u32>,
}

impl Lanes {
    /// Pieces of at most `step(width)` lanes, a multiple of 8, behind `prefix` bytes.
    pub fn cut(&self, prefix: usize, step: impl Fn(u32) -> usize) -> Cuts {
        // Counted first: growing by doubling would hold the lists of a large model three times over.
        let count = self.segments.iter().map(|(segment, width, _)| segment.len.div_ceil(step(*width))).sum();
        let mut cuts = Cuts {
            pieces: Vec::with_capacity(count),
            widths: Vec::with_capacity(count),
            bits: Vec::with_capacity(count),
        };
        for (segment, width, at) in &self.segments {
            let step = step(*width);
            for done in (0..segment.len).step_by(step) {
                let len = step.min(segment.len - done);
                let at = prefix + at + bits::packed_len(done, *width);
                cuts.pieces.push(Piece { start: segment.start + done, len, at, bytes: bits::packed_len(len, *width) });
                cuts.widths.push(*width);
                cuts.bits.push(segment.bits);
            }
        }
        cuts
    }

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

impl PlainEncryptor {
    fn start(&self, terms: &Terms<'_>) -> Result<PlainSealer> {
        admission::check_weight(self.client, terms.weight, self.bounds.max_weight)?;
        let lanes = lanes(self.bounds, terms.layout)?;
        let own = vec![Contribution { client: self.client, weight: terms.weight }];
        let header = self.tag.round_header(Kind::Update, terms.round, own, terms.layout);
        let cuts = lanes.cut(0, |_| PIECE);
        Ok(PlainSealer { header, weight: terms.weight, cuts })
    }
}

impl Encryptor for PlainEncryptor {
    fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn Place) -> Result<()> {
        stream::seal_all(&self.start(&request.terms())?, request.update, place, Threads::One)
    }

    fn sealer(&mut self, terms: &Terms<'_>) -> Result<Option<Sealing>> {
        Ok(Some(Sealing::new(self.start(terms)?)))
    }
}

struct PlainSealer {
    header: Header,
    weight: u64,
    cuts: Cuts,
}

impl Sealer for PlainSealer {
    fn header(&self) -> &Header {
        &self.header
    }

    fn prefix(&self) -> &[u8] {
        &[]
    }

    fn pieces(&self) -> &[Piece] {
        &self.cuts.pieces
    }

    fn seal(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<()> {
        let (piece, width) = (&self.cuts.pieces[index], self.cuts.widths[index]);
        let mut ints = vec![0u32; CHUNK];
        for (k, chunk) in out.chunks_mut(bits::packed_len(CHUNK, width)).enumerate() {
            let n = (piece.len - k * CHUNK).min(CHUNK);
            update.quantise(piece.start + k * CHUNK, &mut ints[..n])?;
            bits::pack_scaled(&ints[..n], self.weight, width, chunk);
        }
        Ok(())
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
        let Frame { header, payload } = wire::parse_kind(frame, Kind::Aggregate)?;
        let (layout, opener) = self.start(&header, round)?;
        stream::open_all(&opener, &layout, header.total_weight(), payload, sink, Threads::One)?;
        Ok(Summary { header, layout, counts: None })
    }

    fn opener(&self, header: &Header, round: Option<u64>, _prefix: &[u8]) -> Result<Option<Opening>> {
        let (layout, opener) = self.start(header, round)?;
        Ok(Some(Opening { layout, opener: Box::new(opener) }))
    }
}

impl PlainDecryptor {
    fn start(&self, header: &Header, round: Option<u64>) -> Result<(Layout, PlainOpener)> {
        let layout = admission::check_aggregate(&self.tag, self.bounds, header, round)?;
        let cuts = lanes(self.bounds, &layout)?.cut(0, |_| PIECE);
        Ok((layout, PlainOpener { cuts, weight: header.total_weight() }))
    }
}

struct PlainOpener {
    cuts: Cuts,
    weight: u64,
}

impl Opener for PlainOpener {
    fn prefix(&self) -> usize {
        0
    }

    fn pieces(&self) -> &[Piece] {
        &self.cuts.pieces
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<()> {
        let (width, values) = (self.cuts.widths[index], self.cuts.bits[index]);
        bits::check_stream(bytes, sums.len(), width)?;
        bits::unpack(bytes, width, sums);
        admission::check_sums(sums, self.weight, values)
    }
}
