//! Known answers, and independent slow computations of what the fast code does.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use common::{Client, bfv, encrypt, floats, integers, layout};
use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Means, SumSink};
use fedcipher_core::flashe::mask::{MaskMaker, Masking, encrypt_run};
use fedcipher_core::oneshot::sealing::{HpkePublicKey, HpkeSecretKey};
use fedcipher_core::prf::{Prf, round_client};
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::rlwe::ring::Binomial;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::{ClientId, Epoch, RoundId, TotalWeight, Weight, bits, wire};
use hpke::kem::XWing;
use hpke::{Deserializable, Kem};
use num_bigint::BigUint;
use sha2::{Digest, Sha256};

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// NIST SP 800-38A, F.5.1 and F.5.5: AES-CTR key streams are our PRF blocks.
#[test]
fn prf_matches_nist_ctr_vectors() {
    // Counter blocks f0f1..fcfdfeff and on; key stream = plaintext xor ciphertext of the vectors.
    for (key, stream) in [
        ("2b7e151628aed2a6abf7158809cf4f3c", ["ec8cdf7398607cb0f2d21675ea9ea1e4", "362b7c3c6773516318a077d7fc5073ae"]),
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            ["0bdf7df1591716335e9a8b15c860c502", "5a6e699d536119065433863c8f657b94"],
        ),
    ] {
        let prf = Prf::new(&unhex(key)).unwrap();
        let counter = unhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let mut prefix = [0u8; 12];
        prefix.copy_from_slice(&counter[..12]);
        let first = u32::from_be_bytes(counter[12..].try_into().unwrap());
        let mut blocks = [[0u8; 16]; 2];
        prf.blocks(prefix, first, &mut blocks);
        assert_eq!(blocks[0].as_slice(), unhex(stream[0]));
        assert_eq!(blocks[1].as_slice(), unhex(stream[1]));
    }
}

/// The paper's formula, one coordinate at a time, with one AES call a mask.
#[test]
fn flashe_is_the_papers_formula() {
    let key = [0x42u8; 16];
    let (round, client) = (0x0102_0304_0506_0708u64, 77u32);
    let aes = aes::Aes128::new(&key.into());
    let mask = |client: u32, d: usize, width: u32| -> u64 {
        let per = 128 / width as usize;
        let mut block = [0u8; 16];
        block[..12].copy_from_slice(&round_client(RoundId::new(round), ClientId::new(client)));
        block[12..].copy_from_slice(&((d / per) as u32).to_be_bytes());
        let mut block = block.into();
        aes.encrypt_block(&mut block);
        let word = u128::from_le_bytes(block.into());
        (word >> (d % per * width as usize)) as u64 & bits::lane_mask(width)
    };
    let prf = Prf::new(&key).unwrap();
    let values: Vec<u32> = (0..5001u32).map(|v| v.wrapping_mul(2_654_435_761) >> 20).collect();
    for width in 1..64 {
        for masking in [Masking::Single, Masking::Double] {
            let mut out = vec![0u8; bits::packed_len(values.len(), width)];
            let source = |d: usize, ints: &mut [u32]| {
                ints.copy_from_slice(&values[d..d + ints.len()]);
                ints.iter_mut().for_each(|v| *v &= bits::lane_mask(width) as u32);
                Ok(())
            };
            let mut maker = MaskMaker::new(&prf, RoundId::new(round), width);
            encrypt_run(&mut maker, &masking.terms(ClientId::new(client)), 0, values.len(), 3, source, &mut out)
                .unwrap();
            let used = values.len() * width as usize % 8;
            assert!(used == 0 || out[out.len() - 1] >> used == 0, "w={width}: bits behind the last lane");
            let mut lanes = vec![0u64; values.len()];
            bits::unpack(&out, width, &mut lanes);
            for (d, (lane, v)) in lanes.iter().zip(&values).enumerate() {
                let mut want = (u64::from(*v) * 3).wrapping_add(mask(client, d, width));
                if masking == Masking::Double {
                    want = want.wrapping_sub(mask(client + 1, d, width));
                }
                assert_eq!(*lane, want & bits::lane_mask(width), "w={width} {masking:?} d={d}");
            }
        }
    }
}

/// The digests of commit `6705a6b`, before lanes were masked a vector at a time. Widths 1, 2 and 4 are left out: that
/// commit filled their last byte with mask.
#[test]
fn lanes_are_masked_as_one_by_one() {
    let prf = Prf::new(&[0x42u8; 16]).unwrap();
    let values: Vec<u32> = (0..5001u32).map(|v| v.wrapping_mul(2_654_435_761) >> 12).collect();
    let mut masked = Sha256::new();
    for width in (1..64).filter(|width| ![1, 2, 4].contains(width)) {
        for masking in [Masking::Single, Masking::Double] {
            let mut out = vec![0u8; bits::packed_len(values.len(), width)];
            let source = |d: usize, ints: &mut [u32]| {
                ints.copy_from_slice(&values[d..d + ints.len()]);
                ints.iter_mut().for_each(|v| *v &= bits::lane_mask(width) as u32);
                Ok(())
            };
            let mut maker = MaskMaker::new(&prf, RoundId::new(5), width);
            encrypt_run(&mut maker, &masking.terms(ClientId::new(7)), 0, values.len(), 1, source, &mut out).unwrap();
            masked.update(&out);
        }
    }
    assert_eq!(hex(&masked.finalize()), "03f899499350df6ab7bc52c4ec2d5b4dcdd4ab3ee359e3814771ce3ac066fe5f");
}

/// The digests of commit `6705a6b`, before lanes were added a vector at a time: every width, many lengths.
#[test]
fn lanes_are_added_as_one_by_one() {
    let mut added = Sha256::new();
    for width in 1..64 {
        for len in (1..140).chain([1000, 5001]) {
            let lanes = |shift: u32| -> Vec<u8> {
                let lanes = (0..len as u64).map(|k| k.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(shift));
                let lanes: Vec<u64> = lanes.map(|lane| lane & bits::lane_mask(width)).collect();
                let mut out = vec![0u8; bits::packed_len(len, width)];
                bits::pack(&lanes, width, &mut out);
                out
            };
            let (mut sum, mut difference, other) = (lanes(1), lanes(1), lanes(23));
            bits::add_assign(&mut sum, &other, width);
            bits::sub_assign(&mut difference, &other, width);
            added.update(&sum);
            added.update(&difference);
        }
    }
    assert_eq!(hex(&added.finalize()), "cae4f9958846ab51ebbedb89ac229832d2d364598fb1837a967242a47cd54af3");
}

/// `make test-dispatch` runs the tests as on another processor, which `FEDCIPHER_PROCESSOR` names. This test shows that
/// the run really has that processor's instructions.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_processor_is_the_one_that_was_asked_for() {
    let sets = [("aes", is_x86_feature_detected!("aes")), ("avx2", is_x86_feature_detected!("avx2"))];
    let later = [("vaes", is_x86_feature_detected!("vaes")), ("avx512f", is_x86_feature_detected!("avx512f"))];
    let found: Vec<_> = sets.into_iter().chain(later).filter(|(_, there)| *there).map(|(name, _)| name).collect();
    println!("{found:?}");
    match std::env::var("FEDCIPHER_PROCESSOR").as_deref() {
        Ok("Nehalem") => assert!(found.is_empty(), "{found:?}"),
        Ok("Westmere") => assert_eq!(found, ["aes"]),
        Ok("Haswell") => assert_eq!(found, ["aes", "avx2"]),
        Ok("AlderLake") => assert_eq!(found, ["aes", "avx2", "vaes"]),
        _ => {}
    }
}

/// `a` as the specification expands it: AES-256-CTR under the seed, rejection, one limb after another.
fn expand(seed: &[u8], index: u64, limb: u32, p: u64, n: usize) -> Vec<u64> {
    let aes = aes::Aes256::new_from_slice(seed).unwrap();
    let mut out = Vec::new();
    let mut counter = 0u32;
    while out.len() < n {
        let mut block = [0u8; 16];
        block[..8].copy_from_slice(&index.to_be_bytes());
        block[8..12].copy_from_slice(&limb.to_be_bytes());
        block[12..].copy_from_slice(&counter.to_be_bytes());
        let mut block = block.into();
        aes.encrypt_block(&mut block);
        let bytes: [u8; 16] = block.into();
        for word in bytes.chunks(8) {
            let a = u64::from_le_bytes(word.try_into().unwrap()) & (u64::MAX >> p.leading_zeros());
            if a < p && out.len() < n {
                out.push(a);
            }
        }
        counter += 1;
    }
    out
}

/// Schoolbook negacyclic product with a ternary polynomial.
fn times_ternary(a: &[u64], s: &[u8], p: u64) -> Vec<u64> {
    let n = a.len();
    let mut out = vec![0i128; n];
    for (i, s) in s.iter().enumerate() {
        let s = i128::from(*s as i8);
        if s != 0 {
            for (j, a) in a.iter().enumerate() {
                let k = (i + j) % n;
                let sign = if i + j >= n { -s } else { s };
                out[k] += sign * i128::from(*a);
            }
        }
    }
    out.into_iter().map(|x| x.rem_euclid(i128::from(p)) as u64).collect()
}

/// Every coefficient of a fresh ciphertext, recomputed with schoolbook products and big integers:
/// `c0 - a s = e + delta M` with |e| <= 21, and M the packed integers.
#[test]
fn bfv_ciphertext_matches_a_schoolbook_reference() {
    for preset in [Preset::FedbitPaper, Preset::Compact] {
        let params = BfvParams {
            bounds: Bounds::new(10, Weight::ONE, Some(1)).unwrap(),
            preset,
            bits: vec![12],
            server_weights: false,
        };
        let scheme = Bfv::new(params).unwrap();
        let d = scheme.derived();
        let layout = layout(&[(4096, 12)]);
        let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
        let client: Client = (0, 1, floats(&layout, 1));
        let frame = encrypt(&scheme, &keys, &layout, 1, &client, &[]);
        let payload = wire::parse(&frame).unwrap().payload;
        let (seed, c0) = payload.split_at(32);
        let secret = &keys.clients[0].secret;

        let products: Vec<Vec<u64>> = d
            .ring
            .primes
            .iter()
            .enumerate()
            .map(|(limb, p)| times_ternary(&expand(seed, 0, limb as u32, *p, 4096), secret, *p))
            .collect();
        let [p0, p1] = [d.ring.primes[0], d.ring.primes[1]].map(BigUint::from);
        let q = &p0 * &p1;
        let inverse = p1.modpow(&(&p0 - 2u32), &p0);
        let wire_bits = d.values.up_bits;
        let fields = d.packing(12).unwrap().fields;
        let ints = integers(scheme.values().levels, &layout, &client.2);
        for (k, packed) in ints.chunks(fields.count).enumerate() {
            // CRT: x = r1 + p1 * ((r0 - r1) p1^-1 mod p0).
            let (r0, r1) = (BigUint::from(products[0][k]), BigUint::from(products[1][k]));
            let difference = (&r0 + &p0 * 4u32 - &r1) % &p0;
            let a_s = &r1 + &p1 * (difference * &inverse % &p0);
            let c0 = BigUint::from(bits::read_bits(c0, k * wire_bits as usize, wire_bits)) << d.values.up_drop;
            let noisy = (c0 + &q * 2u32 - a_s) % &q;
            let mut m = BigUint::ZERO;
            for (i, v) in packed.iter().enumerate() {
                m += BigUint::from(*v) << (i * fields.width as usize);
            }
            let e = (noisy + &q - m * BigUint::from(d.values.delta)) % &q;
            let magnitude = e.clone().min(&q - &e);
            let bound = 21u32 + if d.values.up_drop > 0 { 1 << (d.values.up_drop - 1) } else { 0 };
            assert!(magnitude <= BigUint::from(bound), "coefficient {k}: error {magnitude}");
        }
    }
}

/// A general HE library (fhe.rs) decrypts our `fedbit-paper` ciphertext at the same parameters.
#[test]
fn fhe_rs_decrypts_a_fedbit_paper_ciphertext() {
    use fhe::bfv::{BfvParametersBuilder, Ciphertext, Encoding, Plaintext, SecretKey};
    use fhe_math::rq::{Poly, Representation, traits::TryConvertFrom};
    use fhe_traits::{DeserializeParametrized, FheDecoder, FheDecrypter};

    let params = BfvParams {
        bounds: Bounds::new(10, Weight::ONE, Some(1)).unwrap(),
        preset: Preset::FedbitPaper,
        bits: vec![12],
        server_weights: false,
    };
    let scheme = Bfv::new(params).unwrap();
    let d = scheme.derived();
    let layout = layout(&[(4096, 12)]);
    let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
    let client: Client = (0, 1, floats(&layout, 2));
    let frame = encrypt(&scheme, &keys, &layout, 1, &client, &[]);
    let (seed, c0) = wire::parse(&frame).unwrap().payload.split_at(32);

    let par = BfvParametersBuilder::new()
        .set_degree(4096)
        .set_plaintext_modulus(2_281_701_377)
        .set_moduli(&d.ring.primes)
        .build_arc()
        .unwrap();
    // Their key, from its protobuf: field 1, packed zigzag integers, holding our coefficients.
    let zigzag: Vec<u8> = keys.clients[0]
        .secret
        .iter()
        .map(|s| match s {
            0 => 0u8,
            1 => 2,
            _ => 1,
        })
        .collect();
    let mut proto = vec![0x0a, 0x80, 0x20];
    proto.extend_from_slice(&zigzag);
    let key = SecretKey::from_bytes(&proto, &par).unwrap();

    let to_poly = |coefficients: &[u128], negate: bool| {
        let residues: Vec<u64> = d
            .ring
            .primes
            .iter()
            .flat_map(|p| {
                coefficients.iter().map(move |x| {
                    let r = (x % u128::from(*p)) as u64;
                    if negate && r > 0 { p - r } else { r }
                })
            })
            .collect();
        let mut poly =
            Poly::try_convert_from(residues, par.context_at_level(0).unwrap(), false, Representation::PowerBasis)
                .unwrap();
        poly.change_representation(Representation::Ntt);
        poly
    };
    let c0: Vec<u128> = (0..4096).map(|k| bits::read_bits(c0, k * 106, 106)).collect();
    let [a0, a1] = [0, 1].map(|limb| expand(seed, 0, limb as u32, d.ring.primes[limb], 4096));
    let a = |limb: usize| if limb == 0 { &a0 } else { &a1 };
    let residues: Vec<u64> =
        (0..2).flat_map(|limb| a(limb).iter().map(move |x| (d.ring.primes[limb] - x) % d.ring.primes[limb])).collect();
    let mut c1 =
        Poly::try_convert_from(residues, par.context_at_level(0).unwrap(), false, Representation::PowerBasis).unwrap();
    c1.change_representation(Representation::Ntt);

    let ciphertext = Ciphertext::new(vec![to_poly(&c0, false), c1], &par).unwrap();
    let plaintext: Plaintext = key.try_decrypt(&ciphertext).unwrap();
    let got = Vec::<u64>::try_decode(&plaintext, Encoding::poly()).unwrap();
    // One field a coefficient at these parameters: 31 bits hold one of 16.
    let fields = d.packing(12).unwrap().fields;
    let want: Vec<u64> = integers(scheme.values().levels, &layout, &client.2)
        .chunks(fields.count)
        .map(|f| f.iter().enumerate().map(|(i, v)| v << (i as u32 * fields.width)).sum())
        .collect();
    assert_eq!(&got[..want.len()], want.as_slice());
    assert!(got[want.len()..].iter().all(|v| *v == 0) || want.len() == 4096);
}

/// The means of a hand-computed round: values quantised to 4 bits with clip 1 (L = 14).
#[test]
fn means_by_hand() {
    let layout = layout(&[(3, 4)]);
    let clients: Vec<Client> = vec![(0, 1, vec![vec![1.0, 0.0, -9.0]]), (1, 3, vec![vec![0.0, 0.5, -1.0]])];
    // Quantised: [14, 7, 0] and [7, 10 (10.5 to even), 0]; sums with weights 1 and 3: [35, 37, 0].
    let sums = [35u64, 37, 0];
    assert_eq!(common::expected(Levels::default(), &layout, &clients), sums);
    let mut means = Means::default();
    means.begin(&layout, Levels::default(), TotalWeight::new(4)).unwrap();
    means.put(0, &sums).unwrap();
    let want = [(35.0 - 28.0) / 28.0, (37.0 - 28.0) / 28.0, -1.0f32];
    for (got, want) in means.values.iter().zip(want) {
        assert!((got - want).abs() < 1e-6);
    }
}

/// The binomial error of fresh ciphertexts has the deviation the security estimate assumes.
#[test]
fn error_distribution() {
    let scheme = Bfv::new(BfvParams {
        bounds: Bounds::new(2, Weight::ONE, Some(1)).unwrap(),
        preset: Preset::Compact,
        bits: vec![12],
        server_weights: false,
    })
    .unwrap();
    let ring = &scheme.derived().ring;
    let mut stream = fedcipher_core::prf::Stream::from_os().unwrap();
    let n = 200_000;
    for (binomial, bound) in [(Binomial::ERROR, 21.0), (Binomial::SUMMED, 42.0)] {
        let (mut sum, mut square) = (0f64, 0f64);
        for small in binomial.draws(&mut stream, n).iter().copied() {
            let lifted = ring.lift(small);
            let e = if lifted > ring.q / 2 { -((ring.q - lifted) as f64) } else { lifted as f64 };
            assert_eq!(e, f64::from(small));
            assert!(e.abs() <= bound);
            sum += e;
            square += e * e;
        }
        let (mean, deviation) = (sum / n as f64, (square / n as f64).sqrt());
        assert!(mean.abs() < 0.06 && (deviation - (bound / 2.0).sqrt()).abs() < 0.05, "sigma {deviation}");
    }
    let secret = ring.secret().unwrap();
    for value in [0u8, 1, 255] {
        let count = secret.iter().filter(|s| **s == value).count();
        assert!((1100..1650).contains(&count), "{count} coefficients are {value}");
    }
}

/// Two encryptions of the same update share nothing.
#[test]
fn bfv_never_repeats_a_seed() {
    let scheme = bfv(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), Preset::Fast, &[8], false);
    let layout: Layout = layout(&[(10, 8)]);
    let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
    let client: Client = (0, 1, floats(&layout, 1));
    let frames: Vec<_> = (0..2).map(|_| encrypt(scheme.as_ref(), &keys, &layout, 1, &client, &[])).collect();
    let payloads: Vec<_> = frames.iter().map(|f| wire::parse(f).unwrap().payload).collect();
    assert_ne!(payloads[0][..32], payloads[1][..32]);
    assert_ne!(payloads[0][32..], payloads[1][32..]);
}

/// Shares are encrypted by HPKE with X-Wing. The vectors are X-Wing's own, and a message that Go's crypto/hpke encrypted
/// with exactly the algorithms used here.
#[test]
fn sealing_has_the_known_answers_of_x_wing_and_opens_what_go_sealed() {
    let mut seen = [0; 2];
    for line in include_str!("hpke.in").lines().filter(|line| !line.starts_with('#')) {
        let (what, values) = line.split_once(' ').unwrap();
        let v: Vec<_> = values.split(' ').map(unhex).collect();
        let own = HpkeSecretKey::parse(&v[0]).unwrap();
        if what == "x-wing" {
            let key = <XWing as Kem>::PrivateKey::from_bytes(&v[0]).unwrap();
            let encapped = <XWing as Kem>::EncappedKey::from_bytes(&v[2]).unwrap();
            assert_eq!(own.public(), v[1]);
            assert_eq!(XWing::decap(&key, None, &encapped).unwrap().0.as_slice(), v[3]);
            seen[0] += 1;
        } else {
            assert_eq!(own.open(&v[1], &v[3]).unwrap().as_slice(), v[2]);
            // A message encrypted here opens by the same steps.
            let sealed = HpkePublicKey::parse(&own.public()).unwrap().hpke_seal(&v[1], &v[2]).unwrap();
            assert_eq!(own.open(&v[1], &sealed).unwrap().as_slice(), v[2]);
            seen[1] += 1;
        }
    }
    assert_eq!(seen, [4, 1]);
}
