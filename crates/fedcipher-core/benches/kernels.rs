//! Kernels: masks, additions, ciphertexts, frames.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set up has nothing to measure")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::flashe::mask::{MaskMaker, Masking, encrypt_run};
use fedcipher_core::flashe::{Flashe, FlasheParams, Policy};
use fedcipher_core::keys::KeySet;
use fedcipher_core::mac::field::Element;
use fedcipher_core::mac::hash::{Hasher, Powers};
use fedcipher_core::prf::Prf;
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::rotation::Rotation;
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::sign::{Purpose, Signed, SigningKey, refused};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight, bits, steps, wire};
use std::hint::black_box;

/// Encrypts `values` as client 3; `each` sees them as they are taken.
fn encrypt(prf: &Prf, values: &[u32], width: u32, masking: Masking, out: &mut [u8], mut each: impl FnMut(&[u32])) {
    let source = |d: usize, ints: &mut [u32]| {
        ints.copy_from_slice(&values[d..d + ints.len()]);
        each(ints);
        Ok(())
    };
    let mut maker = MaskMaker::new(prf, RoundId::new(1), width);
    encrypt_run(&mut maker, &masking.terms(ClientId::new(3)), 0, values.len(), 1, source, out).unwrap();
}

fn masks(c: &mut Criterion) {
    let prf = Prf::new(&[7; 16]).unwrap();
    let values: Vec<u32> = (0..1 << 20).map(|v: u32| v & 0xffff).collect();
    let mut group = c.benchmark_group("flashe-encrypt-2e20");
    for (width, masking) in [(16, Masking::Double), (16, Masking::Single), (20, Masking::Double), (32, Masking::Double)]
    {
        group.throughput(Throughput::Elements(values.len() as u64));
        let mut out = vec![0u8; bits::packed_len(values.len(), width)];
        group.bench_function(format!("w={width} {masking:?}"), |b| {
            b.iter(|| encrypt(&prf, &values, width, masking, black_box(&mut out), |_| ()));
        });
    }
}

/// The polynomial of a client's fields alone, and the masks with it; values.
fn tags(c: &mut Criterion) {
    let prf = Prf::new(&[7; 16]).unwrap();
    let values: Vec<u32> = (0..1 << 20).map(|v: u32| v & 0xffff).collect();
    let mut group = c.benchmark_group("tag-2e20");
    group.throughput(Throughput::Elements(values.len() as u64));
    let powers = Powers::new(Element::new(u128::MAX - 5));
    for width in [16, 20, 28] {
        group.bench_function(format!("w={width}"), |b| {
            b.iter(|| {
                let mut hasher = Hasher::new(&powers, width, 0);
                values.chunks(2048).for_each(|run| hasher.fields(black_box(run)));
                hasher.finish()
            });
        });
        let mut out = vec![0u8; bits::packed_len(values.len(), width)];
        group.bench_function(format!("w={width} under masks"), |b| {
            b.iter(|| {
                let mut hasher = Hasher::new(&powers, width, 0);
                encrypt(&prf, &values, width, Masking::Double, black_box(&mut out), |ints| hasher.fields(ints));
                hasher.finish()
            });
        });
    }
}

/// A server's addition of one frame's lanes; bytes of the frame.
fn additions(c: &mut Criterion) {
    let mut group = c.benchmark_group("lanes-add-2e20");
    for width in [16, 20, 21] {
        let x = vec![0x5a; bits::packed_len(1 << 20, width)];
        let mut sum = x.clone();
        group.throughput(Throughput::Bytes(x.len() as u64));
        group.bench_function(format!("w={width}"), |b| b.iter(|| bits::add_assign(black_box(&mut sum), &x, width)));
    }
}

/// Aggregates the same update from every client.
fn aggregate(scheme: &impl Scheme, keys: &KeySet, request: &Request<'_>) -> Vec<u8> {
    let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
    for key in &keys.clients {
        aggregator.add(&scheme.encryptor(key, None).unwrap().encrypt(request).unwrap()).unwrap();
    }
    aggregator.finish().unwrap()
}

fn ciphertexts(c: &mut Criterion) {
    let layout = Layout::new(vec![Tensor { dtype: 1, bits: 12, alpha: 1.0, shape: vec![61_706] }]).unwrap();
    let values: Vec<f32> = (0..61_706).map(|i| (i as f32 * 0.37).sin()).collect();
    let update = Update::new(&layout, vec![&values], Rounding::Nearest).unwrap();
    let mut group = c.benchmark_group("bfv-lenet5-12bit-10");
    for preset in [Preset::Compact, Preset::Fast, Preset::FedbitPaper] {
        let scheme = Bfv::new(BfvParams {
            bounds: Bounds::new(10, Weight::ONE, Some(1)).unwrap(),
            preset,
            bits: vec![12],
            server_weights: false,
        })
        .unwrap();
        let keys = scheme.keygen(&ClientId::list(0..10), Epoch::new(1)).unwrap();
        let request = Request {
            round: RoundId::new(1),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        let mut encryptor = scheme.encryptor(&keys.clients[0], None).unwrap();
        let frame = encryptor.encrypt(&request).unwrap();
        let mut round = request.round;
        group.bench_function(format!("{preset:?} offline + online"), |b| {
            b.iter(|| {
                round = round.later_by(1);
                encryptor.encrypt(&Request { round, ..request }).unwrap()
            });
        });
        group.bench_function(format!("{preset:?} parse frame"), |b| b.iter(|| wire::parse(black_box(&frame)).unwrap()));
        group.bench_function(format!("{preset:?} add"), |b| {
            b.iter(|| scheme.aggregator(&keys.server, None).unwrap().add(&frame).unwrap());
        });
        let aggregate = aggregate(&scheme, &keys, &request);
        let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
        group.bench_function(format!("{preset:?} decrypt"), |b| {
            b.iter(|| decryptor.decrypt(&aggregate, &Expect::default(), Sums::default()).unwrap());
        });
    }
}

/// A round of FLASHE's: 1.2 M values of 16 bits, ten clients.
fn rounds(c: &mut Criterion) {
    let layout = Layout::new(vec![Tensor { dtype: 1, bits: 16, alpha: 1.0, shape: vec![1_200_000] }]).unwrap();
    let values: Vec<f32> = (0..1_200_000).map(|i| (i as f32 * 0.37).sin()).collect();
    let update = Update::new(&layout, vec![&values], Rounding::Nearest).unwrap();
    let scheme = Flashe::new(FlasheParams {
        bounds: Bounds::new(10, Weight::ONE, Some(1)).unwrap(),
        key_bits: 128,
        policy: Policy::Fixed(Masking::Double),
        per_client_top: None,
    })
    .unwrap();
    let keys = scheme.keygen(&ClientId::list(0..10), Epoch::new(1)).unwrap();
    let request = Request {
        round: RoundId::new(1),
        weight: Weight::ONE,
        update: &update,
        round_plan: &[],
        model: b"model",
        memory: &[],
        associated_data: &[],
    };
    let aggregate = aggregate(&scheme, &keys, &request);
    let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
    let mut group = c.benchmark_group("flashe-1.2m-16bit-10");
    group.bench_function("decrypt", |b| {
        b.iter(|| decryptor.decrypt(&aggregate, &Expect::default(), Sums::default()).unwrap());
    });
}

/// Signatures of updates, of as many clients: what a server checks of each frame before it adds.
fn signatures(c: &mut Criterion) {
    let message = [7u8; 200];
    let made: Vec<_> = (0..256).map(|_| SigningKey::generate().unwrap()).collect();
    let signed: Vec<_> = made.iter().map(|key| (key.verify_key(), key.sign(Purpose::Update, &message))).collect();
    let of = |(key, signature)| Signed {
        party: ClientId::new(0),
        key,
        purpose: Purpose::Update,
        message: &message,
        signature,
    };
    let all: Vec<_> = signed.iter().map(|(key, signature)| of((key, signature))).collect();
    let mut group = c.benchmark_group("ed25519");
    group.bench_function("sign", |b| b.iter(|| made[0].sign(Purpose::Update, black_box(&message))));
    group.bench_function("verify", |b| b.iter(|| assert!(black_box(&all[0]).holds())));
    group.throughput(Throughput::Elements(all.len() as u64));
    group.bench_function("verify 256 together", |b| b.iter(|| assert!(refused(black_box(&all)).unwrap().is_empty())));
}

fn coding(c: &mut Criterion) {
    let mut group = c.benchmark_group("coding");
    for len in [1_200_000, 20_000_000] {
        let mut values: Vec<f32> = (0..len).map(|k: u32| (k.wrapping_mul(2_654_435_761) >> 8) as f32 - 8e6).collect();
        let rotation = Rotation::new([7; 16], len as usize).unwrap();
        group.throughput(Throughput::Bytes(4 * u64::from(len)));
        group.bench_function(format!("rotation/{len}"), |b| b.iter(|| rotation.forward(&mut values)));
        group.bench_function(format!("nearest_squares/{len}"), |b| b.iter(|| steps::nearest_squares(&values, 0.1)));
        group.bench_function(format!("whole_steps/{len}"), |b| {
            b.iter(|| steps::whole_steps(&mut values, 0.1, false, [7; 16], 0).unwrap());
        });
    }
}

criterion_group!(benches, coding, masks, tags, rounds, additions, ciphertexts, signatures);
criterion_main!(benches);
