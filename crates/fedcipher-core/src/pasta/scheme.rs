//! `pasta-bfv`: clients encrypt with PASTA, and the server transciphers into BFV and adds (hybrid HE).
//!
//! A client uploads one field element of 17 or 33 bits for each value. Once a key epoch it also sends its PASTA key,
//! encrypted under the cohort's BFV key. It downloads BFV ciphertexts, switched to one or two primes.
//!
//! The scheme protects updates from a server without a key (docs/explanation/security.md). The cohort shares one BFV
//! secret, so a client that colludes with the server exposes every update.

use super::aggregate::PastaAggregator;
use super::cipher::{PASTA_3, PASTA_4, Pasta, Variant};
use super::context::Context;
use super::decrypt::PastaDecryptor;
use super::encrypt::PastaEncryptor;
use super::field::Field;
use super::known::{self, Known};
use super::secret::Secret;
pub use super::shared::PastaParams;
use super::shared::Shared;
use super::transcipher::EvaluationKeys;
use super::work_item;
use crate::bounds::LaneBits;
use crate::canonical::{Canonical, Fields};
use crate::codec::Layout;
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::params_digest::ParamsDigest;
use crate::protocol::{Decryptor, Encryptor, Receiver, Sender};
use crate::scheme::{self, Aggregator, RoundPlan, Scheme, Values, Workers};
use crate::wire;
use crate::{ClientId, Epoch, Error, Result, RoundId};
use fhe::bfv::SecretKey;
use fhe_traits::Serialize;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

const NAME: &str = "pasta-bfv";
/// The variants of this scheme that benchmarks and tests cover; see [`scheme::Variant`].
pub const VARIANTS: &[scheme::Variant] = &[
    scheme::Variant::new(NAME, NAME, r#"{"variant": 4, "prime_bits": 17}"#),
    scheme::Variant::new("pasta-bfv-3", NAME, r#"{"variant": 3, "prime_bits": 17}"#),
    scheme::Variant::new("pasta-bfv-33", NAME, r#"{"variant": 4, "prime_bits": 33}"#),
];
/// The most noise bits of a transciphered ciphertext, from `docs/explanation/hybrid.md`. A test compares the number with a
/// measurement.
#[must_use]
pub fn predicted_noise(variant: Variant, field: Field) -> u32 {
    super::budget::Plan::of(variant, field).noise
}

/// PASTA + BFV with validated parameters.
#[derive(Clone)]
pub struct PastaBfv {
    shared: Arc<Shared>,
    /// On a server, the state that its aggregators share.
    known: Arc<Known>,
}

impl PastaBfv {
    pub fn new(params: PastaParams) -> Result<Self> {
        let variant = match params.variant {
            3 => PASTA_3,
            4 => PASTA_4,
            other => return Err(Error::parameter("variant", format!("PASTA-{other} is not PASTA-3 or PASTA-4"))),
        };
        let field = Field::new(params.prime)?;
        let shared = Shared { params, context: Context::shared(variant, field)? };
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
        Ok(PastaBfv { shared: Arc::new(shared), known: Arc::default() })
    }

    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Noise bits left after transciphering, the weighted sum and, with `folded`, the fold.
    #[must_use]
    pub fn spare_bits(&self, folded: bool) -> i64 {
        self.shared.spare_bits(folded)
    }

    fn secret(&self, key: &ClientKey) -> Result<Secret> {
        key.tag.check_scheme(NAME, self.digest())?;
        Secret::parse(&self.shared.context, key)
    }
}

impl Canonical for PastaBfv {
    const DOMAIN: &'static str = "fedcipher scheme pasta-bfv";

    fn fields(&self, to: &mut Fields) {
        to.part(1, &self.shared.params.bounds);
        to.number(2, u64::from(self.shared.params.variant));
        to.number(3, self.shared.params.prime);
        to.numbers(4, self.shared.context.moduli.iter().copied());
    }
}

impl Scheme for PastaBfv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> ParamsDigest {
        let PastaParams { bounds, variant, prime } = &self.shared.params;
        ParamsDigest::of(self, &former::pasta(bounds, *variant, *prime, &self.shared.context.moduli))
    }

    fn values(&self) -> Values {
        let levels = self.shared.params.rules().levels;
        let lanes = LaneBits::widest(self.shared.params.bounds, levels, |bits| self.shared.fits(bits));
        Values { levels, lanes: Some(lanes) }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.shared.check_layout(layout)
    }

    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet> {
        let c = &self.shared.context;
        // The thread's generator must not be used: since rand 0.9, a forked process would draw the same numbers as its
        // parent.
        let mut rng = StdRng::try_from_os_rng().map_err(|e| Error::Rng(e.to_string()))?;
        let secret = SecretKey::random(&c.authority()?, &mut rng);
        let evaluation = EvaluationKeys::new(c, &secret, &mut rng)?;
        let secret_bytes = Zeroizing::new(secret.to_bytes());
        let mut ids = cohort.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut secrets = BTreeMap::new();
        let mut digests = Vec::new();
        for id in &ids {
            let words = Pasta::random_key(c.variant, c.field)?;
            let encrypted = c.encrypt_key(&words, &secret, &mut rng)?.to_bytes();
            // The server accepts no other key from this client.
            digests.extend_from_slice(&Sha256::digest(&encrypted));
            secrets.insert(*id, Secret::pack(&words, &encrypted, &secret_bytes));
        }
        let public = known::pack(&digests, &evaluation.galois.to_bytes(), &evaluation.relinearisation.to_bytes());
        let tag = KeyTag::fresh(NAME, self.digest().short(), epoch)?;
        KeySet::build(tag, cohort, public, |id| secrets.remove(&id).ok_or(Error::UnknownClient { client: id }))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor> {
        let secret = self.secret(key)?;
        let sender = Sender::new(key, self.shared.params.rules(), state)?;
        Ok(Encryptor::new(PastaEncryptor::new(Arc::clone(&self.shared), sender, secret)))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Box::new(PastaAggregator::new(&self.shared, &self.known, key, round)?))
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor> {
        let secret = self.secret(key)?;
        let receiver = Receiver::new(key, self.shared.params.rules(), state)?;
        Ok(Decryptor::new(PastaDecryptor::new(Arc::clone(&self.shared), receiver, secret)))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let c = &self.shared.context;
        let fresh = c.moduli.len() - 1;
        vec![
            ("variant".into(), format!("PASTA-{}", self.shared.params.variant)),
            ("p".into(), c.field.p().to_string()),
            ("N".into(), c.degree.to_string()),
            ("log q".into(), c.log_q(fresh).to_string()),
            ("log special prime".into(), (c.log_q(fresh + 1) - c.log_q(fresh)).to_string()),
            ("values per ciphertext up".into(), c.capacity().to_string()),
            ("values per ciphertext down".into(), (2 * c.capacity()).to_string()),
            ("noise bits to spare".into(), self.shared.spare_bits(true).to_string()),
        ]
        .into_iter()
        .chain(self.shared.params.bounds.describe())
        .collect()
    }

    fn workers(&self) -> Option<&dyn Workers> {
        Some(self)
    }

    fn round_plan(&self) -> Option<&dyn RoundPlan> {
        Some(self)
    }
}

impl Workers for PastaBfv {
    fn run_work_item(&self, key: &ServerKey, common: &[u8], piece: &[u8]) -> Result<Vec<u8>> {
        key.tag.check_scheme(NAME, self.digest())?;
        let c = &self.shared.context;
        work_item::run_work_item(c, &*self.known.evaluation_keys(c, key)?, common, piece)
    }
}

impl RoundPlan for PastaBfv {
    /// The sampled clients whose PASTA key the server already has, as u32 each. These clients need not send the key.
    fn plan(&self, key: &ServerKey, sampled: &[ClientId]) -> Result<Vec<u8>> {
        let known = self.known.clients(key.tag.key_id);
        Ok(sampled.iter().filter(|c| known.contains(c)).flat_map(|c| c.to_le_bytes()).collect())
    }
}

/// The scheme id must fit the wire.
const _: () = assert!(NAME.len() <= std::mem::size_of::<wire::SchemeId>());
