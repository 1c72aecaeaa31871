//! Time and memory of `pasta-bfv`'s places, each in a process of its own:
//!
//! `cargo run --release --features hhe --example transcipher -- PLACE FOLDER [VALUES [CLIENTS [VARIANT [BITS]]]]` with
//! PLACE `authority` first, which makes the folder's keys, then `client`, `server` or `reader`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement that cannot set up has nothing to say")]

use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::keys::{ClientKey, ServerKey};
use fedcipher_core::pasta::field::PRIMES;
use fedcipher_core::pasta::scheme::{PastaBfv, PastaParams};
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use std::fs::{read, write};
use std::path::Path;
use std::time::Instant;

/// The most memory that this process has had, where Linux says so.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (place, folder) = (arguments.next().unwrap(), arguments.next().unwrap());
    let mut number = |default: u32| arguments.next().map_or(default, |text| text.parse().unwrap());
    let (values, clients, variant, bits) = (number(8000), number(1), number(4), number(17));
    let folder = Path::new(&folder);
    let client = |id: u32| folder.join(format!("client-{id}"));
    let prime = if bits == 17 { PRIMES[0] } else { PRIMES[1] };

    let began = Instant::now();
    let bounds = Bounds::new(u64::from(clients), Weight::ONE, Some(1)).unwrap();
    let scheme = PastaBfv::new(PastaParams { bounds, variant, prime }).unwrap();
    let layout = Layout::new(vec![Tensor { dtype: 1, bits: 12, alpha: 0.5, shape: vec![values] }]).unwrap();
    let floats: Vec<f32> = (0..values).map(|i| (i % 1000) as f32 / 1000.0 - 0.5).collect();
    let encrypted = |id: u32| {
        let key = ClientKey::from_bytes(&read(client(id)).unwrap()).unwrap();
        let update = Update::new(&layout, vec![floats.as_slice()], Rounding::Nearest).unwrap();
        let request = Request {
            round: RoundId::new(1),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        scheme.encryptor(&key, None).unwrap().encrypt(&request).unwrap()
    };
    let seconds = |since: Instant| since.elapsed().as_secs_f64();
    match place.as_str() {
        "authority" => {
            let keys = scheme.keygen(&ClientId::list(0..clients), Epoch::new(1)).unwrap();
            write(folder.join("server"), keys.server.to_bytes()).unwrap();
            keys.clients.iter().for_each(|key| write(client(key.client.get()), key.to_bytes()).unwrap());
            println!("authority: {:.3} s, {}", seconds(began), peak());
        }
        "client" => {
            let frame = encrypted(0);
            println!("client, up to its first frame of {} bytes: {:.4} s, {}", frame.len(), seconds(began), peak());
        }
        "server" => {
            let frames: Vec<Vec<u8>> = (0..clients).map(encrypted).collect();
            let key = ServerKey::from_bytes(&read(folder.join("server")).unwrap()).unwrap();
            for round in 0..3 {
                let began = Instant::now();
                let mut aggregator = scheme.aggregator(&key, Some(RoundId::new(1))).unwrap();
                for frame in &frames {
                    aggregator.add(frame).unwrap();
                }
                let added = seconds(began);
                let finishing = Instant::now();
                let aggregate = aggregator.finish().unwrap();
                println!(
                    "server, {clients} x {values} values, time {round}: keys and frames {added:.3} s, finish {:.3} s, {}",
                    seconds(finishing),
                    peak()
                );
                write(folder.join("aggregate"), aggregate).unwrap();
                if values > 100_000 {
                    break;
                }
            }
        }
        "reader" => {
            let key = ClientKey::from_bytes(&read(client(0)).unwrap()).unwrap();
            let decryptor = scheme.decryptor(&key, None).unwrap();
            let frame = read(folder.join("aggregate")).unwrap();
            let (_, sums) = decryptor.decrypt(&frame, &Expect::default(), Sums::default()).unwrap().into_parts();
            println!("reader, {} sums: {:.4} s, {}", sums.0.len(), seconds(began), peak());
        }
        other => panic!("{other} is no place"),
    }
}
