//! Payloads of bit lanes, a field a lane: where each segment of a layout lies, and where it may be cut.

use crate::bits;
use crate::codec::{Layout, Segment};
use crate::protocol::Piece;
use crate::threads::Threads;
use crate::{Error, Result};
use rayon::prelude::*;

/// Lanes that a thread adds at a time, a multiple of 8.
const SHARED_LANES: usize = 1 << 16;

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

    pub fn check_len(&self, payload_len: usize) -> Result<()> {
        if payload_len == self.bytes {
            return Ok(());
        }
        Err(Error::frame(format!("payload has {payload_len} bytes instead of {}", self.bytes)))
    }

    pub fn check(&self, payload: &[u8]) -> Result<()> {
        self.check_len(payload.len())?;
        self.split(payload).try_for_each(|(s, width, bytes)| bits::check_stream(bytes, s.len, width))
    }

    /// Adds payload `x` into `acc`, lane by lane.
    pub fn add(&self, acc: &mut [u8], x: &[u8]) {
        for (s, width, at) in &self.segments {
            let range = *at..*at + bits::packed_len(s.len, *width);
            let (acc, x) = (&mut acc[range.clone()], &x[range]);
            match Threads::for_bytes(acc.len()) {
                Threads::One => bits::add_assign(acc, x, *width),
                Threads::All => {
                    let part = bits::packed_len(SHARED_LANES, *width);
                    let parts = acc.par_chunks_mut(part).zip(x.par_chunks(part));
                    parts.for_each(|(acc, x)| bits::add_assign(acc, x, *width));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Tensor;

    #[test]
    fn what_threads_share_is_added_as_by_one() -> Result<()> {
        let tensor = |len| Tensor { dtype: 1, bits: 12, alpha: 1.0, shape: vec![len] };
        let layout = Layout::new(vec![tensor(1001), tensor((11 << 20) + 12_345)])?;
        for width in [13, 16] {
            let lanes = Lanes::of(&layout, |_| Ok(width))?;
            let stream = |step: usize| (0..lanes.bytes).map(|k| ((k * step) >> 3) as u8).collect::<Vec<_>>();
            let (x, mut sum) = (stream(37), stream(101));
            let mut wanted = sum.clone();
            for (segment, _, at) in &lanes.segments {
                let range = *at..*at + bits::packed_len(segment.len, width);
                bits::add_assign(&mut wanted[range.clone()], &x[range], width);
            }
            lanes.add(&mut sum, &x);
            assert!(sum == wanted, "w={width}");
        }
        Ok(())
    }
}
