//! BFV parameters for transciphering one variant over one prime, and the tables of the authority, the server and the
//! reader. Each table is made when first needed: a client that encrypts needs none.

use super::budget::Plan;
use super::cipher::Variant;
use super::field::Field;
use super::ring::{NARROW_BITS, Ring, Slots};
use crate::{Error, Result};
use fhe::bfv::{BfvParameters, BfvParametersBuilder, Ciphertext, Encoding, Plaintext, SecretKey};
use fhe_math::zq::primes::generate_prime;
use fhe_traits::{FheDecoder, FheDecrypter, FheEncoder, FheEncrypter};
use rand::{CryptoRng, RngCore};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use zeroize::Zeroizing;

/// fhe.rs's level of fresh ciphertexts. It is one below the level of keys, because the last prime is the special prime of
/// key switching.
pub(crate) const LEVEL: usize = 1;

pub(crate) fn he(error: fhe::Error) -> Error {
    Error::parameter("bfv", format!("the HE library reports: {error}"))
}

/// The parameters; cheap to make.
pub struct Context {
    pub variant: Variant,
    pub field: Field,
    pub degree: usize,
    /// All primes, the special prime last.
    pub moduli: Vec<u64>,
    pub plan: Plan,
    /// The number of baby steps: one more than the words that the largest baby step moves.
    pub(crate) baby: usize,
    authority: Mutex<Weak<BfvParameters>>,
    server: OnceLock<Arc<Server>>,
    reader: OnceLock<Arc<BfvParameters>>,
}

/// The server's tables.
pub struct Server {
    pub ring: Ring,
    pub slots: Slots,
}

/// The content of the lock, or the result of `make`. Two threads may make the same value at the same time.
fn once<T>(lock: &OnceLock<Arc<T>>, make: impl FnOnce() -> Result<T>) -> Result<&Arc<T>> {
    if let Some(found) = lock.get() {
        return Ok(found);
    }
    let made = Arc::new(make()?);
    Ok(lock.get_or_init(|| made))
}

impl Context {
    /// Chooses N and the primes, special prime included, for 128 bits of security under every model of
    /// docs/reference/parameters.md. N = 16384 allows 432 bits; the primes are narrow because AVX-512 multiplies those
    /// best (`ring::narrow`). A 33-bit p needs N = 32768.
    pub fn new(variant: Variant, field: Field) -> Result<Self> {
        let (degree, bits, count) = if field.bits() <= 17 { (16_384, NARROW_BITS, 8) } else { (32_768, 60, 11) };
        // The largest primes that fit, in descending order, which fhe.rs also chooses for these sizes.
        let below = |bound: &u64| generate_prime(bits, 2 * degree as u64, *bound);
        let moduli: Vec<u64> = std::iter::successors(below(&(1 << bits)), below).take(count).collect();
        // Baby steps share one decomposition and giant steps do not. So there are a few more baby steps.
        let baby = if variant.t == 32 { 8 } else { 16 };
        Ok(Context {
            variant,
            field,
            degree,
            moduli,
            plan: Plan::of(variant, field),
            baby,
            authority: Mutex::default(),
            server: OnceLock::new(),
            reader: OnceLock::new(),
        })
    }

    /// The context of these parameters, shared in a process, because a process may hold the keys of many clients.
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

    fn parameters(&self, moduli: &[u64]) -> Result<BfvParameters> {
        let mut builder = BfvParametersBuilder::new();
        builder.set_degree(self.degree).set_plaintext_modulus(self.field.p()).set_moduli(moduli).build().map_err(he)
    }

    /// fhe.rs's parameters for key generation. They take hundreds of megabytes, so they are dropped when unused.
    pub fn authority(&self) -> Result<Arc<BfvParameters>> {
        let mut made = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.upgrade() {
            return Ok(found);
        }
        let parameters = Arc::new(self.parameters(&self.moduli)?);
        *made = Arc::downgrade(&parameters);
        Ok(parameters)
    }

    /// fhe.rs's parameters with the primes of an aggregate only, for the decryptor.
    pub fn reader(&self) -> Result<&Arc<BfvParameters>> {
        once(&self.reader, || self.parameters(&self.moduli[..self.final_primes()]))
    }

    pub fn server(&self) -> Result<&Arc<Server>> {
        once(&self.server, || {
            Ok(Server {
                ring: Ring::new(self.degree, &self.moduli, self.field.p())?,
                slots: Slots::new(self.degree, self.field.p())?,
            })
        })
    }

    /// Slots of a row, which is the number of values that one evaluation deciphers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.degree / 2
    }

    /// B, the blocks of one evaluation.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.capacity() / self.variant.t
    }

    pub(crate) fn giants(&self) -> usize {
        self.variant.t.div_ceil(self.baby)
    }

    /// The words by which every baby step moves, then those by which every giant step moves.
    pub(crate) fn steps(&self) -> impl Iterator<Item = usize> {
        (1..self.baby).chain((1..self.giants()).map(|giant| giant * self.baby))
    }

    /// Primes left after the switch before broadcast.
    #[must_use]
    pub fn final_primes(&self) -> usize {
        if self.field.bits() <= 17 { 1 } else { 2 }
    }

    /// Bits of the first `level` primes.
    #[must_use]
    pub fn log_q(&self, level: usize) -> u32 {
        self.moduli[..level].iter().map(|q| 64 - q.leading_zeros()).sum()
    }

    /// Spreads `value(word, block)` over one row.
    fn row(&self, mut value: impl FnMut(usize, usize) -> u64) -> Vec<u64> {
        let blocks = self.blocks();
        (0..self.capacity()).map(|slot| value(slot / blocks, slot % blocks)).collect()
    }

    /// Puts values in message order into their slots, the same in both rows.
    #[must_use]
    pub fn message(&self, values: &[u64]) -> Vec<u64> {
        let t = self.variant.t;
        let row = self.row(|word, block| values.get(block * t + word).copied().unwrap_or(0));
        row.repeat(2)
    }

    /// Encrypts a client's PASTA key under BFV, with each word replicated over the blocks.
    pub fn encrypt_key<R: RngCore + CryptoRng>(
        &self,
        key: &[u64],
        secret: &SecretKey,
        rng: &mut R,
    ) -> Result<Ciphertext> {
        let (left, right) = key.split_at(self.variant.t);
        let slots = Zeroizing::new([self.row(|word, _| left[word]), self.row(|word, _| right[word])].concat());
        let encoding = Encoding::simd_at_level(LEVEL);
        let plaintext = Zeroizing::new(Plaintext::try_encode(&*slots, encoding, &self.authority()?).map_err(he)?);
        secret.try_encrypt(&*plaintext, rng).map_err(he)
    }

    /// Decrypts a ciphertext. Returns both rows, each in message order.
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
