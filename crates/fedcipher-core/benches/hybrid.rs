//! The operations transciphering is made of, at its parameters (PASTA-4, p = 65537, N = 16384), one thread,
//! and the client's cipher.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to measure")]

use criterion::{Criterion, criterion_group, criterion_main};
use fedcipher_core::pasta::cipher::{PASTA_3, PASTA_4, Pasta};
use fedcipher_core::pasta::field::{Field, PRIMES};
use fedcipher_core::pasta::transcipher::{Context, EvaluationKeys};
use fhe::bfv::{Multiplicator, SecretKey, dot_product_scalar};
use std::hint::black_box;

fn operations(c: &mut Criterion) {
    let mut rng = rand::rng();
    let field = Field::new(PRIMES[0]).unwrap();
    let context = Context::new(PASTA_4, field).unwrap();
    let secret = SecretKey::random(&context.par, &mut rng);
    let keys = EvaluationKeys::new(&context, &secret, &mut rng).unwrap();
    let key = Pasta::random_key(PASTA_4, field).unwrap();
    let x = context.encrypt_key(&key, &secret, &mut rng).unwrap();
    let values: Vec<u64> = (0..8192).collect();
    let plaintext = context.encode_message(&values).unwrap();
    let multiplicator = Multiplicator::default(&keys.relinearisation).unwrap();
    let (eight, plaintexts) = (vec![x.clone(); 8], vec![plaintext.clone(); 8]);
    let mut group = c.benchmark_group("hybrid-operations");
    group.bench_function("encode", |b| b.iter(|| context.encode_message(black_box(&values)).unwrap()));
    group.bench_function("rotate", |b| {
        b.iter(|| keys.galois.rotates_columns_by(black_box(&x), context.blocks()).unwrap());
    });
    group.bench_function("row-swap", |b| b.iter(|| keys.galois.rotates_rows(black_box(&x)).unwrap()));
    group.bench_function("multiply-relinearise", |b| b.iter(|| multiplicator.multiply(black_box(&x), &x).unwrap()));
    group.bench_function("dot-product-of-8", |b| {
        b.iter(|| dot_product_scalar(black_box(&eight).iter(), plaintexts.iter()).unwrap());
    });
    group.finish();
}

fn client(c: &mut Criterion) {
    let mut group = c.benchmark_group("pasta-8000-values");
    for (name, variant, prime) in [
        ("pasta-4-17", PASTA_4, PRIMES[0]),
        ("pasta-3-17", PASTA_3, PRIMES[0]),
        ("pasta-4-33", PASTA_4, PRIMES[1]),
        ("pasta-3-33", PASTA_3, PRIMES[1]),
    ] {
        let field = Field::new(prime).unwrap();
        let pasta = Pasta::new(variant, field, &Pasta::random_key(variant, field).unwrap()).unwrap();
        let values: Vec<u64> = (0..8000).collect();
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut words = values.clone();
                pasta.encrypt(1, black_box(&mut words));
                words
            });
        });
    }
}

criterion_group!(benches, operations, client);
criterion_main!(benches);
