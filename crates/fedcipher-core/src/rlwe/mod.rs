//! Additive BFV over RLWE with bit-interleaved packing (FedBit).
//!
//! Encryption is symmetric: `c0 = a s + e + delta M` and `c1 = -a`, with `a` expanded from a 32-byte seed. A frame carries
//! c0 and the seed only. The server adds c0 and never sends c1: clients derive `sum w_u a_u` from the cohort's seeds. A
//! server that could choose c1 would learn one coefficient of the secret from each aggregate that opens or fails.
//!
//! The cohort shares one secret, so a client that colludes with the server exposes every update.

pub mod accelerator;
pub(crate) mod aggregate;
pub(crate) mod decrypt;
mod divide;
pub(crate) mod encrypt;
pub mod ntt;
pub mod params;
pub mod ring;

use crate::admission::Rules;
use crate::canonical::{Canonical, Fields};
use crate::codec::Layout;
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::mac::Weighting;
use crate::params_digest::ParamsDigest;
use crate::protocol::{Decryptor, Encryptor};
use crate::scheme::{Aggregator, Scheme, Values, Variant};
use crate::{ClientId, Epoch, Result, RoundId};
use accelerator::{Accelerators, Session};
use params::{BfvParams, Derived};
use ring::Binomial;
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "bfv";
/// The variants of this scheme that benchmarks and tests cover; see [`Variant`].
pub const VARIANTS: &[Variant] = &[
    Variant::new(NAME, NAME, r#"{"preset": "compact", "server_weights": false}"#),
    Variant::new("bfv-fast", NAME, r#"{"preset": "fast", "server_weights": false}"#),
    Variant::new("bfv-paper", NAME, r#"{"preset": "fedbit-paper", "server_weights": false}"#),
    Variant::new("bfv-server-weights", NAME, r#"{"preset": "compact", "server_weights": true}"#),
];

impl BfvParams {
    fn rules(&self) -> Rules {
        Rules::dense(self.bounds, if self.server_weights { Weighting::Server } else { Weighting::Client })
    }
}

/// Additive BFV with validated parameters.
#[derive(Clone)]
pub struct Bfv {
    derived: Arc<Derived>,
    accelerators: Option<Arc<dyn Accelerators>>,
}

impl Bfv {
    pub fn new(params: BfvParams) -> Result<Self> {
        Ok(Bfv { derived: Arc::new(Derived::new(params, Binomial::ERROR)?), accelerators: None })
    }

    /// The same scheme, with the arithmetic of clients on devices: one device for each key.
    #[must_use]
    pub fn with_accelerators(self, accelerators: Arc<dyn Accelerators>) -> Self {
        Bfv { accelerators: Some(accelerators), ..self }
    }

    /// Opens a device for `key`. Returns `None` if the scheme has no accelerators.
    fn session(&self, key: &ClientKey) -> Result<Option<Arc<Session>>> {
        let Some(accelerators) = &self.accelerators else { return Ok(None) };
        Session::open(accelerators, &self.derived.arithmetic(), &key.secret)
    }

    #[must_use]
    pub fn derived(&self) -> &Derived {
        &self.derived
    }
}

impl Canonical for Bfv {
    const DOMAIN: &'static str = "fedcipher scheme bfv";

    fn fields(&self, to: &mut Fields) {
        let params = &self.derived.params;
        to.part(1, &params.bounds);
        to.number(2, params.preset.number());
        to.numbers(3, params.bits.iter().map(|bits| u64::from(*bits)));
        to.number(4, u64::from(params.server_weights));
        to.numbers(5, self.derived.ring.primes.iter().copied());
    }
}

impl Scheme for Bfv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> ParamsDigest {
        ParamsDigest::of(self, &former::bfv(&self.derived.params, &self.derived.ring.primes))
    }

    fn values(&self) -> Values {
        Values { levels: self.derived.params.rules().levels, lanes: Some(self.derived.lanes) }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.derived.shape(layout).map(drop)
    }

    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet> {
        let tag = KeyTag::fresh(NAME, self.digest().short(), epoch)?;
        let secret = self.derived.ring.secret()?;
        KeySet::build(tag, cohort, Vec::new(), |_| Ok(secret.clone()))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Encryptor::new(encrypt::BfvEncryptor::new(Arc::clone(&self.derived), key, state, self.session(key)?)?))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Box::new(aggregate::BfvAggregator::new(Arc::clone(&self.derived), key, round)))
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(Decryptor::new(decrypt::BfvDecryptor::new(Arc::clone(&self.derived), key, state, self.session(key)?)?))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut out = self.derived.describe();
        out.push(("NTT".into(), ntt::BACKEND.into()));
        out.extend(self.derived.params.bounds.describe());
        out
    }
}
