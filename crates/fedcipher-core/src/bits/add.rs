//! Lane-wise addition and subtraction of two streams, with the widest vectors of the processor.

use super::vectors;
use multiversion::multiversion;
use std::sync::OnceLock;

macro_rules! lane_kernels {
    ($lane:ty, $bytes:literal, $add:ident, $sub:ident) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $add(acc: &mut [u8], x: &[u8]) {
            let (acc, _) = acc.as_chunks_mut::<$bytes>();
            let (x, _) = x.as_chunks::<$bytes>();
            for (a, b) in acc.iter_mut().zip(x) {
                *a = <$lane>::from_le_bytes(*a).wrapping_add(<$lane>::from_le_bytes(*b)).to_le_bytes();
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        fn $sub(acc: &mut [u8], x: &[u8]) {
            let (acc, _) = acc.as_chunks_mut::<$bytes>();
            let (x, _) = x.as_chunks::<$bytes>();
            for (a, b) in acc.iter_mut().zip(x) {
                *a = <$lane>::from_le_bytes(*a).wrapping_sub(<$lane>::from_le_bytes(*b)).to_le_bytes();
            }
        }
    };
}

lane_kernels!(u8, 1, add_u8, sub_u8);
lane_kernels!(u16, 2, add_u16, sub_u16);
lane_kernels!(u32, 4, add_u32, sub_u32);
lane_kernels!(u64, 8, add_u64, sub_u64);

/// `acc[k] = acc[k] + x[k] mod 2^width` for all lanes of two equally long streams.
pub fn add_assign(acc: &mut [u8], x: &[u8], width: u32) {
    match width {
        8 => add_u8(acc, x),
        16 => add_u16(acc, x),
        32 => add_u32(acc, x),
        64 => add_u64(acc, x),
        _ => combine::<false>(acc, x, tops(width)),
    }
}

/// `acc[k] = acc[k] - x[k] mod 2^width`.
pub fn sub_assign(acc: &mut [u8], x: &[u8], width: u32) {
    match width {
        8 => sub_u8(acc, x),
        16 => sub_u16(acc, x),
        32 => sub_u32(acc, x),
        64 => sub_u64(acc, x),
        _ => combine::<true>(acc, x, tops(width)),
    }
}

/// `acc[k] = acc[k] + x[k] mod 2^width` for all lanes of two equally long lists of groups.
pub fn add_groups(acc: &mut [[u8; 16]], x: &[[u8; 16]], width: u32) {
    combine::<false>(acc.as_flattened_mut(), x.as_flattened(), group_tops(width));
}

/// `acc[k] = acc[k] - x[k] mod 2^width`.
pub fn sub_groups(acc: &mut [[u8; 16]], x: &[[u8; 16]], width: u32) {
    combine::<true>(acc.as_flattened_mut(), x.as_flattened(), group_tops(width));
}

/// Lanes in a block. A block has 8 w words, which are whole vectors for every width w.
const BLOCK_LANES: usize = 512;

/// The top bit of each of a block's lanes, and of the word before it.
fn tops(width: u32) -> &'static [u64] {
    static TOPS: [OnceLock<Vec<u64>>; 64] = [const { OnceLock::new() }; 64];
    TOPS[width as usize].get_or_init(|| {
        let mut tops = vec![0; BLOCK_LANES / 64 * width as usize];
        for lane in 1..=BLOCK_LANES {
            let top = lane * width as usize - 1;
            tops[top / 64] |= 1 << (top % 64);
        }
        prepend_last(tops)
    })
}

/// Like [`tops`], for lanes in groups. The last bit of each group counts as a top bit too: it stops carries out of the
/// meaningless bits behind the group's lanes.
fn group_tops(width: u32) -> &'static [u64] {
    static TOPS: [OnceLock<Vec<u64>>; 65] = [const { OnceLock::new() }; 65];
    TOPS[width as usize].get_or_init(|| {
        let tops = (1..=128 / width).fold(1 << 127, |tops: u128, lane| tops | 1 << (lane * width - 1));
        prepend_last([tops as u64, (tops >> 64) as u64].repeat(BLOCK_LANES / 2))
    })
}

fn prepend_last(mut tops: Vec<u64>) -> Vec<u64> {
    tops.rotate_right(1);
    tops.push(tops[0]);
    tops
}

/// Adds or subtracts lanes that are not whole bytes. The stream is read as one long number. Top bits are computed
/// separately, so that no carry leaves a lane (Warren, Hacker's Delight, section 2-18). A lane may lie in two words, and
/// then carries from one word into the other.
fn combine<const SUBTRACT: bool>(acc: &mut [u8], x: &[u8], tops: &[u64]) {
    combine_by::<SUBTRACT>(acc, x, tops, |acc, x, tops| {
        vectors::by_avx512::<SUBTRACT>(acc, x, tops) || vectors::by_avx2::<SUBTRACT>(acc, x, tops)
    });
}

/// Like [`combine`]. `vectors` computes the whole vectors; if it returns false, the portable kernel computes them.
#[inline(always)]
fn combine_by<const SUBTRACT: bool>(
    acc: &mut [u8],
    x: &[u8],
    tops: &[u64],
    vectors: impl Fn(&mut [u8], &[u8], &[u64]) -> bool,
) {
    let kernel = if SUBTRACT { sub_words } else { add_words };
    let block = tops.len() - 1;
    let whole = acc.len() / 8 / vectors::VECTOR_WORDS * vectors::VECTOR_WORDS;
    // The carry into the next word follows from a word's old value, so that value is saved here.
    let before = |words: usize, acc: &[u8]| acc[..8 * words].last_chunk().copied().unwrap_or_default();
    let wide = before(whole, acc);
    let (done, last) = if vectors(acc, x, &tops[1..]) {
        (whole, wide)
    } else {
        let words = acc.len() / 8;
        let last = before(words, acc);
        by_blocks(acc.as_chunks_mut().0, x.as_chunks().0, tops, kernel);
        (words, last)
    };
    let (rest, other) = (&mut acc[8 * done..], &x[8 * done..]);
    let end = |last: [u8; 8], rest: &[u8]| {
        let mut end = [[0; 8]; 1 + vectors::VECTOR_WORDS];
        end[0] = last;
        end.as_flattened_mut()[8..8 + rest.len()].copy_from_slice(rest);
        end
    };
    let (a, b, n) = (end(last, rest), end(before(done, x), other), 1 + rest.len().div_ceil(8));
    let mut made = [[0; 8]; 1 + vectors::VECTOR_WORDS];
    kernel(&a[..n], &b[..n], &tops[done % block..], &mut made);
    rest.copy_from_slice(&made.as_flattened()[8..8 + rest.len()]);
}

/// All whole words, a block of them at a time.
#[inline(never)]
fn by_blocks(words: &mut [[u8; 8]], others: &[[u8; 8]], tops: &[u64], kernel: Kernel) {
    let mut made = [[0; 8]; BLOCK_LANES + 1];
    let (total, block) = (words.len(), tops.len() - 1);
    for start in (0..total).step_by(block) {
        let end = total.min(start + block);
        // The word before the block is computed again, for its carry. Only the words after it are stored, and they are
        // whole vectors.
        let lead = usize::from(start > 0);
        let (words, others) = (&mut words[start - lead..end], &others[start - lead..end]);
        kernel(words, others, &tops[1 - lead..], &mut made);
        let n = words.len();
        words[lead..].copy_from_slice(&made[lead..n]);
    }
}

/// Computes the words of a result from the words of both streams and their top bits. Nothing is carried into the first
/// word.
type Kernel = fn(&[[u8; 8]], &[[u8; 8]], &[u64], &mut [[u8; 8]]);

/// `word(a, b, top, carry)` is a word of the result; `carries(a, b, top)` is true if that word carries into the next.
/// Every word has a top bit, which stops the carry from the word before. So no carry depends on another one, and the
/// compiler can compute all words at once.
#[inline(always)]
fn words(
    a: &[[u8; 8]],
    b: &[[u8; 8]],
    tops: &[u64],
    made: &mut [[u8; 8]],
    word: impl Fn(u64, u64, u64, bool) -> u64,
    carries: impl Fn(u64, u64, u64) -> bool,
) {
    let (n, of) = (a.len(), u64::from_le_bytes);
    let (b, tops, made) = (&b[..n], &tops[..n], &mut made[..n]);
    for i in 1..n {
        let carry = carries(of(a[i - 1]), of(b[i - 1]), tops[i - 1]);
        made[i] = word(of(a[i]), of(b[i]), tops[i], carry).to_le_bytes();
    }
    if n > 0 {
        // The first word of a stream.
        made[0] = word(of(a[0]), of(b[0]), tops[0], false).to_le_bytes();
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn add_words(a: &[[u8; 8]], b: &[[u8; 8]], tops: &[u64], made: &mut [[u8; 8]]) {
    let sum = |a: u64, b: u64, top: u64| (a & !top).wrapping_add(b & !top);
    let word = |a, b, top, carry| sum(a, b, top).wrapping_add(u64::from(carry)) ^ ((a ^ b) & top);
    words(a, b, tops, made, word, |a, b, top| sum(a, b, top) < (a & !top));
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn sub_words(a: &[[u8; 8]], b: &[[u8; 8]], tops: &[u64], made: &mut [[u8; 8]]) {
    let difference = |a: u64, b: u64, top: u64| (a | top).wrapping_sub(b & !top);
    let word = |a, b, top, borrow| difference(a, b, top).wrapping_sub(u64::from(borrow)) ^ ((a ^ !b) & top);
    words(a, b, tops, made, word, |a, b, top| (a | top) < (b & !top));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Compares this processor's fastest path, and AVX2 beside wider vectors, with the portable path.
    #[test]
    fn words_side_by_side_are_words_by_blocks() {
        let mut rng = StdRng::seed_from_u64(7);
        for width in 2..=63 {
            let block = 8 * (tops(width).len() - 1);
            for len in (0..140).chain([block - 1, block, block + 1, 3 * block + 77]) {
                for full in [false, true] {
                    let mut some = || (0..len).map(|_| if full { 0xff } else { rng.random() }).collect::<Vec<u8>>();
                    let (a, b) = (some(), some());
                    for tops in [tops(width), group_tops(width)] {
                        let (mut sum, mut wanted) = (a.clone(), a.clone());
                        let mut narrow = a.clone();
                        combine::<false>(&mut sum, &b, tops);
                        combine_by::<false>(&mut narrow, &b, tops, vectors::by_avx2::<false>);
                        combine_by::<false>(&mut wanted, &b, tops, |_, _, _| false);
                        assert!(sum == wanted && narrow == wanted, "a sum of {len} bytes in lanes of {width} bits");
                        combine::<true>(&mut sum, &a, tops);
                        combine_by::<true>(&mut narrow, &a, tops, vectors::by_avx2::<true>);
                        combine_by::<true>(&mut wanted, &a, tops, |_, _, _| false);
                        assert!(sum == wanted && narrow == wanted, "a difference of {len} bytes, {width} bits a lane");
                    }
                }
            }
        }
    }
}
