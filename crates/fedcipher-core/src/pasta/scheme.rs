//! `pasta-bfv`: clients encrypt with PASTA, the server transciphers into BFV and adds (hybrid HE).
//!
//! Upload: one field element a value, 17 or 33 bits. A client's PASTA key travels once a key epoch,
//! encrypted under the cohort's BFV key. Download: BFV ciphertexts switched to one or two primes.
//! Withstands a server without a key (docs/security.md); the BFV secret is shared, so one client that colludes with
//! the server opens every update.

use super::aggregate::PastaAggregator;
use super::cipher::{PASTA_3, PASTA_4, Pasta, Variant};
use super::decrypt::PastaDecryptor;
use super::encrypt::PastaEncryptor;
use super::field::Field;
use super::piece;
use super::transcipher::{Context, EvaluationKeys};
use crate::admission::Rules;
use crate::bounds::Bounds;
use crate::client::{Receiver, Sender};
use crate::codec::Layout;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::mac::Weighting;
use crate::scheme::{self, Aggregator, Decryptor, Encryptor, Scheme};
use crate::wire::{self, Reader};
use crate::{Error, Result};
use fhe::bfv::{Ciphertext, EvaluationKey, RelinearizationKey, SecretKey};
use fhe_traits::{DeserializeParametrized, Serialize};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

const NAME: &str = "pasta-bfv";
/// Bits of noise that must stay unused.
const MARGIN: u32 = 3;
/// Folding multiplies by a row mask: log2 of N times p, generously.
const FOLD_NOISE_17: u32 = 27;
const FOLD_NOISE_33: u32 = 44;

/// What the cohort must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    pub bounds: Bounds,
    /// 3 or 4.
    pub variant: u32,
    /// 65537 or 8088322049.
    pub prime: u64,
}

impl Params {
    /// The server multiplies the transciphered words by the weights.
    pub fn rules(&self) -> Rules {
        Rules { closes: true, ..Rules::dense(self.bounds, Weighting::Server) }
    }
}

type KeyCache = HashMap<([u8; 16], u32), Arc<Ciphertext>>;

/// What all objects of one scheme share: parameters, and on a server the keys it has parsed.
pub struct Shared {
    pub params: Params,
    pub context: Arc<Context>,
    evaluation: Mutex<Option<([u8; 16], Arc<EvaluationKeys>)>>,
    pub client_keys: Mutex<KeyCache>,
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The HE library's parsers assert on some malformed inputs; to a caller that is a malformed frame.
pub fn parsed<T>(what: &str, parse: impl FnOnce() -> fhe::Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(parse))
        .map_err(|_| Error::frame(format!("{what} is malformed")))?
        .map_err(|e| Error::frame(format!("{what} is malformed: {e}")))
}

/// Most noise bits of a transciphered ciphertext, from `docs/hybrid.md`; a test holds them to measurement.
#[must_use]
pub fn predicted_noise(variant: Variant, field: Field) -> u32 {
    match (variant.t, field.bits()) {
        (32, 17) => 316,
        (_, 17) => 266,
        (32, _) => 504,
        _ => 410,
    }
}

/// PASTA + BFV with validated parameters.
#[derive(Clone)]
pub struct PastaBfv(Arc<Shared>);

impl PastaBfv {
    pub fn new(params: Params) -> Result<Self> {
        let variant = match params.variant {
            3 => PASTA_3,
            4 => PASTA_4,
            other => return Err(Error::parameter("variant", format!("PASTA-{other} is not PASTA-3 or PASTA-4"))),
        };
        let field = Field::new(params.prime)?;
        let context = Context::shared(variant, field)?;
        let shared = Shared { params, context, evaluation: Mutex::new(None), client_keys: Mutex::new(HashMap::new()) };
        let spare = shared.spare_bits(true);
        if spare < 0 {
            return Err(Error::parameter(
                "max_weight",
                format!(
                    "the noise of a total weight of {} exceeds the budget by {} bits; use a smaller max_weight, fewer \
                     clients, or the 33-bit prime",
                    shared.params.bounds.total_weight(),
                    -spare
                ),
            ));
        }
        Ok(PastaBfv(Arc::new(shared)))
    }

    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Noise bits left after transciphering, the weighted sum and, with `folded`, the fold.
    #[must_use]
    pub fn spare_bits(&self, folded: bool) -> i64 {
        self.0.spare_bits(folded)
    }
}

impl Shared {
    fn spare_bits(&self, folded: bool) -> i64 {
        let c = &self.context;
        let sizes = c.par.moduli_sizes();
        // The last prime is the special prime; noise must stay below q / 2p.
        let q: usize = sizes[..sizes.len() - 1].iter().sum();
        let weight = 64 - self.params.bounds.total_weight().leading_zeros();
        let fold = if c.field.bits() <= 17 { FOLD_NOISE_17 } else { FOLD_NOISE_33 };
        let used = predicted_noise(c.variant, c.field) + c.field.bits() + 1 + weight + MARGIN;
        q as i64 - i64::from(used) - if folded { i64::from(fold) } else { 0 }
    }

    /// Primes left after the switch before broadcast.
    pub fn final_primes(&self) -> usize {
        if self.context.field.bits() <= 17 { 1 } else { 2 }
    }

    pub fn check_layout(&self, layout: &Layout) -> Result<()> {
        let (bounds, p) = (self.params.bounds, self.context.field.p());
        for segment in layout.segments() {
            if bounds.max_sum(segment.bits) >= u128::from(p) {
                // The largest power of two below p fits always; name what would.
                bounds.checked_field_bits(segment.bits, self.context.field.bits() - 1)?;
            }
        }
        Ok(())
    }

    /// Values of an update rounded up to whole blocks: the padding is encrypted zeros.
    pub fn padded(&self, elements: usize) -> usize {
        elements.next_multiple_of(self.context.variant.t)
    }

    pub fn chunks(&self, elements: usize) -> usize {
        elements.div_ceil(self.context.capacity())
    }

    pub fn evaluation_keys(&self, key: &ServerKey) -> Result<Arc<EvaluationKeys>> {
        let mut cached = locked(&self.evaluation);
        if let Some((id, keys)) = cached.as_ref()
            && *id == key.tag.key_id
        {
            return Ok(Arc::clone(keys));
        }
        let mut r = Reader::new(&key.public);
        r.bytes(key.cohort.len() * 32)?;
        let length = r.length()?;
        let galois = r.bytes(length)?;
        let relinearisation = r.rest();
        let par = &self.context.par;
        let missing = |e: Error| Error::Key { reason: format!("evaluation keys: {e}; load the server key again") };
        let keys = Arc::new(EvaluationKeys {
            galois: parsed("Galois key", || EvaluationKey::from_bytes(galois, par)).map_err(missing)?,
            relinearisation: parsed("relinearisation key", || RelinearizationKey::from_bytes(relinearisation, par))
                .map_err(missing)?,
        });
        // A new epoch: nobody needs the keys of the old one.
        locked(&self.client_keys).retain(|(id, _), _| *id == key.tag.key_id);
        *cached = Some((key.tag.key_id, Arc::clone(&keys)));
        Ok(keys)
    }
}

/// The parts of a client's secret: BFV secret key, PASTA key, and its encryption to send once.
pub struct Secret {
    pub bfv: SecretKey,
    pub pasta: Pasta,
    pub encrypted_key: Vec<u8>,
}

impl Shared {
    fn secret(&self, key: &ClientKey, digest: [u8; 16]) -> Result<Secret> {
        key.tag.check_scheme(NAME, digest)?;
        let c = &self.context;
        let bad = |_| Error::Key { reason: "a pasta-bfv client key is malformed".into() };
        let mut r = Reader::new(&key.secret);
        let mut words = Zeroizing::new(Vec::with_capacity(2 * c.variant.t));
        for _ in 0..2 * c.variant.t {
            words.push(r.u64().map_err(bad)?);
        }
        let length = r.length().map_err(bad)?;
        let encrypted_key = r.bytes(length).map_err(bad)?.to_vec();
        let bfv = parsed("BFV secret key", || SecretKey::from_bytes(r.rest(), &c.par)).map_err(bad)?;
        Ok(Secret { bfv, pasta: Pasta::new(c.variant, c.field, &words)?, encrypted_key })
    }
}

impl Scheme for PastaBfv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> [u8; 16] {
        scheme::digest(&format!("{NAME}|{:?}|{:?}", self.0.params, self.0.context.par.moduli()))
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.0.check_layout(layout)
    }

    fn keygen(&self, cohort: &[u32], epoch: u64) -> Result<KeySet> {
        let c = &self.0.context;
        // Not the thread's generator: since rand 0.9 it goes on in a process forked off where its parent's does.
        let mut rng = StdRng::try_from_os_rng().map_err(|e| Error::Rng(e.to_string()))?;
        let secret = SecretKey::random(&c.par, &mut rng);
        let evaluation = EvaluationKeys::new(c, &secret, &mut rng)?;
        let secret_bytes = Zeroizing::new(secret.to_bytes());
        let mut ids = cohort.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut secrets = BTreeMap::new();
        let mut public = Vec::new();
        for id in &ids {
            let words = Pasta::random_key(c.variant, c.field)?;
            let encrypted = c.encrypt_key(&words, &secret, &mut rng)?.to_bytes();
            // The server accepts no other key from this client.
            public.extend_from_slice(&Sha256::digest(&encrypted));
            let mut own =
                Zeroizing::new(Vec::with_capacity(16 * c.variant.t + 8 + encrypted.len() + secret_bytes.len()));
            words.iter().for_each(|w| own.extend_from_slice(&w.to_le_bytes()));
            own.extend_from_slice(&(encrypted.len() as u64).to_le_bytes());
            own.extend_from_slice(&encrypted);
            own.extend_from_slice(&secret_bytes);
            secrets.insert(*id, own);
        }
        let galois = evaluation.galois.to_bytes();
        public.extend_from_slice(&(galois.len() as u64).to_le_bytes());
        public.extend_from_slice(&galois);
        public.extend_from_slice(&evaluation.relinearisation.to_bytes());
        let tag = KeyTag::fresh(NAME, self.digest(), epoch)?;
        KeySet::build(tag, cohort, public, |id| secrets.remove(&id).ok_or(Error::UnknownClient { client: id }))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Encryptor>> {
        let secret = self.0.secret(key, self.digest())?;
        let sender = Sender::new(key, self.0.params.rules(), state)?;
        Ok(Box::new(PastaEncryptor::new(Arc::clone(&self.0), sender, secret)))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<u64>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Box::new(PastaAggregator::new(&self.0, key, round)?))
    }

    fn work(&self, key: &ServerKey, common: &[u8], piece: &[u8]) -> Result<Vec<u8>> {
        key.tag.check_scheme(NAME, self.digest())?;
        piece::work(&self.0, &*self.0.evaluation_keys(key)?, common, piece)
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Decryptor>> {
        let secret = self.0.secret(key, self.digest())?;
        let receiver = Receiver::new(key, self.0.params.rules(), state)?;
        Ok(Box::new(PastaDecryptor::new(Arc::clone(&self.0), receiver, secret.bfv)))
    }

    /// The sampled clients whose PASTA key the server already has, as u32 each: they need not send it.
    fn plan(&self, key: &ServerKey, sampled: &[u32]) -> Result<Vec<u8>> {
        let cached = locked(&self.0.client_keys);
        let of_this_epoch = cached.keys().filter(|(id, _)| *id == key.tag.key_id);
        let known: BTreeSet<u32> = of_this_epoch.map(|(_, client)| *client).collect();
        Ok(sampled.iter().filter(|c| known.contains(c)).flat_map(|c| c.to_le_bytes()).collect())
    }

    fn describe(&self) -> Vec<(String, String)> {
        let c = &self.0.context;
        let sizes = c.par.moduli_sizes();
        vec![
            ("variant".into(), format!("PASTA-{}", self.0.params.variant)),
            ("p".into(), c.field.p().to_string()),
            ("N".into(), c.par.degree().to_string()),
            ("log q".into(), sizes[..sizes.len() - 1].iter().sum::<usize>().to_string()),
            ("log special prime".into(), sizes.last().map_or(0, |s| *s).to_string()),
            ("values per ciphertext up".into(), c.capacity().to_string()),
            ("values per ciphertext down".into(), (2 * c.capacity()).to_string()),
            ("noise bits to spare".into(), self.0.spare_bits(true).to_string()),
        ]
        .into_iter()
        .chain(self.0.params.bounds.describe())
        .collect()
    }
}

/// The scheme id must fit the wire.
const _: () = assert!(NAME.len() <= std::mem::size_of::<wire::SchemeId>());
