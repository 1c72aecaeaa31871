//! The pieces of updates and aggregates. Pieces are independent. A process can hold one at a time, as the offload
//! engine does, or work on several at once, as a library call does.

use crate::memory::runs;

/// Elements `start..start + len` of the update, and the payload bytes `at..at + bytes` that carry them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: usize,
    pub len: usize,
    pub at: usize,
    pub bytes: usize,
}

impl Piece {
    /// Payload bytes up to the end of the last piece.
    pub(crate) fn end(pieces: &[Piece], prefix: usize) -> usize {
        pieces.last().map_or(prefix, |p| p.at + p.bytes)
    }
}

/// The number of whole pieces, from `next` on, in `have` units; and the units of these pieces.
pub(super) fn whole(pieces: &[Piece], next: usize, have: usize, size: impl Fn(&Piece) -> usize) -> (usize, usize) {
    let mut used = 0;
    let count = pieces[next..].iter().take_while(|piece| {
        let fits = used + size(piece) <= have;
        used += if fits { size(piece) } else { 0 };
        fits
    });
    (count.count(), used)
}

/// The bytes of each of `pieces`, which are contiguous in `out`.
pub(super) fn slots<'a>(pieces: &[Piece], out: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    runs(out, pieces.iter().map(|piece| piece.bytes)).collect()
}
