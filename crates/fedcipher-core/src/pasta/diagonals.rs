//! The public matrices of a chunk's blocks as plaintexts, stored by diagonals. They depend on nonce and counter alone.

use super::cipher::{Layer, layers};
use super::context::{Context, Server};
use super::field::Field;
use super::ring::{Row, Rows};
use crate::Result;
use rayon::prelude::*;

/// One layer's matrices over all blocks.
pub(super) struct Step {
    /// The diagonals of each giant step: first those that multiply the baby rotations of the state, then those that
    /// multiply the rotations of the S-box's square.
    pub giants: Vec<Vec<Rows>>,
    pub constants: Rows,
}

/// The transformed diagonals of B blocks under one nonce, shared by all clients.
pub struct Diagonals {
    pub(super) steps: Vec<Step>,
}

/// A layer's matrices of both halves. Entry (i, j) of all blocks is stored contiguously.
struct Matrices {
    t: usize,
    blocks: usize,
    halves: [Vec<u64>; 2],
}

impl Matrices {
    /// With `double` (the last layer), the left matrix is doubled, so that `w + swap(w)` is `2 l + r`.
    fn new(context: &Context, blocks: &[Vec<Layer>], round: usize, double: bool) -> Self {
        let t = context.variant.t;
        let half = |half: usize| {
            let firsts: Vec<&[u64]> = blocks.iter().map(|layers| layers[round].rows[half].as_slice()).collect();
            matrices(context.field, t, &firsts, double && half == 0)
        };
        let (left, right) = rayon::join(|| half(0), || half(1));
        Matrices { t, blocks: blocks.len(), halves: [left, right] }
    }

    fn entry(&self, half: usize, i: usize, j: usize) -> &[u64] {
        let at = (i * self.t + j) * self.blocks;
        &self.halves[half][at..at + self.blocks]
    }
}

/// Like `cipher::matrix`, for many blocks: row i+1 from row i by `row'[j] = f[j] row[t-1] + row[j-1]`.
fn matrices(field: Field, t: usize, firsts: &[&[u64]], double: bool) -> Vec<u64> {
    let blocks = firsts.len();
    let first: Vec<u64> = (0..t).flat_map(|j| firsts.iter().map(move |f| f[j])).collect();
    let mut all = vec![0; t * t * blocks];
    all[..t * blocks].copy_from_slice(&first);
    for i in 1..t {
        let (done, next) = all.split_at_mut(i * t * blocks);
        let row = &done[(i - 1) * t * blocks..];
        let last = &row[(t - 1) * blocks..];
        for j in 0..t {
            let out = &mut next[j * blocks..(j + 1) * blocks];
            let f = &first[j * blocks..(j + 1) * blocks];
            if j == 0 {
                out.iter_mut().zip(f).zip(last).for_each(|((out, f), last)| *out = field.mul(*f, *last));
            } else {
                let before = &row[(j - 1) * blocks..j * blocks];
                for (((out, f), last), before) in out.iter_mut().zip(f).zip(last).zip(before) {
                    *out = field.mul_add(*f, *last, *before);
                }
            }
        }
    }
    if double {
        all.iter_mut().for_each(|x| *x = field.add(*x, *x));
    }
    all
}

impl Diagonals {
    /// Computes the diagonals of the `present` blocks from `chunk * B` on under `nonce`, on all cores. For the other slots
    /// the matrices are zero. These slots decipher to zero, and their key stream is never computed.
    pub fn new(context: &Context, nonce: u64, chunk: usize, present: usize) -> Result<Self> {
        let server = context.server()?;
        let first = chunk * context.blocks();
        let blocks: Vec<Vec<Layer>> = (0..present.min(context.blocks()))
            .into_par_iter()
            .map(|k| layers(context.variant, context.field, nonce, (first + k) as u64))
            .collect();
        let rounds = context.variant.rounds;
        let steps = (0..=rounds).map(|round| {
            // One layer at a time, because its matrices take the most memory: 2 B t^2 words.
            let matrices = Matrices::new(context, &blocks, round, round == rounds);
            // Every layer except the first and the last also multiplies the square of the S-box before it. The S-box
            // before the last layer is a cube.
            Step::new(context, server, &matrices, &blocks, round, (1..rounds).contains(&round))
        });
        Ok(Diagonals { steps: steps.collect() })
    }
}

impl Step {
    fn new(
        context: &Context,
        server: &Server,
        matrices: &Matrices,
        blocks: &[Vec<Layer>],
        round: usize,
        square: bool,
    ) -> Self {
        let (t, baby, all) = (context.variant.t, context.baby, context.blocks());
        let level = context.plan.layers[round];
        let place = |placed: &mut Row, half: usize, word: usize, entries: &mut dyn Iterator<Item = u64>| {
            let places = &server.slots.places()[half * context.capacity() + word * all..];
            places.iter().zip(entries).for_each(|(place, value)| placed[*place as usize] = value);
        };
        // The diagonal that multiplies words moved down by d: words of the state, or of the square. Word j of the square
        // belongs to word j + 1 of the state; its last word belongs to no word.
        let diagonal = |d: usize, square: bool| {
            let turn = d / baby * baby;
            let mut placed = Row::zeros(context.degree);
            for word in 0..t {
                // The diagonal is rotated back, because the giant step is applied after the product.
                let i = (word + t - turn) % t;
                let j = (i + d + usize::from(square)) % t;
                if square && j == 0 {
                    continue;
                }
                for half in 0..2 {
                    place(&mut placed, half, word, &mut matrices.entry(half, i, j).iter().copied());
                }
            }
            server.ring.extended_multiplier(&server.slots.coefficients(placed), level)
        };
        let giants = (0..context.giants()).into_par_iter().map(|giant| {
            let steps = giant * baby..t.min((giant + 1) * baby);
            let kinds = if square { [false, true].as_slice() } else { &[false] };
            let terms: Vec<(usize, bool)> = kinds.iter().flat_map(|kind| steps.clone().map(|d| (d, *kind))).collect();
            terms.into_par_iter().map(|(d, kind)| diagonal(d, kind)).collect::<Vec<Rows>>()
        });
        let mut placed = Row::zeros(context.degree);
        for word in 0..t {
            for half in 0..2 {
                let constant = |layers: &Vec<Layer>| {
                    let c = layers[round].constants[half][word];
                    // The left constants are doubled like the left matrix.
                    if round == context.variant.rounds && half == 0 { context.field.add(c, c) } else { c }
                };
                place(&mut placed, half, word, &mut blocks.iter().map(constant));
            }
        }
        let constants = server.ring.summand(&server.slots.coefficients(placed), level);
        Step { giants: giants.collect(), constants }
    }
}
