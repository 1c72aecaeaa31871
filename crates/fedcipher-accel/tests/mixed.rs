//! Frames of several plaintext moduli: a device makes the ciphertexts that it is set to, the core the others.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_accel::software::SoftwareAccelerators;
use fedcipher_accel::{Accelerator, Accelerators, Arithmetic, Usage};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};

/// Stands for a device: the core does its work, and it counts its jobs.
#[derive(Default)]
struct Counted(Mutex<Usage>);

impl Accelerators for Counted {
    fn open(&self, arithmetic: &Arithmetic, secret: &[u8]) -> fedcipher_core::Result<Box<dyn Accelerator>> {
        SoftwareAccelerators.open(arithmetic, secret)
    }

    fn fall_back(&self) -> bool {
        false
    }

    fn done(&self, usage: &Usage) {
        let mut all = self.0.lock().unwrap();
        *all = all.plus(usage);
    }
}

fn layout(sizes: &[(u32, u32)]) -> Layout {
    let tensor = |(len, bits): &(u32, u32)| Tensor { dtype: 1, bits: *bits, alpha: 1.0, shape: vec![*len] };
    Layout::new(sizes.iter().map(tensor).collect()).unwrap()
}

/// A client with a device and one without; each opens the sum.
fn a_round(preset: Preset, layout: &Layout, ahead: bool) {
    let bounds = Bounds::new(100, Weight::ONE, Some(1)).unwrap();
    let plain = Bfv::new(BfvParams { bounds, preset, bits: vec![3, 12], server_weights: false }).unwrap();
    let counted = Arc::new(Counted::default());
    let with = plain.clone().with_accelerators(counted.clone());
    let keys = plain.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let mut rng = StdRng::seed_from_u64(11);
    let mut aggregator = plain.aggregator(&keys.server, None).unwrap();
    let mut want = vec![0; layout.elements()];
    for (client, of) in [(0, &with), (1, &plain)] {
        let values: Vec<f32> = (0..layout.elements()).map(|_| rng.random_range(-1.2..1.2)).collect();
        let update = Update::new(layout, layout.split(&values).unwrap(), Rounding::Nearest).unwrap();
        let mut ints = vec![0; layout.elements()];
        update.quantise(plain.values().levels, 0, &mut ints).unwrap();
        want.iter_mut().zip(ints).for_each(|(sum, int)| *sum += u64::from(int));
        let mut encryptor = of.encryptor(&keys.clients[client], None).unwrap();
        if ahead {
            encryptor.precompute(RoundId::new(3), layout, &[]).unwrap();
        }
        let request = Request {
            round: RoundId::new(3),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"",
            memory: &[],
            associated_data: &[],
        };
        aggregator.add(&encryptor.encrypt(&request).unwrap()).unwrap();
    }
    let sum = aggregator.finish().unwrap();
    for of in [&with, &plain] {
        let decryptor = of.decryptor(&keys.clients[0], None).unwrap();
        let opened = decryptor.decrypt(&sum, &Expect::default(), Sums::default()).unwrap();
        assert!(opened.values().0 == want, "{preset:?}, ahead: {ahead}");
    }
    let blocks = plain.derived().shape(layout).unwrap();
    let own = blocks.iter().filter(|block| plain.derived().fits_device(block)).count() as u64;
    let usage = counted.0.lock().unwrap();
    assert_eq!((usage.ciphertexts, usage.fallbacks), (2 * own, 0), "{preset:?}, ahead: {ahead}");
}

#[test]
fn a_device_and_the_core_share_a_frame() {
    let layouts = [
        layout(&[(40_000, 12), (9000, 3)]),
        layout(&[(40_000, 12), (561, 2), (33, 16)]),
        layout(&[(561, 2), (20_000, 16), (60_000, 12), (1, 2), (70_000, 3)]),
        layout(&[(561, 2), (33, 16)]),
    ];
    for preset in [Preset::Compact, Preset::Fast, Preset::FedbitPaper] {
        for layout in &layouts {
            for ahead in [false, true] {
                a_round(preset, layout, ahead);
            }
        }
    }
}
