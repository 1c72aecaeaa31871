//! Moves lanes into groups, groups into a stream and lanes out of a stream, a vector of AVX-512 at a time. Every word of
//! the result is made of a few source words, each shifted by its own distance. The source words and distances repeat
//! every few vectors, so a table for each width holds them. AVX2 gathers bytes instead of words, and only for lanes out
//! of a stream.

#[cfg(not(all(feature = "ntt-tfhe", target_arch = "x86_64")))]
mod simd {
    pub fn join(_: &[[u8; 16]], _: u32, _: &mut [u8]) -> usize {
        0
    }

    pub fn group(_: &[u32], _: u32, _: &mut [[u8; 16]]) -> usize {
        0
    }

    pub fn lanes(_: &[u8], _: u32, _: &mut [u64]) -> usize {
        0
    }

    pub fn narrow_lanes(_: &[u8], _: u32, _: &mut [u64]) -> usize {
        0
    }

    pub fn wide_lanes(_: &[u8], _: u32, _: &mut [u128]) -> usize {
        0
    }
}

pub use simd::{group, join, lanes, narrow_lanes, wide_lanes};

#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd {
    use crate::bits::lane_mask;
    use crate::simd::{Narrow, Wide};
    use core::arch::x86_64::{__m256i, __m512i};
    use pulp::{as_arrays, as_arrays_mut, cast};
    use std::sync::OnceLock;

    /// Eight groups always end on a byte.
    const EIGHT: usize = 8;

    type Words = [u64; 8];

    /// A shift by so many bits leaves nothing of a word.
    const GONE: u64 = 64;

    /// For each word of a stream: three source words in eight groups, and the distances of their shifts. The first part
    /// is shifted to the right, the others to the left.
    type Joined = [[Words; 2]; 3];

    /// The table for groups with `used` bits (72 or more): the first two vectors of the stream of eight groups.
    fn joined(used: u64) -> &'static [Joined; 2] {
        static PLANS: [OnceLock<[Joined; 2]>; 129] = [const { OnceLock::new() }; 129];
        PLANS[used as usize].get_or_init(|| {
            let mut plan = <[Joined; 2]>::default();
            for (k, vector) in plan.iter_mut().enumerate() {
                for word in 0..8 {
                    let bit = 64 * (8 * k + word) as u64;
                    let (group, at) = (bit / used, bit % used);
                    // The rest of a half of this group, then its higher half, or the next group.
                    let mut parts = [(0, GONE); 3];
                    parts[0] = (2 * group + at / 64, at % 64);
                    if at < 64 {
                        parts[1] = (2 * group + 1, 64 - at);
                    }
                    if used - at < 64 {
                        parts[2] = (2 * group + 2, used - at);
                    }
                    for ([froms, shifts], (from, by)) in vector.iter_mut().zip(parts) {
                        let there = from < 2 * EIGHT as u64;
                        (froms[word], shifts[word]) = if there { (from, by) } else { (0, GONE) };
                    }
                }
            }
            plan
        })
    }

    impl Wide {
        /// Picks words of two vectors by number and shifts each of them to the left.
        #[inline(always)]
        fn left(self, a: __m512i, b: __m512i, [from, by]: [__m512i; 2]) -> __m512i {
            let f = self.avx512f;
            f._mm512_sllv_epi64(f._mm512_permutex2var_epi64(a, from, b), by)
        }

        #[inline(always)]
        fn right(self, a: __m512i, b: __m512i, [from, by]: [__m512i; 2]) -> __m512i {
            let f = self.avx512f;
            f._mm512_srlv_epi64(f._mm512_permutex2var_epi64(a, from, b), by)
        }

        #[inline(always)]
        fn or(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
            self.avx512f._mm512_ternarylogic_epi64::<0xfe>(a, b, c)
        }
    }

    /// Writes the first `used` bits (72 or more) of each group into the stream `out`, eight groups at a time, while `out`
    /// has room for two vectors. May overwrite the bytes behind the last group. Returns the number of groups.
    pub fn join(groups: &[[u8; 16]], used: u32, out: &mut [u8]) -> usize {
        let Some(simd) = Wide::try_new() else { return 0 };
        let (eights, plan) = (as_arrays::<64, u8>(groups.as_flattened()).0, joined(u64::from(used)));
        let mask = (u128::MAX >> (128 - used)).to_le_bytes();
        let mut done = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                let mask: __m512i = cast([mask; 4]);
                // The whole table fits in registers.
                let plan: [[[__m512i; 2]; 3]; 2] = cast(*plan);
                for [a, b] in eights.as_chunks::<2>().0 {
                    let a = simd.avx512f._mm512_and_si512(cast(*a), mask);
                    let b = simd.avx512f._mm512_and_si512(cast(*b), mask);
                    let Some(place) =
                        out.get_mut(done * used as usize..).and_then(|rest| rest.first_chunk_mut::<128>())
                    else {
                        break;
                    };
                    let place = as_arrays_mut::<64, u8>(place).0;
                    for v in 0..2 {
                        let (first, second) = (simd.right(a, b, plan[v][0]), simd.left(a, b, plan[v][1]));
                        place[v] = cast(simd.or(first, second, simd.left(a, b, plan[v][2])));
                    }
                    done += 1;
                }
            },
        );
        EIGHT * done
    }

    impl Wide {
        #[inline(always)]
        fn values(self, a: __m512i, b: __m512i, from: __m512i) -> __m512i {
            self.avx512f._mm512_maskz_permutex2var_epi32(0x5555, a, from, b)
        }
    }

    /// The most lanes that a word is made of.
    const PARTS: usize = 4;

    /// The table for one vector of groups: the values that each word is made of, and the distances of their shifts. The
    /// first part is shifted to the right, the others to the left.
    #[derive(Default)]
    struct Grouped {
        from: [[u32; 16]; PARTS],
        by: [Words; PARTS],
    }

    /// The table for lanes of 17 to 31 bits.
    fn grouped(width: u32) -> &'static Grouped {
        static PLANS: [OnceLock<Grouped>; 32] = [const { OnceLock::new() }; 32];
        PLANS[width as usize].get_or_init(|| {
            let (mut plan, per) = (Grouped::default(), 128 / width);
            for word in 0..8 {
                let (group, begins) = (word as u32 / 2, word as u32 % 2 * 64);
                let first = begins / width;
                for part in 0..PARTS as u32 {
                    // A lane that begins behind this word is shifted out of the word.
                    let (lane, p) = (first + part, part as usize);
                    plan.by[p][word] = u64::from((lane * width).abs_diff(begins));
                    plan.from[p][2 * word] = group * per + lane;
                }
            }
            plan
        })
    }

    /// Writes values below 2^width, for widths of 17 to 31 bits, as groups: four groups at a time, while 32 values are
    /// left to read. Returns the number of groups.
    pub fn group(values: &[u32], width: u32, groups: &mut [[u8; 16]]) -> usize {
        let Some(simd) = Wide::try_new().filter(|_| (17..32).contains(&width)) else { return 0 };
        let (plan, step) = (grouped(width), 4 * (128 / width) as usize);
        let mut done = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                let f = simd.avx512f;
                let from: [__m512i; PARTS] = cast(plan.from);
                let by: [__m512i; PARTS] = cast(plan.by);
                for four in as_arrays_mut::<4, [u8; 16]>(groups).0 {
                    let Some(values) = values.get(done * step..).and_then(|rest| rest.first_chunk::<32>()) else {
                        break;
                    };
                    let [a, b] = *as_arrays::<16, u32>(values).0 else { break };
                    let (a, b) = (cast(a), cast(b));
                    let first = f._mm512_srlv_epi64(simd.values(a, b, from[0]), by[0]);
                    let second = f._mm512_sllv_epi64(simd.values(a, b, from[1]), by[1]);
                    let third = f._mm512_sllv_epi64(simd.values(a, b, from[2]), by[2]);
                    let fourth = f._mm512_sllv_epi64(simd.values(a, b, from[3]), by[3]);
                    *four = cast(f._mm512_or_si512(simd.or(first, second, third), fourth));
                    done += 1;
                }
            },
        );
        4 * done
    }

    /// For each lane: the two source words that it begins and ends in, and the distances of their shifts. The first word
    /// is shifted to the right, the other to the left.
    type Parted = [[Words; 2]; 2];

    /// The table for lanes that begin at these bits.
    fn parted(begin: impl Fn(usize) -> u32) -> Parted {
        let mut plan = Parted::default();
        for word in 0..8 {
            let bit = u64::from(begin(word));
            let parts = [(bit / 64, bit % 64), ((bit / 64 + 1) % 8, 64 - bit % 64)];
            for ([froms, shifts], (from, by)) in plan.iter_mut().zip(parts) {
                (froms[word], shifts[word]) = (from, by);
            }
        }
        plan
    }

    impl Wide {
        #[inline(always)]
        fn lane_words(
            self,
            words: __m512i,
            [[first, right], [second, left]]: [[__m512i; 2]; 2],
            mask: __m512i,
        ) -> __m512i {
            let f = self.avx512f;
            let begins = f._mm512_srlv_epi64(f._mm512_permutexvar_epi64(first, words), right);
            let ends = f._mm512_sllv_epi64(f._mm512_permutexvar_epi64(second, words), left);
            f._mm512_and_si512(f._mm512_or_si512(begins, ends), mask)
        }
    }

    /// Reads the first lanes of a stream, eight at a time, while the stream has a whole vector left. Returns the number
    /// of lanes.
    pub fn lanes(bytes: &[u8], width: u32, out: &mut [u64]) -> usize {
        static PLANS: [OnceLock<Parted>; 65] = [const { OnceLock::new() }; 65];
        let Some(simd) = Wide::try_new() else { return 0 };
        let plan = PLANS[width as usize].get_or_init(|| parted(|lane| lane as u32 * width));
        let mut done = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                let (plan, mask) = (cast(*plan), cast([lane_mask(width); 8]));
                for eight in as_arrays_mut::<8, u64>(out).0 {
                    let Some(words) = bytes.get(done * width as usize..).and_then(|rest| rest.first_chunk::<64>())
                    else {
                        break;
                    };
                    *eight = cast(simd.lane_words(cast(*words), plan, mask));
                    done += 1;
                }
            },
        );
        8 * done
    }

    /// Two lanes that begin in the same 16 bytes: the offset of these bytes, the eight bytes of each lane, and the
    /// distances of their shifts.
    #[derive(Clone, Copy, Default)]
    struct Pair {
        at: usize,
        from: [u8; 16],
        by: [u64; 2],
    }

    /// The pairs of eight lanes. The first lane begins on a byte.
    fn pairs(width: u32) -> [Pair; 4] {
        std::array::from_fn(|k| {
            let bits = [2 * k, 2 * k + 1].map(|lane| lane * width as usize);
            let at = bits[0] / 8;
            let from = std::array::from_fn(|i| (bits[i / 8] / 8 - at + i % 8) as u8);
            Pair { at, from, by: bits.map(|bit| bit as u64 % 8) }
        })
    }

    /// Like [`lanes`], with AVX2, for lanes of at most 57 bits. Such a lane lies in eight bytes wherever it begins.
    pub fn narrow_lanes(bytes: &[u8], width: u32, out: &mut [u64]) -> usize {
        const WINDOW: usize = 64 + 15;
        let Some(simd) = Narrow::try_new().filter(|_| width <= 57) else { return 0 };
        let [a, b, c, d] = pairs(width);
        simd.vectorize(
            #[inline(always)]
            || {
                let (v, mask) = (simd.avx2, cast([lane_mask(width); 4]));
                let plan: [[__m256i; 2]; 2] =
                    [[a, b], [c, d]].map(|two| [cast(two.map(|pair| pair.from)), cast(two.map(|pair| pair.by))]);
                let mut done = 0;
                for eight in as_arrays_mut::<8, u64>(out).0 {
                    let Some(window) = bytes.get(done * width as usize..).and_then(|rest| rest.first_chunk::<WINDOW>())
                    else {
                        break;
                    };
                    let of = |pair: Pair| -> [u8; 16] { std::array::from_fn(|i| window[pair.at % 64 + i]) };
                    let lanes = |words, [from, by]: [__m256i; 2]| {
                        v._mm256_and_si256(v._mm256_srlv_epi64(v._mm256_shuffle_epi8(words, from), by), mask)
                    };
                    *eight = cast([lanes(cast([of(a), of(b)]), plan[0]), lanes(cast([of(c), of(d)]), plan[1])]);
                    done += 1;
                }
                8 * done
            },
        )
    }

    /// Like [`lanes`], for lanes of up to 120 bits.
    pub fn wide_lanes(bytes: &[u8], width: u32, out: &mut [u128]) -> usize {
        static PLANS: [OnceLock<[Parted; 2]>; 121] = [const { OnceLock::new() }; 121];
        let Some(simd) = Wide::try_new() else { return 0 };
        // The second four lanes begin on a byte or in the middle of one.
        let second = 4 * width as usize / 8;
        let plan = PLANS[width as usize].get_or_init(|| {
            [0, 4 * width % 8].map(|phase| parted(|word| phase + word as u32 / 2 * width + word as u32 % 2 * 64))
        });
        let mut done = 0;
        simd.vectorize(
            #[inline(always)]
            || {
                let ([a, b], mask) = (cast(*plan), cast([(1u128 << width) - 1; 4]));
                for eight in as_arrays_mut::<8, u128>(out).0 {
                    let Some(rest) = bytes.get(done * width as usize..) else { break };
                    let Some(words) = rest.first_chunk::<64>() else { break };
                    let Some(others) = rest.get(second..).and_then(|rest| rest.first_chunk::<64>()) else { break };
                    *eight = cast([simd.lane_words(cast(*words), a, mask), simd.lane_words(cast(*others), b, mask)]);
                    done += 1;
                }
            },
        );
        8 * done
    }
}
