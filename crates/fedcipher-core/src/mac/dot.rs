//! `sum words[i] r^(i+1)` over a block of words: a product of integers for each limb of the powers, reduced once.

use super::field::Element;
use crate::bits::lane_mask;
use aligned_vec::{AVec, avec};
use multiversion::multiversion;
use std::sync::OnceLock;
use zeroize::{DefaultIsZeroes, Zeroize};

/// Words of a block, whose powers of r are tabulated.
pub const WORDS: usize = 512;
/// Words up to this width take powers in fewer limbs.
const NARROW: u32 = 22;

/// The type of a limb of up to 32 bits. x86 vectors multiply the lower halves of words, ARM vectors multiply words of
/// 32 bits.
#[cfg(target_arch = "x86_64")]
type Limb = u64;
#[cfg(not(target_arch = "x86_64"))]
type Limb = u32;

/// Powers by limb, the lowest first, wiped when dropped.
struct Table<T: DefaultIsZeroes>(AVec<[T; WORDS]>);

impl<T: DefaultIsZeroes> Drop for Table<T> {
    fn drop(&mut self) {
        self.0.as_flattened_mut().zeroize();
    }
}

/// Limbs of 32 bits for words of [`NARROW`]; of 22 bits for words of 32: 512 products stay below 2^63.
const NARROW_LIMBS: usize = 4;
const WIDE_LIMBS: usize = 6;
/// Of 43 bits, where products are added in two halves of 52.
const FUSED_LIMBS: usize = 3;

/// Bits of a limb.
const fn limb_bits(limbs: usize) -> u32 {
    128u32.div_ceil(limbs as u32)
}

fn tabulate<T: DefaultIsZeroes>(limbs: usize, powers: &Powers, of: impl Fn(u64) -> T) -> Table<T> {
    let mut table = Table(avec![[T::default(); WORDS]; limbs]);
    let (bits, mask) = (limb_bits(limbs), lane_mask(limb_bits(limbs)));
    let mut power = powers.r;
    for i in 0..WORDS {
        for (l, limb) in table.0.iter_mut().enumerate() {
            limb[i] = of((power.value() >> (bits * l as u32)) as u64 & mask);
        }
        power = power * powers.r;
        if i % powers.run == powers.run - 1 {
            power = power * powers.skip;
        }
    }
    table
}

/// Powers of r, one a word: a run of them in order, then some left out, and so on.
pub struct Powers {
    r: Element,
    run: usize,
    skip: Element,
    narrow: OnceLock<Table<Limb>>,
    wide: OnceLock<Table<Limb>>,
    fused: OnceLock<Table<u64>>,
}

impl Powers {
    /// Of which `skipped` are left out behind each `run`.
    pub fn new(r: Element, run: usize, skipped: u64) -> Self {
        let [narrow, wide] = [(); 2].map(|()| OnceLock::new());
        Powers { r, run, skip: r.power(skipped), narrow, wide, fused: OnceLock::new() }
    }

    /// The sum over at most a block of words, of which none has more than `width` bits.
    pub fn dot(&self, words: &[u32], width: u32) -> Element {
        let table = || &*self.fused.get_or_init(|| tabulate(FUSED_LIMBS, self, |limb| limb)).0;
        if let Some(limbs) = simd::dot(words, table) {
            return value(limbs);
        }
        self.portable(words, width)
    }

    fn portable(&self, words: &[u32], width: u32) -> Element {
        let of = |limbs| tabulate(limbs, self, |limb| limb as Limb);
        if width <= NARROW {
            value(dot_narrow(words, &self.narrow.get_or_init(|| of(NARROW_LIMBS)).0))
        } else {
            value(dot_wide(words, &self.wide.get_or_init(|| of(WIDE_LIMBS)).0))
        }
    }
}

impl Drop for Powers {
    fn drop(&mut self) {
        self.r.zeroize();
        self.skip.zeroize();
    }
}

/// The limbs of the sum, each below 2^63. All go along side by side: a word is read once.
macro_rules! dot_kernel {
    ($dot:ident, $limbs:ident, $($limb:ident $l:literal),+) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
        fn $dot(words: &[u32], table: &[[Limb; WORDS]]) -> [u64; $limbs] {
            let n = words.len().min(WORDS);
            let words = &words[..n];
            $(let $limb = &table[$l][..n];)+
            let mut sums = [0u64; $limbs];
            for i in 0..n {
                let word = u64::from(words[i]);
                $(sums[$l] += word * u64::from($limb[i] as u32);)+
            }
            sums
        }
    };
}

dot_kernel!(dot_narrow, NARROW_LIMBS, a 0, b 1, c 2, d 3);
dot_kernel!(dot_wide, WIDE_LIMBS, a 0, b 1, c 2, d 3, e 4, f 5);

fn value<const LIMBS: usize>(limbs: [impl Into<u128>; LIMBS]) -> Element {
    let limb = |(l, x): (usize, _)| Element::new(x).times_power_of_two(limb_bits(LIMBS) * l as u32);
    limbs.map(Into::into).into_iter().enumerate().map(limb).sum()
}

#[cfg(not(all(feature = "ntt-tfhe", target_arch = "x86_64")))]
mod simd {
    use super::{FUSED_LIMBS, WORDS};

    pub fn dot<'a>(_: &[u32], _: impl FnOnce() -> &'a [[u64; WORDS]]) -> Option<[u128; FUSED_LIMBS]> {
        None
    }
}

/// By the 52-bit multiplications of AVX-512 (IFMA), which add as they multiply.
#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd {
    use super::{FUSED_LIMBS, WORDS};
    use crate::simd::{Ifma, Sum};
    use pulp::{as_arrays, cast};
    use zeroize::Zeroizing;

    /// Words of a vector, and vectors whose sums go along side by side: additions take several cycles.
    const SIDE: usize = 8;
    const TOGETHER: usize = 2;

    /// By limb.
    type Sums = [Sum; FUSED_LIMBS];

    impl Ifma {
        #[inline(always)]
        fn add(self, sums: &mut Sums, words: &[u32; SIDE], limbs: [&[[u64; SIDE]]; FUSED_LIMBS], at: usize) {
            let words = self.avx512f._mm512_cvtepu32_epi64(cast(*words));
            for (sum, limb) in sums.iter_mut().zip(limbs) {
                *sum = self.add_product(*sum, words, cast(limb[at]));
            }
        }
    }

    /// The limbs of the sum, 64 halves below 2^52 in each place of a vector; none, and no table, on another processor.
    pub fn dot<'a>(words: &[u32], table: impl FnOnce() -> &'a [[u64; WORDS]]) -> Option<[u128; FUSED_LIMBS]> {
        let simd = Ifma::try_new()?;
        let table = table();
        let (whole, rest) = as_arrays::<SIDE, u32>(words);
        let mut last = Zeroizing::new([0; SIDE]);
        last[..rest.len()].copy_from_slice(rest);
        let limbs: [&[[u64; SIDE]]; FUSED_LIMBS] = std::array::from_fn(|l| as_arrays(&table[l]).0);
        let mut out = [[[0; SIDE]; 2]; FUSED_LIMBS];
        simd.vectorize(
            #[inline(always)]
            || {
                let mut sums = [[[simd.avx512f._mm512_setzero_si512(); 2]; FUSED_LIMBS]; TOGETHER];
                let (pairs, single) = whole.as_chunks::<TOGETHER>();
                for (k, pair) in pairs.iter().enumerate() {
                    for i in 0..TOGETHER {
                        simd.add(&mut sums[i], &pair[i], limbs, k * TOGETHER + i);
                    }
                }
                for (i, words) in single.iter().enumerate() {
                    simd.add(&mut sums[i], words, limbs, pairs.len() * TOGETHER + i);
                }
                if !rest.is_empty() {
                    simd.add(&mut sums[0], &last, limbs, whole.len());
                }
                let [mut first, second] = sums;
                for (first, second) in first.as_flattened_mut().iter_mut().zip(second.as_flattened()) {
                    *first = simd.avx512f._mm512_add_epi64(*first, *second);
                }
                out = cast(first);
            },
        );
        let sum = |half: [u64; SIDE]| u128::from(half.iter().sum::<u64>());
        Some(out.map(|[low, high]| sum(low) + (sum(high) << 52)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// As it is defined, a word at a time.
    fn slow(r: Element, run: usize, skipped: u64, words: &[u32]) -> Element {
        let exponent = |i: usize| (i + 1) as u64 + i as u64 / run as u64 * skipped;
        let term = |(i, word): (usize, &u32)| r.power(exponent(i)) * Element::new(u128::from(*word));
        words.iter().enumerate().map(term).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Compares this processor's path with the portable path.
        #[test]
        fn sums_are_what_they_are_defined_as(
            width in 1u32..=32, len in 0..=WORDS, run in 1usize..300, skipped in 0u64..300, full: bool, seed in any::<u64>(),
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let r = Element::new(rng.random());
            let mut word = |_| if full { u32::MAX } else { rng.random() } & lane_mask(width) as u32;
            let words: Vec<u32> = (0..len).map(&mut word).collect();
            let (powers, want) = (Powers::new(r, run, skipped), slow(r, run, skipped, &words));
            prop_assert_eq!(powers.dot(&words, width), want);
            prop_assert_eq!(powers.portable(&words, width), want);
        }
    }

    /// With words and limbs of ones alone.
    #[test]
    fn the_largest_sums_do_not_overflow() {
        let ones = |limbs: usize| lane_mask(limb_bits(limbs));
        let table = |limbs: usize| vec![[ones(limbs) as Limb; WORDS]; limbs];
        let want = |word: u32, limb: u64| WORDS as u128 * u128::from(word) * u128::from(limb);
        let narrow = dot_narrow(&[lane_mask(NARROW) as u32; WORDS], &table(NARROW_LIMBS));
        assert_eq!(narrow.map(u128::from), [want(lane_mask(NARROW) as u32, ones(NARROW_LIMBS)); NARROW_LIMBS]);
        let wide = dot_wide(&[u32::MAX; WORDS], &table(WIDE_LIMBS));
        assert_eq!(wide.map(u128::from), [want(u32::MAX, ones(WIDE_LIMBS)); WIDE_LIMBS]);
        let limb = ones(FUSED_LIMBS);
        let (table, mut usable) = ([[limb; WORDS]; FUSED_LIMBS], false);
        let sums = simd::dot(&[u32::MAX; WORDS], || {
            usable = true;
            &table
        });
        assert_eq!(sums, usable.then_some([want(u32::MAX, limb); FUSED_LIMBS]));
    }
}
