//! The transforms of the NTT crate that this build has. Built once with each: where both are in one build, the default
//! one also works under fhe-math, which would be measured against itself.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to measure")]

use criterion::{Criterion, criterion_group, criterion_main};
use fedcipher_core::rlwe::ntt::{BACKEND, Ntt};
use std::hint::black_box;

const PRIME: u64 = 18_014_398_509_309_953;

fn transforms(c: &mut Criterion) {
    let ntt = Ntt::new(4096, PRIME).unwrap();
    let mut a: Vec<u64> = (0..4096).map(|i| i * 1_000_003 % PRIME).collect();
    let b = a.clone();
    let mut group = c.benchmark_group(format!("ntt-4096-{BACKEND}"));
    group.bench_function("forward", |bench| bench.iter(|| ntt.forward(black_box(&mut a))));
    a.copy_from_slice(&b);
    group.bench_function("inverse", |bench| bench.iter(|| ntt.inverse_product(black_box(&mut a), &b)));
}

criterion_group!(benches, transforms);
criterion_main!(benches);
