//! Checks that no branch and no index depends on a secret. The program runs the code that handles secrets under
//! valgrind's memcheck, with every secret marked as undefined memory (Langley's ctgrind). Memcheck reports each
//! dependence as an error. `make constant-time` builds and runs the program.
//!
//! Secrets are all draws of the operating system's generator, hence all keys and noise, and clients' updates. Values that
//! the core passes to `shown`, and all bytes on the wire, are public.
#![allow(unsafe_code, reason = "valgrind is asked by instructions that do nothing elsewhere")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]

use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Means, Rounding, Tensor, Update};
use fedcipher_core::committee::Member;
use fedcipher_core::flashe::{Flashe, FlasheParams, Masking, Policy};
use fedcipher_core::keys::{ClientKey, KeySet};
use fedcipher_core::oneshot::prekeys::Life;
use fedcipher_core::oneshot::sealing::SECRET_LEN;
use fedcipher_core::oneshot::{Oneshot, OneshotParams, Reveal};
use fedcipher_core::pasta::cipher::{PASTA_3, PASTA_4, Pasta};
use fedcipher_core::pasta::field::{Field, PRIMES};
use fedcipher_core::prf::random_bytes;
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::rotation::Rotation;
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::sign::SigningKey;
use fedcipher_core::steps;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Requests of valgrind.h and memcheck.h.
const ON_VALGRIND: usize = 0x1001;
const ERRORS: usize = 0x1201;
const UNDEFINED: usize = 0x4d43_0001;
const DEFINED: usize = 0x4d43_0002;

/// Asks valgrind; 0 where there is none.
#[cfg(target_arch = "x86_64")]
fn ask(request: usize, at: usize, len: usize) -> usize {
    let (question, mut answer) = ([request, at, len, 0, 0, 0], 0);
    // SAFETY: rotations by 128 bits in all, and an exchange of a register with itself.
    unsafe {
        std::arch::asm!("rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") &question, inout("rdx") answer);
    }
    answer
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(_: usize, _: usize, _: usize) -> usize {
    0
}

fn secret<T>(of: &[T]) {
    ask(UNDEFINED, of.as_ptr() as usize, size_of_val(of));
}

fn public<T>(of: &[T]) {
    ask(DEFINED, of.as_ptr() as usize, size_of_val(of));
}

#[unsafe(no_mangle)]
fn fedcipher_declassify(at: *mut u8, len: usize) {
    ask(DEFINED, at as usize, len);
}

static DRAWS_ARE_SECRET: AtomicBool = AtomicBool::new(true);

/// The operating system's generator, for every draw in the core. The same in every run (splitmix64).
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(to: *mut u8, len: usize) -> Result<(), getrandom::Error> {
    static STATE: AtomicU64 = AtomicU64::new(0);
    for k in 0..len {
        let x = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // SAFETY: within the caller's `len` bytes.
        unsafe { to.add(k).write((x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb).to_le_bytes()[7]) };
    }
    if DRAWS_ARE_SECRET.load(Relaxed) {
        ask(UNDEFINED, to as usize, len);
    }
    Ok(())
}

#[inline(never)]
fn branches_on(secret: u8) {
    if secret > 100 {
        println!("  a branch, on purpose");
    } else {
        black_box(7);
    }
}

#[inline(never)]
fn indexes_by(secret: f32) -> u8 {
    black_box([3u8; 256])[(secret.to_bits() & 255) as usize]
}

/// Values beyond the range, in it, and so many at its lower end that whole coefficients are zero.
fn values(len: usize) -> Vec<f32> {
    let values: Vec<f32> = (0..len).map(|k| if k < 300 { -2.0 } else { (k as f32 * 0.37).sin() * 1.1 }).collect();
    secret(&values);
    values
}

/// A round of five clients, in the scheme's own code from the keys to the means.
fn round(scheme: &dyn Scheme, sizes: &[(usize, u32)], ahead: bool) {
    let tensor = |(len, bits): &(usize, u32)| Tensor { dtype: 1, bits: *bits, alpha: 1.0, shape: vec![*len as u32] };
    let layout = Layout::new(sizes.iter().map(tensor).collect()).unwrap();
    let keys = keys(scheme);
    let is_member = |key: &&ClientKey| scheme.members() > 0 && scheme.roles(key).unwrap().member;
    let members: BTreeMap<ClientId, Box<dyn Member>> = keys
        .clients
        .iter()
        .filter(is_member)
        .map(|key| (key.client, scheme.require_committee().unwrap().member(key, None).unwrap()))
        .collect();
    let prekeys: Vec<Vec<u8>> = members.values().map(|member| member.prekey().unwrap()).collect();
    prekeys.iter().for_each(|prekey| public(prekey));
    let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(1))).unwrap();
    for key in &keys.clients {
        let values = values(layout.elements());
        let rounding = if key.client == ClientId::new(0) { Rounding::Nearest } else { Rounding::stochastic().unwrap() };
        let update = Update::new(&layout, layout.split(&values).unwrap(), rounding).unwrap();
        let mut encryptor = scheme.encryptor(key, None).unwrap();
        encryptor.take_prekeys(&prekeys.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        if ahead {
            encryptor.precompute(RoundId::new(1), &layout, &[]).unwrap();
        }
        let weight = 1 + u64::from(key.client.get()) % 2;
        let request = Request {
            round: RoundId::new(1),
            weight: Weight::new(weight),
            update: &update,
            round_plan: &[],
            model: b"",
            memory: b"m",
            associated_data: &[],
        };
        let frame = encryptor.encrypt(&request).unwrap();
        public(&frame);
        aggregator.add(&frame).unwrap();
    }
    let mut agreeing = true;
    while agreeing {
        let requests = aggregator.requests().unwrap();
        agreeing = aggregator.agreeing();
        for (id, request) in requests {
            let answer = members[&id].answer(&request).unwrap();
            public(&answer);
            aggregator.require_committee().unwrap().answer(&answer).unwrap();
        }
    }
    let aggregate = aggregator.finish().unwrap();
    let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
    decryptor.decrypt(&aggregate, &Expect::default(), Means::default()).unwrap();
}

/// Keys as a program reads them from their files. The keys of `oneshot` are generated unmarked, because a roster is
/// public, and their secret parts are marked afterwards.
fn keys(scheme: &dyn Scheme) -> KeySet {
    DRAWS_ARE_SECRET.store(scheme.members() == 0, Relaxed);
    let mut keys = scheme.keygen(&ClientId::list([0, 1, 2, 3, 4]), Epoch::new(1)).unwrap();
    DRAWS_ARE_SECRET.store(true, Relaxed);
    for key in keys.clients.iter_mut().filter(|_| scheme.members() > 0) {
        let seed = key.sign.seed();
        secret(seed.as_slice());
        key.sign = SigningKey::from_seed(&seed);
        secret(key.root.as_slice());
        secret(&key.secret[..SECRET_LEN]);
    }
    keys.clients = keys.clients.iter().map(|key| ClientKey::from_bytes(&key.to_bytes()).unwrap()).collect();
    keys
}

fn bfv() {
    let bounds = Bounds::new(5, Weight::new(2), Some(3)).unwrap();
    for preset in [Preset::Compact, Preset::Fast, Preset::FedbitPaper] {
        for server_weights in [false, true] {
            let params = BfvParams { bounds, preset, bits: vec![8, 12], server_weights };
            round(&Bfv::new(params).unwrap(), &[(700, 8), (5000, 12)], server_weights);
        }
    }
}

fn flashe() {
    let bounds = Bounds::new(5, Weight::new(2), Some(3)).unwrap();
    for masking in [Masking::Single, Masking::Double] {
        let policy = Policy::Fixed(masking);
        let scheme = Flashe::new(FlasheParams { bounds, policy, key_bits: 128, per_client_top: None }).unwrap();
        // Lanes of 8, 16 and 32 bits are those of a key stream; others are joined.
        round(&scheme, &[(3000, 4), (3000, 8), (5000, 12), (3000, 13), (3000, 24)], false);
    }
}

fn oneshot() {
    for (preset, threshold, pack) in [(Preset::Fast, 4, 1), (Preset::Compact, 4, 2)] {
        let bounds = Bounds::new(5, Weight::new(2), Some(3)).unwrap();
        let (bits, reveal) = (vec![8, 12], Reveal::Clients);
        let (corrupt_clients, corrupt_members, life) = (1, 1, Life { rounds: 1, hours: 24 });
        let params = OneshotParams {
            bounds,
            preset,
            bits,
            members: 5,
            threshold,
            corrupt_clients,
            corrupt_members,
            pack,
            reveal,
            life,
        };
        round(&Oneshot::new(params).unwrap(), &[(700, 8), (5000, 12)], pack > 1);
    }
}

fn pasta() {
    for (variant, prime) in [(PASTA_3, PRIMES[0]), (PASTA_4, PRIMES[0]), (PASTA_3, PRIMES[1]), (PASTA_4, PRIMES[1])] {
        let field = Field::new(prime).unwrap();
        let cipher = Pasta::new(variant, field, &Pasta::random_key(variant, field).unwrap()).unwrap();
        let mut words: Vec<u64> = (0..300).collect();
        secret(&words);
        cipher.encrypt(7, &mut words);
        cipher.decrypt(7, &mut words);
    }
}

/// The steps on an update's values before they are quantised, and the steps on means.
fn coding() {
    let mut values = values(20_000);
    let rotation = Rotation::new([7; 16], values.len()).unwrap();
    rotation.forward(&mut values);
    rotation.back(&mut values);
    let lengths = [5_000, 15_000];
    steps::beyond(&values, &lengths, &[0.5, 1.0]).unwrap();
    steps::cut(&mut values, &lengths, &[0.5, 1.0]).unwrap();
    steps::multiply(&mut values, 3.0);
    steps::divided(&[&values], &[3.0]).unwrap();
    steps::whole_steps(&mut values, 0.1, false, [7; 16], 0).unwrap();
    steps::whole_steps(&mut values, 0.1, true, [7; 16], 0).unwrap();
    black_box(steps::nearest_squares(&values, 0.1));
    black_box(steps::dot(&values, &values).unwrap());
}

/// Sets what std takes this processor for: what valgrind emulates and ADX, of which valgrind says nothing, or one without
/// AVX. std keeps it as bits of three words, which lie `away` bytes behind [`fedcipher_declassify`].
#[cfg(target_arch = "x86_64")]
fn set_processor(avx: bool, away: isize) {
    use std::arch::is_x86_feature_detected as has;
    use std::sync::atomic::AtomicUsize;
    assert!(has!("avx2") && !has!("avx512f") && !has!("adx"), "not the processor that valgrind is known to emulate");
    let words = (fedcipher_declassify as *const u8).wrapping_offset(away).cast::<[AtomicUsize; 3]>();
    // SAFETY: the program's own, by its symbols; the top bit is set since std has asked the processor.
    let words = unsafe { &*words };
    assert!(words.iter().all(|word| word.load(Relaxed) >> 63 == 1), "std keeps its bits elsewhere");
    let flip = |has: &fn() -> bool| {
        let before = has();
        let mut bits = words.iter().flat_map(|word| (0..63).map(move |bit| (word, 1 << bit)));
        let found = bits.find(|(word, bit)| {
            word.fetch_xor(*bit, Relaxed);
            let found = has() != before;
            word.fetch_xor(if found { 0 } else { *bit }, Relaxed);
            found
        });
        assert!(found.is_some(), "std has no such bit");
    };
    let avx_alone: [fn() -> bool; 5] =
        [|| has!("avx"), || has!("avx2"), || has!("fma"), || has!("bmi1"), || has!("bmi2")];
    let adx: [fn() -> bool; 1] = [|| has!("adx")];
    if avx { adx.iter().for_each(flip) } else { avx_alone.iter().for_each(flip) }
}

#[cfg(not(target_arch = "x86_64"))]
fn set_processor(_: bool, _: isize) {}

/// Errors that `run` makes.
fn errors(run: impl FnOnce()) -> usize {
    let before = ask(ERRORS, 0, 0);
    run();
    ask(ERRORS, 0, 0) - before
}

fn main() {
    assert!(ask(ON_VALGRIND, 0, 0) > 0, "this runs under valgrind: make constant-time");
    let arguments: Vec<String> = std::env::args().collect();
    set_processor(arguments[1] == "avx2", arguments[2].parse().unwrap());
    assert_eq!(errors(|| branches_on(random_bytes::<1>().unwrap()[0])), 1, "a branch on a secret was not noticed");
    let index = || _ = black_box(indexes_by(values(1)[0]));
    assert_eq!(errors(index), 1, "a secret index was not noticed");
    println!("a branch and an index that depend on secrets on purpose: noticed");
    let all: [(&str, fn()); 5] =
        [("bfv", bfv), ("flashe", flashe), ("oneshot", oneshot), ("pasta", pasta), ("coding", coding)];
    let mut failed = 0;
    for (name, run) in all {
        let found = errors(run);
        println!("{name}: {found} branches or indices that depend on a secret");
        failed += found;
    }
    std::process::exit(i32::from(failed > 0));
}
