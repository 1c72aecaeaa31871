//! The mask streams `F_k(round || client || d)` and their signed sums, as packed lanes.

use crate::bits;
use crate::lanes::{Cuts, Lanes};
use crate::prf::{CHUNK_BLOCKS, Prf, round_client, wipe};
use crate::{ClientId, Error, Result, RoundId};
use aligned_vec::{AVec, avec};
use zeroize::Zeroize;

/// Chunks of mask blocks in a piece: at most a quarter of a megabyte of floats.
const CHUNKS_PER_PIECE: usize = 16;

/// Masks per value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Masking {
    Single = 1,
    Double = 2,
}

impl Masking {
    pub fn parse(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Masking::Single),
            2 => Ok(Masking::Double),
            other => Err(Error::frame(format!("unknown masking {other}"))),
        }
    }

    /// The terms that hide one client's value.
    #[must_use]
    pub fn terms(self, client: ClientId) -> Vec<Term> {
        let mut terms = vec![Term { client, negative: false }];
        if self == Masking::Double {
            terms.extend(client.next().map(|client| Term { client, negative: true }));
        }
        terms
    }
}

/// Fails for the largest possible client id. The masks of client j come from j and j + 1, and this client has no j + 1.
pub fn check_client(client: ClientId) -> Result<()> {
    client.next().map(drop).ok_or(Error::UnknownClient { client })
}

/// `+F(client)` or `-F(client)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    pub client: ClientId,
    pub negative: bool,
}

/// Masks of `width` bits in one 128-bit block.
#[must_use]
pub fn per_block(width: u32) -> usize {
    (128 / width) as usize
}

/// True if lanes fill blocks and bytes, so that a key stream can be read as a stream of lanes.
fn fills(width: u32) -> bool {
    width.is_power_of_two() && width >= u8::BITS
}

/// Lanes of one chunk of blocks. The number is a multiple of 8, so that chunks begin on a byte.
#[must_use]
pub fn chunk_lanes(width: u32) -> usize {
    per_block(width) * CHUNK_BLOCKS
}

/// The pieces of a dense payload, each with the number of its first mask block.
pub(super) struct Pieces {
    pub cuts: Cuts,
    pub blocks: Vec<u32>,
}

impl Pieces {
    /// Cuts the lanes behind the byte that names the masking. A piece is whole chunks, so it begins on a mask block.
    pub fn of(lanes: &Lanes) -> Self {
        let cuts = lanes.cut(1, |width| CHUNKS_PER_PIECE * chunk_lanes(width));
        let mut first = 0u32;
        let mut blocks = Vec::with_capacity(cuts.pieces.len());
        for (piece, width) in cuts.pieces.iter().zip(&cuts.widths) {
            blocks.push(first);
            first = first.wrapping_add(piece.len.div_ceil(per_block(*width)) as u32);
        }
        Pieces { cuts, blocks }
    }
}

/// Scratch for mask generation: a chunk of each key stream and of lanes, wiped when dropped.
pub struct MaskMaker<'a> {
    prf: &'a Prf,
    round: RoundId,
    width: u32,
    blocks: AVec<[u8; 16]>,
    /// The second, subtracted key stream of double masking, for widths that fill blocks and bytes.
    minus: AVec<[u8; 16]>,
    /// The sum of the terms as groups, and `packed` as a stream, for widths that do not fill blocks and bytes.
    total: AVec<[u8; 16]>,
    packed: AVec<u8>,
}

impl<'a> MaskMaker<'a> {
    #[must_use]
    pub fn new(prf: &'a Prf, round: RoundId, width: u32) -> Self {
        let (streams, used) = if fills(width) { (CHUNK_BLOCKS, 0) } else { (0, CHUNK_BLOCKS) };
        MaskMaker {
            prf,
            round,
            width,
            blocks: avec![[0; 16]; CHUNK_BLOCKS],
            minus: avec![[0; 16]; streams],
            total: avec![[0; 16]; used],
            packed: avec![0; bits::packed_len(used * per_block(width), width)],
        }
    }

    /// Adds the masks of `lanes` lanes (at most one chunk) to the stream `acc`. The key stream is read from block `first`
    /// on. `negate` flips every sign.
    pub fn apply(&mut self, terms: &[Term], negate: bool, first: u32, lanes: usize, acc: &mut [u8]) {
        let (width, count) = (self.width, lanes.div_ceil(per_block(self.width)));
        if fills(width) {
            for term in terms {
                self.prf.blocks(round_client(self.round, term.client), first, &mut self.blocks[..count]);
                if term.negative == negate {
                    bits::add_assign(acc, &self.blocks.as_flattened()[..acc.len()], width);
                } else {
                    bits::sub_assign(acc, &self.blocks.as_flattened()[..acc.len()], width);
                }
            }
            return;
        }
        // A block has bits beyond its lanes that the stream leaves out. So blocks are added first, and packed afterwards.
        self.total[..count].fill([0; 16]);
        self.sum(terms, negate, first, count);
        let packed = &mut self.packed[..acc.len()];
        bits::pack_groups(&self.total[..count], width, lanes, packed);
        bits::add_assign(acc, packed, width);
    }

    /// Writes the masked `values[k] * factor` (at most one chunk) as a stream. May overwrite `values`.
    fn encrypt(&mut self, terms: &[Term], first: u32, values: &mut [u32], factor: u64, out: &mut [u8]) {
        if fills(self.width) {
            let [Term { client: plus, negative: false }, Term { client: minus, negative: true }] = *terms else {
                bits::pack_scaled(values, factor, self.width, out);
                return self.apply(terms, false, first, values.len(), out);
            };
            let count = values.len().div_ceil(per_block(self.width));
            let streams = [(plus, &mut self.blocks), (minus, &mut self.minus)].map(|(client, blocks)| {
                self.prf.blocks(round_client(self.round, client), first, &mut blocks[..count]);
                &blocks.as_flattened()[..out.len()]
            });
            return bits::pack_masked(values, factor, self.width, streams, out);
        }
        // The masks are added to groups of values, so that all lanes are packed once.
        let count = values.len().div_ceil(per_block(self.width));
        bits::group_scaled(values, factor, self.width, &mut self.total[..count]);
        self.sum(terms, false, first, count);
        bits::pack_groups(&self.total[..count], self.width, values.len(), out);
    }

    /// Adds the masks of blocks `first..first + count` to the first `count` groups of `total`.
    fn sum(&mut self, terms: &[Term], negate: bool, first: u32, count: usize) {
        let (total, blocks) = (&mut self.total[..count], &mut self.blocks[..count]);
        for term in terms {
            self.prf.blocks(round_client(self.round, term.client), first, blocks);
            if term.negative == negate {
                bits::add_groups(total, blocks, self.width);
            } else {
                bits::sub_groups(total, blocks, self.width);
            }
        }
    }

    /// The masks of `client` at `positions` (increasing coordinates): calls `put(index, mask)`.
    pub fn at(&mut self, client: ClientId, positions: &[u32], mut put: impl FnMut(usize, u64)) {
        let per = per_block(self.width) as u32;
        let mut done = 0;
        while done < positions.len() {
            // Collects the next distinct block numbers, at most one chunk of them.
            let mut count = 0;
            let mut end = done;
            let mut numbers = [0u32; CHUNK_BLOCKS];
            while let Some(p) = positions.get(end) {
                let number = p / per;
                if count == 0 || numbers[count - 1] != number {
                    if count == CHUNK_BLOCKS {
                        break;
                    }
                    numbers[count] = number;
                    count += 1;
                }
                end += 1;
            }
            let prefix = round_client(self.round, client);
            for (block, number) in self.blocks.iter_mut().zip(&numbers[..count]) {
                block[..12].copy_from_slice(&prefix);
                block[12..].copy_from_slice(&number.to_be_bytes());
            }
            self.prf.permute(&mut self.blocks[..count]);
            let mut at = 0;
            for (k, p) in positions[done..end].iter().enumerate() {
                while numbers[at] != p / per {
                    at += 1;
                }
                let block = u128::from_le_bytes(self.blocks[at]);
                put(done + k, (block >> (p % per * self.width)) as u64 & bits::lane_mask(self.width));
            }
            done = end;
        }
    }
}

impl Drop for MaskMaker<'_> {
    fn drop(&mut self) {
        wipe(self.blocks.as_flattened_mut());
        wipe(self.minus.as_flattened_mut());
        wipe(self.total.as_flattened_mut());
        wipe(&mut self.packed);
    }
}

/// Encrypts one run of integers of equal width into the stream `out`. Every dense FLASHE ciphertext is made by this
/// kernel. `source(d, buffer)` fills the buffer with integers from coordinate d on; `base` is the first mask block of the
/// run.
pub fn encrypt_run(
    maker: &mut MaskMaker<'_>,
    terms: &[Term],
    base: u32,
    len: usize,
    factor: u64,
    mut source: impl FnMut(usize, &mut [u32]) -> Result<()>,
    out: &mut [u8],
) -> Result<()> {
    let width = maker.width;
    let step = chunk_lanes(width);
    let mut ints = avec![0u32; step];
    for (k, chunk) in out.chunks_mut(bits::packed_len(step, width)).enumerate() {
        let lanes = (len - k * step).min(step);
        source(k * step, &mut ints[..lanes])?;
        maker.encrypt(terms, base.wrapping_add((k * CHUNK_BLOCKS) as u32), &mut ints[..lanes], factor, chunk);
    }
    ints.zeroize();
    Ok(())
}
