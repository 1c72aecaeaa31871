//! Sums of products modulo primes below 2^51, by the 52-bit multiplications of AVX-512 (IFMA).
//!
//! A sum is `low + 2^52 high`: the sums of the low and of the high halves of products below 2^102. It is reduced once.
//! The results equal those of `rows`, which serves every other prime and processor; the tests compare both.

/// Bits of a narrow prime. A sum has room for 4096 products of such residues, and twice a residue fits in 52 bits.
pub const BITS: usize = 51;

/// A factor with `floor(2^52 value / q)`. A product by the factor takes two low multiplications and a high one, and is
/// below 2 q.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "ntt-tfhe", target_arch = "x86_64")), allow(dead_code, reason = "x86-64 only"))]
struct Factor {
    value: u64,
    quotient: u64,
}

/// The constants that reduce a sum modulo a prime below 2^51.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "ntt-tfhe", target_arch = "x86_64")), allow(dead_code, reason = "x86-64 only"))]
pub struct Narrow {
    q: u64,
    /// The factors 1, 2^52 and 2^102.
    powers: [Factor; 3],
}

impl Narrow {
    pub fn new(q: u64) -> Option<Self> {
        let wide = u128::from(q);
        let factor =
            |value: u128| Factor { value: (value % wide) as u64, quotient: (((value % wide) << 52) / wide) as u64 };
        (q < 1 << BITS).then(|| Narrow { q, powers: [1, 1 << 52, 1 << 102].map(factor) })
    }
}

#[cfg(not(all(feature = "ntt-tfhe", target_arch = "x86_64")))]
mod simd {
    use super::Narrow;

    pub fn dots(_: Narrow, _: &[&[u64]], _: &[&[u64]], _: &[&[u64]], _: &mut [u64], _: &mut [u64]) -> bool {
        false
    }

    pub fn combined(_: Narrow, _: &[&[u64]], _: &[u64], _: &mut [u64]) -> bool {
        false
    }
}

#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd {
    use super::Narrow;
    use crate::simd::{Ifma, Sum};
    use core::arch::x86_64::__m512i;
    use pulp::{as_arrays, as_arrays_mut, cast};
    use std::ops::Range;

    type Eight = [u64; 8];

    /// Vectors of a tile. The sums of a tile fit in the first-level cache (see `rows` for the reason).
    const TILE: usize = 32;
    /// Terms that are added at a time. A sum is loaded and stored once for this many terms.
    const TERMS: usize = 4;

    impl Ifma {
        #[inline(always)]
        fn all(self, x: u64) -> __m512i {
            self.avx512f._mm512_set1_epi64(x as i64)
        }

        /// Adds the products d x and d y at one place of rows d, x and y.
        #[inline(always)]
        fn add_terms(self, sums: [Sum; 2], [d, x, y]: &[[&[Eight]; TERMS]; 3], at: usize, terms: usize) -> [Sum; 2] {
            let [mut sum, mut other] = sums;
            for term in 0..terms {
                let d = cast(d[term][at]);
                sum = self.add_product(sum, d, cast(x[term][at]));
                other = self.add_product(other, d, cast(y[term][at]));
            }
            [sum, other]
        }

        /// Reduces a sum of at most 4096 products of residues.
        #[inline(always)]
        fn reduced(self, [low, high]: Sum, by: Narrow) -> Eight {
            let (f, ifma) = (self.avx512f, self.avx512ifma);
            let (zero, mask) = (self.all(0), self.all((1 << 52) - 1));
            let high = f._mm512_add_epi64(high, f._mm512_srli_epi64::<52>(low));
            let parts = [
                f._mm512_and_si512(low, mask),
                f._mm512_and_si512(high, self.all((1 << 50) - 1)),
                f._mm512_srli_epi64::<50>(high),
            ];
            let mut sum = zero;
            for (x, power) in parts.into_iter().zip(by.powers) {
                let wraps = ifma._mm512_madd52hi_epu64(zero, x, self.all(power.quotient));
                let product = ifma._mm512_madd52lo_epu64(zero, x, self.all(power.value));
                let less = ifma._mm512_madd52lo_epu64(zero, wraps, self.all(by.q));
                sum = f._mm512_add_epi64(sum, f._mm512_and_si512(f._mm512_sub_epi64(product, less), mask));
            }
            // The sum of three numbers below 2 q is reduced to less than q.
            for multiple in [4, 2, 1] {
                sum = f._mm512_min_epu64(sum, f._mm512_sub_epi64(sum, self.all(multiple * by.q)));
            }
            cast(sum)
        }
    }

    fn eights(row: &[u64]) -> &[Eight] {
        as_arrays::<8, u64>(row).0
    }

    /// The part `at` of up to TERMS rows. If there are fewer rows, the last one is repeated.
    #[inline(always)]
    fn some<'a>(rows: &[&'a [u64]], at: Range<usize>) -> [&'a [Eight]; TERMS] {
        std::array::from_fn(|i| &eights(rows[i.min(rows.len() - 1)])[at.clone()])
    }

    /// Like `rows::dots_into`. Returns false and changes nothing if the processor or the length does not fit.
    pub fn dots(by: Narrow, d: &[&[u64]], x: &[&[u64]], y: &[&[u64]], a: &mut [u64], b: &mut [u64]) -> bool {
        let Some(simd) = Ifma::try_new().filter(|_| a.len().is_multiple_of(8) && d.len() <= 4096) else { return false };
        let (a, b) = (as_arrays_mut::<8, u64>(a).0, as_arrays_mut::<8, u64>(b).0);
        simd.vectorize(
            #[inline(always)]
            || {
                for (k, (a, b)) in a.chunks_mut(TILE).zip(b.chunks_mut(TILE)).enumerate() {
                    let mut sums = [[[simd.all(0); 2]; 2]; TILE];
                    let at = k * TILE..k * TILE + a.len();
                    for ((d, x), y) in d.chunks(TERMS).zip(x.chunks(TERMS)).zip(y.chunks(TERMS)) {
                        let (count, rows) = (d.len(), [d, x, y].map(|rows| some(rows, at.clone())));
                        for (i, sums) in sums.iter_mut().enumerate().take(at.len()) {
                            // For a known number of terms, the compiler unrolls the loop.
                            *sums = match count {
                                TERMS => simd.add_terms(*sums, &rows, i, TERMS),
                                _ => simd.add_terms(*sums, &rows, i, count),
                            };
                        }
                    }
                    for ((a, b), [sum, other]) in a.iter_mut().zip(b).zip(sums) {
                        (*a, *b) = (simd.reduced(sum, by), simd.reduced(other, by));
                    }
                }
            },
        );
        true
    }

    /// Like `rows::combined`, for weights and rows below 2^51.
    pub fn combined(by: Narrow, x: &[&[u64]], w: &[u64], out: &mut [u64]) -> bool {
        let Some(simd) = Ifma::try_new().filter(|_| out.len().is_multiple_of(8) && x.len() <= 4096) else {
            return false;
        };
        let out = as_arrays_mut::<8, u64>(out).0;
        simd.vectorize(
            #[inline(always)]
            || {
                for (k, out) in out.chunks_mut(TILE).enumerate() {
                    let mut sums = [[simd.all(0); 2]; TILE];
                    let at = k * TILE..k * TILE + out.len();
                    for (x, w) in x.iter().zip(w) {
                        let (x, w) = (&eights(x)[at.clone()], simd.all(*w));
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum = simd.add_product(*sum, cast(*x), w);
                        }
                    }
                    for (out, sum) in out.iter_mut().zip(sums) {
                        *out = simd.reduced(sum, by);
                    }
                }
            },
        );
        true
    }
}

pub use simd::{combined, dots};
