//! The operations transciphering is made of, at its parameters (PASTA-4, p = 65537, N = 16384), one thread,
//! and the client's cipher.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to measure")]

use criterion::{Criterion, criterion_group, criterion_main};
use fedcipher_core::pasta::cipher::{PASTA_3, PASTA_4, Pasta};
use fedcipher_core::pasta::context::Context;
use fedcipher_core::pasta::field::{Field, PRIMES};
use fedcipher_core::pasta::transcipher::{Diagonals, EvaluationKeys, ServerKeys, Transcipher};
use fhe::bfv::{Ciphertext, Encoding, Multiplicator, Plaintext, SecretKey, dot_product_scalar};
use fhe_traits::{FheEncoder, Serialize};
use std::hint::black_box;

/// This crate's and the library's, each as transciphering uses it: of this crate's rotations, those that share their
/// decomposition with six others and those that do not.
fn operations(c: &mut Criterion) {
    let mut rng = rand::rng();
    let field = Field::new(PRIMES[0]).unwrap();
    let context = Context::new(PASTA_4, field).unwrap();
    let (par, server) = (&context.authority().unwrap(), context.server().unwrap());
    let secret = SecretKey::random(par, &mut rng);
    let keys = EvaluationKeys::new(&context, &secret, &mut rng).unwrap();
    let ring = &server.ring;
    let galois = ring.galois_keys(&keys.galois.to_bytes()).unwrap();
    let of = |exponent: usize| &galois.iter().find(|(found, _)| *found == exponent).unwrap().1;
    let (column, swap) = (of(ring.columns(context.blocks())), of(ring.row_swap()));
    let relinearisation = ring.relinearisation_key(&keys.relinearisation.to_bytes()).unwrap();
    let key = Pasta::random_key(PASTA_4, field).unwrap();
    let x = context.encrypt_key(&key, &secret, &mut rng).unwrap();
    let values: Vec<u64> = (0..8192).collect();
    let slots = context.message(&values);
    let level = ring.top();
    let pair = ring.ciphertext("key", &x.to_bytes(), level).unwrap();

    let mut group = c.benchmark_group("hybrid-operations");
    let encode = || ring.multiplier(&server.slots.encode(black_box(&slots).iter().copied()), level);
    let plain = encode();
    let digits = ring.digits(&pair[1]);
    group.bench_function("encode", |b| b.iter(encode));
    group.bench_function("decompose", |b| b.iter(|| ring.digits(black_box(&pair[1]))));
    group.bench_function("rotate-decomposed", |b| b.iter(|| ring.rotate(black_box(&pair), &digits, column)));
    group.bench_function("rotate", |b| b.iter(|| ring.rotate(black_box(&pair), &ring.digits(&pair[1]), column)));
    group.bench_function("row-swap", |b| b.iter(|| ring.rotate(black_box(&pair), &ring.digits(&pair[1]), swap)));
    group.bench_function("multiply-relinearise", |b| {
        b.iter(|| ring.multiply(black_box(&pair), &pair.clone(), &relinearisation, level).unwrap());
    });
    group.bench_function("square-relinearise", |b| {
        b.iter(|| ring.multiply(black_box(&pair), &pair, &relinearisation, level).unwrap());
    });
    group.bench_function("dot-product-of-8", |b| b.iter(|| ring.dots(&[&plain; 8], &[black_box(&pair); 8])));
    group.finish();

    let mut group = c.benchmark_group("hybrid-library-operations");
    let encode = || Plaintext::try_encode(black_box(&slots), Encoding::simd_at_level(1), par).unwrap();
    let multiplicator = Multiplicator::default(&keys.relinearisation).unwrap();
    let (eight, plaintexts): (Vec<Ciphertext>, _) = (vec![x.clone(); 8], vec![encode(); 8]);
    group.bench_function("encode", |b| b.iter(encode));
    group.bench_function("rotate", |b| {
        b.iter(|| keys.galois.rotates_columns_by(black_box(&x), context.blocks()).unwrap());
    });
    group.bench_function("row-swap", |b| b.iter(|| keys.galois.rotates_rows(black_box(&x)).unwrap()));
    group.bench_function("multiply-relinearise", |b| b.iter(|| multiplicator.multiply(black_box(&x), &x).unwrap()));
    group.bench_function("dot-product-of-8", |b| {
        b.iter(|| dot_product_scalar(black_box(&eight).iter(), plaintexts.iter()).unwrap());
    });
    group.finish();

    let keys = ServerKeys::of(&context, &keys).unwrap();
    let transcipher = Transcipher::new(&context, &keys).unwrap();
    let diagonals = Diagonals::new(&context, 1, 0, context.blocks()).unwrap();
    let mut group = c.benchmark_group("hybrid-chunk");
    group.sample_size(10);
    group.bench_function("diagonals", |b| b.iter(|| Diagonals::new(&context, 1, 0, context.blocks()).unwrap()));
    group.bench_function("decipher", |b| {
        b.iter(|| transcipher.decipher(&values, &pair, black_box(&diagonals)).unwrap())
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
