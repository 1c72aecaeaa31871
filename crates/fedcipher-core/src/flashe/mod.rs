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
mod participation;
mod positions;
mod sparse;

use crate::admission::Rules;
use crate::bounds::{Bounds, LaneBits, MAX_FIELD_BITS};
use crate::canonical::{Canonical, Fields};
use crate::codec::Layout;
use crate::former;
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::lanes::Lanes;
use crate::mac::Weighting;
use crate::mac::coordinates::MAX_SUM_BITS;
use crate::params_digest::ParamsDigest;
use crate::prf::{Prf, random_bytes};
use crate::protocol::{Decryptor, Encryptor, Receiver, Sender};
use crate::scheme::{Aggregator, RoundPlan, Scheme, Values, Variant};
use crate::sparse::{check_top, tensor_count};
use crate::{ClientId, Epoch, Error, Result, RoundId};
pub use mask::Masking;
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

/// Which masking a cohort uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Fixed(Masking),
    /// Before each round the aggregator counts masks and tells the clients which masking needs fewer.
    Adaptive,
}

/// The parameters that the cohort must agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct FlasheParams {
    pub bounds: Bounds,
    pub policy: Policy,
    /// AES key size: 128 or 256.
    pub key_bits: u32,
    /// Fraction of each layer that a client sends. Each client chooses its own coordinates. `None` sends everything.
    pub per_client_top: Option<f64>,
}

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

impl FlasheParams {
    /// The rules for admitting updates.
    fn rules(&self) -> Rules {
        Rules { density: self.per_client_top.unwrap_or(1.0), ..Rules::dense(self.bounds, Weighting::Client) }
    }

    /// The rules for opening aggregates. Any part of a sparse aggregate may be missing, so its size proves nothing about
    /// the layout. Density 0 has the tag checked before memory of the layout's size is allocated.
    fn opening_rules(&self) -> Rules {
        let rules = self.rules();
        if self.per_client_top.is_some() { Rules { density: 0.0, ..rules } } else { rules }
    }

    /// Lane width of `bits`-bit values: w = b + ceil(log2 of the total weight).
    fn width(&self, bits: u32) -> Result<u32> {
        self.bounds.checked_field_bits(bits, MAX_FIELD_BITS)
    }

    fn lanes(&self, layout: &Layout) -> Result<Lanes> {
        let lanes = Lanes::of(layout, |b| self.width(b))?;
        let blocks: usize = lanes.segments.iter().map(|(s, w, _)| s.len.div_ceil(mask::per_block(*w))).sum();
        if u32::try_from(blocks).is_err() {
            return Err(Error::layout(format!("{blocks} mask blocks exceed the 2^32 of one round and client")));
        }
        Ok(lanes)
    }

    /// The number of coordinates in a sparse update of `layout`: the top fraction of each layer.
    fn sparse_count(&self, layout: &Layout) -> usize {
        let top = self.per_client_top.unwrap_or(1.0);
        layout.tensors().iter().map(|t| tensor_count(t.len(), top)).sum()
    }

    /// Refuses a sparse update that carries any other number of coordinates.
    fn check_sparse(&self, layout: &Layout, found: usize) -> Result<()> {
        let expected = self.sparse_count(layout);
        if found == expected {
            return Ok(());
        }
        Err(Error::Frame { reason: format!("it carries {found} coordinates where this layout has {expected}") })
    }

    /// Sparse updates use one lane width: coordinates of all layers are permuted together.
    fn sparse_width(&self, layout: &Layout) -> Result<u32> {
        let bits = layout.tensors().iter().map(|t| t.bits).max().unwrap_or(8);
        if u32::try_from(layout.elements()).is_err() {
            return Err(Error::layout("sparse updates have at most 2^32 elements"));
        }
        self.bounds.checked_field_bits(bits, MAX_SUM_BITS)
    }
}

impl Canonical for FlasheParams {
    const DOMAIN: &'static str = "fedcipher scheme flashe";

    fn fields(&self, to: &mut Fields) {
        to.part(1, &self.bounds);
        to.number(
            2,
            match self.policy {
                Policy::Adaptive => 0,
                Policy::Fixed(Masking::Single) => 1,
                Policy::Fixed(Masking::Double) => 2,
            },
        );
        to.number(3, u64::from(self.key_bits));
        if let Some(top) = self.per_client_top {
            to.real(4, top);
            // The version of the permutation. Frames made under another version must not open.
            to.number(5, 2);
        }
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
