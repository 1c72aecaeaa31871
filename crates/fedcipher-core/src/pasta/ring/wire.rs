//! Reads and writes fhe.rs's bytes (protocol buffers) without fhe.rs's contexts. Every read is checked. Bytes without the
//! form of this project's keys and ciphertexts are an error.

use super::rows::Prime;
use super::{Pair, Ring, Row, Rows, SwitchKey, pairs};
use crate::{Error, Result};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

type Seed = [u8; 32];

/// fhe.rs's numbers for transformed values. The bytes hold coefficients all the same.
const TRANSFORMED: u64 = 2;
const TRANSFORMED_TWICE: u64 = 3;

fn malformed(what: &str) -> Error {
    Error::frame(format!("{what} is malformed"))
}

/// A field of a message.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn number(self, what: &str) -> Result<u64> {
        if let Value::Number(n) = self { Ok(n) } else { Err(malformed(what)) }
    }

    fn bytes(self, what: &str) -> Result<&'a [u8]> {
        if let Value::Bytes(b) = self { Ok(b) } else { Err(malformed(what)) }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(first & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The numbers and values of a message's fields, in order.
fn fields<'a>(what: &str, mut bytes: &'a [u8]) -> Result<Vec<(u64, Value<'a>)>> {
    let mut out = Vec::new();
    let next = |bytes: &mut &'a [u8]| {
        let key = varint(bytes)?;
        let value = match key & 7 {
            0 => Value::Number(varint(bytes)?),
            2 => {
                let length = usize::try_from(varint(bytes)?).ok()?;
                let (head, rest) = bytes.split_at_checked(length)?;
                *bytes = rest;
                Value::Bytes(head)
            }
            _ => return None,
        };
        Some((key >> 3, value))
    };
    while !bytes.is_empty() {
        out.push(next(&mut bytes).ok_or_else(|| malformed(what))?);
    }
    Ok(out)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    // An absent field means zero.
    if value != 0 {
        put_varint(out, field << 3);
        put_varint(out, value);
    }
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, (field << 3) | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A uniform element from a seed, drawn in the same way as by fhe.rs.
fn expanded(primes: &[&Prime], degree: usize, seed: Seed) -> Rows {
    let mut rng = ChaCha8Rng::from_seed(Sha256::digest(seed).into());
    primes.iter().map(|p| p.modulus().random_vec(degree, &mut rng).into()).collect()
}

/// The coefficients of an element as packed bytes. Fails unless the element names `form` and `degree`.
fn packed<'a>(what: &str, bytes: &'a [u8], degree: usize, form: u64) -> Result<&'a [u8]> {
    let (mut is, mut length, mut packed): (_, _, &[u8]) = (0, 0, &[]);
    for (field, value) in fields(what, bytes)? {
        match field {
            1 => is = value.number(what)?,
            2 => length = value.number(what)?,
            3 => packed = value.bytes(what)?,
            // True if fhe.rs may use algorithms whose time depends on the value. It is not needed here.
            4 => _ = value.number(what)?,
            _ => return Err(malformed(what)),
        }
    }
    if is == form && length == degree as u64 { Ok(packed) } else { Err(malformed(what)) }
}

/// Reads an element modulo `primes`, and transforms it.
fn element(what: &str, bytes: &[u8], primes: &[&Prime], degree: usize, form: u64) -> Result<Rows> {
    let packed = packed(what, bytes, degree, form)?;
    let sizes: Vec<usize> = primes.iter().map(|p| p.modulus().serialization_length(degree)).collect();
    if packed.len() != sizes.iter().sum::<usize>() {
        return Err(malformed(what));
    }
    let ends = sizes.iter().scan(0, |end, size| {
        *end += size;
        Some(*end)
    });
    let slices: Vec<&[u8]> = ends.zip(&sizes).map(|(end, size)| &packed[end - size..end]).collect();
    let read = |(bytes, prime): (&[u8], &&Prime)| -> Result<Row> {
        let mut row = prime.modulus().deserialize_vec(bytes);
        if row.len() != degree || row.iter().any(|x| *x >= prime.q) {
            return Err(malformed(what));
        }
        prime.forward(&mut row);
        Ok(row.into())
    };
    slices.into_par_iter().zip(primes).map(read).collect()
}

impl Ring {
    /// fhe.rs's level, which counts the dropped primes, the special prime included.
    fn fhe_level(&self, level: usize) -> u64 {
        (self.primes.len() - level) as u64
    }

    /// Reads a ciphertext with `level` primes. A fresh one may carry a seed in place of its second element.
    pub fn ciphertext(&self, what: &str, bytes: &[u8], level: usize) -> Result<Pair> {
        let (mut elements, mut seed, mut gone) = (Vec::new(), None, 0);
        for (field, value) in fields(what, bytes)? {
            match field {
                1 => elements.push(value.bytes(what)?),
                2 => seed = Some(Seed::try_from(value.bytes(what)?).map_err(|_| malformed(what))?),
                3 => gone = value.number(what)?,
                _ => return Err(malformed(what)),
            }
        }
        let primes: Vec<&Prime> = self.primes[..level].iter().collect();
        let one = |bytes: &[u8]| element(what, bytes, &primes, self.degree, TRANSFORMED);
        match (elements.as_slice(), seed) {
            _ if gone != self.fhe_level(level) => Err(malformed(what)),
            ([a], Some(seed)) => Ok([one(a)?, expanded(&primes, self.degree, seed)]),
            ([a, b], None) => Ok([one(a)?, one(b)?]),
            _ => Err(malformed(what)),
        }
    }

    #[must_use]
    pub fn ciphertext_bytes(&self, pair: &Pair) -> Vec<u8> {
        let mut out = Vec::new();
        for element in pair {
            let mut coefficients = element.clone();
            self.backward(&mut coefficients);
            let packed: Vec<u8> =
                coefficients.iter().zip(&self.primes).flat_map(|(row, p)| p.modulus().serialize_vec(row)).collect();
            let mut message = Vec::new();
            put_number(&mut message, 1, TRANSFORMED);
            put_number(&mut message, 2, self.degree as u64);
            put_bytes(&mut message, 3, &packed);
            put_bytes(&mut out, 1, &message);
        }
        put_number(&mut out, 3, self.fhe_level(pair[0].len()));
        out
    }

    fn switch_key(&self, bytes: &[u8]) -> Result<SwitchKey> {
        const WHAT: &str = "key-switching key";
        let (mut firsts, mut seed, mut gone) = (Vec::new(), None, 0);
        for (field, value) in fields(WHAT, bytes)? {
            match field {
                1 => firsts.push(value.bytes(WHAT)?),
                3 => seed = Some(Seed::try_from(value.bytes(WHAT)?).map_err(|_| malformed(WHAT))?),
                4 => gone = value.number(WHAT)?,
                _ => return Err(malformed(WHAT)),
            }
        }
        let (Some(seed), 1) = (seed, gone) else { return Err(malformed(WHAT)) };
        if firsts.len() != self.top() {
            return Err(malformed(WHAT));
        }
        let primes: Vec<&Prime> = self.primes.iter().collect();
        let mut seeds = ChaCha8Rng::from_seed(seed);
        let mut draw = || {
            let mut seed = Seed::default();
            seeds.fill_bytes(&mut seed);
            seed
        };
        let seeds: Vec<Seed> = firsts.iter().map(|_| draw()).collect();
        let digit = |(first, seed): (&&[u8], Seed)| -> Result<Vec<[Row; 2]>> {
            let first = element(WHAT, first, &primes, self.degree, TRANSFORMED_TWICE)?;
            Ok(first.into_iter().zip(expanded(&primes, self.degree, seed)).map(|(a, b)| [a, b]).collect())
        };
        let digits = firsts.par_iter().zip(seeds).map(digit).collect::<Result<Vec<_>>>()?;
        let mut by_prime: Vec<Vec<[Row; 2]>> = primes.iter().map(|_| Vec::new()).collect();
        for digit in digits {
            by_prime.iter_mut().zip(digit).for_each(|(prime, rows)| prime.push(rows));
        }
        Ok(SwitchKey(by_prime.into_iter().map(pairs).collect()))
    }

    pub fn relinearisation_key(&self, bytes: &[u8]) -> Result<SwitchKey> {
        const WHAT: &str = "relinearisation key";
        match fields(WHAT, bytes)?.as_slice() {
            [(1, Value::Bytes(key))] => self.switch_key(key),
            _ => Err(malformed(WHAT)),
        }
    }

    /// Reads Galois keys with their exponents.
    pub fn galois_keys(&self, bytes: &[u8]) -> Result<Vec<(usize, super::GaloisKey)>> {
        const WHAT: &str = "Galois key";
        let mut out = Vec::new();
        for (field, value) in fields(WHAT, bytes)? {
            match (field, value) {
                (2, Value::Bytes(bytes)) => {
                    let (mut key, mut exponent) = (None, 0);
                    for (field, value) in fields(WHAT, bytes)? {
                        match field {
                            1 => key = Some(value.bytes(WHAT)?),
                            2 => exponent = value.number(WHAT)?,
                            _ => return Err(malformed(WHAT)),
                        }
                    }
                    let key = self.switch_key(key.ok_or_else(|| malformed(WHAT))?)?;
                    let exponent = usize::try_from(exponent).map_err(|_| malformed(WHAT))?;
                    out.push((exponent, self.galois_key(exponent, key)?));
                }
                // Keys serve fresh ciphertexts and have all primes.
                (3, Value::Number(1)) => {}
                _ => return Err(malformed(WHAT)),
            }
        }
        Ok(out)
    }
}

/// Rewrites a ciphertext's bytes for parameters that have the ciphertext's primes only. Fails unless `gone` primes have
/// been dropped, and each element has the form and the `degree` of an aggregate: fhe.rs accepts any form and panics when
/// it decrypts another one.
pub fn alone(what: &str, bytes: &[u8], gone: usize, degree: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let (mut elements, mut found) = (0, 0);
    for (field, value) in fields(what, bytes)? {
        match field {
            1 => {
                let element = value.bytes(what)?;
                packed(what, element, degree, TRANSFORMED)?;
                put_bytes(&mut out, 1, element);
                elements += 1;
            }
            3 => found = value.number(what)?,
            _ => return Err(malformed(what)),
        }
    }
    if elements == 2 && found == gone as u64 { Ok(out) } else { Err(malformed(what)) }
}

/// Fails unless the bytes hold `degree` coefficients in fhe.rs's range for secret keys.
pub fn check_secret(bytes: &[u8], degree: usize) -> Result<()> {
    const WHAT: &str = "BFV secret key";
    let parsed = Zeroizing::new(match fields(WHAT, bytes)?.as_slice() {
        [(1, Value::Bytes(packed))] => {
            let mut packed: &[u8] = packed;
            let mut coefficients = Vec::with_capacity(degree);
            while !packed.is_empty() && coefficients.len() <= degree {
                coefficients.push(varint(&mut packed).ok_or_else(|| malformed(WHAT))?);
            }
            coefficients
        }
        _ => return Err(malformed(WHAT)),
    });
    // Zigzag codes up to 40 are the numbers from -20 to 20: fhe.rs's largest coefficient is twice the variance.
    let small = parsed.iter().fold(true, |all, c| all & (*c <= 40));
    if parsed.len() == degree && small { Ok(()) } else { Err(malformed(WHAT)) }
}
