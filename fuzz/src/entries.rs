//! The fuzz targets, one function each. A finding is a panic, a wrong sum, or more memory or time than a frame may cost.
//! `fuzz/targets` has a program for each target; `add` and `open` run under every variant.

use crate::{AGREED, COMMITTEE, Frames, NUMBER, Round, SPARSE, of, quick};
use fedcipher_core::codec::Layout;
use fedcipher_core::key_file;
use fedcipher_core::keys::{ClientKey, ServerKey};
use fedcipher_core::ledger::{self, Holder, OpenedLedger, Sum};
use fedcipher_core::oneshot::identity::Identity;
use fedcipher_core::oneshot::roster::{Card, Roles, Roster};
use fedcipher_core::oneshot::sealing::ENCAPPED_LEN;
use fedcipher_core::registry::{self, every_scheme};
use fedcipher_core::scheme::Aggregator;
use fedcipher_core::sign::Purpose;
use fedcipher_core::wire;
use fedcipher_core::{ClientId, Epoch};
use fedcipher_engine::certificates::{self, Role, Root, Subject, Terms};
use fedcipher_engine::proto;
use fedcipher_engine::sealed_keys::{self, Recipient};
use prost::Message;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

type Seeds = fn() -> Vec<Vec<u8>>;

/// Each target's name and first corpus.
const SEEDS: &[(&str, Seeds)] = &[
    ("frame", || vec![of("plain").updates[0].clone(), of("plain").aggregate.clone()]),
    ("layout", || vec![of("plain").layout.encode()]),
    ("keys", || [client_and_server("flashe"), client_and_server(COMMITTEE)].concat()),
    ("key_file", || vec![key_file_of(of("flashe"))]),
    ("spec", || every_scheme().map(|variant| crate::spec(variant.name).into_bytes()).collect()),
    ("plan", || vec![of("flashe").scheme.plan(&of("flashe").keys.server, &ClientId::list([0, 1, 2])).unwrap()]),
    ("state", || vec![0u32, 1].into_iter().map(|n| [n.to_le_bytes(), [0; 4]].concat()).collect()),
    ("ledger", || vec![vec![0; 64], (0..=255).collect()]),
    ("roster", || vec![of(COMMITTEE).keys.server.public.clone(), roster().to_bytes().to_vec()]),
    ("identity", || vec![Identity::generate().unwrap().to_bytes().to_vec()]),
    ("request", || of(COMMITTEE).request.iter().map(|(_, request)| Frames::seed(request)).collect()),
    ("answer", || of(COMMITTEE).answer.iter().map(|answer| Frames::seed(answer)).collect()),
    ("proposal", || of(AGREED).request.iter().map(|(_, request)| Frames::seed(request)).collect()),
    ("agreement", || of(AGREED).answer.iter().map(|answer| Frames::seed(answer)).collect()),
    ("prekey", || of(COMMITTEE).prekeys.iter().map(|prekey| Frames::seed(prekey)).collect()),
    ("add", || updates(variant())),
    ("open", || aggregates(variant())),
    ("certificate", || {
        let (certificate, _) = root().issue(&device(), &Terms::days(1, vec!["localhost".into()])).unwrap();
        vec![certificate.into_bytes()]
    }),
    ("signing_request", || vec![certificates::request("nic-1").unwrap().0.into_bytes()]),
    ("sealed_key", || {
        let (encapped, sealed) =
            sealed_keys::seal_key(&Recipient::generate().unwrap().public(), "nic-1", Epoch::new(1), b"key").unwrap();
        vec![[encapped, sealed].concat()]
    }),
    ("messages", || {
        let begin = proto::EncryptBegin { layout: of("plain").layout.encode().into(), ..Default::default() };
        let part = Some(proto::encrypt_request::Part::Begin(begin));
        vec![proto::EncryptRequest { part }.encode_to_vec()]
    }),
];

/// Makes the rounds from which the tries of `target` start, so that their cost is not counted as a try's. If
/// `FEDCIPHER_SEEDS` names a folder (`tools/fuzz.py` sets it), writes the target's first corpus there.
pub fn begin(target: &str) {
    let (_, seeds) = SEEDS.iter().find(|(name, _)| *name == target).unwrap();
    let seeds = seeds();
    let Some(folder) = std::env::var_os("FEDCIPHER_SEEDS") else { return };
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(PathBuf::from(&folder).join(format!("seed-{number}")), seed).unwrap();
    }
}

fn updates(name: &str) -> Vec<Vec<u8>> {
    vec![Frames::seed(&of(name).updates[2])]
}

fn aggregates(name: &str) -> Vec<Vec<u8>> {
    vec![Frames::seed(&of(name).aggregate), Frames::seed(&of(name).updates[1])]
}

fn client_and_server(name: &str) -> Vec<Vec<u8>> {
    let round = of(name);
    [round.keys.clients[0].to_bytes().to_vec(), round.keys.server.to_bytes()].map(|key| Frames::seed(&key)).to_vec()
}

fn key_file_of(round: &Round) -> Vec<u8> {
    [crate::spec("flashe").replace('\n', " ").as_bytes(), b"\n", &round.keys.clients[0].to_bytes()].concat()
}

fn roster() -> Roster {
    let roles = Roles { client: true, member: true, reader: true };
    let card = |id| Card::of(&Identity::generate().unwrap(), id, &format!("party-{id}"), roles);
    Roster::new(ClientId::list(0..4).into_iter().map(card).collect()).unwrap()
}

fn root() -> &'static Root {
    static ROOT: OnceLock<Root> = OnceLock::new();
    ROOT.get_or_init(|| Root::generate().unwrap())
}

fn device() -> Subject {
    Subject::new(Role::Device, "nic-1")
}

/// An empty, private folder of this process.
fn folder() -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| tempfile::tempdir().unwrap().keep());
    let _ = fs::remove_dir_all(place);
    fs::create_dir(place).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
    place.clone()
}

pub fn frame(data: &[u8]) {
    if let Ok(found) = wire::parse(data) {
        assert_eq!(found.header.frame(found.payload), data);
    }
    // The bytes with a right checksum, because a fuzzer does not guess one.
    let _ = wire::parse(&wire::append_checksum(data.to_vec()));
    let _ = wire::parse_head(data);
}

pub fn layout(data: &[u8]) {
    if let Ok(layout) = Layout::decode(data) {
        assert_eq!(layout.encode(), data);
        for round in quick() {
            let _ = round.scheme.check_layout(&layout);
        }
    }
}

/// A key that parses is used. A user of a bad key must get an error, not a panic.
pub fn keys(data: &[u8]) {
    for name in ["flashe", COMMITTEE] {
        let frame = Frames::of(of(name)).frame(data);
        if let Ok(key) = ClientKey::from_bytes(&frame) {
            assert_eq!(key.to_bytes().as_slice(), frame);
            let _ = of(name).scheme.encryptor(&key, None);
            let _ = of(name).scheme.decryptor(&key, None);
            let _ = of(name).scheme.require_committee().map(|committee| committee.member(&key, None));
        }
        if let Ok(key) = ServerKey::from_bytes(&frame) {
            assert_eq!(key.to_bytes(), frame);
            let _ = of(name).scheme.aggregator(&key, None);
            let _ = of(name).scheme.plan(&key, &ClientId::list([0, 1, 2]));
        }
    }
}

pub fn key_file(data: &[u8]) {
    let path = folder().join("client-0.key");
    fs::write(&path, data).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    if let Ok((spec, _)) = key_file::load(&path) {
        let _ = registry::make(&spec);
    }
}

pub fn spec(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(scheme) = registry::make(text)
    {
        let _ = scheme.describe();
    }
}

/// The round plan, which the server sends to clients before a round.
pub fn plan(data: &[u8]) {
    for round in quick() {
        let mut encryptor = round.scheme.encryptor(&round.keys.clients[0], None).unwrap();
        let _ = encryptor.precompute(NUMBER, &round.layout, data);
    }
}

/// The state of error feedback, which an app stores and gives back.
pub fn state(data: &[u8]) {
    let round = of(SPARSE);
    let mut encryptor = round.scheme.encryptor(&round.keys.clients[0], None).unwrap();
    let residual = encryptor.residual().unwrap();
    if residual.import_state(data).is_ok() {
        assert_eq!(residual.export_state(), data);
    }
}

/// A state folder with changed bytes in one file. Opening the folder must give correct ledgers or an error.
pub fn ledger(data: &[u8]) {
    let (round, state) = (of("flashe"), folder());
    let key = &round.keys.clients[0];
    ledger::register(key, &state).unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let Some((which, data)) = data.split_first() else { return };
    let path = &files[usize::from(*which) % files.len()];
    let mut content = fs::read(path).unwrap();
    let Some((how, data)) = data.split_first() else { return };
    match how % 3 {
        0 => content = data.to_vec(),
        1 => content.extend_from_slice(data),
        _ => content.iter_mut().zip(data).for_each(|(byte, change)| *byte ^= change),
    }
    fs::write(path, content).unwrap();
    let _ = round.scheme.encryptor(key, Some(&state));
    let holder = Holder { key, roster: None, minimum: 1 };
    let _ = OpenedLedger::open(&holder, Some(&state)).map(|openings| openings.claim(&Sum::alone(NUMBER), &[1; 32]));
}

pub fn roster_bytes(data: &[u8]) {
    if let Ok(roster) = Roster::parse(data) {
        assert_eq!(roster.to_bytes(), data);
        let scheme = &of(COMMITTEE).scheme;
        let committee = scheme.require_committee().unwrap();
        if let Ok(key) = committee.roster_key(&roster, Epoch::new(1)) {
            let _ = scheme.aggregator(&key, None);
        }
        static OWN: OnceLock<Identity> = OnceLock::new();
        let _ = committee.join(&roster, OWN.get_or_init(|| Identity::generate().unwrap()), Epoch::new(1));
    }
}

pub fn identity(data: &[u8]) {
    if let Ok(identity) = Identity::from_bytes(data) {
        assert_eq!(identity.to_bytes(), data);
        let _ = identity.sign(Purpose::Update, b"message");
    }
}

pub fn request(data: &[u8]) {
    let round = of(COMMITTEE);
    let (member, honest) = round.request.as_ref().unwrap();
    let frame = Frames::of(round).frame(data);
    let answered = round.answers(member.get(), &frame);
    if frame != *honest
        && let Ok(answer) = answered
    {
        // The clients signed no other request. A member may only complain that a share in it is false.
        let kind = wire::parse(&answer).unwrap().header.kind;
        assert_eq!(kind, wire::Kind::Complaint, "a member answered a request that no client has signed");
    }
}

/// An aggregator that got an answer made by the fuzzer, and the answers of all members.
fn among_answers(round: &Round, data: &[u8]) -> Box<dyn Aggregator> {
    let mut aggregator = round.added();
    let requests = aggregator.requests().unwrap();
    let _ = aggregator.require_committee().unwrap().answer(&Frames::of(round).frame(data));
    for (member, request) in requests {
        aggregator.require_committee().unwrap().answer(&round.answers(member.get(), &request).unwrap()).unwrap();
    }
    aggregator
}

pub fn answer(data: &[u8]) {
    let round = of(COMMITTEE);
    let mut aggregator = among_answers(round, data);
    assert!(round.opens(&aggregator.finish().unwrap()), "one answer made a round fail");
}

pub fn proposal(data: &[u8]) {
    let round = of(AGREED);
    let (member, _) = round.request.as_ref().unwrap();
    if let Ok(answer) = round.answers(member.get(), &Frames::of(round).frame(data)) {
        let kind = wire::parse(&answer).unwrap().header.kind;
        assert_eq!(kind, wire::Kind::Agreement, "a member answered a proposal without an agreement");
    }
}

pub fn agreement(data: &[u8]) {
    let mut aggregator = among_answers(of(AGREED), data);
    assert_eq!(aggregator.require_committee().unwrap().missing(), 0, "one answer kept honest members from agreeing");
    let requests = aggregator.requests().unwrap();
    assert!(!aggregator.agreeing() && requests.len() == 3);
}

pub fn prekey(data: &[u8]) {
    let round = of(COMMITTEE);
    let frame = Frames::of(round).frame(data);
    let mut encryptor = round.scheme.encryptor(&round.keys.clients[3], None).unwrap();
    // The prekeys of all members are given too, because an encryptor refuses too few.
    let given: Vec<&[u8]> = [&frame].into_iter().chain(&round.prekeys).map(Vec::as_slice).collect();
    let taken = encryptor.take_prekeys(&given).unwrap().is_empty();
    assert!(!taken || round.prekeys.contains(&frame), "a prekey that no member has published was taken");
}

/// The variant under which the targets `add` and `open` run. `tools/fuzz.py` sets it.
fn variant() -> &'static str {
    static NAMED: OnceLock<String> = OnceLock::new();
    NAMED.get_or_init(|| std::env::var("FEDCIPHER_FUZZ_VARIANT").unwrap())
}

/// A fuzzer's frame among honest ones. If the sum opens, it must be the sum of the updates that honest clients sent.
pub fn add(data: &[u8]) {
    let round = of(variant());
    let frame = round.signed(Frames::of(round).frame(data));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(NUMBER)).unwrap();
    for update in &round.updates[..2] {
        aggregator.add(update).unwrap();
    }
    let taken = aggregator.add(&frame).is_ok();
    if round.scheme.workers().is_some() || round.scheme.members() > 0 && !taken {
        // The rest would take seconds of transciphering, or the committee's work.
        return;
    }
    if !taken {
        aggregator.add(&round.updates[2]).unwrap();
    }
    if let Ok(requests) = aggregator.requests() {
        for (member, request) in requests {
            let _ = round
                .answers(member.get(), &request)
                .and_then(|answer| aggregator.require_committee().unwrap().answer(&answer));
        }
    }
    match aggregator.finish() {
        Ok(sum) => assert!(round.opens(&sum) || taken, "a refused frame changed the sum"),
        Err(error) => assert!(taken, "a refused frame ended the round: {error}"),
    }
}

pub fn open(data: &[u8]) {
    let round = of(variant());
    round.opens(&Frames::of(round).frame(data));
}

pub fn certificate(data: &[u8]) {
    let _ = certificates::subject(data);
    let _ = certificates::subject_of_pem(data);
}

pub fn signing_request(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = root().sign(text, &device(), &Terms::days(1, Vec::new()));
    }
}

pub fn sealed_key(data: &[u8]) {
    static ENGINE: OnceLock<Recipient> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| Recipient::generate().unwrap());
    let (encapped, sealed) = data.split_at(data.len().min(ENCAPPED_LEN));
    let opened = engine.open("nic-1", Epoch::new(1), encapped, sealed);
    assert!(opened.is_err(), "an engine opened a key that was not encrypted to it");
    let _ = sealed_keys::seal_key(data, "nic-1", Epoch::new(1), b"key");
}

/// Messages of a host to an engine, and of an engine to an authority.
pub fn messages(data: &[u8]) {
    macro_rules! decoded {
        ($($message:ident),*) => { $(let _ = proto::$message::decode(data);)* };
    }
    decoded!(
        DescribeRequest,
        EncryptRequest,
        DecryptRequest,
        PrecomputeRequest,
        StateRequest,
        ImportStateRequest,
        AnswerRequest,
        PrekeysRequest,
        PrekeyRequest,
        ForgetRequest,
        KeysRequest,
        ServerKeysRequest,
        SettleRequest
    );
    if let Ok(proto::EncryptRequest { part: Some(proto::encrypt_request::Part::Begin(begin)) }) =
        proto::EncryptRequest::decode(data)
    {
        let _ = Layout::decode(&begin.layout);
    }
}
