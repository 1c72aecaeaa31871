//! Homomorphic decryption of PASTA under BFV, all blocks of a ciphertext at once.
//!
//! A BFV ciphertext has 2 rows of N/2 slots. The left half-state lives in row 0, the right in row 1, and
//! blocks are *interleaved*: word j of block k sits in slot `j * B + k` with B = N / 2 / t blocks. A column
//! rotation by B is then exactly a cyclic shift of the words of all blocks; a row swap exchanges halves.
//!
//! * Affine layers use baby-step/giant-step diagonals. The diagonals depend on nonce and counter alone, so they are made
//!   once a round and shared by all clients.
//! * The S-box `x_i += x_(i-1)^2` needs the square, moved by one word and with word 0 cleared. A mask would cost 24 bits
//!   of noise a round. Instead, the square is a separate ciphertext until the next affine layer. That layer multiplies
//!   the square by its matrix with columns moved and the first column removed; the giant steps are shared.
//! * The last layer doubles its left matrix, so that `w + swap(w)` holds the key stream in *both* rows. The
//!   right half of the final state, which would undo the cipher, never exists in the result.
//! * Primes are dropped as the noise grows (`budget`), so most of the circuit runs over fewer primes than at its start.

use super::context::{Context, LEVEL, Server, he};
pub use super::diagonals::Diagonals;
use super::diagonals::Step;
use super::ring::{Digits, GaloisKey, Pair, Rows, SwitchKey};
use crate::{Error, Result};
use fhe::bfv::{EvaluationKey, EvaluationKeyBuilder, RelinearizationKey, SecretKey};
use fhe_traits::Serialize;
use rand::{CryptoRng, RngCore};
use rayon::prelude::*;
use std::collections::HashMap;

/// The public keys with which the server evaluates the cipher. The authority makes them.
pub struct EvaluationKeys {
    pub galois: EvaluationKey,
    pub relinearisation: RelinearizationKey,
}

impl EvaluationKeys {
    pub fn new<R: RngCore + CryptoRng>(context: &Context, secret: &SecretKey, rng: &mut R) -> Result<Self> {
        let mut builder = EvaluationKeyBuilder::new_leveled(secret, LEVEL, 0).map_err(he)?;
        builder.enable_row_rotation().map_err(he)?;
        for step in context.steps() {
            builder.enable_column_rotation(step * context.blocks()).map_err(he)?;
        }
        Ok(EvaluationKeys {
            galois: builder.build(rng).map_err(he)?,
            relinearisation: RelinearizationKey::new_leveled(secret, LEVEL, 0, rng).map_err(he)?,
        })
    }
}

/// Parsed [`EvaluationKeys`], as the server uses them.
pub struct ServerKeys {
    /// Keys for column rotations, by the number of words that they move.
    columns: HashMap<usize, GaloisKey>,
    rows: GaloisKey,
    relinearisation: SwitchKey,
}

impl ServerKeys {
    /// Parses fhe.rs's bytes. Fails unless the Galois keys are exactly those of this circuit.
    pub fn parse(context: &Context, galois: &[u8], relinearisation: &[u8]) -> Result<Self> {
        let ring = &context.server()?.ring;
        let mut found: HashMap<usize, GaloisKey> = ring.galois_keys(galois)?.into_iter().collect();
        let mut take = |exponent: usize| {
            found.remove(&exponent).ok_or_else(|| Error::frame(format!("no Galois key for exponent {exponent}")))
        };
        let column = |words: usize| Ok((words, take(ring.columns(words * context.blocks()))?));
        let columns = context.steps().map(column).collect::<Result<_>>()?;
        let rows = take(ring.row_swap())?;
        if !found.is_empty() {
            return Err(Error::frame(format!("{} Galois keys that the circuit does not use", found.len())));
        }
        Ok(ServerKeys { columns, rows, relinearisation: ring.relinearisation_key(relinearisation)? })
    }

    /// Parses keys that were just made.
    pub fn of(context: &Context, keys: &EvaluationKeys) -> Result<Self> {
        Self::parse(context, &keys.galois.to_bytes(), &keys.relinearisation.to_bytes())
    }

    fn column(&self, words: usize) -> Result<&GaloisKey> {
        self.columns.get(&words).ok_or_else(|| Error::Key { reason: format!("no Galois key for {words} words") })
    }
}

/// The circuit with its keys.
pub struct Transcipher<'a> {
    context: &'a Context,
    server: &'a Server,
    keys: &'a ServerKeys,
}

impl<'a> Transcipher<'a> {
    pub fn new(context: &'a Context, keys: &'a ServerKeys) -> Result<Self> {
        Ok(Transcipher { context, server: context.server()?, keys })
    }

    /// Computes all baby rotations of all parts of a state, as extended ciphertexts. They are ordered by part, and then
    /// by step, with the unrotated part first.
    fn babies(&self, state: &[Pair]) -> Result<Vec<Pair>> {
        let (ring, baby) = (&self.server.ring, self.context.baby);
        let digits: Vec<_> = state.par_iter().map(|x| ring.digits(&x[1])).collect();
        // Each key rotates all parts at once, so that the key is read from memory once.
        let one = |words: usize| -> Result<Vec<Pair>> {
            let key = if words == 0 { None } else { Some(self.keys.column(words)?) };
            let rotate = |(x, digits): (&Pair, &Digits)| {
                key.map_or_else(|| ring.extended(x), |key| ring.rotate_extended(x, digits, key))
            };
            Ok(state.iter().zip(&digits).map(rotate).collect())
        };
        let mut turned = (0..baby).into_par_iter().map(one).collect::<Result<Vec<_>>>()?;
        Ok(state.iter().flat_map(|_| turned.iter_mut().map(|parts| parts.remove(0)).collect::<Vec<_>>()).collect())
    }

    /// Applies an affine layer to a state and to the square that belongs to the state.
    fn affine(&self, state: &[Pair], layer: &Step) -> Result<Pair> {
        let (ring, baby) = (&self.server.ring, self.context.baby);
        let babies = self.babies(state)?;
        let babies: Vec<&Pair> = babies.iter().collect();
        let part = |(giant, diagonals): (usize, &Vec<Rows>)| -> Result<(Pair, Option<&GaloisKey>)> {
            let sum = ring.extended_dots(&diagonals.iter().collect::<Vec<_>>(), &babies);
            let key = if giant == 0 { None } else { Some(self.keys.column(giant * baby)?) };
            Ok((sum, key))
        };
        let mut parts = layer.giants.par_iter().enumerate().map(part).collect::<Result<Vec<_>>>()?.into_iter();
        let (first, _) = parts.next().ok_or(Error::EmptyCohort)?;
        let others: Vec<(Pair, &GaloisKey)> = parts.filter_map(|(sum, key)| Some((sum, key?))).collect();
        let mut sum = ring.sum_of_rotations(first, others);
        ring.add(&mut sum[0], &layer.constants);
        Ok(sum)
    }

    /// `u + swap(u)`.
    fn halves(&self, u: &Pair) -> Pair {
        let ring = &self.server.ring;
        let mut both = ring.rotate(u, &ring.digits(&u[1]), &self.keys.rows);
        both.iter_mut().zip(u).for_each(|(a, b)| ring.add(a, b));
        both
    }

    /// `(l, r) -> (2 l + r, l + 2 r)`: the state plus the sum of both halves.
    fn mix(&self, u: &Pair) -> Pair {
        let mut both = self.halves(u);
        both.iter_mut().zip(u).for_each(|(a, b)| self.server.ring.add(a, b));
        both
    }

    /// Computes the key stream of a chunk's blocks, in both rows. `watch` is called with the input and the output of each
    /// layer.
    pub fn key_stream(&self, key: &Pair, diagonals: &Diagonals, watch: &mut dyn FnMut(usize, &Pair)) -> Result<Pair> {
        let (ring, plan, relinearisation) = (&self.server.ring, &self.context.plan, &self.keys.relinearisation);
        let mut state = vec![key.clone()];
        let last = diagonals.steps.len() - 1;
        for (round, step) in diagonals.steps.iter().enumerate() {
            let u = self.affine(&state, step)?;
            if round == last {
                // The left half is doubled already, so one addition gives 2 l + r in both rows.
                let stream = self.halves(&u);
                watch(round, &stream);
                return Ok(stream);
            }
            let (y, next) = (self.mix(&u), plan.layers[round + 1]);
            watch(round, &y);
            let square = ring.multiply(&y, &y, relinearisation, plan.squares[round])?;
            state = if round + 1 == last {
                let y = ring.lower(y, plan.squares[round]);
                vec![ring.multiply(&square, &y, relinearisation, next)?]
            } else {
                vec![ring.lower(y, next), ring.lower(square, next)]
            };
            state.iter().for_each(|x| watch(round, x));
        }
        Err(Error::EmptyCohort)
    }

    /// The BFV encryption, in both rows, of the data that a client encrypted as `words` (at most one chunk).
    pub fn decipher(&self, words: &[u64], key: &Pair, diagonals: &Diagonals) -> Result<Pair> {
        let mut stream = self.key_stream(key, diagonals, &mut |_, _| {})?;
        let ring = &self.server.ring;
        let message = self.server.slots.encode(self.context.message(words).into_iter());
        let mut sum = ring.summand(&message, self.context.plan.end());
        ring.subtract(&mut sum, &stream[0]);
        stream[0] = sum;
        stream[1].iter_mut().zip(ring.moduli()).for_each(|(row, q)| row.iter_mut().for_each(|x| *x = (q - *x) % q));
        Ok(stream)
    }
}
