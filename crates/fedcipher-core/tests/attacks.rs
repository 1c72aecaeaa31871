//! A server that is not honest, against the decryptors of every scheme: whatever it makes of the frames it was sent,
//! what opens is the sum of what the clients it names have sent. `make attack` raises the number of tries.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, expected, floats, layout, made};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Sums};
use fedcipher_core::keys::{ClientKey, KeySet, ServerKey};
use fedcipher_core::mac::Tag;
use fedcipher_core::registry::every_scheme;
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::sign::{SIGNATURE_LEN, SigningKey};
use fedcipher_core::wire::{self, Contribution, Header, Kind, MemoryTag, ModelTag};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, OnceLock};

const CLIENTS: u32 = 5;
const MODELS: [&[u8]; 2] = [b"the global model", b"the model that the victim got"];

fn bounds() -> Bounds {
    Bounds::new(u64::from(CLIENTS), Weight::new(3), None).unwrap()
}

/// Every variant whose clients send all values. Transciphering a round takes minutes: the first variant of such a scheme
/// is in `make attack`, and not in every run.
fn schemes() -> Vec<(&'static str, Arc<dyn Scheme>)> {
    let all = std::env::var_os("FEDCIPHER_ATTACK_TRIES").is_some();
    let dense = every_scheme().filter(|variant| !variant.sparse);
    let made = dense.map(|variant| (variant.name, made(variant, bounds(), &[8, 12])));
    made.filter(|(name, scheme)| scheme.workers().is_none() || all && *name == scheme.name()).collect()
}

/// A round that honest clients have answered; the server gave some of them another model.
struct Round {
    epoch: usize,
    number: u64,
    models: Vec<usize>,
    clients: Vec<Client>,
    updates: Vec<Vec<u8>>,
}

struct World {
    scheme: Arc<dyn Scheme>,
    layout: Layout,
    epochs: Vec<KeySet>,
    rounds: Vec<Round>,
    /// Honest aggregates of one round and model.
    aggregates: Vec<Vec<u8>>,
}

/// Each scheme's world, made once for all tests: transciphering a round takes seconds.
fn worlds() -> &'static [(&'static str, World)] {
    static WORLDS: OnceLock<Vec<(&'static str, World)>> = OnceLock::new();
    WORLDS.get_or_init(|| {
        let rng = &mut StdRng::seed_from_u64(rand::random());
        schemes().into_iter().map(|(name, scheme)| (name, World::new(scheme, rng))).collect()
    })
}

fn is_of_client_2(error: &Error) -> bool {
    matches!(error, Error::Signature { party } if party.get() == 2)
}

impl World {
    fn new(scheme: Arc<dyn Scheme>, rng: &mut StdRng) -> Self {
        let layout = layout(&[(700, 12), (90, 8), (300, 12)]);
        let ids: Vec<u32> = (0..CLIENTS).collect();
        let epochs: Vec<KeySet> =
            (1..=2).map(|epoch| scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(epoch)).unwrap()).collect();
        let mut world = World { scheme, layout, epochs, rounds: Vec::new(), aggregates: Vec::new() };
        for (epoch, number) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)] {
            // One client of the last epoch's rounds got another model: all updates but its own are predictable.
            let models: Vec<usize> = ids.iter().map(|id| usize::from(epoch == 1 && *id == 2)).collect();
            let clients: Vec<Client> =
                ids.iter().map(|id| (*id, rng.random_range(1..=3), floats(&world.layout, rng.random()))).collect();
            let updates =
                clients.iter().zip(&models).map(|(c, m)| world.encrypt(epoch, number, c, MODELS[*m])).collect();
            world.rounds.push(Round { epoch, number, models, clients, updates });
        }
        for round in 0..world.rounds.len() {
            let slow = world.scheme.workers().is_some();
            for members in [vec![0, 1, 3], vec![0, 1, 3, 4]].into_iter().skip(usize::from(slow && round > 0)) {
                let frames: Vec<_> = members.iter().map(|k: &usize| world.rounds[round].updates[*k].clone()).collect();
                let server = &world.epochs[world.rounds[round].epoch].server;
                let aggregate = world.add(server, &frames).unwrap();
                assert!(world.open(world.rounds[round].epoch, &aggregate).is_some(), "honest aggregates open");
                world.aggregates.push(aggregate);
            }
        }
        world
    }

    fn encrypt(&self, epoch: usize, round: u64, client: &Client, model: &[u8]) -> Vec<u8> {
        let key = &self.epochs[epoch].clients[client.0 as usize];
        let update = common::update(&self.layout, &client.2);
        let request = Request {
            round: RoundId::new(round),
            weight: Weight::new(client.1),
            update: &update,
            round_plan: &[],
            model,
            memory: &[],
            associated_data: &[],
        };
        common::encryptor(self.scheme.as_ref(), key, &self.epochs[epoch].clients).encrypt(&request).unwrap()
    }

    /// The server's addition, as the product does it: it needs no key, so a cheating server has it too.
    fn add(&self, server: &ServerKey, frames: &[Vec<u8>]) -> fedcipher_core::Result<Vec<u8>> {
        let mut aggregator = self.scheme.aggregator(server, None)?;
        frames.iter().try_for_each(|frame| aggregator.add(frame).map(drop))?;
        let of = |keys: &&KeySet| keys.server.tag.key_id == server.tag.key_id;
        let keys = self.epochs.iter().find(of).map_or(&[][..], |keys| &keys.clients);
        common::finished(self.scheme.as_ref(), keys, aggregator.as_mut())
    }

    /// A sum of a server that checks no signatures: it signs all frames itself. Where clients share no key, the server
    /// adds only frames with their clients' signatures.
    fn add_unsigned(&self, server: &ServerKey, frames: &[Vec<u8>]) -> fedcipher_core::Result<Vec<u8>> {
        if self.scheme.members() > 0 {
            return self.add(server, frames);
        }
        let own = SigningKey::generate()?;
        let cohort = (0..CLIENTS).map(|client| (ClientId::new(client), own.verify_key())).collect();
        let frames: Vec<_> = frames.iter().map(|frame| common::resigned(&own, frame)).collect();
        self.add(&ServerKey { cohort: Arc::new(cohort), ..server.clone() }, &frames)
    }

    /// A client that has opened nothing yet is given `frame`. If the client accepts the frame, every number in it must
    /// be true.
    fn open(&self, epoch: usize, frame: &[u8]) -> Option<Header> {
        let key = &self.epochs[epoch].clients[0];
        let decryptor = self.scheme.decryptor(key, None).unwrap();
        let (summary, sums) = decryptor.decrypt(frame, &Expect::default(), Sums::default()).ok()?.into_parts();
        self.check(key, &summary.header, &sums.0);
        Some(summary.header)
    }

    fn check(&self, key: &ClientKey, header: &Header, sums: &[u64]) {
        let name = self.scheme.name();
        let round = self.rounds.iter().find(|r| {
            self.epochs[r.epoch].server.tag.key_id == key.tag.key_id
                && header.epoch == key.tag.epoch
                && r.number == header.round.get()
        });
        assert!(round.is_some(), "{name}: a round nobody answered was opened");
        let round = round.unwrap();
        let mut named = Vec::new();
        let mac = key.mac().unwrap();
        for c in &header.contributions {
            let client = round.clients[c.client.get() as usize].clone();
            assert_eq!(
                client.1,
                c.weight.get(),
                "{name}: client {} is counted with another weight than it chose",
                c.client
            );
            let model = mac.model_tag(MODELS[round.models[c.client.get() as usize]]);
            assert_eq!(model, header.model, "{name}: updates of different models were opened together");
            named.push(client);
        }
        assert!(named.len() >= 3, "{name}: a sum of {} clients was opened", named.len());
        assert_eq!(
            sums,
            expected(self.scheme.values().levels, &self.layout, &named),
            "{name}: not the sum of the clients it names"
        );
    }

    fn any_update(&self, rng: &mut StdRng) -> Vec<u8> {
        self.rounds.choose(rng).unwrap().updates.choose(rng).unwrap().clone()
    }

    fn any_aggregate(&self, rng: &mut StdRng) -> Vec<u8> {
        self.aggregates.choose(rng).unwrap().clone()
    }
}

/// An update's frame as that of an aggregate: without its signature.
fn unsigned(frame: &[u8]) -> Vec<u8> {
    reframe(frame, |header, payload| {
        header.kind = Kind::Aggregate;
        payload.truncate(payload.len() - SIGNATURE_LEN);
    })
}

/// The same frame with a changed header and payload and a right checksum.
fn reframe(frame: &[u8], change: impl FnOnce(&mut Header, &mut Vec<u8>)) -> Vec<u8> {
    let parsed = wire::parse(frame).unwrap();
    let (mut header, mut payload) = (parsed.header, parsed.payload.to_vec());
    change(&mut header, &mut payload);
    header.frame(&payload)
}

fn header_of(frame: &[u8]) -> Header {
    wire::parse(frame).unwrap().header
}

/// Changes what a server can change of one frame.
fn bend(world: &World, rng: &mut StdRng, frame: &[u8]) -> Vec<u8> {
    let other = if rng.random() { world.any_aggregate(rng) } else { world.any_update(rng) };
    let (other_header, other_payload) = (header_of(&other), wire::parse(&other).unwrap().payload.to_vec());
    let choice = rng.random_range(0..18);
    let rng = &mut StdRng::seed_from_u64(rng.random());
    reframe(frame, |header, payload| match choice {
        0 => header.kind = Kind::Aggregate,
        1 => header.round = other_header.round,
        2 => header.model = other_header.model,
        3 => header.contributions = other_header.contributions,
        4 => drop(header.contributions.pop()),
        5 => {
            header.contributions = (0..rng.random_range(1..=CLIENTS))
                .map(|client| Contribution {
                    client: ClientId::new(client),
                    weight: Weight::new(rng.random_range(1..=3)),
                })
                .collect()
        }
        6 => header.contributions.iter_mut().for_each(|c| c.weight = Weight::new(rng.random_range(1..=3))),
        7 => {
            (header.key_id, header.epoch) = (other_header.key_id, other_header.epoch);
        }
        8 => *payload = other_payload,
        9 => {
            // Another body under this tag, and another tag over this body.
            let (tag, body) = (payload.split_off(payload.len() - 16), other_payload);
            *payload = body[..body.len() - 16].to_vec();
            payload.extend(tag);
        }
        10 => {
            let at = payload.len() - 16;
            payload[at..].copy_from_slice(&other_payload[other_payload.len() - 16..]);
        }
        11 => {
            // The tag as it would be of twice the updates.
            let at = payload.len() - 16;
            let mut tag = Tag::default();
            tag.add(Tag::parse(payload[at..].try_into().unwrap()).unwrap_or_default(), rng.random_range(0..4));
            payload[at..].copy_from_slice(&tag.to_bytes());
        }
        12 => {
            let at = rng.random_range(0..payload.len());
            payload[at] ^= 1 << rng.random_range(0..8);
        }
        13 => {
            let at = rng.random_range(0..payload.len());
            payload[at] = payload[at].wrapping_add(rng.random_range(1..=255));
        }
        14 => payload.truncate(rng.random_range(0..payload.len())),
        15 => header.layout = layout(&[(700, 12), (390, 12)]).encode(),
        16 => {
            // Every byte of the body doubled: what scaling by the server looks like for whole-byte lanes.
            let end = payload.len() - 16;
            payload[end.min(1)..end].iter_mut().for_each(|b| *b = b.wrapping_mul(2));
        }
        _ => {
            let at = rng.random_range(0..payload.len().min(40));
            payload[at] = rng.random();
        }
    })
}

/// Updates of anywhere, relabelled so that the server's own addition takes them.
fn mixed(world: &World, rng: &mut StdRng) -> Option<Vec<u8>> {
    let lead = world.rounds.choose(rng).unwrap();
    let target = header_of(&lead.updates[0]);
    let count = rng.random_range(1..=CLIENTS);
    let frames: Vec<Vec<u8>> = (0..count)
        .map(|client| {
            let own = rng.random_range(0..3) > 0;
            let from = if own { &lead.updates[client as usize] } else { &world.any_update(rng) };
            let keep_name: bool = rng.random();
            let keep_weight: bool = rng.random();
            reframe(from, |header, _| {
                (header.round, header.model) = (target.round, target.model);
                (header.epoch, header.key_id) = (target.epoch, target.key_id);
                if !keep_name {
                    header.contributions[0].client = ClientId::new(client);
                }
                if !keep_weight {
                    header.contributions[0].weight = Weight::new(rng.random_range(1..=3));
                }
            })
        })
        .collect();
    // A server of its own making sums as few as it likes.
    let mut server = world.epochs[lead.epoch].server.clone();
    server.tag.epoch = target.epoch;
    world.add_unsigned(&server, &frames).ok()
}

fn tries() -> usize {
    std::env::var("FEDCIPHER_ATTACK_TRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

#[test]
fn attack_any_randomised_server_never_gets_a_false_sum_opened() {
    let seed: u64 =
        std::env::var("FEDCIPHER_ATTACK_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(rand::random);
    let only = std::env::var("FEDCIPHER_ATTACK_SCHEME").ok();
    for (name, world) in worlds().iter().filter(|(name, _)| only.as_ref().is_none_or(|o| o == name)) {
        println!("{name}: FEDCIPHER_ATTACK_SEED={seed}");
        let rng = &mut StdRng::seed_from_u64(seed);
        // The server's own addition is seconds here.
        let slow = world.scheme.workers().is_some();
        let count = tries();
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..count {
            let mut frame = match rng.random_range(0..4) {
                0 if rng.random() => world.any_update(rng),
                0 => unsigned(&world.any_update(rng)),
                1 if !slow => mixed(world, rng).unwrap_or_else(|| world.any_aggregate(rng)),
                _ => world.any_aggregate(rng),
            };
            for _ in 0..rng.random_range(0..3) {
                if wire::parse(&frame).is_ok_and(|f| f.payload.len() >= 16) {
                    frame = bend(world, rng, &frame);
                }
            }
            match world.open(rng.random_range(0..2), &frame) {
                Some(_) => opened += 1,
                None => refused += 1,
            }
        }
        // Honest frames are among those tried: the property is not empty on either side.
        assert!(opened > count / 50 && refused > count / 3, "{name}: {opened} opened, {refused} refused");
    }
}

fn refused(scheme: &dyn Scheme, key: &ClientKey, frame: &[u8]) -> Error {
    scheme.decryptor(key, None).unwrap().decrypt(frame, &Expect::default(), Sums::default()).unwrap_err()
}

/// c0 = c1 = delta decrypted to the ternary secret, shifted by one, when an aggregate could bring its c1.
#[test]
fn attack_02_a_chosen_ciphertext_is_refused() {
    use fedcipher_core::bits::{BitWriter, packed_len};
    use fedcipher_core::rlwe::{Bfv, params::BfvParams};
    let params = BfvParams { bounds: bounds(), preset: Preset::Compact, bits: vec![12], server_weights: false };
    let bfv = Bfv::new(params).unwrap();
    let keys = bfv.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
    let d = bfv.derived();
    let fields = d.packing(12).unwrap().fields;
    let layout = layout(&[(d.ring.n * fields.count, 12)]);
    let three = (0..3).map(|client| Contribution { client: ClientId::new(client), weight: Weight::ONE }).collect();
    let header = keys.server.tag.round_header(
        Kind::Aggregate,
        RoundId::new(1),
        three,
        &layout,
        ModelTag::default(),
        MemoryTag::default(),
    );
    let polynomial = |bits: u32, value: &dyn Fn(usize) -> u128| {
        let mut out = vec![0; packed_len(d.ring.n, bits)];
        let mut writer = BitWriter::new(&mut out);
        (0..d.ring.n).for_each(|k| writer.push(value(k), bits));
        writer.finish();
        out
    };
    let q = d.ring.log_q();
    let (c0, c1) = (polynomial(q, &|_| d.values.delta), polynomial(q, &|k| if k == 0 { d.values.delta } else { 0 }));
    let error = refused(&bfv, &keys.clients[0], &header.frame(&[&[1], &c0[..], &c1[..], &[0; 16]].concat()));
    assert!(matches!(error, Error::Frame { .. }), "{error}");
    // In the only form, of seeds: without a tag.
    let c0 = polynomial(d.values.down_bits, &|_| d.values.delta);
    let error = refused(&bfv, &keys.clients[0], &header.frame(&[&[7; 96], &c0[..], &[0; 16]].concat()));
    assert!(matches!(error, Error::Tag | Error::Decrypt { .. }), "{error}");
}

/// Whether a slightly changed ciphertext still opens tells of its noise, and of the secret behind that: so none does,
/// however small the change, and there is one way only that a refusal comes about.
#[test]
fn attack_03_no_change_of_a_ciphertext_is_too_small_to_be_seen() {
    use fedcipher_core::bits::{BitWriter, packed_len, read_bits};
    use fedcipher_core::rlwe::{Bfv, params::BfvParams};
    for (preset, server_weights) in [(Preset::Compact, false), (Preset::Fast, true), (Preset::FedbitPaper, false)] {
        let bfv = Bfv::new(BfvParams { bounds: bounds(), preset, bits: vec![8], server_weights }).unwrap();
        let keys = bfv.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
        let layout = layout(&[(9, 8)]);
        let clients: Vec<Client> = (0..3).map(|id| (id, 2, floats(&layout, u64::from(id)))).collect();
        let mut aggregator = bfv.aggregator(&keys.server, None).unwrap();
        for client in &clients {
            aggregator.add(&common::encrypt(&bfv, &keys, &layout, 1, client, &[])).unwrap();
        }
        let aggregate = aggregator.finish().unwrap();
        let (bits, top) = (bfv.derived().values.down_bits, 1u128 << bfv.derived().values.down_bits);
        let changed = |by: u128| {
            reframe(&aggregate, |_, payload| {
                let end = payload.len() - 16;
                let c0 = payload[96..end].to_vec();
                let count = c0.len() * 8 / bits as usize;
                let mut out = vec![0; packed_len(count, bits)];
                let mut writer = BitWriter::new(&mut out);
                for k in 0..count {
                    let x = read_bits(&c0, k * bits as usize, bits);
                    writer.push(if k == 0 { (x + by) % top } else { x }, bits);
                }
                writer.finish();
                payload[96..end].copy_from_slice(&out);
            })
        };
        let open = |frame: &[u8]| {
            let decryptor = bfv.decryptor(&keys.clients[1], None).unwrap();
            decryptor.decrypt(frame, &Expect::default(), Sums::default()).map(|opened| opened.into_parts().1.0)
        };
        assert_eq!(open(&changed(0)).unwrap(), expected(bfv.values().levels, &layout, &clients));
        for by in [1, 2, 40, top - 1, top - 3, bfv.derived().values.delta, top / 2] {
            assert!(open(&changed(by)).is_err(), "{preset:?}: a coefficient changed by {by}");
        }
    }
}

/// An upload, or what it carries, under the name of an aggregate.
#[test]
fn attack_04_a_relabelled_upload_is_refused() {
    for (name, world) in worlds() {
        for upload in [world.rounds[0].updates[2].clone(), unsigned(&world.rounds[0].updates[2])] {
            let three: Vec<Contribution> =
                (0..3).map(|client| Contribution { client: ClientId::new(client), weight: Weight::ONE }).collect();
            for contributions in [header_of(&upload).contributions, three] {
                let relabelled = reframe(&upload, |header, _| {
                    header.kind = Kind::Aggregate;
                    header.contributions = contributions.clone();
                });
                assert!(world.open(0, &relabelled).is_none(), "{name}");
                // In the form of an aggregate, where that differs.
                let aggregate = reframe(&world.aggregates[0], |header, payload| {
                    header.contributions = contributions.clone();
                    let parsed = wire::parse(&upload).unwrap();
                    let keep = payload.len().min(parsed.payload.len());
                    let at = payload.len() - keep;
                    payload[at..].copy_from_slice(&parsed.payload[parsed.payload.len() - keep..]);
                });
                assert!(world.open(0, &aggregate).is_none(), "{name}");
            }
        }
    }
}

/// One survivor's sum is that client's update.
#[test]
fn attack_06_a_sum_of_too_few_is_neither_made_nor_opened() {
    for (name, world) in worlds() {
        for few in 1..=2 {
            let error = world.add(&world.epochs[0].server, &world.rounds[0].updates[..few]).unwrap_err();
            assert!(matches!(error, Error::TooFew { minimum: 3, .. }), "{name}: {error}");
            // A server that makes it all the same.
            let made = reframe(&world.aggregates[0], |header, _| header.contributions.truncate(few));
            let error = refused(world.scheme.as_ref(), &world.epochs[0].clients[1], &made);
            assert!(matches!(error, Error::TooFew { .. }), "{name}: {error}");
        }
    }
}

/// All updates but the victim's were trained from a model that makes them predictable (Pasquini, Francati and
/// Ateniese, CCS 2022): they do not sum to anything that opens.
#[test]
fn attack_12_updates_of_different_models_do_not_sum() {
    for (name, world) in worlds() {
        let round = &world.rounds[4];
        assert_eq!(round.models, [0, 0, 1, 0, 0]);
        let server = &world.epochs[1].server;
        let error = world.add(server, &round.updates[..4]).unwrap_err();
        assert!(matches!(error, Error::Model { round } if round.get() == 3), "{name}: {error}");
        // A server that lies about what the victim trained from.
        let model = header_of(&round.updates[0]).model;
        let mut frames = round.updates[..4].to_vec();
        frames[2] = reframe(&frames[2], |header, _| header.model = model);
        let error = world.add(server, &frames).unwrap_err();
        assert!(is_of_client_2(&error), "{name}: {error}");
        if let Ok(aggregate) = world.add_unsigned(server, &frames) {
            let error = refused(world.scheme.as_ref(), &world.epochs[1].clients[0], &aggregate);
            assert!(matches!(error, Error::Tag), "{name}: {error}");
        }
        // A client that knows its own model of the round detects this even if all others agree.
        let others = [0, 1, 3].map(|k| round.updates[k].clone());
        let honest = world.add(server, &others).unwrap();
        let decryptor = world.scheme.decryptor(&world.epochs[1].clients[2], None).unwrap();
        let expect = Expect { model: Some(MODELS[1]), ..Expect::default() };
        let error = decryptor.decrypt(&honest, &expect, Sums::default()).unwrap_err();
        assert!(matches!(error, Error::Model { .. }), "{name}: {error}");
    }
}

/// A client's update as it is, but for the number: what the holder of one key of the cohort can make of its own key.
fn renamed(world: &World, client: u32) -> Vec<u8> {
    let (keys, own) = (&world.epochs[0], &world.rounds[0].clients[0]);
    if world.scheme.members() > 0 {
        let update = &world.rounds[0].updates[own.0 as usize];
        return reframe(update, |header, _| header.contributions[0].client = ClientId::new(client));
    }
    // Encrypted and tagged as that client's, by the product itself.
    let key = ClientKey { client: ClientId::new(client), ..keys.clients[own.0 as usize].clone() };
    let update = common::update(&world.layout, &own.2);
    let request = Request {
        round: RoundId::new(1),
        weight: Weight::new(own.1),
        update: &update,
        round_plan: &[],
        model: MODELS[0],
        memory: &[],
        associated_data: &[],
    };
    world.scheme.encryptor(&key, None).unwrap().encrypt(&request).unwrap()
}

/// One client of the cohort has the secret of all. It sends another's number first: it is not that client, and the true
/// one's frame is taken. Its one key makes no sum of three.
#[test]
fn attack_18_a_clients_number_is_its_signatures() {
    for (name, world) in worlds() {
        let (server, updates) = (&world.epochs[0].server, &world.rounds[0].updates);
        let mut aggregator = world.scheme.aggregator(server, None).unwrap();
        for client in [1, 2, 3] {
            let error = aggregator.add(&renamed(world, client)).unwrap_err();
            assert!(matches!(error, Error::Signature { party } if party.get() == client), "{name}: {error}");
        }
        let error = aggregator.add(&renamed(world, CLIENTS)).unwrap_err();
        assert!(matches!(error, Error::UnknownClient { client } if client.get() == CLIENTS), "{name}: {error}");
        // Its own: one of three.
        aggregator.add(&updates[0]).unwrap();
        assert!(
            matches!(aggregator.add(&updates[0]), Err(Error::DuplicateClient { client, .. }) if client.get() == 0),
            "{name}"
        );
        assert!(
            matches!(aggregator.requests().and_then(|_| aggregator.finish()), Err(Error::TooFew { found: 1, .. })),
            "{name}"
        );
        for client in [1, 3] {
            aggregator.add(&updates[client]).unwrap();
        }
        let sum = common::finished(world.scheme.as_ref(), &world.epochs[0].clients, aggregator.as_mut()).unwrap();
        let opened = world.open(0, &sum).unwrap();
        assert_eq!(opened.contributions.iter().map(|c| c.client.get()).collect::<Vec<_>>(), [0, 1, 3], "{name}");
    }
}

type Change = fn(&mut Header);

/// A signature covers every byte of a frame but the checksum: head, tag and the rest of the payload.
#[test]
fn a_frame_of_which_one_byte_was_changed_is_not_its_clients() {
    for (name, world) in worlds() {
        let (server, update) = (&world.epochs[0].server, &world.rounds[0].updates[2]);
        let mut aggregator = world.scheme.aggregator(server, None).unwrap();
        let payload = wire::parse(update).unwrap().payload.len();
        let (end, head) = (update.len() - wire::CRC_LEN, update.len() - wire::CRC_LEN - payload);
        let all = (0..head).chain((head..end - 80).step_by(97)).chain(end - 80..end);
        for at in all {
            let mut body = update[..end].to_vec();
            body[at] ^= 1;
            let error = aggregator.add(&wire::append_checksum(body)).unwrap_err();
            // Tag and signature may be no field element or no point: then the frame is malformed.
            let expected = at < head || matches!(error, Error::Frame { .. }) || is_of_client_2(&error);
            assert!(expected, "{name}: byte {at}: {error}");
        }
        let fields: [(&str, Change); 5] = [
            ("round", |header| header.round = header.round.later_by(1)),
            ("model", |header| header.model[3] ^= 1),
            ("memory", |header| header.memory[3] ^= 1),
            ("weight", |header| {
                header.contributions[0].weight = Weight::new(header.contributions[0].weight.get() % 3 + 1)
            }),
            ("layout", |header| header.layout[3] ^= 1),
        ];
        for (field, change) in fields {
            let error = aggregator.add(&reframe(update, |header, _| change(header))).unwrap_err();
            // Where the shares of `oneshot` lie follows from the layout.
            let refused = is_of_client_2(&error)
                || world.scheme.members() > 0 && field == "layout" && matches!(error, Error::Parameter { .. });
            assert!(refused, "{name}: {field}: {error}");
        }
        // Another client's genuine signature of the same round.
        let other = wire::parse(&world.rounds[0].updates[1]).unwrap().payload.to_vec();
        let grafted = reframe(update, |_, payload| {
            let at = payload.len() - SIGNATURE_LEN;
            payload[at..].copy_from_slice(&other[other.len() - SIGNATURE_LEN..]);
        });
        assert!(matches!(aggregator.add(&grafted), Err(Error::Signature { party }) if party.get() == 2), "{name}");
        aggregator.add(update).unwrap();
    }
}

/// All updates of a sum count in one memory of the rule of sets, the aggregate says in which, and it opens in no other.
#[test]
fn a_sum_counts_in_one_memory() {
    for (name, scheme) in schemes() {
        let keys = scheme.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
        let layout = layout(&[(90, 12)]);
        let (values, mac) = (floats(&layout, 1), keys.clients[0].mac().unwrap());
        let frame = |client: usize, memory: &[u8]| {
            let update = common::update(&layout, &values);
            let request = Request {
                round: RoundId::new(1),
                weight: Weight::ONE,
                update: &update,
                round_plan: &[],
                model: MODELS[0],
                memory,
                associated_data: &[],
            };
            common::encryptor(scheme.as_ref(), &keys.clients[client], &keys.clients).encrypt(&request).unwrap()
        };
        let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
        aggregator.add(&frame(0, b"here")).unwrap();
        for other in [b"".as_slice(), b"there"] {
            let error = aggregator.add(&frame(1, other)).unwrap_err();
            assert!(matches!(error, Error::Memory { round } if round.get() == 1), "{name}: {error}");
        }
        for client in [1, 2] {
            aggregator.add(&frame(client, b"here")).unwrap();
        }
        let sum = common::finished(scheme.as_ref(), &keys.clients, aggregator.as_mut()).unwrap();
        assert_eq!(header_of(&sum).memory, mac.memory_tag(b"here"), "{name}");
        assert_ne!(mac.memory_tag(b"here"), mac.model_tag(b"here"), "{name}");
        assert_eq!(header_of(&frame(0, b"")).memory, MemoryTag::default(), "{name}");
        let open = |frame: &[u8], memory| {
            let expect = Expect { memory, ..Expect::default() };
            scheme.decryptor(&keys.clients[0], None).unwrap().decrypt(frame, &expect, Sums::default()).map(drop)
        };
        open(&sum, Some(b"here")).unwrap();
        for other in [b"".as_slice(), b"there"] {
            assert!(matches!(open(&sum, Some(other)), Err(Error::Memory { round }) if round.get() == 1), "{name}");
            let relabelled = reframe(&sum, |header, _| header.memory = mac.memory_tag(other));
            let error = open(&relabelled, Some(other)).unwrap_err();
            assert!(matches!(error, Error::Tag | Error::Signature { .. }), "{name}: {error}");
        }
    }
}

/// One aggregate a round, and never an older one than the last; the same bytes again are accepted. A decryptor that
/// answers twice is an oracle, even if its only answer is a rejection.
#[test]
fn a_round_has_one_opening_also_after_a_restart() {
    for (name, world) in worlds() {
        let folder = tempfile::tempdir().unwrap();
        let key = &world.epochs[0].clients[1];
        let open = |frame: &[u8]| {
            // A new decryptor each time: as after a restart.
            let decryptor = world.scheme.decryptor(key, Some(folder.path())).unwrap();
            decryptor.decrypt(frame, &Expect::default(), Sums::default()).map(drop)
        };
        let [first, other, second] = [0, 1, 2].map(|k| world.aggregates[k].clone());
        assert_eq!([1, 1, 2], [&first, &other, &second].map(|f| header_of(f).round.get()), "{name}");
        open(&first).unwrap();
        open(&first).unwrap();
        let twice = open(&other).unwrap_err();
        assert!(matches!(twice, Error::Opened { .. }), "{name}: {twice}");
        // A forgery spends its round too, and the key where a refusal could tell of it.
        let forged = reframe(&second, |_, payload| {
            let at = payload.len() - 1;
            payload[at] ^= 1;
        });
        assert!(matches!(open(&forged).unwrap_err(), Error::Tag), "{name}");
        let late = open(&second).unwrap_err();
        if world.scheme.workers().is_some() {
            assert!(matches!(late, Error::Closed), "{name}: {late}");
            assert!(matches!(open(&first).unwrap_err(), Error::Closed), "{name}");
        } else {
            assert!(matches!(late, Error::Opened { .. }), "{name}: {late}");
            open(&first).unwrap();
        }
    }
}

/// A frame of some hundred bytes that announces gigabytes is refused before anything is made for it.
#[test]
fn attack_10_what_a_frame_cannot_carry_is_not_allocated() {
    let huge = common::layout(&[(1 << 31, 12), (1 << 31, 8)]);
    for (name, scheme) in schemes() {
        let keys = scheme.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
        let frame = |kind, clients: u32| {
            let named = (0..clients)
                .map(|client| Contribution { client: ClientId::new(client), weight: Weight::ONE })
                .collect();
            keys.server
                .tag
                .round_header(kind, RoundId::new(1), named, &huge, ModelTag::default(), MemoryTag::default())
                .frame(&[1; 40])
        };
        let error = scheme.aggregator(&keys.server, None).unwrap().add(&frame(Kind::Update, 1)).unwrap_err();
        assert!(error.to_string().contains("cannot carry"), "{name}: {error}");
        let error = refused(scheme.as_ref(), &keys.clients[0], &frame(Kind::Aggregate, 3));
        assert!(error.to_string().contains("cannot carry"), "{name}: {error}");
    }
}
