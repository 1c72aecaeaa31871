//! Randomised Hadamard rotations. Each spreads every value over many others, so that all have nearly one size.
//!
//! Signs at random, then the orthonormal transform of strided blocks: of `c * block` values, block k has the values k,
//! k + c, k + 2c and so on. The last `block` values are turned once more, so that those behind the last whole block take
//! part and nothing is padded. Butterflies run in one order everywhere, no operations are fused, and one multiplication
//! ends a block: all machines agree to the bit. Nothing here is secret.

use crate::Result;
use crate::prf::{Prf, counter};
use multiversion::multiversion;
use rayon::prelude::*;

/// The longest block. Longer ones spread no better, and no longer fit into a cache of 512 KiB.
pub const MOST_BLOCK: usize = 4096;
/// Blocks that are transformed side by side: a cache line of values.
const COLUMNS: usize = 16;
type Row = [f32; COLUMNS];
/// Rows that are transformed at once: the square root of the longest block.
const HELD: usize = 64;
/// Groups of `COLUMNS` that a thread takes up at once, at most: several cache lines of a page, where rows are a page or
/// more apart. Their signs are the bits of a word.
const MOST_GROUPS: usize = 4;

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
        let block = if len == 0 { 1 } else { MOST_BLOCK.min(1 << len.ilog2()) };
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
        let groups = columns.div_ceil(COLUMNS * 4 * rayon::current_num_threads()).clamp(1, MOST_GROUPS);
        let width = groups * COLUMNS;
        // Each tile has a few neighbours of every row.
        let mut tiles: Vec<Vec<&mut [f32]>> = Vec::new();
        tiles.resize_with(columns.div_ceil(width), || Vec::with_capacity(self.block));
        for row in values.chunks_mut(columns.max(1)) {
            tiles.iter_mut().zip(row.chunks_mut(width)).for_each(|(tile, part)| tile.push(part));
        }
        let room = || (vec![[0f32; COLUMNS]; self.block * groups], Vec::new(), vec![0u64; self.block]);
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

/// The transform along the rows, as many as a power of two up to `HELD` squared, times `scale`.
///
/// Every `HELD` neighbours first, then those that are as far apart: each lot fits into the first cache.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn hadamard(rows: &mut [Row], scale: f32) {
    for lot in rows.chunks_mut(HELD) {
        levels(lot);
    }
    let mut held = [[0f32; COLUMNS]; HELD];
    let apart = rows.len() / HELD;
    for at in 0..if apart > 1 { HELD } else { 0 } {
        let held = &mut held[..apart];
        held.iter_mut().zip(rows[at..].iter().step_by(HELD)).for_each(|(to, from)| *to = *from);
        levels(held);
        held.iter().zip(rows[at..].iter_mut().step_by(HELD)).for_each(|(from, to)| *to = *from);
    }
    rows.as_flattened_mut().iter_mut().for_each(|value| *value *= scale);
}

#[inline(always)]
fn levels(rows: &mut [Row]) {
    let mut stride = 1;
    while rows.len() / stride >= 8 {
        butterflies::<8>(rows, stride);
        stride *= 8;
    }
    match rows.len() / stride {
        4 => butterflies::<4>(rows, stride),
        2 => butterflies::<2>(rows, stride),
        _ => {}
    }
}

/// The levels of strides `stride` to `stride * R / 2`. Sums are those of one level after another.
#[inline(always)]
fn butterflies<const R: usize>(rows: &mut [Row], stride: usize) {
    for group in rows.chunks_exact_mut(R * stride) {
        for at in 0..stride {
            let mut held: [Row; R] = std::array::from_fn(|k| group[at + k * stride]);
            let mut level = 1;
            while level < R {
                for k in (0..R).filter(|k| k & level == 0) {
                    let (left, right) = held.split_at_mut(k + level);
                    for (a, b) in left[k].iter_mut().zip(&mut right[0]) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                level *= 2;
            }
            for (k, row) in held.iter().enumerate() {
                group[at + k * stride] = *row;
            }
        }
    }
}
