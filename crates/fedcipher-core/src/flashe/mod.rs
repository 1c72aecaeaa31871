//! FLASHE: additive symmetric masking (Jiang et al., arXiv 2109.00675).
//!
//! `c_d = m_d + F_k(i || j || d) - F_k(i || j+1 || d) mod 2^w` for round i, client j, coordinate d
//! (double masking; FLASHE, section 3.3: The Base Cryptosystem). Single masking drops the third term (FLASHE, section
//! 3.6: Discussion with Single Masking).
//! The scheme protects updates from a server that does not collude with a client. One client that leaks the key exposes
//! every update.

mod aggregate;
#[cfg(test)]
mod attacks;
mod decrypt;
mod encrypt;
pub mod mask;
pub mod params;
mod participation;
mod positions;
mod sparse;

use crate::bounds::LaneBits;
use crate::codec::Layout;
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::params_digest::ParamsDigest;
use crate::prf::{Prf, random_bytes};
use crate::protocol::{Decryptor, Encryptor, Receiver, Sender};
use crate::scheme::{Aggregator, RoundPlan, Scheme, Values, Variant};
use crate::sparse::check_top;
use crate::{ClientId, Epoch, Error, Result, RoundId};
pub use mask::Masking;
pub use params::{FlasheParams, Policy};
use std::path::Path;
use zeroize::Zeroizing;

const NAME: &str = "flashe";
/// The variants of this scheme that benchmarks and tests cover; see [`Variant`].
pub const VARIANTS: &[Variant] = &[
    Variant::new(NAME, NAME, r#"{"masking": "double", "key_bits": 128, "per_client_top": null}"#),
    Variant::new("flashe-single-256", NAME, r#"{"masking": "single", "key_bits": 256, "per_client_top": null}"#),
    Variant::new("flashe-adaptive", NAME, r#"{"masking": "adaptive", "key_bits": 128, "per_client_top": null}"#),
    Variant::new("flashe-own-choice", NAME, r#"{"masking": "single", "key_bits": 128, "per_client_top": 0.2}"#)
        .sparse(),
];

/// FLASHE with validated parameters.
#[derive(Debug, Clone)]
pub struct Flashe {
    params: FlasheParams,
}

/// The two parts of the cohort's secret: the key of masks, and the key of the permutation for sparse updates.
struct Secret {
    mask: Prf,
    permutation: Zeroizing<[u8; 32]>,
}

impl Flashe {
    pub fn new(params: FlasheParams) -> Result<Self> {
        if params.key_bits != 128 && params.key_bits != 256 {
            return Err(Error::parameter("key_bits", format!("{} is not 128 or 256", params.key_bits)));
        }
        if let Some(top) = params.per_client_top {
            check_top("per_client_top", top)?;
        }
        Ok(Flashe { params })
    }

    fn secret(&self, key: &ClientKey) -> Result<Secret> {
        key.tag.check_scheme(NAME, self.digest())?;
        mask::check_client(key.client)?;
        let mask_bytes = self.params.key_bits as usize / 8;
        let (mask, permutation) = key
            .secret
            .split_at_checked(mask_bytes)
            .filter(|(_, rest)| rest.len() == 32)
            .ok_or_else(|| Error::Key { reason: format!("a FLASHE key has {} bytes", mask_bytes + 32) })?;
        let mut own = Zeroizing::new([0u8; 32]);
        own.copy_from_slice(permutation);
        Ok(Secret { mask: Prf::new(mask)?, permutation: own })
    }
}

impl Scheme for Flashe {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> ParamsDigest {
        ParamsDigest::of(&self.params, &former::flashe(&self.params))
    }

    fn values(&self) -> Values {
        let levels = self.params.bounds.levels();
        let widest = || LaneBits::widest(self.params.bounds, levels, |bits| self.params.width(bits).is_ok());
        Values { levels, lanes: self.params.per_client_top.is_none().then(widest) }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        match self.params.per_client_top {
            None => self.params.lanes(layout).map(drop),
            Some(_) => self.params.sparse_width(layout).map(drop),
        }
    }

    fn keygen(&self, cohort: &[ClientId], epoch: Epoch) -> Result<KeySet> {
        if cohort.contains(&ClientId::new(u32::MAX)) {
            return Err(Error::parameter("cohort", "client id 4294967295 has no neighbour j + 1"));
        }
        let tag = KeyTag::fresh(NAME, self.digest().short(), epoch)?;
        let bytes = random_bytes::<64>()?;
        let secret = &bytes[..self.params.key_bits as usize / 8 + 32];
        KeySet::build(tag, cohort, Vec::new(), |_| Ok(Zeroizing::new(secret.to_vec())))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Encryptor> {
        let secret = self.secret(key)?;
        let sender = Sender::new(key, self.params.rules(), state)?;
        Ok(Encryptor::new(encrypt::FlasheEncryptor::new(self.params.clone(), sender, secret)))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<RoundId>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        Ok(match self.params.per_client_top {
            None => Box::new(aggregate::Dense::new(self.params.clone(), key, round)),
            Some(_) => Box::new(aggregate::Sparse::new(self.params.clone(), key, round)),
        })
    }

    fn decryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Decryptor> {
        let secret = self.secret(key)?;
        let receiver = Receiver::new(key, self.params.opening_rules(), state)?;
        Ok(Decryptor::new(decrypt::FlasheDecryptor::new(self.params.clone(), receiver, secret)))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let masking = match self.params.policy {
            Policy::Adaptive => "adaptive".into(),
            Policy::Fixed(m) => format!("{m:?}").to_lowercase(),
        };
        vec![
            ("masking".into(), masking),
            ("AES key bits".into(), self.params.key_bits.to_string()),
            ("top per client".into(), self.params.per_client_top.map_or("all".into(), |t| t.to_string())),
        ]
        .into_iter()
        .chain(self.params.bounds.describe())
        .collect()
    }

    fn round_plan(&self) -> Option<&dyn RoundPlan> {
        Some(self)
    }
}

impl RoundPlan for Flashe {
    /// One byte: the masking with fewer masks for `sampled`. For sparse updates, the masking with fewer masks on average.
    fn plan(&self, _key: &ServerKey, sampled: &[ClientId]) -> Result<Vec<u8>> {
        if sampled.is_empty() {
            return Ok(Vec::new());
        }
        sampled.iter().try_for_each(|client| mask::check_client(*client))?;
        let masking = match (self.params.policy, self.params.per_client_top) {
            (Policy::Fixed(masking), _) => masking,
            (Policy::Adaptive, None) => participation::cheaper_dense(sampled),
            (Policy::Adaptive, Some(top)) => participation::cheaper_sparse(sampled, top),
        };
        Ok(vec![masking as u8])
    }
}
