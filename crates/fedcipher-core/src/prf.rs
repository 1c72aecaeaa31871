//! AES in counter mode as pseudo-random function and generator (crate `aes`, hardware AES).

use crate::shown::shown;
use crate::{ClientId, Error, Result, RoundId};
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use hpke::rand_core::{TryCryptoRng, TryRng};
use multiversion::multiversion;
use std::convert::Infallible;
use zeroize::Zeroizing;

/// Blocks encrypted per call: 4 KiB of key stream stays in the L1 cache beside its consumer.
pub const CHUNK_BLOCKS: usize = 256;

enum Cipher {
    Aes128(Aes128),
    Aes256(Aes256),
}

/// `F_k`: 128-bit blocks addressed by (prefix, index), the block being `prefix_be96 || index_be32`.
///
/// With prefix = round (64 bits) || client (32 bits) this is exactly the key stream of AES-CTR with
/// initial counter block `round || client || 0`, which is how the tests check it against a library.
pub struct Prf(Cipher);

impl std::fmt::Debug for Prf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prf(secret)")
    }
}

impl Prf {
    /// A key of 16 (AES-128) or 32 bytes (AES-256).
    pub fn new(key: &[u8]) -> Result<Self> {
        match key.len() {
            16 => Aes128::new_from_slice(key).map(Cipher::Aes128),
            _ => Aes256::new_from_slice(key).map(Cipher::Aes256),
        }
        .map(Prf)
        .map_err(|_| Error::Key { reason: format!("AES takes 16 or 32 key bytes, not {}", key.len()) })
    }

    /// Key stream blocks `first..first + out.len()` under `prefix`.
    pub fn blocks(&self, prefix: [u8; 12], first: u32, out: &mut [[u8; 16]]) {
        let mut template = [0u8; 16];
        template[..12].copy_from_slice(&prefix);
        count(template, first, out);
        self.permute(out);
    }

    /// Encrypts prepared counter blocks in place.
    pub fn permute(&self, blocks: &mut [[u8; 16]]) {
        let blocks = Array::cast_slice_from_core_mut(blocks);
        match &self.0 {
            Cipher::Aes128(aes) => aes.encrypt_blocks(blocks),
            Cipher::Aes256(aes) => aes.encrypt_blocks(blocks),
        }
    }
}

/// The counter block `prefix || index`, for [`Prf::permute`].
#[must_use]
pub fn counter(prefix: [u8; 12], index: u32) -> [u8; 16] {
    let mut block = [0u8; 16];
    block[..12].copy_from_slice(&prefix);
    block[12..].copy_from_slice(&index.to_be_bytes());
    block
}

/// Counter blocks `first..first + out.len()` of `template`, whose last word is zero. Where this goes block by block, it
/// takes longer than the cipher does on 512-bit vectors.
fn count(mut template: [u8; 16], mut first: u32, mut out: &mut [[u8; 16]]) {
    while !out.is_empty() {
        let same = 256 - first as usize % 256;
        let (run, rest) = out.split_at_mut(same.min(out.len()));
        template[12..].copy_from_slice(&first.to_be_bytes());
        count_last_byte(template, run);
        (first, out) = (first.wrapping_add(run.len() as u32), rest);
    }
}

/// Blocks that differ only in their last byte, which counts on from the last byte of `first`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn count_last_byte(first: [u8; 16], out: &mut [[u8; 16]]) {
    let first = u128::from_le_bytes(first);
    let (low, high) = (first as u64, (first >> 64) as u64);
    for (i, pair) in out.as_flattened_mut().as_chunks_mut::<8>().0.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        pair[0] = low.to_le_bytes();
        pair[1] = high.wrapping_add((i as u64) << 56).to_le_bytes();
    }
}

/// The prefix of FLASHE's PRF input `round || client` (FLASHE, section 3.3: The Base Cryptosystem).
#[must_use]
pub fn round_client(round: RoundId, client: ClientId) -> [u8; 12] {
    prefix(round.get(), client.get())
}

/// The prefix `number || stream`.
#[must_use]
pub fn prefix(number: u64, stream: u32) -> [u8; 12] {
    let mut prefix = [0u8; 12];
    prefix[..8].copy_from_slice(&number.to_be_bytes());
    prefix[8..].copy_from_slice(&stream.to_be_bytes());
    prefix
}

/// A sequential generator over one PRF prefix, for sampling.
pub struct Stream {
    prf: Prf,
    prefix: [u8; 12],
    next: u32,
    buffer: Zeroizing<Vec<[u8; 16]>>,
    used: usize,
}

impl Stream {
    pub fn new(key: &[u8], prefix: [u8; 12]) -> Result<Self> {
        Ok(Stream {
            prf: Prf::new(key)?,
            prefix,
            next: 0,
            buffer: Zeroizing::new(vec![[0; 16]; CHUNK_BLOCKS]),
            used: 2 * CHUNK_BLOCKS,
        })
    }

    /// A generator seeded by the operating system.
    pub fn from_os() -> Result<Self> {
        Stream::new(random_bytes::<32>()?.as_slice(), [0; 12])
    }

    fn refill(&mut self) {
        self.prf.blocks(self.prefix, self.next, &mut self.buffer);
        // 2^32 blocks are 64 GiB: callers open a stream per polynomial or per permutation.
        self.next = self.next.wrapping_add(CHUNK_BLOCKS as u32);
        self.used = 0;
    }

    /// The next 64 bits, little-endian from the key stream.
    pub fn next_u64(&mut self) -> u64 {
        if self.used >= 2 * CHUNK_BLOCKS {
            self.refill();
        }
        let block = u128::from_le_bytes(self.buffer[self.used / 2]);
        let half = if self.used.is_multiple_of(2) { block as u64 } else { (block >> 64) as u64 };
        self.used += 1;
        half
    }

    /// The next words, as [`Stream::next_u64`] would return them.
    pub fn fill(&mut self, words: &mut [u64]) {
        let mut done = 0;
        while done < words.len() {
            if self.used >= 2 * CHUNK_BLOCKS {
                self.refill();
            }
            let (halves, _) = self.buffer.as_flattened().as_chunks::<8>();
            let taken = words[done..].iter_mut().zip(&halves[self.used..]);
            let count = taken.map(|(word, half)| *word = u64::from_le_bytes(*half)).count();
            (self.used, done) = (self.used + count, done + count);
        }
    }

    /// Uniform in `0..bound` without bias (Lemire, ACM TOMACS 2019).
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            // A draw that is thrown away tells nothing of the next.
            if shown((product as u64) >= bound.wrapping_neg() % bound) {
                return (product >> 64) as u64;
            }
        }
    }
}

/// A generator for other crates, which cannot fail once it is there: their own panic where the system's does.
pub(crate) struct Draws(pub Stream);

impl TryRng for Draws {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> std::result::Result<u32, Infallible> {
        Ok(self.0.next_u64() as u32)
    }

    fn try_next_u64(&mut self) -> std::result::Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> std::result::Result<(), Infallible> {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.0.next_u64().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

impl TryCryptoRng for Draws {}

/// A key stream to lay over bytes in order: AES-256-CTR under a key of its own, from block zero on.
pub struct KeyStream {
    key: Zeroizing<[u8; 32]>,
    prf: Prf,
    block: u64,
    /// The rest of the last block.
    rest: Zeroizing<Vec<u8>>,
}

impl KeyStream {
    /// Under a fresh key.
    pub fn from_os() -> Result<Self> {
        KeyStream::new(random_bytes::<32>()?)
    }

    pub fn new(key: Zeroizing<[u8; 32]>) -> Result<Self> {
        Ok(KeyStream { prf: Prf::new(key.as_slice())?, key, block: 0, rest: Zeroizing::new(Vec::new()) })
    }

    /// XORs the next bytes of the stream into `bytes`.
    pub fn apply(&mut self, bytes: &mut [u8]) {
        let taken = self.rest.len().min(bytes.len());
        let (first, bytes) = bytes.split_at_mut(taken);
        first.iter_mut().zip(self.rest.drain(..taken)).for_each(|(b, k)| *b ^= k);
        let mut blocks = Zeroizing::new([[0u8; 16]; CHUNK_BLOCKS]);
        for chunk in bytes.chunks_mut(16 * CHUNK_BLOCKS) {
            let used = chunk.len().div_ceil(16);
            for (i, block) in blocks[..used].iter_mut().enumerate() {
                *block = u128::from(self.block + i as u64).to_be_bytes();
            }
            self.prf.permute(&mut blocks[..used]);
            let stream = blocks.as_flattened();
            chunk.iter_mut().zip(stream).for_each(|(b, k)| *b ^= k);
            self.block += used as u64;
            self.rest.extend_from_slice(&stream[chunk.len()..16 * used]);
        }
    }

    /// The key, for the party that may remove the stream.
    #[must_use]
    pub fn into_key(self) -> Zeroizing<[u8; 32]> {
        self.key
    }
}

/// Overwrites with zeros as `Zeroize` does, a vector at a time where that takes every byte alone.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    zeroize::optimization_barrier(bytes);
}

/// `N` bytes from the operating system's generator, zeroised when dropped.
pub fn random_bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>> {
    let mut out = Zeroizing::new([0u8; N]);
    getrandom::fill(out.as_mut_slice()).map_err(|e| Error::Rng(e.to_string()))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_on_from_any_number() {
        let prefix = std::array::from_fn(|i| 200 + i as u8);
        let mut template = [0; 16];
        template[..12].copy_from_slice(&prefix);
        for first in [0, 1, 255, 256, 65_533, u32::MAX - 300] {
            for len in [0, 1, 3, 4, 255, 256, 600] {
                let mut out = vec![[9; 16]; len];
                count(template, first, &mut out);
                let wanted = (0..len as u32).map(|i| counter(prefix, first.wrapping_add(i)));
                assert!(out.into_iter().eq(wanted), "{len} blocks from {first} on");
            }
        }
    }
}
