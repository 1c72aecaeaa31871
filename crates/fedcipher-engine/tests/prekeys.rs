//! Prekeys behind an engine: rounds of a committee whose members and clients are devices, and how prekeys end.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::codec::{Layout, Tensor};
use fedcipher_core::keys::KeySet;
use fedcipher_core::registry;
use fedcipher_core::scheme::{Expect, Scheme};
use fedcipher_core::wire::hex;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use fedcipher_engine::client::{EncryptRequest, EngineClient, Patience, Values};
use fedcipher_engine::connection_limiter::ConnectionLimiter;
use fedcipher_engine::engine_service::{EngineService, NoSource};
use fedcipher_engine::keyring::{Devices, Keyring, expire};
use fedcipher_engine::listen::{self, Grant, Guard};
use fedcipher_engine::memory_budget::MemoryBudget;
use fedcipher_engine::metrics::Metrics;
use fedcipher_engine::proto::engine_server::{Engine, EngineServer};
use fedcipher_engine::proto::{ForgetRequest, PrekeyRequest, PrekeysRequest};
use fedcipher_engine::revoked_hosts::RevokedHosts;
use fedcipher_engine::{Result, affinity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Router;
use tonic::{Code, Request, Status};

/// As `fedcipher spec` has it. Four parties, of whom three are the committee.
const SPEC: &str = r#"{"scheme": "oneshot", "params": {"clients": 4, "max_weight": 1, "min_contributions": 3,
    "preset": "fast", "members": 3, "threshold": 3, "corrupt_clients": 1, "corrupt_members": 1, "pack": 1,
    "reveal": "clients", "prekey_rounds": 1, "prekey_hours": 24}, "codec": {"bits": 12, "clip": "auto", "margin": 2.0,
    "floor": null, "start": 1.0, "rounding": "nearest", "target": "weights", "top": null}}"#;
const DEVICES: [&str; 4] = ["a", "b", "c", "d"];
const MEMBERS: usize = 3;
const HOUR: u64 = 3600;
const RECORD: usize = 128;

/// Devices with keys of the epochs 1 to `epochs`.
struct Held {
    state: TempDir,
    scheme: Arc<dyn Scheme>,
    keys: Vec<KeySet>,
    keyring: Arc<Keyring>,
}

fn held(epochs: u64) -> Held {
    let state = tempfile::tempdir().unwrap();
    let scheme = registry::make(SPEC).unwrap();
    let keyring = Arc::new(Keyring::new(state.path(), &DEVICES.map(String::from)));
    let keys: Vec<KeySet> =
        (1..=epochs).map(|epoch| scheme.keygen(&ClientId::list([0, 1, 2, 3]), Epoch::new(epoch)).unwrap()).collect();
    for key in keys.iter().flat_map(|keys| &keys.clients) {
        keyring.insert(DEVICES[key.client.get() as usize], SPEC, key).unwrap();
    }
    Held { state, scheme, keys, keyring }
}

impl Held {
    fn service(&self) -> EngineService {
        EngineService {
            keyring: Arc::clone(&self.keyring),
            source: Arc::new(NoSource),
            hosts: Arc::new(RevokedHosts::default()),
            metrics: Metrics::new().unwrap(),
            stall: Duration::from_secs(30),
            ahead_elements: 1 << 20,
            unfinished: MemoryBudget::new(64),
        }
    }

    fn file(&self, epoch: u64, device: usize) -> PathBuf {
        let key = &self.keys[epoch as usize - 1].clients[device];
        self.state.path().join(format!("{}-{device}.prekeys", hex(&key.tag.key_id)))
    }

    /// How many secrets of prekeys a device has on disk. The files of an epoch that has ended are gone.
    fn secrets(&self, epoch: u64, device: usize) -> usize {
        let bytes = std::fs::read(self.file(epoch, device)).unwrap_or_default();
        bytes.chunks(RECORD).filter(|record| record[32..64] != [0; 32]).count()
    }

    fn prekey(&self, epoch: u64, device: usize) {
        let party = self.keyring.all_device_keys(DEVICES[device]).swap_remove(epoch as usize - 1);
        party.member().unwrap().prekey().unwrap();
    }

    /// Makes a device's prekeys so much older.
    fn age(&self, epoch: u64, device: usize, hours: u64) {
        let mut bytes = std::fs::read(self.file(epoch, device)).unwrap();
        for record in bytes.chunks_mut(RECORD).filter(|record| record[32..64] != [0; 32]) {
            let made = u64::from_le_bytes(record[8..16].try_into().unwrap()) - hours * HOUR;
            record[8..16].copy_from_slice(&made.to_le_bytes());
            let sum = checksum(&record[..RECORD - 8]);
            record[RECORD - 8..].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(self.file(epoch, device), bytes).unwrap();
    }
}

/// CRC-64/NVME.
fn checksum(bytes: &[u8]) -> u64 {
    let bit = |crc: u64| (crc >> 1) ^ (0x9a6c_9329_ac4b_c9b5 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| bit(crc)))
}

/// A service on a Unix socket of `folder`, while the runtime lives.
fn listening(
    folder: &Path,
    router: impl FnOnce(tonic::transport::Server<Limits>) -> Router<Limits>,
) -> (Runtime, String) {
    let runtime = affinity::event_loop(true).unwrap();
    let path = folder.join("engine.sock");
    let entered = runtime.enter();
    let listener = listen::unix(&path, None).unwrap();
    let incoming = listen::local(listener, ConnectionLimiter::new(Box::new(|_, _| ())));
    let router = router(listen::server(Duration::from_secs(30)));
    runtime.spawn(async move { router.serve_with_incoming(incoming).await });
    drop(entered);
    (runtime, format!("unix:{}", path.display()))
}

type Limits = tower::layer::util::Stack<fedcipher_engine::call_limits::CallLimits, tower::layer::util::Identity>;

fn client(target: &str, device: &str) -> EngineClient {
    EngineClient::new(target, device, None, Patience::default()).unwrap()
}

/// An engine, and a connection for each device.
struct Running {
    held: Held,
    parties: Vec<EngineClient>,
    layout: Layout,
    _runtime: Runtime,
}

fn running() -> Running {
    let held = held(1);
    let service = held.service();
    let guard = Guard { revoked: Arc::clone(&service.hosts), ..Guard::default() };
    let engine = InterceptedService::new(EngineServer::new(service), guard);
    let (runtime, target) = listening(held.state.path(), |mut server| server.add_service(engine));
    let parties = DEVICES.iter().map(|device| client(&target, device)).collect();
    let tensor = Tensor { dtype: 1, bits: 12, alpha: 1.0, shape: vec![100] };
    Running { held, parties, layout: Layout::new(vec![tensor]).unwrap(), _runtime: runtime }
}

impl Running {
    fn prekeys(&mut self) -> Vec<Vec<u8>> {
        self.parties[..MEMBERS].iter_mut().map(|party| party.prekey(Epoch::new(0)).unwrap()).collect()
    }

    fn encrypt(&mut self, party: usize, round: u64) -> Result<Vec<u8>> {
        let values = vec![party as f32 / 4.0; 100];
        let (layout, mut frame) = (&self.layout, Vec::new());
        let (round_plan, model, memory, associated_data) = (&[], b"model", &[], &[]);
        let what = EncryptRequest {
            epoch: Epoch::new(0),
            round: RoundId::new(round),
            weight: Weight::ONE,
            layout,
            round_plan,
            model,
            memory,
            associated_data,
            stochastic: false,
        };
        self.parties[party].encrypt(&what, &[&values], &mut frame)?;
        Ok(frame)
    }

    /// The requests to the members for a round of all devices, with `prekeys`.
    fn requests(&mut self, round: u64, prekeys: &[Vec<u8>]) -> Box<dyn fedcipher_core::scheme::Aggregator> {
        let mut aggregator = self.held.scheme.aggregator(&self.held.keys[0].server, Some(RoundId::new(round))).unwrap();
        let given: Vec<&[u8]> = prekeys.iter().map(Vec::as_slice).collect();
        assert!(aggregator.require_committee().unwrap().take_prekeys(&given).unwrap().is_empty());
        for party in 0..DEVICES.len() {
            assert_eq!(self.parties[party].take_prekeys(Epoch::new(0), prekeys).unwrap(), Vec::<String>::new());
            aggregator.add(&self.encrypt(party, round).unwrap()).unwrap();
        }
        aggregator
    }

    /// A round of all clients: its mean, at the device that is not a member.
    fn round(&mut self, round: u64, prekeys: &[Vec<u8>]) -> f32 {
        let mut aggregator = self.requests(round, prekeys);
        for (member, request) in aggregator.requests().unwrap() {
            let answer = self.parties[member.get() as usize].answer(&request).unwrap();
            aggregator.require_committee().unwrap().answer(&answer).unwrap();
        }
        let aggregate = aggregator.finish().unwrap();
        let opened = self.parties[3].decrypt(&aggregate, &Expect::default(), false).unwrap();
        let Values::Means(means) = opened.values else { unreachable!("means were asked for") };
        assert!(means.iter().all(|mean| (mean - means[0]).abs() < 1e-6));
        means[0]
    }
}

#[test]
fn devices_of_an_engine_run_rounds_with_the_prekeys_of_its_members() {
    let mut all = running();
    let refused = all.encrypt(0, 1).unwrap_err();
    assert!(refused.class() == "PrekeyError" && refused.to_string().contains("newest prekeys"), "{refused}");
    let (few, other) = (all.prekeys().split_off(1), held(1));
    let other = other.keyring.all_device_keys("a").swap_remove(0).member().unwrap().prekey().unwrap();
    let frames: Vec<Vec<u8>> = few.into_iter().chain(vec![other; 62]).collect();
    let refused = all.parties[0].take_prekeys(Epoch::new(0), &frames).unwrap_err();
    assert!(refused.class() == "PrekeyError" && refused.to_string().contains("2 members"), "{refused}");
    let mut before = Vec::new();
    for round in 2..5 {
        let prekeys = all.prekeys();
        // Each time under another signature.
        let key = |frame: &Vec<u8>| fedcipher_core::wire::parse(frame).unwrap().payload[..8 + 1216].to_vec();
        let same = all.prekeys().iter().map(key).eq(prekeys.iter().map(key));
        assert!(same, "it was not used yet");
        assert!(prekeys.iter().all(|prekey| !before.contains(prekey)), "a prekey of the round before");
        assert!((all.round(round, &prekeys) - 0.375).abs() < 1e-2);
        before = prekeys;
    }
    let refused = all.parties[3].prekey(Epoch::new(0)).unwrap_err();
    assert!(refused.class() == "AccessError" && refused.to_string().contains("not a member"), "{refused}");
    let refused = all.parties[3].forget(Epoch::new(0)).unwrap_err();
    assert!(refused.class() == "AccessError" && refused.to_string().contains("not a member"), "{refused}");
    assert_eq!(all.parties[0].prekey(Epoch::new(2)).unwrap_err().class(), "WrongEpochError");
}

#[test]
fn a_host_that_gives_its_engine_old_or_foreign_prekeys_changes_nothing() {
    let mut all = running();
    let old = all.prekeys();
    all.round(1, &old);
    let new = all.prekeys();
    for party in &mut all.parties {
        assert!(party.take_prekeys(Epoch::new(0), &new).unwrap().is_empty());
    }
    let refused = all.parties[0].take_prekeys(Epoch::new(0), &old).unwrap_err().to_string();
    assert_eq!(refused.matches("it is old").count(), MEMBERS, "{refused}");
    let foreign = held(1);
    let other = foreign.keyring.all_device_keys("a").swap_remove(0).member().unwrap().prekey().unwrap();
    let mut damaged = new[0].clone();
    *damaged.last_mut().unwrap() ^= 1;
    let bad = [other, damaged, Vec::new()];
    let refused = all.parties[0].take_prekeys(Epoch::new(0), &[&new[..], &bad[..]].concat()).unwrap();
    assert_eq!(refused.len(), 3, "{refused:?}");
    // Sealed to the new ones all the same: the server takes it, and members open it.
    let mut aggregator = all.held.scheme.aggregator(&all.held.keys[0].server, Some(RoundId::new(2))).unwrap();
    let given: Vec<&[u8]> = new.iter().map(Vec::as_slice).collect();
    aggregator.require_committee().unwrap().take_prekeys(&given).unwrap();
    for party in 0..DEVICES.len() {
        aggregator.add(&all.encrypt(party, 2).unwrap()).unwrap();
    }
    for (member, request) in aggregator.requests().unwrap() {
        aggregator
            .require_committee()
            .unwrap()
            .answer(&all.parties[member.get() as usize].answer(&request).unwrap())
            .unwrap();
    }
    aggregator.finish().unwrap();
}

#[test]
fn more_or_larger_prekeys_than_a_committee_has_are_refused_before_any_is_kept() {
    let mut all = running();
    let prekeys = all.prekeys();
    let many: Vec<Vec<u8>> = prekeys.iter().cycle().take(65).cloned().collect();
    let long: Vec<Vec<u8>> = prekeys.iter().cloned().chain([vec![0; 8193]]).collect();
    for (frames, said) in [(&many, "65 prekeys"), (&long, "8193 bytes")] {
        let refused = all.parties[0].take_prekeys(Epoch::new(0), frames).unwrap_err();
        assert!(refused.class() == "EngineError" && refused.to_string().contains(said), "{refused}");
    }
    assert_eq!(all.encrypt(0, 1).unwrap_err().class(), "PrekeyError");
    assert!(all.parties[0].take_prekeys(Epoch::new(0), &many[..64]).unwrap().is_empty());
    all.encrypt(0, 1).unwrap();
}

#[test]
fn a_device_that_has_forgotten_opens_nothing_that_was_sealed_before() {
    let mut all = running();
    let prekeys = all.prekeys();
    let mut aggregator = all.requests(1, &prekeys);
    let requests = aggregator.requests().unwrap();
    assert_eq!((0..MEMBERS).map(|member| all.held.secrets(1, member)).sum::<usize>(), MEMBERS);
    for party in &mut all.parties[..MEMBERS] {
        party.forget(Epoch::new(0)).unwrap();
        party.forget(Epoch::new(1)).unwrap();
    }
    assert_eq!((0..MEMBERS).map(|member| all.held.secrets(1, member)).sum::<usize>(), 0);
    let refused = all.parties[0].answer(&requests[0].1).unwrap_err();
    assert!(refused.class() == "PrekeyError" && refused.to_string().contains("begin a new round"), "{refused}");
    let next = all.prekeys();
    assert!((all.round(2, &next) - 0.375).abs() < 1e-2);
}

#[test]
fn a_device_forgets_one_epoch_or_all_of_them() {
    affinity::event_loop(true).unwrap().block_on(async {
        let held = held(3);
        let service = held.service();
        let secrets = || [1, 2, 3].map(|epoch| held.secrets(epoch, 0));
        (1..=3).for_each(|epoch| held.prekey(epoch, 0));
        assert_eq!(secrets(), [1, 1, 1]);
        let forget = |epoch| service.forget(of("a", ForgetRequest { device: "a".into(), epoch }));
        forget(2).await.unwrap();
        assert_eq!(secrets(), [1, 0, 1]);
        forget(0).await.unwrap();
        assert_eq!(secrets(), [0, 0, 0]);
        assert!(forget(4).await.is_err());
    });
}

/// A call of a host that may use one device.
fn of<T>(device: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let devices = Devices::Named([device.to_owned()].into());
    request.extensions_mut().insert(Grant { host: Some("trainer".into()), owner: "trainer".into(), devices });
    request
}

#[test]
fn a_host_has_prekeys_of_its_own_devices_only() {
    affinity::event_loop(true).unwrap().block_on(async {
        let held = held(1);
        let service = held.service();
        held.prekey(1, 1);
        for device in ["b", "nobody", "A"] {
            let (device, epoch) = (device.to_owned(), 0);
            // Refused for the device, whatever it brings.
            let frames = vec![vec![0; 9000].into(); 65];
            let refused: [Status; 3] = [
                service
                    .take_prekeys(of("a", PrekeysRequest { device: device.clone(), epoch, frames }))
                    .await
                    .unwrap_err(),
                service.prekey(of("a", PrekeyRequest { device: device.clone(), epoch })).await.unwrap_err(),
                service.forget(of("a", ForgetRequest { device, epoch })).await.unwrap_err(),
            ];
            let alike =
                |status: &Status| status.code() == Code::NotFound && status.message().contains("its devices are: a;");
            assert!(refused.iter().all(alike), "{refused:?}");
        }
        assert_eq!(held.secrets(1, 1), 1);
        // A call that no guard has let in.
        assert!(service.forget(Request::new(ForgetRequest { device: "b".into(), epoch: 0 })).await.is_err());
        let own = of("a", PrekeyRequest { device: String::new(), epoch: 0 });
        assert!(!service.prekey(own).await.unwrap().into_inner().frame.is_empty());
    });
}

/// Until `done`, or for so long that it will never be.
async fn until(done: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !done() && began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    done()
}

#[test]
fn prekeys_that_are_too_old_go_though_nobody_asks() {
    affinity::event_loop(true).unwrap().block_on(async {
        let held = held(2);
        for (epoch, device) in [(1, 0), (2, 0), (2, 1), (2, 2)] {
            held.prekey(epoch, device);
        }
        let left = || [held.secrets(1, 0), held.secrets(2, 0), held.secrets(2, 1), held.secrets(2, 2)];
        held.age(1, 0, 24);
        held.age(2, 0, 25);
        held.age(2, 1, 22);
        // One whose file cannot be opened holds up no other.
        let (file, aside) = (held.file(2, 2), held.state.path().join("aside"));
        held.age(2, 2, 30);
        std::fs::rename(&file, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &file).unwrap();
        // At the start.
        let task = tokio::spawn(expire(Arc::clone(&held.keyring), Duration::from_secs(3600)));
        assert!(until(|| left() == [0, 0, 1, 1]).await, "{:?}", left());
        task.abort();
        // And from then on.
        let task = tokio::spawn(expire(Arc::clone(&held.keyring), Duration::from_millis(20)));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(left(), [0, 0, 1, 1]);
        held.age(2, 1, 2);
        std::fs::rename(&aside, &file).unwrap();
        assert!(until(|| left() == [0, 0, 0, 0]).await, "{:?}", left());
        task.abort();
    });
}

#[test]
fn an_epoch_that_has_ended_leaves_no_prekey() {
    let held = held(3);
    (1..=3).for_each(|epoch| held.prekey(epoch, 0));
    held.prekey(1, 1);
    held.keyring.keep("a", &[Epoch::new(2), Epoch::new(3)]);
    assert_eq!([1, 2, 3].map(|epoch| held.secrets(epoch, 0)), [0, 1, 1]);
    assert_eq!(held.secrets(1, 1), 1, "another device's");
    held.keyring.keep("a", &[]);
    assert_eq!([1, 2, 3].map(|epoch| held.secrets(epoch, 0)), [0, 0, 0]);
}

#[test]
fn a_service_that_lacks_the_calls_is_named_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let (_runtime, target) = listening(folder.path(), |mut server| {
        let (_, health) = tonic_health::server::health_reporter();
        server.add_service(health)
    });
    let mut host = client(&target, "a");
    let refused = [
        host.take_prekeys(Epoch::new(0), &[vec![1]]).unwrap_err(),
        host.prekey(Epoch::new(0)).unwrap_err(),
        host.forget(Epoch::new(0)).unwrap_err(),
    ];
    for error in refused {
        assert!(error.class() == "EngineError", "{error:?}");
        assert!(error.to_string().contains(&target) && error.to_string().contains("upgrade it"), "{error}");
    }
}
