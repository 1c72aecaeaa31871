//! Randomised Hadamard rotations. Each spreads every value over many others, so that all have nearly one size.
//!
//! Signs at random, then the orthonormal transform of strided blocks: of `c * block` values, block k has the values k,
//! k + c, k + 2c and so on. The last `block` values are turned once more, so that those behind the last whole block take
//! part and nothing is padded. Butterflies run in one order everywhere, no operations are fused, and one multiplication
//! ends a block: all machines agree to the bit. Nothing here is secret.

use crate::Result;
use crate::prf::{CHUNK_BLOCKS, Prf};
use multiversion::multiversion;
use rayon::prelude::*;

/// The longest block. Longer ones spread no better, and no longer fit into a cache of 512 KiB.
pub const MOST_BLOCK: usize = 4096;
/// Blocks that are transformed side by side: a cache line of values.
const COLUMNS: usize = 16;
type Row = [f32; COLUMNS];
/// Columns that a thread takes up at once: several cache lines of a page, where rows are a page or more apart.
const TILE: usize = 4 * COLUMNS;
const SIGNS: usize = CHUNK_BLOCKS * 128;

/// Which values the signs of a stream are for.
#[derive(Clone, Copy)]
enum Part {
    Blocks,
    Last,
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
        self.flip(&mut values[..whole], Part::Blocks);
        transform(&mut values[..whole], self.block, self.columns);
        if whole < self.len {
            self.flip(&mut values[last..], Part::Last);
            transform(&mut values[last..], self.block, 1);
        }
    }

    /// Takes [`Self::forward`] back.
    pub fn back(&self, values: &mut [f32]) {
        let (whole, last) = self.parts(values.len());
        if whole < self.len {
            transform(&mut values[last..], self.block, 1);
            self.flip(&mut values[last..], Part::Last);
        }
        transform(&mut values[..whole], self.block, self.columns);
        self.flip(&mut values[..whole], Part::Blocks);
    }

    /// Where the whole blocks end, and where the last one begins that is turned once more.
    fn parts(&self, len: usize) -> (usize, usize) {
        assert_eq!(len, self.len, "a rotation of another number of values");
        (self.columns * self.block, self.len.saturating_sub(self.block))
    }

    fn flip(&self, values: &mut [f32], part: Part) {
        values.par_chunks_mut(SIGNS).enumerate().for_each(|(k, values)| {
            let mut signs = [[0u8; 16]; CHUNK_BLOCKS];
            let signs = &mut signs[..values.len().div_ceil(128)];
            let mut prefix = [0u8; 12];
            prefix[0] = part as u8;
            self.signs.blocks(prefix, (k * CHUNK_BLOCKS) as u32, signs);
            flip(signs.as_flattened(), values);
        });
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn flip(signs: &[u8], values: &mut [f32]) {
    for (byte, values) in signs.iter().zip(values.chunks_mut(8)) {
        for (k, value) in values.iter_mut().enumerate() {
            *value = f32::from_bits(value.to_bits() ^ u32::from(byte >> k & 1) << 31);
        }
    }
}

/// Transforms `columns` blocks, whose values are strided.
fn transform(values: &mut [f32], block: usize, columns: usize) {
    if block < 2 {
        return;
    }
    let scale = (block as f64).sqrt().recip() as f32;
    // Each tile has a few neighbours of every row.
    let mut tiles: Vec<Vec<&mut [f32]>> = Vec::new();
    tiles.resize_with(columns.div_ceil(TILE), || Vec::with_capacity(block));
    for row in values.chunks_mut(columns) {
        tiles.iter_mut().zip(row.chunks_mut(TILE)).for_each(|(tile, part)| tile.push(part));
    }
    tiles.par_iter_mut().for_each_init(
        || vec![[0f32; COLUMNS]; block * (TILE / COLUMNS)],
        |rows, tile| {
            let parts = tile.first().map_or(0, |part| part.len().div_ceil(COLUMNS));
            for (k, part) in tile.iter().enumerate() {
                for (p, from) in part.chunks(COLUMNS).enumerate() {
                    rows[p * block + k][..from.len()].copy_from_slice(from);
                }
            }
            rows.chunks_exact_mut(block).take(parts).for_each(|rows| hadamard(rows, scale));
            for (k, part) in tile.iter_mut().enumerate() {
                for (p, to) in part.chunks_mut(COLUMNS).enumerate() {
                    to.copy_from_slice(&rows[p * block + k][..to.len()]);
                }
            }
        },
    );
}

/// The transform along the rows, as many as a power of two, times `scale`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn hadamard(rows: &mut [Row], scale: f32) {
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
    rows.as_flattened_mut().iter_mut().for_each(|value| *value *= scale);
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
