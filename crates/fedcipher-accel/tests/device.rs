//! The simulated device against the core, bit by bit: `make hardware-test`. FC_SIM_LIBRARY names the library;
//! FC_SIM_TRIES how many whole ciphertexts each way.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed unwrap is a failed test")]

use fedcipher_accel::bus::{Bus, Port};
use fedcipher_accel::driver::Driver;
use fedcipher_accel::link::Link;
use fedcipher_accel::registers::{self as reg, Code, Command};
use fedcipher_accel::sim::{Setup, SimAccelerators, SimBus, Simulator};
use fedcipher_accel::software::Software;
use fedcipher_accel::{Accelerator, Arithmetic, Error, MaskJob, SumJob};
use fedcipher_core::bits::{BitWriter, packed_len, read_bits};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

fn library() -> PathBuf {
    PathBuf::from(std::env::var_os("FC_SIM_LIBRARY").expect("FC_SIM_LIBRARY names the library of `make hardware-sim`"))
}

fn tries() -> usize {
    std::env::var("FC_SIM_TRIES").map_or(3, |text| text.parse().unwrap())
}

/// A busy host: streams pause at random, so that no order of arrival is taken for granted.
fn busy(seed: u64) -> Setup {
    Setup { stall_in: 40, stall_out: 40, seed, ..Setup::default() }
}

fn simulator(setup: Setup) -> Simulator {
    Simulator::load(&library(), setup).unwrap()
}

fn scheme(preset: Preset) -> Bfv {
    let bounds = Bounds::new(4, Weight::new(2), Some(1)).unwrap();
    Bfv::new(BfvParams { bounds, preset, bits: vec![12], server_weights: false }).unwrap()
}

fn arithmetic(preset: Preset) -> Arithmetic {
    scheme(preset).derived().arithmetic()
}

fn secret(rng: &mut StdRng, n: usize) -> Vec<u8> {
    (0..n).map(|_| [0u8, 1, 255][rng.random_range(0..3)]).collect()
}

/// Coefficients of one kind: random, or one edge value throughout.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Random,
    Zero,
    Largest,
}

fn below(rng: &mut StdRng, kind: Kind, bound: u128) -> u128 {
    match kind {
        Kind::Random => rng.random::<u128>() % bound,
        Kind::Zero => 0,
        Kind::Largest => bound - 1,
    }
}

fn polynomial(rng: &mut StdRng, kind: Kind, of: &Arithmetic) -> Vec<Zeroizing<Vec<u64>>> {
    let one = |p: &u64| Zeroizing::new((0..of.n).map(|_| below(rng, kind, u128::from(*p)) as u64).collect());
    of.primes.iter().map(one).collect()
}

fn errors(rng: &mut StdRng, kind: Kind, used: usize) -> Zeroizing<Vec<i8>> {
    let one = |_| match kind {
        Kind::Random => rng.random_range(-21..=21),
        Kind::Zero => 0,
        Kind::Largest => 127,
    };
    Zeroizing::new((0..used).map(one).collect())
}

/// Masks, ciphertexts and plaintexts of the device are the core's, in batches, of whole and of part ciphertexts.
fn equal_to_the_core(preset: Preset, setup: Setup, tries: usize) {
    let of = arithmetic(preset);
    let mut rng = StdRng::seed_from_u64(setup.seed);
    let key = secret(&mut rng, of.n);
    let mut device = Driver::open(simulator(setup).device(), Link::PCIE3_X16, &of, &key).unwrap();
    let mut core = Software::new(&of, &key).unwrap();
    let kinds = [Kind::Random, Kind::Largest, Kind::Zero];
    let mut done = 0;
    while done < tries {
        let batch = rng.random_range(1..=4).min(tries - done);
        let last = [of.n, 1, rng.random_range(1..=of.n)][rng.random_range(0..3)];
        let used = |k: usize| if k + 1 == batch { last } else { of.n };
        let kind = |k: usize| if done + k < 3 { kinds[(done + k) % 3] } else { Kind::Random };
        let jobs = |rng: &mut StdRng| -> Vec<MaskJob> {
            let job = |k| MaskJob { a: polynomial(rng, kind(k), &of), e: errors(rng, kind(k), used(k)) };
            (0..batch).map(job).collect()
        };
        let masks = jobs(&mut rng);
        let plain: Vec<Zeroizing<Vec<u128>>> = (0..batch)
            .map(|k| Zeroizing::new((0..used(k)).map(|_| below(&mut rng, kind(k), of.t)).collect()))
            .collect();
        device.prepare(&masks).unwrap();
        core.prepare(&masks).unwrap();
        let (ours, theirs) = (device.encrypt(&plain).unwrap(), core.encrypt(&plain).unwrap());
        assert!(ours == theirs, "ciphertexts {done}.. of {preset:?} differ");

        // Encrypted there, opened here, and the reverse; noise included.
        let sum = |k: usize| {
            let c0 = (0..used(k)).map(|i| read_bits(&ours[k], i * of.bits as usize, of.bits)).collect();
            SumJob { a: masks[k].a.clone(), c0 }
        };
        let sums: Vec<SumJob> = (0..batch).map(sum).collect();
        let opened = device.decrypt(&sums).unwrap();
        assert!(opened == core.decrypt(&sums).unwrap(), "plaintexts {done}.. of {preset:?} differ");
        for k in 0..batch {
            assert!(opened[k].iter().map(|(m, _)| m).eq(plain[k].iter()), "ciphertext {} does not open", done + k);
            assert!(opened[k].iter().zip(masks[k].e.iter()).all(|((_, noise), e)| *noise == i128::from(*e)));
        }
        done += batch;
    }
}

#[test]
fn whole_ciphertexts_are_equal_to_the_core() {
    equal_to_the_core(Preset::FedbitPaper, Setup::default(), tries());
}

#[test]
fn and_with_a_host_that_pauses() {
    equal_to_the_core(Preset::FedbitPaper, busy(2), tries());
}

/// Results leave in more cycles than a transform takes, whatever P is: the next one must not be written over them.
#[test]
fn and_with_a_host_that_is_slow_to_take() {
    equal_to_the_core(Preset::FedbitPaper, Setup { stall_out: 240, ..busy(4) }, 3);
}

#[test]
fn and_with_a_delta_that_is_a_power_of_two() {
    equal_to_the_core(Preset::Compact, busy(3), tries());
}

/// At the ends of every plaintext's interval, and of q: where a rounding that is wrong by one shows.
#[test]
fn division_is_exact_where_it_is_close() {
    for preset in [Preset::FedbitPaper, Preset::Compact] {
        let of = arithmetic(preset);
        let mut rng = StdRng::seed_from_u64(7);
        let key = secret(&mut rng, of.n);
        let mut device = Driver::open(simulator(Setup::default()).device(), Link::PCIE3_X16, &of, &key).unwrap();
        let mut core = Software::new(&of, &key).unwrap();
        let half = of.delta / 2;
        let mut c0 = vec![0, 1, of.q - 1, of.q - half, of.q - half + 1, half, half - 1, (of.t - 1) * of.delta];
        for _ in 0..1000 {
            let m = rng.random::<u128>() % (of.t - 1) * of.delta;
            let up = if of.delta.is_multiple_of(2) { half - 1 } else { half };
            c0.extend([m + up, m + up + 1, m, m + of.delta - half - 1]);
        }
        // a = 0, so that c0 is what is divided.
        let zero = || of.primes.iter().map(|_| Zeroizing::new(vec![0; of.n])).collect::<Vec<_>>();
        c0.truncate(of.n);
        let jobs = [SumJob { a: zero(), c0 }];
        assert!(device.decrypt(&jobs).unwrap() == core.decrypt(&jobs).unwrap(), "{preset:?}");

        // Outside the plaintext space: refused by both, and the device goes on.
        let outside = [SumJob { a: zero(), c0: vec![of.q - half - 1] }];
        assert_eq!(core.decrypt(&outside).unwrap_err().class(), "DecryptError");
        assert_eq!(device.decrypt(&outside).unwrap_err().class(), "DecryptError");
        assert!(device.decrypt(&jobs).unwrap() == core.decrypt(&jobs).unwrap());
    }
}

/// FORMAT drops low bits like the core: c0 is rounded to whole 2^drop and takes `drop` bits fewer. FORMAT refuses a
/// value that does not fit.
#[test]
fn low_bits_are_dropped_as_the_core_does() {
    let of = arithmetic(Preset::FedbitPaper);
    let mut rng = StdRng::seed_from_u64(13);
    let key = secret(&mut rng, of.n);
    let mut device = Driver::open(simulator(busy(13)).device(), Link::PCIE3_X16, &of, &key).unwrap();
    let mut core = Software::new(&of, &key).unwrap();
    let used = 700;
    for (drop, short) in [(1, 0), (7, 0), (13, 0), (30, 0), (13, 1)] {
        let job = [MaskJob { a: polynomial(&mut rng, Kind::Random, &of), e: errors(&mut rng, Kind::Random, used) }];
        device.prepare(&job).unwrap();
        core.prepare(&job).unwrap();
        let plain = Zeroizing::new((0..used).map(|_| below(&mut rng, Kind::Random, of.t)).collect::<Vec<_>>());
        let whole = core.encrypt(std::slice::from_ref(&plain)).unwrap();
        let wire = of.bits - drop - short;
        let mut want = vec![0u8; packed_len(used, wire)];
        let mut writer = BitWriter::new(&mut want);
        for k in 0..used {
            let c0 = read_bits(&whole[0], k * of.bits as usize, of.bits);
            writer.push((c0 + (1 << (drop - 1))) >> drop & ((1 << wire) - 1), wire);
        }
        writer.finish();

        let bus = device.bus();
        ok(bus, reg::FORMAT, wire << 8 | drop);
        bus.send(Port::B, &plain.iter().flat_map(|m| m.to_le_bytes()).collect::<Vec<_>>());
        ok(bus, reg::COMMAND, Command::Encrypt as u32);
        bus.wait(100_000);
        if short > 0 {
            assert_eq!((read(bus, reg::STATUS) & reg::FAILED, code(bus)), (reg::FAILED, Code::Value));
            clear(bus);
            continue;
        }
        assert_eq!(read(bus, reg::STATUS) & 7, reg::DONE, "{:?}", code(bus));
        let packet = bus.receive().unwrap();
        assert!(!packet.aborted && packet.bytes[..] == want, "{drop} bits dropped");
    }
}

// --- rounds ----------------------------------------------------------------------------------

fn layout(len: usize) -> Layout {
    Layout::new(vec![Tensor { dtype: 1, bits: 12, alpha: 1.0, shape: vec![len as u32] }]).unwrap()
}

/// A round in which one client has a device and the other has none; each opens with a device and without.
fn a_round(preset: Preset, ahead: bool) {
    let accelerators = Arc::new(SimAccelerators::new(simulator(Setup::default()), Link::PCIE3_X16, false));
    let plain = scheme(preset);
    let with = scheme(preset).with_accelerators(accelerators.clone());
    let keys = plain.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let layout = layout(13_000);
    let mut rng = StdRng::seed_from_u64(11);
    let values: Vec<Vec<f32>> = (0..2).map(|_| (0..13_000).map(|_| rng.random_range(-1.2..1.2)).collect()).collect();
    let mut aggregator = plain.aggregator(&keys.server, None).unwrap();
    for (client, of) in [(0, &with), (1, &plain)] {
        let mut encryptor = of.encryptor(&keys.clients[client], None).unwrap();
        if ahead {
            encryptor.precompute(RoundId::new(3), &layout, &[]).unwrap();
        }
        let update = Update::new(&layout, vec![&values[client]], Rounding::Nearest).unwrap();
        let request = Request {
            round: RoundId::new(3),
            weight: Weight::new(2),
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        aggregator.add(&encryptor.encrypt(&request).unwrap()).unwrap();
    }
    let sum = aggregator.finish().unwrap();
    let opened = [&with, &plain].map(|of| {
        let expect = Expect { round: Some(RoundId::new(3)), model: Some(b"model"), memory: None, associated_data: &[] };
        let decryptor = of.decryptor(&keys.clients[0], None).unwrap();
        decryptor.decrypt(&sum, &expect, Sums::default()).unwrap().into_parts().1.0
    });
    let want: Vec<u64> = (0..13_000)
        .map(|k| {
            let one = |client: usize| {
                let mut int = [0u32];
                let update = Update::new(&layout, vec![&values[client]], Rounding::Nearest).unwrap();
                update.quantise(plain.values().levels, k, &mut int).unwrap();
                2 * u64::from(int[0])
            };
            one(0) + one(1)
        })
        .collect();
    assert!(opened[0] == want && opened[1] == want);
    let usage = accelerators.usage();
    assert_eq!((usage.fallbacks, usage.ciphertexts), (0, 2 * plain.derived().shape(&layout).unwrap().len() as u64));
    assert!(usage.link_seconds > 0.0 && usage.prepare_cycles > 0 && usage.decrypt_cycles > 0);
}

#[test]
fn a_round_with_and_without_a_device() {
    a_round(Preset::FedbitPaper, false);
    a_round(Preset::FedbitPaper, true);
}

#[test]
fn a_round_in_which_low_bits_are_dropped() {
    a_round(Preset::Compact, true);
}

// --- cycles ----------------------------------------------------------------------------------

/// Within 5 % of the formula: N/P (log2 N + 1) a ciphertext, the first one's way in and the last one's way out.
#[test]
fn cycles_are_the_formulas() {
    let of = arithmetic(Preset::FedbitPaper);
    let simulator = simulator(Setup { refresh_every: 0, ..Setup::default() });
    let lanes = u64::from(simulator.lanes());
    let mut rng = StdRng::seed_from_u64(5);
    let key = secret(&mut rng, of.n);
    let mut device = Driver::open(simulator.device(), Link::PCIE3_X16, &of, &key).unwrap();
    let (n, count) = (of.n as u64, 8);
    let masks: Vec<MaskJob> = (0..count)
        .map(|_| MaskJob { a: polynomial(&mut rng, Kind::Random, &of), e: errors(&mut rng, Kind::Random, of.n) })
        .collect();
    let plain = vec![Zeroizing::new(vec![5u128; of.n]); count];
    device.prepare(&masks).unwrap();
    let c0 = device.encrypt(&plain).unwrap();
    let sum = |k: usize| {
        let c0 = (0..of.n).map(|i| read_bits(&c0[k], i * of.bits as usize, of.bits)).collect();
        SumJob { a: masks[k].a.clone(), c0 }
    };
    device.decrypt(&(0..count).map(sum).collect::<Vec<_>>()).unwrap();
    let usage = device.usage();
    let count = count as u64;
    // A line takes five cycles to come and P to leave.
    let out = n / lanes * lanes.max(5);
    let transform = n / lanes * 13;
    // None arrives while the first stage reads what has arrived, and no line while the last stage writes.
    let steady = transform.max(n + n / lanes).max(out);
    for (name, cycles, formula) in [
        ("prepare", usage.prepare_cycles, n + (count - 1) * steady + transform + out),
        ("encrypt", usage.encrypt_cycles, count * n),
        ("decrypt", usage.decrypt_cycles, n + (count - 1) * steady + transform + out),
    ] {
        let off = cycles as f64 / formula as f64 - 1.0;
        println!("{name}: {cycles} cycles, formula {formula}, {:+.2} %", 100.0 * off);
        assert!(off.abs() < 0.05, "{name} takes {cycles} cycles, the formula says {formula}");
    }
}

// --- bad input -------------------------------------------------------------------------------

/// A device with a key, at its bus.
fn bare() -> (SimBus, Vec<u8>) {
    let of = arithmetic(Preset::FedbitPaper);
    let mut rng = StdRng::seed_from_u64(9);
    let key = secret(&mut rng, of.n);
    let mut bus = simulator(Setup::default()).device();
    settle(&mut bus);
    ok(&mut bus, reg::COMMAND, Command::Key as u32);
    for part in key.chunks(16) {
        let word = part.iter().rev().fold(0, |word, c| word << 2 | u32::from(c & 3));
        ok(&mut bus, reg::KEY, word);
    }
    bus.wait(100_000);
    settle(&mut bus);
    (bus, key)
}

fn ok(bus: &mut SimBus, address: u8, value: u32) {
    assert_eq!(bus.write(address, value), Some(Ok(())), "write of {value:#x} to {address:#x}");
}

fn read(bus: &mut SimBus, address: u8) -> u32 {
    bus.read(address).unwrap().unwrap()
}

fn code(bus: &mut SimBus) -> Code {
    Code::from(read(bus, reg::ERROR))
}

fn settle(bus: &mut SimBus) {
    for _ in 0..64 {
        if read(bus, reg::STATUS) & reg::BUSY == 0 {
            return;
        }
        bus.idle(256);
    }
    panic!("the device stays busy");
}

fn clear(bus: &mut SimBus) {
    bus.drop_packets();
    ok(bus, reg::COMMAND, Command::Clear as u32);
    settle(bus);
    bus.drop_packets();
    assert_eq!(code(bus), Code::None);
}

#[test]
fn what_is_wrong_ends_in_a_code_and_not_in_a_wait() {
    let (mut bus, _) = bare();
    let n = 4096;
    let a = |beats: usize| [1u8, 0, 0, 0, 0, 0, 0, 0].repeat(2 * beats);
    let zeros = |beats: usize| vec![0u8; 16 * beats];
    type Feed = Vec<(Port, Vec<u8>)>;
    let cases: Vec<(Code, Command, Feed)> = vec![
        // One beat short, one too many, on each stream.
        (Code::Length, Command::Prepare, vec![(Port::A, a(n - 1)), (Port::A, a(1)), (Port::B, zeros(n / 16))]),
        (Code::Length, Command::Prepare, vec![(Port::A, a(n + 1)), (Port::B, zeros(n / 16))]),
        (Code::Length, Command::Prepare, vec![(Port::A, a(n)), (Port::B, zeros(n / 16 - 1))]),
        (Code::Length, Command::Prepare, vec![(Port::A, a(n)), (Port::B, zeros(n / 16 + 1))]),
        (Code::Length, Command::Decrypt, vec![(Port::A, a(n)), (Port::B, zeros(n * 106 / 128 - 1))]),
        (Code::Length, Command::Decrypt, vec![(Port::A, a(n)), (Port::B, zeros(n * 106 / 128 + 1))]),
        // An invalid residue, in either limb and above them.
        (Code::Residue, Command::Prepare, vec![(Port::A, vec![0xff; 16 * n])]),
        (Code::Residue, Command::Prepare, vec![(Port::A, [[0u8; 8], [0xff; 8]].concat().repeat(n))]),
        (Code::Residue, Command::Decrypt, vec![(Port::A, [0, 0, 0, 0, 0, 0, 0, 1].repeat(2 * n))]),
        // A ciphertext that is not below q.
        (Code::Value, Command::Decrypt, vec![(Port::A, a(n)), (Port::B, vec![0xff; n * 106 / 8])]),
        // Nothing at all.
        (Code::Timeout, Command::Prepare, vec![]),
        (Code::Timeout, Command::Decrypt, vec![(Port::A, a(n))]),
    ];
    ok(&mut bus, reg::TIMEOUT, 20_000);
    for (want, command, feed) in cases {
        ok(&mut bus, reg::COUNT, 1);
        for (port, beats) in &feed {
            bus.send(*port, beats);
        }
        ok(&mut bus, reg::COMMAND, command as u32);
        bus.wait(100_000);
        let status = read(&mut bus, reg::STATUS);
        assert_eq!((status & reg::FAILED != 0, code(&mut bus)), (true, want), "{command:?}, {status:#x}");
        assert_ne!(status & reg::KEY_THERE, 0);
        // A reader that waits for a packet's end gets one, which says that the packet is invalid.
        bus.idle(100);
        while let Some(packet) = bus.receive() {
            assert!(packet.aborted);
        }
        clear(&mut bus);
    }

    // The first result is not taken, so that the second has no slot.
    bus.hold(true, false);
    ok(&mut bus, reg::COUNT, 2);
    (0..2).for_each(|_| bus.send(Port::A, &a(n)));
    (0..2).for_each(|_| bus.send(Port::B, &zeros(n / 16)));
    ok(&mut bus, reg::COMMAND, Command::Prepare as u32);
    bus.wait(200_000);
    assert_eq!(code(&mut bus), Code::Timeout);
    bus.hold(false, false);
    clear(&mut bus);
    ok(&mut bus, reg::COUNT, 1);

    // Too large a plaintext. Then the masks are gone.
    let prepare = |bus: &mut SimBus| {
        bus.send(Port::A, &a(n));
        bus.send(Port::B, &zeros(n / 16));
        ok(bus, reg::COMMAND, Command::Prepare as u32);
        bus.wait(100_000);
        assert_eq!(read(bus, reg::STATUS) & 7, reg::DONE);
    };
    prepare(&mut bus);
    bus.send(Port::B, &[[0xffu8; 4].to_vec(), vec![0; 12]].concat().repeat(n));
    ok(&mut bus, reg::COMMAND, Command::Encrypt as u32);
    bus.wait(100_000);
    assert_eq!(code(&mut bus), Code::Value);
    clear(&mut bus);
    assert_eq!(bus.write(reg::COMMAND, Command::Encrypt as u32), Some(Err(fedcipher_accel::bus::Slverr)));
    assert_eq!(code(&mut bus), Code::NoMask);
    clear(&mut bus);
    // A mask serves once.
    prepare(&mut bus);
    bus.send(Port::B, &zeros(n));
    ok(&mut bus, reg::COMMAND, Command::Encrypt as u32);
    bus.wait(100_000);
    assert_eq!(read(&mut bus, reg::STATUS) & 7, reg::DONE);
    assert_eq!(bus.write(reg::COMMAND, Command::Encrypt as u32), Some(Err(fedcipher_accel::bus::Slverr)));
    assert_eq!(code(&mut bus), Code::NoMask);
}

/// A beat on offer when a command is aborted stays on offer (AXI4-Stream), however late it is taken. It then belongs
/// neither to the packet nor to the mask of the next command. The packet that it began is ended before the first beat
/// of the next command.
#[test]
fn what_is_taken_late_is_not_of_the_next_command() {
    let (mut bus, key) = bare();
    let of = arithmetic(Preset::FedbitPaper);
    let n = of.n;
    let a = || of.primes.iter().map(|_| Zeroizing::new(vec![1; n])).collect::<Vec<_>>();
    let one = [1u8, 0, 0, 0, 0, 0, 0, 0].repeat(2 * n);
    let mut core = Software::new(&of, &key).unwrap();
    let begin = |bus: &mut SimBus, command: Command, count: usize, used: usize| {
        ok(bus, reg::COUNT, count as u32);
        ok(bus, reg::USED, used as u32);
        ok(bus, reg::USED_LAST, used as u32);
        ok(bus, reg::COMMAND, command as u32);
    };
    let feed = |bus: &mut SimBus, used: usize, e: u8| {
        bus.send(Port::A, &one);
        bus.send(Port::B, &[vec![e; used], vec![0; used.next_multiple_of(16) - used]].concat());
    };
    let running = |bus: &mut SimBus| {
        bus.idle(50);
        let status = read(bus, reg::STATUS);
        assert_eq!((status & 7, status >> 16), (reg::BUSY, 0), "what was taken late has been counted: {status:#x}");
    };
    let ended = |bus: &mut SimBus| {
        bus.wait(200_000);
        assert_eq!((read(bus, reg::STATUS) & 7, code(bus)), (reg::DONE, Code::None));
    };
    let broken = |bus: &mut SimBus, want: Code| {
        bus.wait(200_000);
        assert_eq!((read(bus, reg::STATUS) & 7, code(bus)), (reg::FAILED, want));
        clear(bus);
    };
    let (zero, wrong) = (vec![0u8; 16], [vec![0xffu8; 4], vec![0; 12]].concat());
    let mut equal = |bus: &mut SimBus, used: usize| {
        bus.send(Port::B, &zero.repeat(used));
        ended(bus);
        core.prepare(&[MaskJob { a: a(), e: Zeroizing::new(vec![0; used]) }]).unwrap();
        let want = core.encrypt(&[Zeroizing::new(vec![0; used])]).unwrap();
        let packet = bus.receive().unwrap();
        assert!(!packet.aborted && packet.bytes[..] == want[0][..], "another mask, or more than the packet");
        assert!(bus.receive().is_none());
    };

    // A mask is on offer to the memory when the next polynomial turns out wrong.
    bus.hold(true, false);
    begin(&mut bus, Command::Prepare, 2, 1);
    feed(&mut bus, 1, 1);
    bus.idle(60_000);
    bus.send(Port::A, &vec![0xff; 16 * n]);
    broken(&mut bus, Code::Residue);
    begin(&mut bus, Command::Prepare, 1, 1);
    bus.hold(false, false);
    running(&mut bus);
    feed(&mut bus, 1, 0);
    ended(&mut bus);
    begin(&mut bus, Command::Encrypt, 1, 1);
    equal(&mut bus, 1);

    // Masks wait for the memory when the host breaks off: none of them turns to the host.
    bus.hold(true, false);
    begin(&mut bus, Command::Prepare, 1, 16);
    feed(&mut bus, 16, 0);
    bus.idle(60_000);
    ok(&mut bus, reg::COMMAND, Command::Clear as u32);
    settle(&mut bus);
    bus.hold(false, false);
    bus.idle(50);
    assert!(bus.receive().is_none(), "a mask left by the host's stream");

    // A ciphertext of one beat is on offer when the next one's plaintext is invalid.
    begin(&mut bus, Command::Prepare, 2, 1);
    (0..2).for_each(|_| feed(&mut bus, 1, 0));
    ended(&mut bus);
    bus.hold(false, true);
    begin(&mut bus, Command::Encrypt, 2, 1);
    bus.send(Port::B, &zero);
    bus.idle(100);
    bus.send(Port::B, &wrong);
    broken(&mut bus, Code::Value);
    begin(&mut bus, Command::Prepare, 1, 16);
    bus.hold(false, false);
    running(&mut bus);
    assert!(!bus.receive().unwrap().aborted);
    feed(&mut bus, 16, 0);
    ended(&mut bus);

    // The first beat of a ciphertext is on offer when its last plaintext is invalid. It is taken during the next
    // command.
    bus.hold(false, true);
    begin(&mut bus, Command::Encrypt, 1, 16);
    bus.send(Port::B, &[zero.repeat(15), wrong].concat());
    broken(&mut bus, Code::Value);
    begin(&mut bus, Command::Prepare, 1, 16);
    feed(&mut bus, 16, 0);
    ended(&mut bus);
    begin(&mut bus, Command::Encrypt, 1, 16);
    bus.hold(false, false);
    bus.idle(50);
    let late = bus.receive().expect("a packet that was begun is ended");
    assert_eq!((late.aborted, late.bytes.len()), (true, 16));
    equal(&mut bus, 16);
}

#[test]
fn registers_refuse_what_they_are_not_for() {
    let (mut bus, key) = bare();
    let refused = |bus: &mut SimBus, address: u8, value: u32, want: Code| {
        assert!(matches!(bus.write(address, value), Some(Err(_))), "{address:#x} took {value:#x}");
        assert_eq!(code(bus), want, "{address:#x}, {value:#x}");
        clear(bus);
    };
    for value in [0, 7, 8, 0x8000_0001, u32::MAX] {
        refused(&mut bus, reg::COMMAND, value, Code::Command);
    }
    for address in [reg::ID, reg::CONFIG, reg::STATUS, reg::ERROR, reg::CYCLES, 0x40, 0x7c, 0x84, 0xfc] {
        refused(&mut bus, address, 1, Code::Address);
    }
    refused(&mut bus, reg::KEY, 0x1111_1111, Code::KeyState);
    for (address, value, back) in [
        (reg::COUNT, 0, 1),
        (reg::USED, 0, 4096),
        (reg::USED, 4097, 4096),
        (reg::USED_LAST, 0, 4096),
        (reg::USED_LAST, 0x1fff, 4096),
        (reg::FORMAT, 106 << 8 | 31, 106 << 8),
        (reg::FORMAT, 0, 106 << 8),
        (reg::FORMAT, 129 << 8, 106 << 8),
        (reg::MODE, 1, 1 << 8),
        (reg::MODE, 105 << 8 | 1, 1 << 8),
    ] {
        ok(&mut bus, address, value);
        refused(&mut bus, reg::COMMAND, Command::Prepare as u32, Code::Argument);
        ok(&mut bus, address, back);
    }

    // No read gives a bit of the key: its register answers with an error and zero, and so does what is not there.
    for address in (0..=255u8).step_by(4) {
        let known = [
            reg::ID,
            reg::CONFIG,
            reg::STATUS,
            reg::ERROR,
            reg::COUNT,
            reg::USED,
            reg::USED_LAST,
            reg::MODE,
            reg::FORMAT,
            reg::TIMEOUT,
            reg::CYCLES,
            reg::CYCLES_HIGH,
            reg::STARVED,
        ];
        let answer = bus.read(address).unwrap();
        assert_eq!(answer.is_ok(), known.contains(&address), "{address:#x}");
    }
    clear(&mut bus);
    assert!(matches!(bus.read(reg::KEY), Some(Err(_))));
    assert_eq!(code(&mut bus), Code::KeyRead);
    clear(&mut bus);

    // A command during an active one does not affect it.
    ok(&mut bus, reg::COMMAND, Command::Prepare as u32);
    for (address, value) in [(reg::COMMAND, Command::Decrypt as u32), (reg::COUNT, 2), (reg::COMMAND, 1)] {
        assert!(matches!(bus.write(address, value), Some(Err(_))));
        assert_eq!(code(&mut bus), Code::Busy);
    }
    bus.send(Port::A, &vec![0u8; 16 * 4096]);
    bus.send(Port::B, &vec![0u8; 4096]);
    bus.wait(100_000);
    assert_eq!(read(&mut bus, reg::STATUS) & 7, reg::DONE);
    assert_eq!(key.len(), 4096);
}

#[test]
fn keys_are_taken_whole_or_not_at_all() {
    let (mut bus, _) = bare();
    assert_ne!(read(&mut bus, reg::STATUS) & reg::KEY_THERE, 0);
    // An invalid coefficient; the old key is then gone too.
    ok(&mut bus, reg::COMMAND, Command::Key as u32);
    ok(&mut bus, reg::KEY, 0x0000_0002);
    bus.idle(100);
    assert_eq!((read(&mut bus, reg::STATUS) & reg::KEY_THERE, code(&mut bus)), (0, Code::KeyValue));
    clear(&mut bus);
    assert!(matches!(bus.write(reg::COMMAND, Command::Prepare as u32), Some(Err(_))));
    assert_eq!(code(&mut bus), Code::NoKey);
    clear(&mut bus);
    // Half a key.
    ok(&mut bus, reg::COMMAND, Command::Key as u32);
    (0..128).for_each(|_| ok(&mut bus, reg::KEY, 0x5555_5555));
    clear(&mut bus);
    assert_eq!(read(&mut bus, reg::STATUS) & reg::KEY_THERE, 0);
    assert_eq!(bus.left(), 0, "half a key stays in a memory");
}

/// `SimBus::left` of all memories, and of the key's two.
const MEMORIES: u32 = 0x3ff;
const KEYS: u32 = 1 << 4 | 1 << 9;

/// Memories are overwritten twice. The second time would hide a first that writes what comes out of the butterflies, and
/// those may still hold a secret: so nothing must be left between the two. `formal/wiped.sv` has every line and both times.
#[test]
fn wiping_and_reset_leave_nothing() {
    let lines = 4096 / u64::from(simulator(Setup::default()).lanes());
    for how in ["wipe", "reset"] {
        let (mut bus, _) = bare();
        assert_eq!(bus.left(), KEYS, "the key stays elsewhere than in its memory");
        // In the middle of a decryption.
        bus.send(Port::A, &[1u8, 0, 0, 0, 0, 0, 0, 0].repeat(2 * 4096));
        bus.send(Port::B, &vec![0u8; 4096 * 106 / 8]);
        ok(&mut bus, reg::COMMAND, Command::Decrypt as u32);
        bus.idle(11_500);
        assert_eq!(bus.left(), MEMORIES, "a memory with nothing in it has nothing to lose");
        match how {
            "wipe" => ok(&mut bus, reg::COMMAND, Command::Wipe as u32),
            _ => bus.reset(3),
        }
        bus.idle(lines + 8);
        assert_ne!(read(&mut bus, reg::STATUS) & reg::WIPING, 0, "{how} has not gone over all lines twice");
        assert_eq!(bus.left(), 0, "{how} leaves bits in these memories the first time");
        settle(&mut bus);
        assert_eq!(bus.left(), 0, "{how} leaves bits in these memories");
        let status = read(&mut bus, reg::STATUS);
        assert_eq!(status & (reg::KEY_THERE | reg::FAILED | reg::BUSY), 0, "{how}: {status:#x}");
        bus.drop_packets();
        assert!(matches!(bus.write(reg::COMMAND, Command::Decrypt as u32), Some(Err(_))));
        assert_eq!(code(&mut bus), Code::NoKey);
    }
}

/// A scheme whose device breaks off in the middle: the caller gets a typed error, or the core's work, as configured.
#[test]
fn a_device_that_fails_is_an_error_or_the_cores_work() {
    let of = arithmetic(Preset::FedbitPaper);
    let mut rng = StdRng::seed_from_u64(21);
    let key = secret(&mut rng, of.n);
    let mut device = Driver::open(simulator(Setup::default()).device(), Link::PCIE3_X16, &of, &key).unwrap();
    let job = |rng: &mut StdRng| MaskJob { a: polynomial(rng, Kind::Random, &of), e: errors(rng, Kind::Random, 100) };
    device.prepare(&[job(&mut rng)]).unwrap();
    device.bus().reset(2);
    device.bus().idle(3000);
    let error = device.encrypt(&[Zeroizing::new(vec![1; 100])]).unwrap_err();
    assert_eq!(error.class(), "AcceleratorError");
    // It has lost its key; the driver says so rather than use another.
    device.discard().unwrap();
    assert_eq!(device.prepare(&[job(&mut rng)]).unwrap_err().class(), "AcceleratorError");

    // A ring that does not fit the device is refused when the device is opened.
    let fast = arithmetic(Preset::Fast);
    let unfit = Driver::open(simulator(Setup::default()).device(), Link::PCIE3_X16, &fast, &key[..2048]).err();
    assert!(matches!(unfit, Some(Error::Unfit { .. })));
    for fall_back in [false, true] {
        let accelerators = Arc::new(SimAccelerators::new(simulator(Setup::default()), Link::PCIE3_X16, fall_back));
        let with = scheme(Preset::Fast).with_accelerators(accelerators);
        let keys = with.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
        let made = with.encryptor(&keys.clients[0], None);
        assert_eq!(made.is_ok(), fall_back, "preset fast has no device");
    }
}
