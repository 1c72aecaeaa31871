//! Schemes by name. Only this module turns the text of a key file into a scheme.

use crate::bounds::{Bounds, Privacy};
use crate::canonical::{self, Canonical, Fields};
use crate::codec::{Layout, Tensor};
use crate::flashe::{Flashe, FlasheParams, Masking, Policy};
use crate::former;
use crate::oneshot::prekeys::Life;
use crate::oneshot::{Oneshot, OneshotParams, Reveal};
use crate::params_digest::{self, ParamsDigest};
use crate::plain::Plain;
use crate::rlwe::Bfv;
use crate::rlwe::accelerator::Accelerators;
use crate::rlwe::params::{BfvParams, Preset};
use crate::scheme::{Scheme, Variant};
use crate::{Error, Result, Weight, flashe, oneshot, plain, rlwe};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The entries of a key file's first line that describe the scheme. The host may add others.
#[derive(Debug, Deserialize)]
struct Spec {
    scheme: String,
    params: serde_json::Value,
    codec: Codec,
}

#[derive(Debug, Deserialize)]
struct Codec {
    bits: Widths,
    #[serde(default)]
    privacy: Option<PrivacySpec>,
}

/// `fedcipher.dp.Privacy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrivacySpec {
    clip: f64,
    noise_multiplier: f64,
    rounds: u64,
    delta: f64,
}

impl Canonical for PrivacySpec {
    const DOMAIN: &'static str = "fedcipher privacy";

    fn fields(&self, to: &mut Fields) {
        to.real(1, self.clip);
        to.real(2, self.noise_multiplier);
        to.number(3, self.rounds);
        to.real(4, self.delta);
    }
}

impl From<PrivacySpec> for Privacy {
    fn from(spec: PrivacySpec) -> Self {
        let PrivacySpec { clip, noise_multiplier, rounds, delta } = spec;
        let former = former::privacy(clip, noise_multiplier, rounds, delta);
        let former = params_digest::short(&Sha256::digest(former.as_bytes()).into());
        Privacy { digest: canonical::digest(&spec), former, rounds }
    }
}

/// The parameters of `fedcipher.dp.Privacy`, as JSON.
pub fn privacy(text: &str) -> Result<Privacy> {
    let spec: PrivacySpec = serde_json::from_str(text).map_err(|e| Error::parameter("privacy", e.to_string()))?;
    Ok(spec.into())
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Widths {
    All(u32),
    PerTensor(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainSpec {
    clients: u64,
    max_weight: u64,
    min_contributions: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlasheSpec {
    clients: u64,
    max_weight: u64,
    min_contributions: Option<u64>,
    masking: MaskingSpec,
    key_bits: u32,
    per_client_top: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum MaskingSpec {
    Single,
    Double,
    Adaptive,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BfvSpec {
    clients: u64,
    max_weight: u64,
    min_contributions: Option<u64>,
    preset: PresetSpec,
    server_weights: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PresetSpec {
    Compact,
    Fast,
    FedbitPaper,
}

impl From<PresetSpec> for Preset {
    fn from(spec: PresetSpec) -> Self {
        match spec {
            PresetSpec::Compact => Preset::Compact,
            PresetSpec::Fast => Preset::Fast,
            PresetSpec::FedbitPaper => Preset::FedbitPaper,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneshotSpec {
    clients: u64,
    max_weight: u64,
    min_contributions: Option<u64>,
    preset: PresetSpec,
    members: usize,
    threshold: usize,
    corrupt_clients: usize,
    corrupt_members: usize,
    pack: usize,
    reveal: RevealSpec,
    prekey_rounds: u64,
    prekey_hours: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RevealSpec {
    Clients,
    Server,
}

#[cfg(feature = "hhe")]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PastaSpec {
    clients: u64,
    max_weight: u64,
    min_contributions: Option<u64>,
    variant: u32,
    prime_bits: u32,
}

/// A parameter of a scheme whose arithmetic is in another library.
struct Named(String, serde_json::Value);

impl Canonical for Named {
    const DOMAIN: &'static str = "fedcipher parameter";

    fn fields(&self, to: &mut Fields) {
        to.text(1, &self.0);
        match &self.1 {
            serde_json::Value::Bool(value) => to.number(2, u64::from(*value)),
            serde_json::Value::String(value) => to.text(5, value),
            serde_json::Value::Array(values) => to.numbers(6, values.iter().filter_map(serde_json::Value::as_u64)),
            serde_json::Value::Number(value) => match (value.as_u64(), value.as_f64()) {
                (Some(whole), _) => to.number(3, whole),
                (None, real) => to.real(4, real.unwrap_or_default()),
            },
            _ => {}
        }
    }
}

struct Library<'a>(&'a str, &'a Bounds, Vec<Named>);

impl Canonical for Library<'_> {
    const DOMAIN: &'static str = "fedcipher scheme of a library";

    fn fields(&self, to: &mut Fields) {
        to.text(1, self.0);
        to.part(2, self.1);
        to.parts(3, &self.2);
    }
}

/// The digest of a scheme whose arithmetic is in another library. `params` is JSON, an object of plain values.
pub fn library(name: &str, params: &str, bounds: &Bounds) -> Result<ParamsDigest> {
    let said: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(params).map_err(|e| Error::parameter("params", e.to_string()))?;
    let plain = |value: &serde_json::Value| match value {
        serde_json::Value::Object(_) => false,
        serde_json::Value::Array(values) => values.iter().all(serde_json::Value::is_u64),
        _ => true,
    };
    if let Some((name, _)) = said.iter().find(|(_, value)| !plain(value)) {
        return Err(Error::parameter("params", format!("{name} is neither a plain value nor a list of whole numbers")));
    }
    let named = said.into_iter().map(|(name, value)| Named(name, value)).collect();
    Ok(ParamsDigest::of(&Library(name, bounds, named), &former::library(name, params, bounds)))
}

/// The scheme of `spec`, JSON with the entries `scheme`, `params` and `codec`.
pub fn make(spec: &str) -> Result<Arc<dyn Scheme>> {
    make_on(spec, None)
}

/// Like [`make`], with accelerators for the arithmetic of `bfv`. Fails for another scheme if accelerators are given.
pub fn make_on(spec: &str, accelerators: Option<Arc<dyn Accelerators>>) -> Result<Arc<dyn Scheme>> {
    let spec: Spec = serde_json::from_str(spec)
        .map_err(|e| Error::parameter("scheme", format!("no scheme as `fedcipher spec` prints it: {e}")))?;
    let bits = match &spec.codec.bits {
        Widths::All(bits) => vec![*bits],
        Widths::PerTensor(bits) => bits.clone(),
    };
    let one = |bits: &u32| Tensor { dtype: 0, bits: *bits, alpha: 1.0, shape: Vec::new() };
    let layout = Layout::new(bits.iter().map(one).collect())?;
    let scheme = build(spec, bits, accelerators)?;
    // Checked before keys are made: values of these widths must fit.
    scheme.check_layout(&layout)?;
    Ok(scheme)
}

/// The parts that build a scheme beside its own parameters.
struct Given {
    params: serde_json::Value,
    bits: Vec<u32>,
    privacy: Option<Privacy>,
    accelerators: Option<Arc<dyn Accelerators>>,
}

impl Given {
    fn bounds(&self, clients: u64, max_weight: Weight, least: Option<u64>) -> Result<Bounds> {
        Bounds::new(clients, max_weight, least)?.with_privacy(self.privacy)
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        serde_path_to_error::deserialize(self.params.take()).map_err(|e| Error::parameter("params", e.to_string()))
    }
}

/// A scheme of this build: the variants that it states, and how it is made.
struct Kernel {
    variants: &'static [Variant],
    build: fn(Given) -> Result<Arc<dyn Scheme>>,
}

/// All schemes of this build. A scheme that is not here cannot be made, and one that is here is in every list.
const KERNELS: &[Kernel] = &[
    Kernel { variants: plain::VARIANTS, build: build_plain },
    Kernel { variants: flashe::VARIANTS, build: build_flashe },
    Kernel { variants: rlwe::VARIANTS, build: build_bfv },
    Kernel { variants: oneshot::VARIANTS, build: build_oneshot },
    #[cfg(feature = "hhe")]
    Kernel { variants: crate::pasta::scheme::VARIANTS, build: build_pasta },
];

/// Every scheme of this build in all its variants, each scheme's first one first.
pub fn every_scheme() -> impl Iterator<Item = &'static Variant> {
    KERNELS.iter().flat_map(|kernel| kernel.variants)
}

fn build(spec: Spec, bits: Vec<u32>, accelerators: Option<Arc<dyn Accelerators>>) -> Result<Arc<dyn Scheme>> {
    if accelerators.as_ref().is_some_and(|all| !all.fall_back()) && spec.scheme != "bfv" {
        return Err(Error::Device { reason: format!("it does the arithmetic of bfv, not of {}", spec.scheme) });
    }
    let named = |kernel: &&Kernel| kernel.variants.iter().any(|variant| variant.scheme == spec.scheme);
    let Some(kernel) = KERNELS.iter().find(named) else {
        return Err(Error::parameter("scheme", format!("this build has no kernel for {:?}", spec.scheme)));
    };
    let privacy = spec.codec.privacy.map(Privacy::from);
    (kernel.build)(Given { params: spec.params, bits, privacy, accelerators })
}

fn build_plain(mut given: Given) -> Result<Arc<dyn Scheme>> {
    let p: PlainSpec = given.read()?;
    Ok(Arc::new(Plain::new(given.bounds(p.clients, Weight::new(p.max_weight), p.min_contributions)?)))
}

fn build_flashe(mut given: Given) -> Result<Arc<dyn Scheme>> {
    let p: FlasheSpec = given.read()?;
    if given.privacy.is_some() && p.per_client_top.is_some() {
        return Err(Error::parameter(
            "per_client_top",
            "with privacy: a coordinate that few clients send has few shares of noise, and error feedback \
             would take the noise off again; send all coordinates",
        ));
    }
    let policy = match p.masking {
        MaskingSpec::Single => Policy::Fixed(Masking::Single),
        MaskingSpec::Double => Policy::Fixed(Masking::Double),
        MaskingSpec::Adaptive => Policy::Adaptive,
    };
    let bounds = given.bounds(p.clients, Weight::new(p.max_weight), p.min_contributions)?;
    let params = FlasheParams { bounds, policy, key_bits: p.key_bits, per_client_top: p.per_client_top };
    Ok(Arc::new(Flashe::new(params)?))
}

fn build_bfv(mut given: Given) -> Result<Arc<dyn Scheme>> {
    let p: BfvSpec = given.read()?;
    let bounds = given.bounds(p.clients, Weight::new(p.max_weight), p.min_contributions)?;
    let (preset, server_weights) = (p.preset.into(), p.server_weights);
    let bfv = Bfv::new(BfvParams { bounds, preset, bits: given.bits, server_weights })?;
    Ok(Arc::new(match given.accelerators {
        Some(accelerators) => bfv.with_accelerators(accelerators),
        None => bfv,
    }))
}

fn build_oneshot(mut given: Given) -> Result<Arc<dyn Scheme>> {
    let p: OneshotSpec = given.read()?;
    let corrupt = p.corrupt_clients as u64;
    let bounds = Bounds::among(p.clients, Weight::new(p.max_weight), p.min_contributions, corrupt)?;
    Ok(Arc::new(Oneshot::new(OneshotParams {
        bounds: bounds.with_privacy(given.privacy)?,
        preset: p.preset.into(),
        bits: given.bits,
        members: p.members,
        threshold: p.threshold,
        corrupt_clients: p.corrupt_clients,
        corrupt_members: p.corrupt_members,
        pack: p.pack,
        reveal: match p.reveal {
            RevealSpec::Clients => Reveal::Clients,
            RevealSpec::Server => Reveal::Server,
        },
        life: Life { rounds: p.prekey_rounds, hours: p.prekey_hours },
    })?))
}

#[cfg(feature = "hhe")]
fn build_pasta(mut given: Given) -> Result<Arc<dyn Scheme>> {
    use crate::pasta::scheme::{PastaBfv, PastaParams};
    let p: PastaSpec = given.read()?;
    let prime = match p.prime_bits {
        17 => 65_537,
        33 => 8_088_322_049,
        other => return Err(Error::parameter("prime_bits", format!("{other} is not one of 17, 33"))),
    };
    let bounds = given.bounds(p.clients, Weight::new(p.max_weight), p.min_contributions)?;
    Ok(Arc::new(PastaBfv::new(PastaParams { bounds, variant: p.variant, prime })?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::{ClientId, Epoch};
    use std::collections::BTreeSet;

    #[test]
    fn each_variant_is_made_under_its_schemes_name_and_has_keys_for_three_clients() {
        let mut names = BTreeSet::new();
        for variant in every_scheme() {
            let made = make(&variant.spec(3, Weight::new(2), None, &[8, 12])).unwrap();
            assert_eq!(made.name(), variant.scheme);
            assert!(names.insert(variant.name), "{} is there twice", variant.name);
            // A server's key of transciphering takes seconds.
            if made.workers().is_none() {
                assert_eq!(made.keygen(&ClientId::list(0..3), Epoch::new(1)).unwrap().clients.len(), 3);
            }
        }
        for kernel in KERNELS {
            let first = kernel.variants.first().unwrap();
            assert_eq!(first.name, first.scheme);
            assert!(kernel.variants.iter().all(|variant| variant.scheme == first.scheme));
        }
    }
}
