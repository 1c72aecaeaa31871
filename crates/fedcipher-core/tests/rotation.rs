//! Compares the rotation with its definition, value by value, and checks that it spreads large values.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::prf::Prf;
use fedcipher_core::rotation::{MAX_BLOCK, Rotation};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const SEED: [u8; 16] = [7; 16];

/// Values of many sizes that no two machines draw differently.
fn drawn(len: usize) -> Vec<f32> {
    let unit = |k: usize| ((k as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    (0..len).map(|k| unit(k) * f32::from_bits((127 - (k as u32 * 7) % 20) << 23)).collect()
}

fn signs(prf: &Prf, part: u8, len: usize) -> Vec<f64> {
    let mut blocks = vec![[0u8; 16]; len.div_ceil(128)];
    let mut prefix = [0u8; 12];
    prefix[0] = part;
    prf.blocks(prefix, 0, &mut blocks);
    (0..len).map(|k| if blocks[k / 128][k % 128 / 8] >> (k % 8) & 1 == 1 { -1.0 } else { 1.0 }).collect()
}

/// y[i] = sum over j of (-1)^(bits that i and j share) x[j], over the root of the length.
fn hadamard(x: &[f64]) -> Vec<f64> {
    let entry = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
    let root = (x.len() as f64).sqrt();
    (0..x.len()).map(|i| (0..x.len()).map(|j| entry(i, j) * x[j]).sum::<f64>() / root).collect()
}

fn by_definition(values: &[f32]) -> Vec<f64> {
    let prf = Prf::new(&SEED).unwrap();
    let len = values.len();
    let mut x: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
    let block = (0..).map(|k| 1usize << k).take_while(|b| *b <= len && *b <= MAX_BLOCK).last().unwrap_or(1);
    let columns = len / block;
    for (v, sign) in x.iter_mut().zip(signs(&prf, 0, columns * block)) {
        *v *= sign;
    }
    for column in 0..columns {
        let turned = hadamard(&(0..block).map(|k| x[column + k * columns]).collect::<Vec<_>>());
        turned.iter().enumerate().for_each(|(k, v)| x[column + k * columns] = *v);
    }
    if columns * block < len {
        let last: Vec<f64> = x[len - block..].iter().zip(signs(&prf, 1, block)).map(|(v, s)| v * s).collect();
        x[len - block..].copy_from_slice(&hadamard(&last));
    }
    x
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn it_is_what_its_definition_says() {
    for len in (0..70).chain([127, 128, 200, 255, 1000, 4095, 4096, 4097, 9000]) {
        let values = drawn(len);
        let mut turned = values.clone();
        Rotation::new(SEED, len).unwrap().forward(&mut turned);
        let scale = norm(&values).max(1e-9) / (len as f64).sqrt().max(1.0);
        for (got, want) in turned.iter().zip(by_definition(&values)) {
            assert!((f64::from(*got) - want).abs() < 1e-5 * scale, "{len}: {got} for {want}");
        }
    }
}

proptest! {
    #[test]
    fn it_keeps_lengths_and_can_be_taken_back(
        len in 0usize..20_000, seed in any::<[u8; 16]>(), place in any::<usize>(), size in -30i32..30
    ) {
        let mut values = drawn(len);
        if len > 0 {
            values[place % len] = 2f32.powi(size);
        }
        let mut turned = values.clone();
        let rotation = Rotation::new(seed, len).unwrap();
        rotation.forward(&mut turned);
        prop_assert!((norm(&turned) - norm(&values)).abs() <= 1e-5 * norm(&values));
        rotation.back(&mut turned);
        let error: Vec<f32> = turned.iter().zip(&values).map(|(a, b)| a - b).collect();
        prop_assert!(norm(&error) <= 1e-6 * norm(&values));
    }
}

#[test]
fn one_large_value_is_spread_wherever_it_is() {
    for len in [256, 1000, 4096, 25_450, 61_706] {
        for place in [0, 1, len / 2, len - 2, len - 1] {
            let mut values = vec![0f32; len];
            values[place] = 1.0;
            Rotation::new(SEED, len).unwrap().forward(&mut values);
            let block = MAX_BLOCK.min(1 << len.ilog2()) as f32;
            let largest = values.iter().fold(0f32, |a, v| a.max(v.abs()));
            // A value of the last block is turned twice: sums of signs, whose largest is some four deviations.
            assert!(largest <= 5.0 * block.sqrt().recip(), "{len}, {place}: {largest}");
        }
    }
}

/// To the bit on every machine and with every kernel: ranges and means of a run depend on it.
#[test]
fn all_machines_agree_to_the_bit() {
    let mut digest = Sha256::new();
    for len in [1, 2, 3, 300, 4096, 5000, 70_001] {
        let mut values = drawn(len);
        Rotation::new(SEED, len).unwrap().forward(&mut values);
        values.iter().for_each(|v| digest.update(v.to_le_bytes()));
    }
    let found: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(found, "4d84512c5973e880aa7277cd37838a0dcf02f80545ed6e6ffb0d2c5c292e136d");
}
