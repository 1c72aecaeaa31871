//! `add::combine` for whole vectors: every word is read once, and the result is written over the sum. The carry between
//! words is a bit of a shifted mask with AVX-512, and a whole word with AVX2.

/// Words of the widest vector.
pub const VECTOR_WORDS: usize = 8;

pub use simd::{by_avx2, by_avx512};

#[cfg(not(all(feature = "ntt-tfhe", target_arch = "x86_64")))]
mod simd {
    pub fn by_avx512<const SUBTRACT: bool>(_: &mut [u8], _: &[u8], _: &[u64]) -> bool {
        false
    }

    pub fn by_avx2<const SUBTRACT: bool>(_: &mut [u8], _: &[u8], _: &[u64]) -> bool {
        false
    }
}

#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd {
    use super::VECTOR_WORDS;
    use crate::simd::{Narrow, Wide};
    use core::arch::x86_64::{__m256i, __m512i};
    use pulp::{as_arrays, as_arrays_mut, cast};

    const BYTES: usize = 8 * VECTOR_WORDS;

    impl Wide {
        /// Computes words of the result before carries into them, and a bit for each word that carries into the next.
        #[inline(always)]
        fn part<const SUBTRACT: bool>(self, a: __m512i, b: __m512i, top: __m512i) -> (__m512i, u8) {
            let f = self.avx512f;
            let b = f._mm512_andnot_si512(top, b);
            if SUBTRACT {
                let a = f._mm512_or_si512(a, top);
                (f._mm512_sub_epi64(a, b), f._mm512_cmplt_epu64_mask(a, b))
            } else {
                let a = f._mm512_andnot_si512(top, a);
                let sum = f._mm512_add_epi64(a, b);
                (sum, f._mm512_cmplt_epu64_mask(sum, a))
            }
        }

        /// Adds the carries (one bit a word) and the top bits to the words of `part`.
        #[inline(always)]
        fn whole<const SUBTRACT: bool>(self, part: __m512i, carries: u8, [a, b, top]: [__m512i; 3]) -> __m512i {
            let (f, ones) = (self.avx512f, self.avx512f._mm512_set1_epi64(-1));
            // By truth table: (a xor not b) and top; (a xor b) and top.
            if SUBTRACT {
                let tops = f._mm512_ternarylogic_epi64::<0x82>(a, b, top);
                f._mm512_xor_si512(f._mm512_mask_add_epi64(part, carries, part, ones), tops)
            } else {
                let tops = f._mm512_ternarylogic_epi64::<0x28>(a, b, top);
                f._mm512_xor_si512(f._mm512_mask_sub_epi64(part, carries, part, ones), tops)
            }
        }
    }

    /// Combines the whole vectors of both streams. `tops` holds the top bits of a block of whole vectors. Without
    /// AVX-512, returns false and changes nothing.
    pub fn by_avx512<const SUBTRACT: bool>(acc: &mut [u8], x: &[u8], tops: &[u64]) -> bool {
        let Some(simd) = Wide::try_new() else { return false };
        let (acc, x) = (as_arrays_mut::<BYTES, u8>(acc).0, as_arrays::<BYTES, u8>(x).0);
        let tops = as_arrays::<VECTOR_WORDS, u64>(tops).0;
        let mut carry = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                for (acc, x) in acc.chunks_mut(tops.len()).zip(x.chunks(tops.len())) {
                    for ((a, b), top) in acc.iter_mut().zip(x).zip(tops) {
                        let words = [cast(*a), cast(*b), cast(*top)];
                        let (part, carries) = simd.part::<SUBTRACT>(words[0], words[1], words[2]);
                        *a = cast(simd.whole::<SUBTRACT>(part, carries << 1 | carry, words));
                        carry = carries >> (VECTOR_WORDS - 1);
                    }
                }
            },
        );
        true
    }

    impl Narrow {
        /// Computes words of the result. `carried` brings the carry out of the last vector, and takes the carries of
        /// this one: all ones for a word that carries. AVX2 compares signed numbers only, so all signs are flipped.
        #[inline(always)]
        fn combine<const SUBTRACT: bool>(self, [a, b, top]: [__m256i; 3], carried: &mut __m256i) -> __m256i {
            let (v, sign) = (self.avx2, cast([1u64 << 63; 4]));
            let low = v._mm256_andnot_si256(top, b);
            let (part, carries) = if SUBTRACT {
                let a = v._mm256_xor_si256(v._mm256_or_si256(a, top), sign);
                let part = v._mm256_sub_epi64(a, low);
                (part, v._mm256_cmpgt_epi64(part, a))
            } else {
                let a = v._mm256_xor_si256(v._mm256_andnot_si256(top, a), sign);
                let part = v._mm256_add_epi64(a, low);
                (part, v._mm256_cmpgt_epi64(a, part))
            };
            let next = v._mm256_permute4x64_epi64::<0b10_01_00_11>(carries);
            let into = v._mm256_blend_epi32::<0b11>(next, *carried);
            *carried = next;
            let turned = v._mm256_xor_si256(v._mm256_and_si256(v._mm256_xor_si256(a, b), top), sign);
            if SUBTRACT {
                v._mm256_xor_si256(v._mm256_add_epi64(part, into), v._mm256_xor_si256(turned, top))
            } else {
                v._mm256_xor_si256(v._mm256_sub_epi64(part, into), turned)
            }
        }
    }

    /// Like [`by_avx512`], with AVX2.
    pub fn by_avx2<const SUBTRACT: bool>(acc: &mut [u8], x: &[u8], tops: &[u64]) -> bool {
        let Some(simd) = Narrow::try_new() else { return false };
        let (acc, x) = (as_arrays_mut::<BYTES, u8>(acc).0, as_arrays::<BYTES, u8>(x).0);
        let tops = as_arrays::<VECTOR_WORDS, u64>(tops).0;
        simd.vectorize(
            #[inline(always)]
            || {
                let mut carried = cast([0u64; 4]);
                for (acc, x) in acc.chunks_mut(tops.len()).zip(x.chunks(tops.len())) {
                    for ((a, b), top) in acc.iter_mut().zip(x).zip(tops) {
                        let [a0, a1]: [__m256i; 2] = cast(*a);
                        let ([b0, b1], [top0, top1]): ([__m256i; 2], [__m256i; 2]) = (cast(*b), cast(*top));
                        let first = simd.combine::<SUBTRACT>([a0, b0, top0], &mut carried);
                        *a = cast([first, simd.combine::<SUBTRACT>([a1, b1, top1], &mut carried)]);
                    }
                }
            },
        );
        true
    }
}
