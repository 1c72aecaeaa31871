//! Randomised Hadamard rotations. Each spreads every value over many others, so that all have nearly one size.
//!
//! Signs at random, then the orthonormal transform of strided blocks: of `c * block` values, block k has the values k,
//! k + c, k + 2c and so on. The last `block` values are turned once more, so that those behind the last whole block take
//! part and nothing is padded. Butterflies run in one order everywhere, no operations are fused, and one multiplication
//! ends a block: all machines agree to the bit. Nothing here is secret.

use crate::Result;
use crate::prf::{Prf, counter};
use aligned_vec::avec;
use multiversion::multiversion;
use rayon::prelude::*;

/// The longest block. Longer ones spread no better, and no longer fit into a cache of 512 KiB.
pub const MAX_BLOCK: usize = 4096;
/// Blocks that are transformed side by side: a cache line of values.
const COLUMNS: usize = 16;
type Row = [f32; COLUMNS];
/// Rows that are transformed at once: the square root of the longest block.
const HELD: usize = 64;
/// Groups of `COLUMNS` that a thread takes up at once, at most: several cache lines of a page, where rows are a page or
/// more apart. Their signs are the bits of a word.
const MAX_GROUPS: usize = 4;

/// Which values the signs of a stream are for.
#[derive(Clone, Copy)]
enum Part {
    Blocks,
    Last,
}

/// When signs are flipped.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

/// The rotation of so many values that a public seed draws.
#[derive(Debug)]
pub struct Rotation {
    signs: Prf,
    block: usize,
    columns: usize,
    len: usize,
}

impl Rotation {
    /// Of `len` values.
    pub fn new(seed: [u8; 16], len: usize) -> Result<Self> {
        let block = if len == 0 { 1 } else { MAX_BLOCK.min(1 << len.ilog2()) };
        Ok(Rotation { signs: Prf::new(&seed)?, block, columns: len / block, len })
    }

    /// Rotates finite `values`, as many as it is for.
    pub fn forward(&self, values: &mut [f32]) {
        let (whole, last) = self.parts(values.len());
        self.transform(&mut values[..whole], Part::Blocks, Side::Before);
        if whole < self.len {
            self.transform(&mut values[last..], Part::Last, Side::Before);
        }
    }

    /// Takes [`Self::forward`] back.
    pub fn back(&self, values: &mut [f32]) {
        let (whole, last) = self.parts(values.len());
        if whole < self.len {
            self.transform(&mut values[last..], Part::Last, Side::After);
        }
        self.transform(&mut values[..whole], Part::Blocks, Side::After);
    }

    /// Where the whole blocks end, and where the last one begins that is turned once more.
    fn parts(&self, len: usize) -> (usize, usize) {
        assert_eq!(len, self.len, "a rotation of another number of values");
        (self.columns * self.block, self.len.saturating_sub(self.block))
    }

    /// Transforms blocks whose values are strided, and flips signs before or after.
    fn transform(&self, values: &mut [f32], part: Part, side: Side) {
        let columns = values.len() / self.block;
        // As wide as keeps all threads at work.
        let groups = columns.div_ceil(COLUMNS * 4 * rayon::current_num_threads()).clamp(1, MAX_GROUPS);
        let width = groups * COLUMNS;
        // Each tile has a few neighbours of every row.
        let mut tiles: Vec<Vec<&mut [f32]>> = Vec::new();
        tiles.resize_with(columns.div_ceil(width), || Vec::with_capacity(self.block));
        for row in values.chunks_mut(columns.max(1)) {
            tiles.iter_mut().zip(row.chunks_mut(width)).for_each(|(tile, part)| tile.push(part));
        }
        let room = || (avec![[0f32; COLUMNS]; self.block * groups], Vec::new(), vec![0u64; self.block]);
        tiles.par_iter_mut().enumerate().for_each_init(room, |(rows, blocks, signs), (k, tile)| {
            self.signs(part, columns, k * width, blocks, signs);
            transform_tile(tile, rows, signs, side);
        });
    }

    /// The signs of 64 values of each row, from a column on.
    fn signs(&self, part: Part, columns: usize, from: usize, blocks: &mut Vec<[u8; 16]>, signs: &mut [u64]) {
        let mut prefix = [0u8; 12];
        prefix[0] = part as u8;
        let first = |row: usize| row * columns + from;
        blocks.clear();
        blocks.extend((0..signs.len()).flat_map(|row| {
            let index = (first(row) / 128) as u32;
            [counter(prefix, index), counter(prefix, index.wrapping_add(1))]
        }));
        self.signs.permute(blocks);
        for (row, (word, pair)) in signs.iter_mut().zip(blocks.as_chunks::<2>().0).enumerate() {
            let [low, high] = pair.map(u128::from_le_bytes);
            let skip = first(row) % 128;
            *word = (low >> skip | high.checked_shl(128 - skip as u32).unwrap_or(0)) as u64;
        }
    }
}

/// Transforms the columns of a tile in `rows`, a memory of their own.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn transform_tile(tile: &mut [&mut [f32]], rows: &mut [Row], signs: &[u64], side: Side) {
    let block = tile.len();
    let groups = tile.first().map_or(0, |part| part.len().div_ceil(COLUMNS));
    let before = |word: u64| if matches!(side, Side::Before) { word } else { 0 };
    let after = |word: u64| if matches!(side, Side::After) { word } else { 0 };
    for (k, (part, word)) in tile.iter().zip(signs).enumerate() {
        for (group, from) in part.chunks(COLUMNS).enumerate() {
            flipped(from, (before(*word) >> (group * COLUMNS)) as u32, &mut rows[group * block + k][..from.len()]);
        }
    }
    let scale = (block as f64).sqrt().recip() as f32;
    rows.chunks_exact_mut(block).take(groups).for_each(|rows| hadamard(rows, scale));
    for (k, (part, word)) in tile.iter_mut().zip(signs).enumerate() {
        for (group, to) in part.chunks_mut(COLUMNS).enumerate() {
            let from = &rows[group * block + k][..to.len()];
            flipped(from, (after(*word) >> (group * COLUMNS)) as u32, to);
        }
    }
}

/// `from` with the signs flipped that a bit of `word` says.
#[inline(always)]
fn flipped(from: &[f32], word: u32, to: &mut [f32]) {
    for (k, (to, from)) in to.iter_mut().zip(from).enumerate() {
        *to = f32::from_bits(from.to_bits() ^ (word << (31 - k)) & 1 << 31);
    }
}

/// Rows on lines of the cache: vectors of 512 bits that lie across two take twice as long.
#[repr(align(64))]
struct Held([Row; HELD]);

/// The transform along the rows, as many as a power of two up to `HELD` squared, times `scale`.
///
/// Every `HELD` neighbours first, then those that are as far apart: each lot fits into the first cache.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn hadamard(rows: &mut [Row], scale: f32) {
    for lot in rows.chunks_mut(HELD) {
        levels(lot);
    }
    let mut held = Held([[0f32; COLUMNS]; HELD]);
    let apart = rows.len() / HELD;
    for at in 0..if apart > 1 { HELD } else { 0 } {
        let held = &mut held.0[..apart];
        held.iter_mut().zip(rows[at..].iter().step_by(HELD)).for_each(|(to, from)| *to = *from);
        levels(held);
        held.iter().zip(rows[at..].iter_mut().step_by(HELD)).for_each(|(from, to)| *to = *from);
    }
    rows.as_flattened_mut().iter_mut().for_each(|value| *value *= scale);
}

/// One level after another, two at once. Loops over neighbours, so that compilers take whole vectors.
#[inline(always)]
fn levels(rows: &mut [Row]) {
    let values = rows.as_flattened_mut();
    let mut stride = COLUMNS;
    while values.len() / stride >= 4 {
        for group in values.chunks_exact_mut(4 * stride) {
            let (left, right) = group.split_at_mut(2 * stride);
            let ((a, b), (c, d)) = (left.split_at_mut(stride), right.split_at_mut(stride));
            for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                let (ab, cd) = ((*a + *b, *a - *b), (*c + *d, *c - *d));
                (*a, *c) = (ab.0 + cd.0, ab.0 - cd.0);
                (*b, *d) = (ab.1 + cd.1, ab.1 - cd.1);
            }
        }
        stride *= 4;
    }
    if values.len() / stride == 2 {
        let (left, right) = values.split_at_mut(stride);
        for (a, b) in left.iter_mut().zip(right) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}
