//! The PASTA stream cipher (Dobraunig et al., ePrint 2021/731) over F_p.
//!
//! Block c of a message is masked by adding t key-stream words: the left half of the state after R rounds and a last
//! affine layer, starting from the key. The matrices and constants of a block come from SHAKE128(nonce || c) and are
//! public; the key and the state are secret.

use super::field::Field;
use crate::shown::shown;
use crate::{Error, Result};
use sha3::Shake128;
use sha3::digest::{ExtendableOutput, Update, XofReader};
use zeroize::Zeroizing;

/// Words of a half state, and rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub t: usize,
    pub rounds: usize,
}

pub const PASTA_3: Variant = Variant { t: 128, rounds: 3 };
pub const PASTA_4: Variant = Variant { t: 32, rounds: 4 };

/// One affine layer of a block: the first row of each half's matrix, and the constants.
#[derive(Debug, Clone)]
pub struct Layer {
    pub rows: [Vec<u64>; 2],
    pub constants: [Vec<u64>; 2],
}

/// The `rounds + 1` affine layers of block `counter` under `nonce`.
#[must_use]
pub fn layers(variant: Variant, field: Field, nonce: u64, counter: u64) -> Vec<Layer> {
    let mut shake = Shake128::default();
    shake.update(&nonce.to_be_bytes());
    shake.update(&counter.to_be_bytes());
    let mut source = Source::new(shake.finalize_xof(), field);
    (0..=variant.rounds)
        .map(|_| Layer {
            rows: [source.draw(variant.t, false), source.draw(variant.t, false)],
            constants: [source.draw(variant.t, true), source.draw(variant.t, true)],
        })
        .collect()
}

/// Draws field elements by rejection: 8 bytes, big-endian, masked to the bits of p, and accepted if below p.
struct Source<R> {
    reader: R,
    field: Field,
    buffer: [u8; 1344],
    used: usize,
}

impl<R: XofReader> Source<R> {
    fn new(reader: R, field: Field) -> Self {
        // Eight SHAKE128 blocks of 168 bytes are read at a time.
        Source { reader, field, buffer: [0; 1344], used: 1344 }
    }

    fn draw(&mut self, count: usize, zero: bool) -> Vec<u64> {
        let mask = u64::MAX >> (64 - self.field.bits());
        let mut out = Vec::with_capacity(count);
        while out.len() < count {
            if self.used == self.buffer.len() {
                self.reader.read(&mut self.buffer);
                self.used = 0;
            }
            let mut word = [0u8; 8];
            word.copy_from_slice(&self.buffer[self.used..self.used + 8]);
            self.used += 8;
            let x = u64::from_be_bytes(word) & mask;
            if x < self.field.p() && (zero || x != 0) {
                out.push(x);
            }
        }
        out
    }
}

/// All rows of a matrix: row i+1 from row i by `row'[j] = f[j] row[t-1] + row[j-1]`.
#[must_use]
pub fn matrix(field: Field, first: &[u64]) -> Vec<Vec<u64>> {
    let t = first.len();
    let mut rows = vec![first.to_vec()];
    for i in 1..t {
        let row = &rows[i - 1];
        let last = row[t - 1];
        let next = (0..t).map(|j| {
            let shifted = if j > 0 { row[j - 1] } else { 0 };
            field.add(field.mul(first[j], last), shifted)
        });
        rows.push(next.collect());
    }
    rows
}

/// Replaces `half` by `M half` without computing M. Let S be the companion matrix that makes each row from the row before.
/// Then row i is `f S^i`, and `S x` is x moved up by one with `f x` appended. So
/// `(M x)_i = f . (x_i .. x_(t-1), y_0 .. y_(i-1))`.
fn apply(field: Field, first: &[u64], half: &mut Vec<u64>) {
    let t = first.len();
    for i in 0..t {
        let y = field.dot(first, &half[i..i + t]);
        half.push(y);
    }
    half.drain(..t);
}

/// PASTA with a key of 2t words.
pub struct Pasta {
    variant: Variant,
    field: Field,
    key: Zeroizing<Vec<u64>>,
}

impl Pasta {
    pub fn new(variant: Variant, field: Field, key: &[u64]) -> Result<Self> {
        let wrong = key.iter().fold(false, |wrong, k| wrong | (*k >= field.p()));
        if key.len() != 2 * variant.t || shown(wrong) {
            return Err(Error::Key { reason: format!("a PASTA key has {} words below {}", 2 * variant.t, field.p()) });
        }
        Ok(Pasta { variant, field, key: Zeroizing::new(key.to_vec()) })
    }

    /// A uniform key from the operating system's generator.
    pub fn random_key(variant: Variant, field: Field) -> Result<Zeroizing<Vec<u64>>> {
        let mut stream = crate::prf::Stream::from_os()?;
        Ok(Zeroizing::new((0..2 * variant.t).map(|_| stream.below(field.p())).collect()))
    }

    /// The t words that mask block `counter`.
    #[must_use]
    pub fn key_stream(&self, nonce: u64, counter: u64) -> Zeroizing<Vec<u64>> {
        let (f, t) = (self.field, self.variant.t);
        let with_room = |half: &[u64]| {
            let mut state = Zeroizing::new(Vec::with_capacity(2 * t));
            state.extend_from_slice(half);
            state
        };
        let (left, right) = self.key.split_at(t);
        let mut halves = [with_room(left), with_room(right)];
        let layers = layers(self.variant, f, nonce, counter);
        for (round, layer) in layers.iter().enumerate() {
            for ((half, first), constants) in halves.iter_mut().zip(&layer.rows).zip(&layer.constants) {
                apply(f, first, half);
                half.iter_mut().zip(constants).for_each(|(x, c)| *x = f.add(*x, *c));
            }
            let [left, right] = &mut halves;
            for (l, r) in left.iter_mut().zip(right.iter_mut()) {
                let sum = *l + *r;
                (*l, *r) = (f.reduce(sum + *l), f.reduce(sum + *r));
            }
            for half in &mut halves {
                if round + 1 < self.variant.rounds {
                    for i in (1..t).rev() {
                        half[i] = f.add(half[i], f.mul(half[i - 1], half[i - 1]));
                    }
                } else if round < self.variant.rounds {
                    half.iter_mut().for_each(|x| *x = f.mul(f.mul(*x, *x), *x));
                }
            }
        }
        let [left, _] = halves;
        left
    }

    /// Adds the key stream of blocks 0, 1, .. under `nonce`. Every value must be below p.
    pub fn encrypt(&self, nonce: u64, values: &mut [u64]) {
        for (counter, block) in values.chunks_mut(self.variant.t).enumerate() {
            let mask = self.key_stream(nonce, counter as u64);
            block.iter_mut().zip(mask.iter()).for_each(|(v, k)| *v = self.field.add(*v, *k));
        }
    }

    /// Subtracts the key stream that [`Self::encrypt`] adds.
    pub fn decrypt(&self, nonce: u64, values: &mut [u64]) {
        for (counter, block) in values.chunks_mut(self.variant.t).enumerate() {
            let mask = self.key_stream(nonce, counter as u64);
            block.iter_mut().zip(mask.iter()).for_each(|(v, k)| *v = self.field.sub(*v, *k));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Vectors of the reference implementation, from `../shared/data/pasta`. Skipped if the folder is absent.
    #[test]
    fn known_answers_of_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/pasta/known_answers.json");
        let Ok(text) = std::fs::read_to_string(path) else {
            eprintln!("skipped: the folder shared/data/pasta is absent");
            return;
        };
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let words =
            |v: &serde_json::Value| -> Vec<u64> { v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect() };
        let mut checked = 0;
        for (name, variant) in [("pasta_3", PASTA_3), ("pasta_4", PASTA_4)] {
            let vectors = &json[name];
            for case in vectors["cases"].as_array().unwrap() {
                let field = Field::of(case["modulus"].as_u64().unwrap());
                let pasta = Pasta::new(variant, field, &words(&case["key"])).unwrap();
                let mut values = words(&case["plaintext"]);
                pasta.encrypt(vectors["nonce"].as_u64().unwrap(), &mut values);
                assert_eq!(values, words(&case["ciphertext"]), "{name} mod {}", field.p());
                pasta.decrypt(vectors["nonce"].as_u64().unwrap(), &mut values);
                assert_eq!(values, words(&case["plaintext"]));
                checked += 1;
            }
        }
        assert_eq!(checked, 6);
    }

    #[test]
    fn the_recurrence_is_the_matrix() {
        for p in [65_537, 8_088_322_049] {
            let f = Field::new(p).unwrap();
            for variant in [PASTA_3, PASTA_4] {
                let layer = &layers(variant, f, 3, 9)[1];
                let x: Vec<u64> = (0..variant.t as u64).map(|i| (i * i * 77 + 5) % p).collect();
                let mut fast = x.clone();
                apply(f, &layer.rows[0], &mut fast);
                let slow: Vec<u64> = matrix(f, &layer.rows[0])
                    .iter()
                    .map(|row| {
                        let sum: u128 = row.iter().zip(&x).map(|(a, b)| u128::from(*a) * u128::from(*b)).sum();
                        (sum % u128::from(p)) as u64
                    })
                    .collect();
                assert_eq!(fast, slow);
            }
        }
    }

    #[test]
    fn reductions() {
        for p in [65_537, 8_088_322_049, 1_096_486_890_805_657_601] {
            let f = Field::of(p);
            for x in [0, 1, p - 1, p, p + 1, 2 * p - 1, u64::MAX, u64::MAX - p] {
                assert_eq!(f.reduce(x), x % p);
                let wide = u128::from(x) * u128::from(u64::MAX) + u128::from(x);
                assert_eq!(f.reduce_wide(wide), (wide % u128::from(p)) as u64);
            }
            assert_eq!(f.reduce_wide(u128::MAX), (u128::MAX % u128::from(p)) as u64);
            assert_eq!(f.mul(p - 1, p - 1), 1);
        }
    }

    #[test]
    fn bad_keys_are_refused() {
        let f = Field::new(65_537).unwrap();
        assert!(Pasta::new(PASTA_4, f, &[1; 63]).is_err());
        assert!(Pasta::new(PASTA_4, f, &[65_537; 64]).is_err());
        assert!(Field::new(7).is_err());
        let key = Pasta::random_key(PASTA_4, f).unwrap();
        assert!(Pasta::new(PASTA_4, f, &key).is_ok());
    }
}
