//! What this processor's widest vectors are reached by: a value of these types says that it has them, and the functions
//! behind it are safe to call. A function that takes one must be inlined into what [`Wide::vectorize`] is given, or it
//! is compiled for every processor.

pulp::simd_type! {
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
