//! Access to this processor's widest vectors. A value of these types proves that the processor has them, so its
//! functions are safe to call. A function that takes such a value must be inlined into the closure for
//! [`Wide::vectorize`]; otherwise it is compiled for every processor.

use core::arch::x86_64::__m512i;

pulp::simd_type! {
    /// AVX2.
    pub struct Narrow {
        sse: "sse",
        sse2: "sse2",
        avx: "avx",
        pub avx2: "avx2",
    }

    /// AVX-512, its foundation alone.
    pub struct Wide {
        sse: "sse",
        sse2: "sse2",
        avx: "avx",
        avx2: "avx2",
        pub avx512f: "avx512f",
    }

    /// AVX-512 with 52-bit multiplications.
    pub struct Ifma {
        sse: "sse",
        sse2: "sse2",
        avx: "avx",
        avx2: "avx2",
        pub avx512f: "avx512f",
        avx512bw: "avx512bw",
        avx512dq: "avx512dq",
        avx512vl: "avx512vl",
        pub avx512ifma: "avx512ifma",
    }
}

/// Sums of products of 52-bit numbers: `low + 2^52 high` in each place.
pub type Sum = [__m512i; 2];

impl Ifma {
    #[inline(always)]
    pub fn add_product(self, [low, high]: Sum, a: __m512i, b: __m512i) -> Sum {
        let ifma = self.avx512ifma;
        [ifma._mm512_madd52lo_epu64(low, a, b), ifma._mm512_madd52hi_epu64(high, a, b)]
    }
}
