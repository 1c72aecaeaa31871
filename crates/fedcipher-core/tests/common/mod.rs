//! Rounds as tests describe them: the clients, their weights, and the expected sum.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::committee::Member;
use fedcipher_core::flashe::{Flashe, FlasheParams, Policy};
use fedcipher_core::keys::{ClientKey, KeySet};
use fedcipher_core::protocol::{Encryptor, FrameDigest};
use fedcipher_core::registry::{self, every_scheme};
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::scheme::{Aggregator, Expect, Request, Scheme, Variant};
use fedcipher_core::sign::{SIGNATURE_LEN, SigningKey};
use fedcipher_core::statement::{RoundContext, Signer, split};
use fedcipher_core::wire;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

pub fn layout(sizes: &[(usize, u32)]) -> Layout {
    let tensor = |(len, bits): &(usize, u32)| Tensor { dtype: 1, bits: *bits, alpha: 1.0, shape: vec![*len as u32] };
    Layout::new(sizes.iter().map(tensor).collect()).unwrap()
}

pub fn floats(layout: &Layout, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = StdRng::seed_from_u64(seed);
    layout.tensors().iter().map(|t| (0..t.len()).map(|_| rng.random_range(-1.2f32..1.2)).collect()).collect()
}

pub fn update<'a>(layout: &'a Layout, values: &'a [Vec<f32>]) -> Update<'a> {
    Update::new(layout, values.iter().map(Vec::as_slice).collect(), Rounding::Nearest).unwrap()
}

/// The integers a client encrypts.
pub fn integers(levels: Levels, layout: &Layout, values: &[Vec<f32>]) -> Vec<u64> {
    let mut ints = vec![0u32; layout.elements()];
    update(layout, values).quantise(levels, 0, &mut ints).unwrap();
    ints.into_iter().map(u64::from).collect()
}

pub fn flashe(bounds: Bounds, policy: Policy, per_client_top: Option<f64>) -> Arc<dyn Scheme> {
    Arc::new(Flashe::new(FlasheParams { bounds, policy, key_bits: 128, per_client_top }).unwrap())
}

pub fn bfv(bounds: Bounds, preset: Preset, bits: &[u32], server_weights: bool) -> Arc<dyn Scheme> {
    Arc::new(Bfv::new(BfvParams { bounds, preset, bits: bits.to_vec(), server_weights }).unwrap())
}

/// `variant` for these bounds and values of these bits.
pub fn made(variant: &Variant, bounds: Bounds, bits: &[u32]) -> Arc<dyn Scheme> {
    let least = Some(bounds.min_contributions);
    registry::make(&variant.spec(bounds.clients, bounds.max_weight, least, bits)).unwrap()
}

/// Every variant whose clients share a key and send all values, and whose sums are additions; for values of these bits.
pub fn dense_schemes(bounds: Bounds, bits: &[u32]) -> Vec<Arc<dyn Scheme>> {
    static DENSE: OnceLock<Vec<&Variant>> = OnceLock::new();
    let adds = |variant: &&Variant| {
        let scheme = registry::make(&variant.spec(3, Weight::ONE, None, &[8])).unwrap();
        scheme.committee().is_none() && scheme.workers().is_none()
    };
    let dense = DENSE.get_or_init(|| every_scheme().filter(|variant| !variant.sparse).filter(adds).collect());
    dense.iter().map(|variant| made(variant, bounds, bits)).collect()
}

/// A client of a round: id, weight, values.
pub type Client = (u32, u64, Vec<Vec<f32>>);

pub fn encrypt(
    scheme: &dyn Scheme,
    keys: &KeySet,
    layout: &Layout,
    round: u64,
    client: &Client,
    plan: &[u8],
) -> Vec<u8> {
    let key = keys.clients.iter().find(|k| k.client == ClientId::new(client.0)).unwrap();
    let update = update(layout, &client.2);
    let request = Request {
        round: RoundId::new(round),
        weight: Weight::new(client.1),
        update: &update,
        round_plan: plan,
        model: b"model",
        memory: &[],
        associated_data: &[],
    };
    encryptor(scheme, key, &keys.clients).encrypt(&request).unwrap()
}

/// A client that has been given the prekeys of its committee, if it has one.
pub fn encryptor(scheme: &dyn Scheme, key: &ClientKey, keys: &[ClientKey]) -> Encryptor {
    let mut encryptor = scheme.encryptor(key, None).unwrap();
    let prekeys: Vec<Vec<u8>> = committee(scheme, keys).1.values().map(|member| member.prekey().unwrap()).collect();
    let prekeys: Vec<&[u8]> = prekeys.iter().map(Vec::as_slice).collect();
    assert!(encryptor.take_prekeys(&prekeys).unwrap().is_empty());
    encryptor
}

type Members = BTreeMap<ClientId, Box<dyn Member>>;
/// Members, and the folder of their files.
type Committee = Arc<(TempDir, Members)>;

fn members_in(scheme: &dyn Scheme, keys: &[ClientKey], state: &Path) -> Members {
    let is_member = |key: &&ClientKey| scheme.members() > 0 && scheme.roles(key).unwrap().member;
    let member = |key: &ClientKey| (key.client, scheme.require_committee().unwrap().member(key, Some(state)).unwrap());
    keys.iter().filter(is_member).map(member).collect()
}

/// The members of a key set and their files. They live as long as the test: what was sealed to them opens with their
/// prekeys only.
fn committee(scheme: &dyn Scheme, keys: &[ClientKey]) -> Committee {
    static ALL: Mutex<BTreeMap<[u8; 16], Committee>> = Mutex::new(BTreeMap::new());
    let make = || {
        let state = tempfile::tempdir().unwrap();
        let members = members_in(scheme, keys, state.path());
        Arc::new((state, members))
    };
    let mut all = ALL.lock().unwrap();
    Arc::clone(all.entry(keys[0].tag.key_id).or_insert_with(make))
}

/// The same members with the same prekeys, which have answered nothing.
fn forgetful(scheme: &dyn Scheme, keys: &[ClientKey]) -> (TempDir, Members) {
    let state = tempfile::tempdir().unwrap();
    if scheme.members() > 0 && !keys.is_empty() {
        for file in std::fs::read_dir(committee(scheme, keys).0.path()).unwrap().map(|file| file.unwrap()) {
            if file.path().extension().is_some_and(|end| end == "prekeys") {
                std::fs::copy(file.path(), state.path().join(file.file_name())).unwrap();
            }
        }
    }
    let members = members_in(scheme, keys, state.path());
    (state, members)
}

/// `frame`, an update under a common key, signed by `key` as what it says now.
pub fn resigned(key: &SigningKey, frame: &[u8]) -> Vec<u8> {
    let parsed = wire::parse(frame).unwrap();
    let (body, tag, _) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
    let signer = Signer { key: Arc::new(key.clone()), context: RoundContext::of([0; 32], &parsed.header) };
    let end = signer.end(parsed.header.contributions[0], tag, &FrameDigest::of(body));
    parsed.header.frame(&[body, &end].concat())
}

/// The aggregate, with the committee's answers where there is one; its members have answered nothing before.
pub fn finished(
    scheme: &dyn Scheme,
    keys: &[ClientKey],
    aggregator: &mut dyn Aggregator,
) -> fedcipher_core::Result<Vec<u8>> {
    let (_state, members) = forgetful(scheme, keys);
    loop {
        let requests = aggregator.requests()?;
        let agreeing = aggregator.agreeing();
        for (number, request) in requests {
            aggregator.require_committee().unwrap().answer(&members[&number].answer(&request)?)?;
        }
        if !agreeing {
            return aggregator.finish();
        }
    }
}

/// Encrypts, adds, broadcasts, decrypts; the integer sums.
pub fn run_round(scheme: &dyn Scheme, layout: &Layout, cohort: &[u32], clients: &[Client]) -> Vec<u64> {
    let keys = scheme.keygen(&ClientId::list(cohort.iter().copied()), Epoch::new(1)).unwrap();
    let plan = scheme.plan(&keys.server, &ClientId::list(clients.iter().map(|c| c.0))).unwrap();
    let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(9))).unwrap();
    for client in clients {
        aggregator.add(&encrypt(scheme, &keys, layout, 9, client, &plan)).unwrap();
    }
    let aggregate = finished(scheme, &keys.clients, aggregator.as_mut()).unwrap();
    let decryptor = scheme.decryptor(keys.clients.last().unwrap(), None).unwrap();
    let expect = Expect { round: Some(RoundId::new(9)), ..Expect::default() };
    decryptor.decrypt(&aggregate, &expect, Sums::default()).unwrap().into_parts().1.0
}

pub fn expected(levels: Levels, layout: &Layout, clients: &[Client]) -> Vec<u64> {
    let mut sum = vec![0u64; layout.elements()];
    for (_, weight, values) in clients {
        sum.iter_mut().zip(integers(levels, layout, values)).for_each(|(s, q)| *s += weight * q);
    }
    sum
}

/// The integer of the value zero.
pub fn zero(levels: Levels, bits: u32) -> u64 {
    levels.of(bits) / 2
}
