//! Compares every operation with fhe.rs's own at a small N. Both results decrypt to the same values, with about the same
//! noise.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unsafe_code, reason = "fhe.rs marks measuring noise unsafe because its time depends on the noise")]

use super::*;
use fhe::bfv::{
    BfvParameters, BfvParametersBuilder, Ciphertext, Encoding, EvaluationKey, EvaluationKeyBuilder, Multiplicator,
    Plaintext, RelinearizationKey, SecretKey,
};
use fhe_traits::{DeserializeParametrized, FheDecoder, FheDecrypter, FheEncoder, FheEncrypter, Serialize};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const DEGREE: usize = 64;
const STEPS: [usize; 3] = [1, 5, 12];

struct World {
    par: Arc<BfvParameters>,
    secret: SecretKey,
    galois: EvaluationKey,
    relinearisation: RelinearizationKey,
    ring: Ring,
    slots: Slots,
    keys: BTreeMap<usize, GaloisKey>,
    key: SwitchKey,
    rng: StdRng,
}

/// Worlds with the sizes of both primes p.
fn worlds() -> [World; 2] {
    [(51, 8, 65_537), (60, 11, 8_088_322_049)].map(|(bits, count, p)| {
        let mut rng = StdRng::seed_from_u64(p);
        let mut builder = BfvParametersBuilder::new();
        builder.set_degree(DEGREE).set_plaintext_modulus(p).set_moduli_sizes(&vec![bits; count]);
        let par = builder.build_arc().unwrap();
        let secret = SecretKey::random(&par, &mut rng);
        let mut builder = EvaluationKeyBuilder::new_leveled(&secret, 1, 0).unwrap();
        builder.enable_row_rotation().unwrap();
        for step in STEPS {
            builder.enable_column_rotation(step).unwrap();
        }
        let galois = builder.build(&mut rng).unwrap();
        let relinearisation = RelinearizationKey::new_leveled(&secret, 1, 0, &mut rng).unwrap();
        let ring = Ring::new(DEGREE, par.moduli(), p).unwrap();
        World {
            slots: Slots::new(DEGREE, p).unwrap(),
            keys: ring.galois_keys(&galois.to_bytes()).unwrap().into_iter().collect(),
            key: ring.relinearisation_key(&relinearisation.to_bytes()).unwrap(),
            par,
            secret,
            galois,
            relinearisation,
            ring,
            rng,
        }
    })
}

impl World {
    fn values(&mut self) -> Vec<u64> {
        (0..DEGREE).map(|_| self.rng.random_range(0..self.ring.p)).collect()
    }

    fn encrypt(&mut self, values: &[u64]) -> (Ciphertext, Pair) {
        let plain = Plaintext::try_encode(values, Encoding::simd_at_level(1), &self.par).unwrap();
        let ciphertext: Ciphertext = self.secret.try_encrypt(&plain, &mut self.rng).unwrap();
        let pair = self.ring.ciphertext("test", &ciphertext.to_bytes(), self.ring.top()).unwrap();
        (ciphertext, pair)
    }

    fn theirs(&self, pair: &Pair) -> Ciphertext {
        Ciphertext::from_bytes(&self.ring.ciphertext_bytes(pair), &self.par).unwrap()
    }

    fn open(&self, ciphertext: &Ciphertext) -> Vec<u64> {
        let plain = self.secret.try_decrypt(ciphertext).unwrap();
        let encoding = Encoding::simd_at_level(plain.level());
        Vec::<u64>::try_decode(&plain, encoding).unwrap()
    }

    fn noise(&self, ciphertext: &Ciphertext) -> usize {
        // SAFETY: the key is the test's own; its timing is not secret.
        unsafe { self.secret.measure_noise(ciphertext).unwrap() }
    }

    /// Checks that `ours` decrypts to the same values as `theirs`, with at most two bits more noise.
    fn same(&self, ours: &Pair, theirs: &Ciphertext) {
        let ours = self.theirs(ours);
        assert_eq!(self.open(&ours), self.open(theirs));
        let (our_noise, their_noise) = (self.noise(&ours), self.noise(theirs));
        assert!(our_noise <= their_noise + 2, "{our_noise} bits of noise, fhe.rs has {their_noise}");
    }

    fn multiply(&self, a: u64, b: u64) -> u64 {
        (u128::from(a) * u128::from(b) % u128::from(self.ring.p)) as u64
    }
}

#[test]
fn ciphertexts_are_fhe_rs_s_on_the_wire() {
    for mut world in worlds() {
        let values = world.values();
        let (theirs, ours) = world.encrypt(&values);
        let back = world.theirs(&ours);
        for (a, b) in back.iter().zip(theirs.iter()) {
            assert_eq!(a.coefficients(), b.coefficients());
        }
        assert_eq!(world.open(&back), values);
        // A ciphertext without a seed, at every level. The switch to a level equals fhe.rs's to the bit.
        let mut theirs = back;
        for level in (1..world.ring.top()).rev() {
            theirs.switch_down().unwrap();
            let parsed = world.ring.ciphertext("test", &theirs.to_bytes(), level).unwrap();
            assert_eq!(parsed, world.ring.lower(ours.clone(), level));
            assert!(world.ring.ciphertext("test", &theirs.to_bytes(), level + 1).is_err());
        }
    }
}

#[test]
fn rotations_are_fhe_rs_s() {
    for mut world in worlds() {
        let values = world.values();
        let (theirs, ours) = world.encrypt(&values);
        let digits = world.ring.digits(&ours[1]);
        for step in STEPS {
            let key = &world.keys[&world.ring.columns(step)];
            world.same(
                &world.ring.rotate(&ours, &digits, key),
                &world.galois.rotates_columns_by(&theirs, step).unwrap(),
            );
        }
        let swap = &world.keys[&world.ring.row_swap()];
        world.same(&world.ring.rotate(&ours, &digits, swap), &world.galois.rotates_rows(&theirs).unwrap());
        // fhe.rs has no keys for lower levels, so there the decrypted values are compared.
        for level in 2..world.ring.top() {
            let low = world.ring.lower(ours.clone(), level);
            let turned = world.ring.rotate(&low, &world.ring.digits(&low[1]), swap);
            assert_eq!(world.open(&world.theirs(&turned)), [&values[DEGREE / 2..], &values[..DEGREE / 2]].concat());
        }
    }
}

#[test]
fn sums_of_rotations_are_sums_of_rotations() {
    for mut world in worlds() {
        let (first, second, third) = (world.values(), world.values(), world.values());
        let [a, b, c] = [&first, &second, &third].map(|values| world.encrypt(values));
        let mut theirs = &a.0 + &world.galois.rotates_columns_by(&b.0, 5).unwrap();
        theirs += &world.galois.rotates_columns_by(&c.0, 12).unwrap();
        let key = |step: usize| &world.keys[&world.ring.columns(step)];
        let ring = &world.ring;
        let extended = [&a.1, &b.1, &c.1].map(|x| ring.extended(x));
        let others = vec![(extended[1].clone(), key(5)), (extended[2].clone(), key(12))];
        world.same(&ring.sum_of_rotations(extended[0].clone(), others), &theirs);
        assert_eq!(ring.sum_of_rotations(extended[0].clone(), Vec::new()), a.1);
        // Plaintexts times extended rotations, like in an affine layer.
        let more = world.slots.encode(second.iter().copied());
        let turned = ring.rotate_extended(&a.1, &ring.digits(&a.1[1]), key(1));
        let plain = ring.extended_multiplier(&more, ring.top());
        let sum = ring.sum_of_rotations(ring.extended_dots(&[&plain, &plain], &[&turned, &extended[2]]), Vec::new());
        let more = Plaintext::try_encode(&second, Encoding::simd_at_level(1), &world.par).unwrap();
        world.same(&sum, &(&(&world.galois.rotates_columns_by(&a.0, 1).unwrap() * &more) + &(&c.0 * &more)));
    }
}

#[test]
fn plaintexts_are_fhe_rs_s() {
    for mut world in worlds() {
        let (values, others, more) = (world.values(), world.values(), world.values());
        let (theirs, ours) = world.encrypt(&values);
        let (other_theirs, other_ours) = world.encrypt(&others);
        let plain = Plaintext::try_encode(&more, Encoding::simd_at_level(1), &world.par).unwrap();
        let coefficients = world.slots.encode(more.iter().copied());
        let mut sum = ours.clone();
        world.ring.add(&mut sum[0], &world.ring.summand(&coefficients, world.ring.top()));
        let parsed = world.ring.ciphertext("test", &(&theirs + &plain).to_bytes(), world.ring.top()).unwrap();
        assert_eq!(sum, parsed);
        let multiplier = world.ring.multiplier(&coefficients, world.ring.top());
        let dots = world.ring.dots(&[&multiplier, &multiplier], &[&ours, &other_ours]);
        world.same(&dots, &(&(&theirs * &plain) + &(&other_theirs * &plain)));
        let mut weighted = ours;
        weighted.iter_mut().for_each(|x| world.ring.scale(x, 1000));
        let expected: Vec<u64> = values.iter().map(|v| world.multiply(*v, 1000)).collect();
        assert_eq!(world.open(&world.theirs(&weighted)), expected);
    }
}

#[test]
fn products_are_fhe_rs_s() {
    for mut world in worlds() {
        let (values, others) = (world.values(), world.values());
        let ((a, our_a), (b, our_b)) = (world.encrypt(&values), world.encrypt(&others));
        let multiplicator = Multiplicator::default(&world.relinearisation).unwrap();
        let top = world.ring.top();
        let ours = world.ring.multiply(&our_a, &our_b, &world.key, top).unwrap();
        world.same(&ours, &multiplicator.multiply(&a, &b).unwrap());
        let square = world.ring.multiply(&our_a, &our_a, &world.key, top).unwrap();
        world.same(&square, &multiplicator.multiply(&a, &a).unwrap());
        // A square equals the product with a copy to the bit.
        assert_eq!(square, world.ring.multiply(&our_a, &our_a.clone(), &world.key, top).unwrap());
        // From every level to every lower one that still holds the product.
        let expected: Vec<u64> = values.iter().zip(&others).map(|(a, b)| world.multiply(*a, *b)).collect();
        for from in 2..=top {
            let low = [&our_a, &our_b].map(|pair| world.ring.lower(pair.clone(), from));
            for to in 2..=from {
                let product = world.ring.multiply(&low[0], &low[1], &world.key, to).unwrap();
                assert_eq!(world.open(&world.theirs(&product)), expected, "from {from} primes to {to}");
            }
        }
    }
}

#[test]
fn damaged_bytes_are_errors() {
    let [mut world, _] = worlds();
    let values = world.values();
    let (theirs, _) = world.encrypt(&values);
    let (ciphertext, galois) = (theirs.to_bytes(), world.galois.to_bytes());
    let (relinearisation, secret) = (world.relinearisation.to_bytes(), world.secret.to_bytes());
    let ring = &world.ring;
    type Read<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;
    let mut reading: Vec<(&[u8], Read<'_>)> = vec![
        (&ciphertext[..], Box::new(|bytes| ring.ciphertext("test", bytes, ring.top()).is_ok())),
        (&galois[..], Box::new(|bytes| ring.galois_keys(bytes).is_ok())),
        (&relinearisation[..], Box::new(|bytes| ring.relinearisation_key(bytes).is_ok())),
        (&secret[..], Box::new(|bytes| wire::check_secret(bytes, DEGREE).is_ok())),
    ];
    let low = world.ring.ciphertext_bytes(&ring.lower(ring.ciphertext("test", &ciphertext, ring.top()).unwrap(), 1));
    reading.push((&low[..], Box::new(|bytes| wire::alone("test", bytes, 7, DEGREE).is_ok())));
    let mut rng = StdRng::seed_from_u64(1);
    for (k, (bytes, read)) in reading.iter().enumerate() {
        assert!(read(bytes), "{k}");
        for _ in 0..40 {
            // Every cut is detected, except in Galois keys, which are a list that may end anywhere.
            let cut = rng.random_range(0..bytes.len());
            assert!(!read(&bytes[..cut]) || k == 1, "{k} cut to {cut}");
            let mut flipped = bytes.to_vec();
            flipped[rng.random_range(0..bytes.len())] ^= 1 << rng.random_range(0..8);
            read(&flipped);
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(!read(&longer), "{k}");
    }
    // A residue that is not below its prime.
    let at = ciphertext.len() - 200;
    let mut beyond = ciphertext.clone();
    beyond[at..at + 16].fill(0xff);
    assert!(!reading[0].1(&beyond));
    // A coefficient that is too large for a secret key.
    let mut large = secret.clone();
    let last = large.len() - 1;
    large[last] = 41;
    assert!(!reading[3].1(&large));
}

#[test]
fn primes_of_different_sizes_are_refused() {
    let prime = |bits: usize| fhe_math::zq::primes::generate_prime(bits, 128, 1 << bits).unwrap();
    assert!(Ring::new(DEGREE, &[prime(54), prime(56)], 65_537).is_err());
    assert!(Ring::new(DEGREE, &[prime(54)], 65_537).is_err());
    assert!(Ring::new(DEGREE, &[prime(54), 1 << 53], 65_537).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// A chain of three rotations, a square and a product at falling levels stays exact.
    #[test]
    fn chains_of_operations_are_exact(seed: u64) {
        let [mut world, _] = worlds();
        world.rng = StdRng::seed_from_u64(seed);
        let values = world.values();
        let (_, mut pair) = world.encrypt(&values);
        let mut expected = values;
        for (level, step) in [(6, 1), (5, 5), (4, 12)] {
            pair = world.ring.rotate(&pair, &world.ring.digits(&pair[1]), &world.keys[&world.ring.columns(step)]);
            pair = world.ring.multiply(&pair, &pair, &world.key, level).unwrap();
            let half = DEGREE / 2;
            expected = (0..DEGREE).map(|i| expected[i / half * half + (i + step) % half]).collect();
            expected = expected.iter().map(|v| world.multiply(*v, *v)).collect();
        }
        prop_assert_eq!(world.open(&world.theirs(&pair)), expected);
    }
}
