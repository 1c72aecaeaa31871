//! What transciphering one whole ciphertext consists of, and what a transform takes: a line of JSON, for docs/evidence/limits.md.
//! One thread where RAYON_NUM_THREADS says so.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to measure")]

use fedcipher_core::pasta::cipher::{PASTA_4, Pasta};
use fedcipher_core::pasta::context::Context;
use fedcipher_core::pasta::field::{Field, PRIMES};
use fedcipher_core::pasta::ring::counted;
use fedcipher_core::pasta::transcipher::{Diagonals, EvaluationKeys, ServerKeys, Transcipher};
use fhe::bfv::SecretKey;
use fhe_traits::Serialize;
use std::hint::black_box;
use std::time::Instant;

const TRIES: usize = 5;
/// A transform takes so little that one try of it is mostly what the processor had to fetch first.
const TRANSFORMS: usize = 100;

/// The least of some tries, seconds.
fn least<T>(mut work: impl FnMut() -> T) -> f64 {
    let once = |_| {
        let began = Instant::now();
        black_box(work());
        began.elapsed().as_secs_f64()
    };
    (0..TRIES).map(once).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut rng = rand::rng();
    let field = Field::new(PRIMES[0]).unwrap();
    let context = Context::new(PASTA_4, field).unwrap();
    let ring = &context.server().unwrap().ring;
    let secret = SecretKey::random(&context.authority().unwrap(), &mut rng);
    let keys = EvaluationKeys::new(&context, &secret, &mut rng).unwrap();
    let keys = ServerKeys::of(&context, &keys).unwrap();
    let key = Pasta::random_key(PASTA_4, field).unwrap();
    let key = context.encrypt_key(&key, &secret, &mut rng).unwrap();
    let key = ring.ciphertext("key", &key.to_bytes(), ring.top()).unwrap();
    let transcipher = Transcipher::new(&context, &keys).unwrap();
    let values: Vec<u64> = (0..context.capacity() as u64).collect();
    let whole = || {
        let diagonals = Diagonals::new(&context, 1, 0, context.blocks()).unwrap();
        transcipher.decipher(&values, &key, &diagonals).unwrap()
    };
    // Tables that are made when first needed.
    whole();
    counted::taken();
    whole();
    let [transforms, multipliers] = counted::taken();
    let seconds = least(whole);
    let mut rows = key[0].clone();
    let transform = least(|| {
        for _ in 0..TRANSFORMS {
            ring.backward(&mut rows);
            ring.forward(&mut rows);
        }
    }) / (2 * TRANSFORMS * rows.len()) as f64;
    println!(
        "{{\"values\": {}, \"degree\": {}, \"transforms\": {transforms}, \"multipliers\": {multipliers}, \
         \"transform\": {transform}, \"seconds\": {seconds}}}",
        values.len(),
        ring.degree
    );
}
