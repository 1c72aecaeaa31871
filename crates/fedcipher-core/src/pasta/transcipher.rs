//! Homomorphic decryption of PASTA under BFV, all blocks of a ciphertext at once.
//!
//! A BFV ciphertext has 2 rows of N/2 slots. The left half-state lives in row 0, the right in row 1, and
//! blocks are *interleaved*: word j of block k sits in slot `j * B + k` with B = N / 2 / t blocks. A column
//! rotation by B is then exactly a cyclic shift of the words of all blocks; a row swap exchanges halves.
//!
//! * Affine layers: baby-step/giant-step diagonals, which depend on nonce and counter alone, so they are
//!   made once a round and shared by all clients.
//! * The S-box `x_i += x_(i-1)^2` needs the state moved by one word with word 0 cleared. Masking would cost
//!   24 bits of noise a round; instead a second affine layer with moved rows runs over the same baby steps.
//! * The last layer doubles its left matrix, so that `w + swap(w)` holds the key stream in *both* rows. The
//!   right half of the final state, which would undo the cipher, never exists in the result.

use super::cipher::{Layer, Variant, layers, matrix};
use super::field::Field;
use crate::{Error, Result};
use fhe::bfv::{
    BfvParameters, BfvParametersBuilder, Ciphertext, Encoding, EvaluationKey, EvaluationKeyBuilder, Multiplicator,
    Plaintext, RelinearizationKey, SecretKey, dot_product_scalar,
};
use fhe_traits::{FheDecoder, FheDecrypter, FheEncoder, FheEncrypter};
use rand::{CryptoRng, RngCore};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use zeroize::Zeroizing;

/// Ciphertexts live one level below the keys: the last prime is the special prime of key switching.
const LEVEL: usize = 1;

pub(crate) fn he(error: fhe::Error) -> Error {
    Error::parameter("bfv", format!("the HE library reports: {error}"))
}

/// BFV parameters for transciphering one variant over one prime.
#[derive(Clone)]
pub struct Context {
    pub variant: Variant,
    pub field: Field,
    pub par: Arc<BfvParameters>,
    /// Words moved by the largest baby step plus one.
    baby: usize,
}

impl Context {
    /// N and the primes' bits, special prime included, for 128 bits under every model of docs/parameters.md:
    /// at N = 16384 that is 432 bits, 6 less than the HE standard's table; 33-bit p needs N = 32768.
    pub fn new(variant: Variant, field: Field) -> Result<Self> {
        let (degree, sizes): (usize, Vec<usize>) =
            if field.bits() <= 17 { (16_384, vec![54; 8]) } else { (32_768, vec![60; 11]) };
        let par = BfvParametersBuilder::new()
            .set_degree(degree)
            .set_plaintext_modulus(field.p())
            .set_moduli_sizes(&sizes)
            .build_arc()
            .map_err(he)?;
        // Baby steps share their rotations between two matrices, giants do not: a few more babies.
        let baby = if variant.t == 32 { 8 } else { 16 };
        Ok(Context { variant, field, par, baby })
    }

    /// The context of these parameters, one a process: its tables take hundreds of megabytes, and a process
    /// may hold the keys of many clients.
    pub fn shared(variant: Variant, field: Field) -> Result<Arc<Self>> {
        static MADE: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |c: &Arc<Context>| c.variant == variant && c.field == field;
        if let Some(found) = made.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(found);
        }
        let context = Arc::new(Context::new(variant, field)?);
        made.retain(|c| c.strong_count() > 0);
        made.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// Slots of a row: values deciphered by one evaluation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.par.degree() / 2
    }

    /// B, the blocks of one evaluation.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.capacity() / self.variant.t
    }

    fn giants(&self) -> usize {
        self.variant.t.div_ceil(self.baby)
    }

    /// Spreads `value(word, block)` over one row.
    fn row(&self, mut value: impl FnMut(usize, usize) -> u64) -> Vec<u64> {
        let blocks = self.blocks();
        (0..self.capacity()).map(|slot| value(slot / blocks, slot % blocks)).collect()
    }

    fn encode(&self, rows: [Vec<u64>; 2]) -> Result<Plaintext> {
        Plaintext::try_encode(&rows.concat(), Encoding::simd_at_level(LEVEL), &self.par).map_err(he)
    }

    /// Values in message order at their slots, the same in both rows.
    pub fn encode_message(&self, values: &[u64]) -> Result<Plaintext> {
        let t = self.variant.t;
        let row = self.row(|word, block| values.get(block * t + word).copied().unwrap_or(0));
        self.encode([row.clone(), row])
    }

    /// A client's PASTA key under BFV, each word replicated over the blocks.
    pub fn encrypt_key<R: RngCore + CryptoRng>(
        &self,
        key: &[u64],
        secret: &SecretKey,
        rng: &mut R,
    ) -> Result<Ciphertext> {
        let (left, right) = key.split_at(self.variant.t);
        let rows = [self.row(|word, _| left[word]), self.row(|word, _| right[word])];
        let plaintext = Zeroizing::new(self.encode(rows)?);
        secret.try_encrypt(&*plaintext, rng).map_err(he)
    }

    /// Both rows of a decrypted ciphertext, each in message order.
    pub fn decrypt(&self, ciphertext: &Ciphertext, secret: &SecretKey) -> Result<[Zeroizing<Vec<u64>>; 2]> {
        let plaintext = Zeroizing::new(secret.try_decrypt(ciphertext).map_err(he)?);
        let encoding = Encoding::simd_at_level(plaintext.level());
        let slots = Zeroizing::new(Vec::<u64>::try_decode(&plaintext, encoding).map_err(he)?);
        let (t, blocks, half) = (self.variant.t, self.blocks(), self.capacity());
        let order = |row: usize| {
            Zeroizing::new((0..half).map(|v| slots[row * half + (v % t) * blocks + v / t]).collect::<Vec<_>>())
        };
        Ok([order(0), order(1)])
    }
}

/// What the server needs to evaluate the cipher; public.
pub struct EvaluationKeys {
    pub galois: EvaluationKey,
    pub relinearisation: RelinearizationKey,
}

impl EvaluationKeys {
    pub fn new<R: RngCore + CryptoRng>(context: &Context, secret: &SecretKey, rng: &mut R) -> Result<Self> {
        let mut builder = EvaluationKeyBuilder::new_leveled(secret, LEVEL, 0).map_err(he)?;
        builder.enable_row_rotation().map_err(he)?;
        for step in 1..context.baby {
            builder.enable_column_rotation(step * context.blocks()).map_err(he)?;
        }
        for giant in 1..context.giants() {
            builder.enable_column_rotation(giant * context.baby * context.blocks()).map_err(he)?;
        }
        Ok(EvaluationKeys {
            galois: builder.build(rng).map_err(he)?,
            relinearisation: RelinearizationKey::new_leveled(secret, LEVEL, 0, rng).map_err(he)?,
        })
    }
}

/// One matrix over all blocks: diagonals by giant and baby step, and the constants.
struct Affine {
    diagonals: Vec<Plaintext>,
    constants: Plaintext,
}

/// One layer's matrices: the affine layer, and beside it the moved one where an S-box follows.
struct Step {
    state: Affine,
    moved: Option<Affine>,
}

/// The transformed diagonals of B blocks under one nonce, shared by all clients.
pub struct Diagonals {
    steps: Vec<Step>,
}

impl Diagonals {
    /// Those of the `present` blocks from `chunk * B` on under `nonce`; all cores. For the other slots the
    /// matrices are zero: they decipher to zero, and no key stream of theirs ever exists.
    pub fn new(context: &Context, nonce: u64, chunk: usize, present: usize) -> Result<Self> {
        let first = chunk * context.blocks();
        let blocks: Vec<Vec<Layer>> = (0..present.min(context.blocks()))
            .into_par_iter()
            .map(|k| layers(context.variant, context.field, nonce, (first + k) as u64))
            .collect();
        let rounds = context.variant.rounds;
        let steps = (0..=rounds).map(|round| {
            // Matrices of one layer at a time: 2 B t^2 words are the largest transient.
            let matrices: Vec<[Vec<Vec<u64>>; 2]> = blocks
                .par_iter()
                .map(|layers| {
                    let mut both = layers[round].rows.each_ref().map(|row| matrix(context.field, row));
                    if round == rounds {
                        both[0].iter_mut().flatten().for_each(|x| *x = context.field.add(*x, *x));
                    }
                    both
                })
                .collect();
            let constants = |block: usize, half: usize, word: usize| {
                let c = blocks.get(block).map_or(0, |layers| layers[round].constants[half][word]);
                if round == rounds && half == 0 { context.field.add(c, c) } else { c }
            };
            let state = Affine::new(context, &matrices, &constants, 0)?;
            let moved = (round + 1 < rounds).then(|| Affine::new(context, &matrices, &constants, 1)).transpose()?;
            Ok(Step { state, moved })
        });
        Ok(Diagonals { steps: steps.collect::<Result<_>>()? })
    }
}

impl Affine {
    /// The layer whose word i is word `i - shift` of the real one, and zero below `shift`.
    fn new(
        context: &Context,
        matrices: &[[Vec<Vec<u64>>; 2]],
        constants: &(impl Fn(usize, usize, usize) -> u64 + Sync),
        shift: usize,
    ) -> Result<Self> {
        let (t, baby) = (context.variant.t, context.baby);
        let diagonal = |d: usize| {
            let turn = d / baby * baby;
            let row = |half: usize| {
                context.row(|word, block| {
                    // Rotated back by the giant step that is applied after the product.
                    let i = (word + t - turn) % t;
                    match matrices.get(block) {
                        Some(both) if i >= shift => both[half][i - shift][(i + d) % t],
                        _ => 0,
                    }
                })
            };
            context.encode([row(0), row(1)])
        };
        let constant =
            |half: usize| context.row(|i, block| if i < shift { 0 } else { constants(block, half, i - shift) });
        Ok(Affine {
            diagonals: (0..t).into_par_iter().map(diagonal).collect::<Result<_>>()?,
            constants: context.encode([constant(0), constant(1)])?,
        })
    }
}

/// The circuit with its keys.
pub struct Transcipher<'a> {
    context: &'a Context,
    keys: &'a EvaluationKeys,
    multiplicator: Multiplicator,
}

impl<'a> Transcipher<'a> {
    pub fn new(context: &'a Context, keys: &'a EvaluationKeys) -> Result<Self> {
        let multiplicator = Multiplicator::default(&keys.relinearisation).map_err(he)?;
        Ok(Transcipher { context, keys, multiplicator })
    }

    fn affine(&self, babies: &[Ciphertext], layer: &Affine) -> Result<Ciphertext> {
        let baby = self.context.baby;
        let parts = layer.diagonals.par_chunks(baby).enumerate().map(|(giant, diagonals)| {
            let sum = dot_product_scalar(babies.iter(), diagonals.iter()).map_err(he)?;
            self.rotate(&sum, giant * baby)
        });
        let mut parts = parts.collect::<Result<Vec<_>>>()?.into_iter();
        let mut sum = parts.next().ok_or(Error::EmptyCohort)?;
        parts.for_each(|part| sum += &part);
        sum += &layer.constants;
        Ok(sum)
    }

    /// Words moved down by `words`.
    fn rotate(&self, x: &Ciphertext, words: usize) -> Result<Ciphertext> {
        if words == 0 {
            return Ok(x.clone());
        }
        self.keys.galois.rotates_columns_by(x, words * self.context.blocks()).map_err(he)
    }

    /// `(l, r) -> (2 l + r, l + 2 r)`: the state plus the sum of both halves.
    fn mix(&self, u: Ciphertext) -> Result<Ciphertext> {
        let mut both = self.keys.galois.rotates_rows(&u).map_err(he)?;
        both += &u;
        both += &u;
        Ok(both)
    }

    /// The key stream of a chunk's blocks, in both rows.
    pub fn key_stream(&self, key: &Ciphertext, diagonals: &Diagonals) -> Result<Ciphertext> {
        let mut x = key.clone();
        let last = diagonals.steps.len() - 1;
        for (round, step) in diagonals.steps.iter().enumerate() {
            let babies = (0..self.context.baby)
                .into_par_iter()
                .map(|words| self.rotate(&x, words))
                .collect::<Result<Vec<_>>>()?;
            let (u, v) = rayon::join(
                || self.affine(&babies, &step.state),
                || step.moved.as_ref().map(|moved| self.affine(&babies, moved)).transpose(),
            );
            let u = u?;
            x = if round == last {
                // The left half comes doubled: one addition gives 2 l + r in both rows.
                let mut sum = self.keys.galois.rotates_rows(&u).map_err(he)?;
                sum += &u;
                sum
            } else if let Some(v) = v? {
                let (y, square) = rayon::join(
                    || self.mix(u),
                    || {
                        let z = self.mix(v)?;
                        self.multiplicator.multiply(&z, &z).map_err(he)
                    },
                );
                let mut y = y?;
                y += &square?;
                y
            } else {
                let y = self.mix(u)?;
                let square = self.multiplicator.multiply(&y, &y).map_err(he)?;
                self.multiplicator.multiply(&square, &y).map_err(he)?
            };
        }
        Ok(x)
    }

    /// The BFV encryption, in both rows, of what a client encrypted as `words` (at most one chunk).
    pub fn decipher(&self, words: &[u64], key: &Ciphertext, diagonals: &Diagonals) -> Result<Ciphertext> {
        let stream = self.key_stream(key, diagonals)?;
        Ok(&self.context.encode_message(words)? - &stream)
    }
}
