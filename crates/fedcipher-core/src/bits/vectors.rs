//! `add::combine` with the masks and the masked operations of AVX-512: what is carried from word to word is a bit of a
//! mask, which moves on with a shift, so that every word is read once and the result stays where the sum was.

/// Words of a vector.
pub const SIDE: usize = 8;

/// The whole vectors of both streams, `tops` being those of a block of whole vectors. False, and nothing done, on
/// another processor.
#[cfg(not(all(feature = "ntt-tfhe", target_arch = "x86_64")))]
pub fn combine<const SUBTRACT: bool>(_: &mut [u8], _: &[u8], _: &[u64]) -> bool {
    false
}

#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
pub use simd::combine;

#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd {
    use super::SIDE;
    use crate::simd::Wide;
    use core::arch::x86_64::__m512i;
    use pulp::{as_arrays, as_arrays_mut, cast};

    const BYTES: usize = 8 * SIDE;

    impl Wide {
        /// Words of the result and a bit for each that carries into the next, without what is carried in.
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

        /// The words with what the bits of `carries` carry into them, and their top bits.
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

    pub fn combine<const SUBTRACT: bool>(acc: &mut [u8], x: &[u8], tops: &[u64]) -> bool {
        let Some(simd) = Wide::try_new() else { return false };
        let (acc, x) = (as_arrays_mut::<BYTES, u8>(acc).0, as_arrays::<BYTES, u8>(x).0);
        let tops = as_arrays::<SIDE, u64>(tops).0;
        let mut carry = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                for (acc, x) in acc.chunks_mut(tops.len()).zip(x.chunks(tops.len())) {
                    for ((a, b), top) in acc.iter_mut().zip(x).zip(tops) {
                        let words = [cast(*a), cast(*b), cast(*top)];
                        let (part, carries) = simd.part::<SUBTRACT>(words[0], words[1], words[2]);
                        *a = cast(simd.whole::<SUBTRACT>(part, carries << 1 | carry, words));
                        carry = carries >> (SIDE - 1);
                    }
                }
            },
        );
        true
    }
}
