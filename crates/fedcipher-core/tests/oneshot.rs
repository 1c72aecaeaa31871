//! `oneshot` as its parties run it, and what each of them may try.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, encrypt, expected, floats, layout};
use fedcipher_core::Error;
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Sums};
use fedcipher_core::keys::KeySet;
use fedcipher_core::mac::TAG_LEN;
use fedcipher_core::mac::field::Element;
use fedcipher_core::oneshot::identity::Identity;
use fedcipher_core::oneshot::pads::Pads;
use fedcipher_core::oneshot::roster::{Card, Roles, Roster};
use fedcipher_core::oneshot::sealing::{OVERHEAD, SECRET_LEN};
use fedcipher_core::oneshot::statement::share_info;
use fedcipher_core::oneshot::{Oneshot, Params, Reveal};
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::{Aggregator, Expect, Scheme};
use fedcipher_core::statement::{END_LEN, RoundContext, Signer, split};
use fedcipher_core::wire::{self, Contribution, Header};
use proptest::prelude::*;
use proptest::sample::subsequence;
use sha2::{Digest, Sha256};
use std::sync::Arc;

const ROUND: u64 = 9;
/// Bytes of N = 2048 field elements, of 8 clients' sums.
const FIELD: usize = 2048 * 10 / 8;

fn params(clients: u64) -> Params {
    Params {
        bounds: Bounds::new(clients, 3, Some(3)).unwrap(),
        preset: Preset::Fast,
        bits: vec![8, 12],
        members: 5,
        threshold: 4,
        corrupt_clients: 1,
        corrupt_members: 1,
        pack: 1,
        reveal: Reveal::Clients,
    }
}

fn clients(layout: &Layout, ids: &[u32]) -> Vec<Client> {
    ids.iter().map(|id| (*id, u64::from(id % 3) + 1, floats(layout, u64::from(*id)))).collect()
}

/// What members without `dead` answer, added.
fn asked(scheme: &Oneshot, keys: &KeySet, aggregator: &mut dyn Aggregator, dead: &[u32]) {
    for (member, request) in aggregator.requests().unwrap() {
        if !dead.contains(&member) {
            let answer = scheme.member(&keys.clients[member as usize], None).unwrap().answer(&request).unwrap();
            assert_eq!(aggregator.answer(&answer).unwrap(), member);
        }
    }
}

fn opened(scheme: &Oneshot, keys: &KeySet, reader: usize, frame: &[u8]) -> Result<Vec<u64>, Error> {
    let mut sums = Sums::default();
    let decryptor = scheme.decryptor(&keys.clients[reader], None).unwrap();
    decryptor.decrypt(frame, &Expect { round: Some(ROUND), ..Expect::default() }, &mut sums).map(|_| sums.0)
}

struct Round {
    scheme: Oneshot,
    keys: KeySet,
    layout: Layout,
    clients: Vec<Client>,
    updates: Vec<Vec<u8>>,
}

fn round(params: Params, ids: &[u32]) -> Round {
    let scheme = Oneshot::new(params).unwrap();
    let keys = scheme.keygen(&(0..8).collect::<Vec<_>>(), 1).unwrap();
    let layout = layout(&[(700, 8), (5000, 12)]);
    let clients = clients(&layout, ids);
    let updates = clients.iter().map(|c| encrypt(&scheme, &keys, &layout, ROUND, c, &[])).collect();
    Round { scheme, keys, layout, clients, updates }
}

impl Round {
    fn added(&self) -> Box<dyn Aggregator> {
        let mut aggregator = self.scheme.aggregator(&self.keys.server, Some(ROUND)).unwrap();
        self.updates.iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
        aggregator
    }

    fn aggregate(&self, dead: &[u32]) -> Vec<u8> {
        let mut aggregator = self.added();
        asked(&self.scheme, &self.keys, aggregator.as_mut(), dead);
        aggregator.finish().unwrap()
    }

    fn sums(&self) -> Vec<u64> {
        expected(self.scheme.levels(), &self.layout, &self.clients)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_clients_and_enough_members_make_the_sum(
        ids in subsequence((0..8).collect::<Vec<u32>>(), 3..=8),
        dead in subsequence((0..5).collect::<Vec<u32>>(), 0..=1),
        pack in 1usize..=2,
        fast: bool,
    ) {
        let preset = if fast { Preset::Fast } else { Preset::Compact };
        let dead = if pack == 2 { Vec::new() } else { dead };
        let round = round(Params { pack, preset, ..params(8) }, &ids);
        let frame = round.aggregate(&dead);
        prop_assert_eq!(opened(&round.scheme, &round.keys, 7, &frame).unwrap(), round.sums());
    }
}

#[test]
fn readers_open_what_is_addressed_to_them_and_nobody_elses() {
    let round = round(params(8), &[0, 2, 5, 6]);
    let frame = round.aggregate(&[]);
    let mine = round.scheme.addressed(&frame, 6).unwrap();
    assert!(mine.len() < frame.len() - 5 * 7 * 1000);
    assert_eq!(opened(&round.scheme, &round.keys, 6, &mine).unwrap(), round.sums());
    assert!(matches!(opened(&round.scheme, &round.keys, 3, &mine), Err(Error::Decrypt { .. })));
}

#[test]
fn the_same_aggregate_opens_again_however_it_is_addressed() {
    let round = round(params(8), &[0, 2, 5, 6]);
    let frame = round.aggregate(&[]);
    let decryptor = round.scheme.decryptor(&round.keys.clients[6], None).unwrap();
    for frame in [&frame, &round.scheme.addressed(&frame, 6).unwrap(), &frame] {
        let mut sums = Sums::default();
        decryptor.decrypt(frame, &Expect::default(), &mut sums).unwrap();
        assert_eq!(sums.0, round.sums());
    }
}

#[test]
fn a_server_opens_only_where_that_was_agreed() {
    let blind = round(params(8), &[0, 1, 2]);
    assert!(matches!(blind.scheme.server_decryptor(&blind.keys.server), Err(Error::Unsupported { .. })));
    let round = round(Params { reveal: Reveal::Server, ..params(8) }, &[0, 1, 2, 7]);
    let frame = round.aggregate(&[3]);
    let mut sums = Sums::default();
    let server = round.scheme.server_decryptor(&round.keys.server).unwrap();
    server.decrypt(&frame, &Expect::default(), &mut sums).unwrap();
    assert_eq!(sums.0, round.sums());
    assert_eq!(opened(&round.scheme, &round.keys, 4, &frame).unwrap(), round.sums());
}

#[test]
fn too_few_answers_are_no_aggregate_and_can_still_come() {
    let round = round(params(8), &[0, 1, 2]);
    let mut aggregator = round.added();
    asked(&round.scheme, &round.keys, aggregator.as_mut(), &[1, 3]);
    assert_eq!(aggregator.missing(), 1);
    assert!(matches!(aggregator.finish(), Err(Error::Committee { answers: 3, needed: 4 })));
    asked(&round.scheme, &round.keys, aggregator.as_mut(), &[0, 2, 3, 4]);
    let frame = aggregator.finish().unwrap();
    assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums());
}

#[test]
fn who_comes_after_the_committee_was_asked_is_refused() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.requests().unwrap();
    assert!(matches!(aggregator.add(&round.updates[3]), Err(Error::Asked { round: ROUND })));
}

/// Two halves of the committee, each asked for another set: the difference of the two sums is one client's update.
#[test]
fn a_member_answers_for_one_set_a_round() {
    for pack in 1..=2 {
        let round = round(Params { pack, ..params(8) }, &[0, 1, 2, 3]);
        let member = round.scheme.member(&round.keys.clients[0], None).unwrap();
        let mut all = round.added();
        let mut fewer = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
        round.updates[..3].iter().for_each(|update| fewer.add(update).map(drop).unwrap());
        let (first, second) = (all.requests().unwrap().swap_remove(0).1, fewer.requests().unwrap().swap_remove(0).1);
        member.answer(&first).unwrap();
        assert!(matches!(member.answer(&second), Err(Error::Opened { round: ROUND, .. })));
        member.answer(&first).unwrap();
    }
}

#[test]
fn a_members_ledger_outlives_it() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let folder = tempfile::tempdir().unwrap();
    let (mut all, mut fewer) = (round.added(), round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap());
    round.updates[1..].iter().for_each(|update| fewer.add(update).map(drop).unwrap());
    let (first, second) = (all.requests().unwrap().swap_remove(2).1, fewer.requests().unwrap().swap_remove(2).1);
    let member = || round.scheme.member(&round.keys.clients[2], Some(folder.path()));
    member().unwrap().answer(&first).unwrap();
    assert!(matches!(member().unwrap().answer(&second), Err(Error::Opened { .. })));
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "answered") {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert!(matches!(member(), Err(Error::Ledger { .. })));
}

/// The header and payload of a request to member 0, to be changed.
fn request(round: &Round) -> (Header, Vec<u8>) {
    let (_, frame) = round.added().requests().unwrap().swap_remove(0);
    let parsed = wire::parse(&frame).unwrap();
    (parsed.header.clone(), parsed.payload.to_vec())
}

#[test]
fn what_a_server_changes_in_a_request_is_refused() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let member = || round.scheme.member(&round.keys.clients[0], None).unwrap();
    let (header, payload) = request(&round);
    let per_client = (payload.len() - 32) / 4;
    let heavier = |c: &Contribution| Contribution { weight: c.weight % 3 + 1, ..*c };
    let changed = [
        ("fewer than the minimum", Header { contributions: header.contributions[..2].to_vec(), ..header.clone() }, 2),
        (
            "another weight",
            Header { contributions: header.contributions.iter().map(heavier).collect(), ..header.clone() },
            4,
        ),
        ("another round", Header { round: ROUND + 1, ..header.clone() }, 4),
        ("another model", Header { model: [1; 16], ..header.clone() }, 4),
        ("another epoch", Header { epoch: 2, ..header.clone() }, 4),
        ("another roster", Header { key_id: [7; 16], ..header.clone() }, 4),
    ];
    for (what, header, clients) in changed {
        let payload = &payload[..32 + clients * per_client];
        assert!(member().answer(&header.frame(payload)).is_err(), "{what}");
    }
    let mut invented = header.clone();
    invented.contributions[3].client = 7;
    assert!(matches!(member().answer(&invented.frame(&payload)), Err(Error::Signature { party: 7 })));
    invented.contributions[3].client = 70;
    assert!(matches!(member().answer(&invented.frame(&payload)), Err(Error::UnknownClient { client: 70 })));
    for at in 0..payload.len().min(32 + per_client) {
        if at % 97 == 0 {
            let mut damaged = payload.clone();
            damaged[at] ^= 4;
            assert!(matches!(member().answer(&header.frame(&damaged)), Err(Error::Signature { .. })), "byte {at}");
        }
    }
    member().answer(&header.frame(&payload)).unwrap();
}

#[test]
fn shares_of_an_older_round_are_no_shares_of_this() {
    let round = round(params(8), &[0, 1, 2]);
    let (header, old) = request(&round);
    let updates = round.clients.iter().map(|c| encrypt(&round.scheme, &round.keys, &round.layout, ROUND + 1, c, &[]));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, None).unwrap();
    updates.for_each(|update| aggregator.add(&update).map(drop).unwrap());
    let (_, now) = aggregator.requests().unwrap().swap_remove(0);
    let now = wire::parse(&now).unwrap();
    let each = (old.len() - 32) / 3;
    let mixed = [&now.payload[..32 + each], &old[32 + each..]].concat();
    let member = round.scheme.member(&round.keys.clients[0], None).unwrap();
    assert!(matches!(member.answer(&now.header.frame(&mixed)), Err(Error::Signature { .. })));
    member.answer(&header.frame(&old)).unwrap();
}

#[test]
fn an_update_that_its_client_did_not_sign_is_not_added() {
    let round = round(params(8), &[0, 1, 2]);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
    let parsed = wire::parse(&round.updates[0]).unwrap();
    let heavier = Header { contributions: vec![Contribution { client: 0, weight: 3 }], ..parsed.header.clone() };
    let other = Header { contributions: vec![Contribution { client: 4, weight: 1 }], ..parsed.header.clone() };
    for header in [heavier, other] {
        assert!(matches!(aggregator.add(&header.frame(parsed.payload)), Err(Error::Signature { .. })));
    }
    for at in (0..parsed.payload.len()).step_by(1009) {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= 1;
        assert!(matches!(aggregator.add(&parsed.header.frame(&payload)), Err(Error::Signature { .. })), "byte {at}");
    }
    aggregator.add(&round.updates[0]).unwrap();
}

#[test]
fn a_changed_aggregate_does_not_open() {
    let round = round(params(8), &[0, 1, 2]);
    let frame = round.aggregate(&[4]);
    let parsed = wire::parse(&frame).unwrap();
    let fewer = Header { contributions: parsed.header.contributions[..2].to_vec(), ..parsed.header.clone() };
    assert!(opened(&round.scheme, &round.keys, 0, &fewer.frame(parsed.payload)).is_err());
    let length = parsed.payload.len();
    for at in (0..length).step_by(641).chain(length - 16..length) {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= 1;
        // Other readers' keys are nothing to this one.
        if let Ok(sums) = opened(&round.scheme, &round.keys, 0, &parsed.header.frame(&payload)) {
            assert_eq!(sums, round.sums(), "byte {at}");
        }
    }
}

/// Also by less than half a step, which changes no sum: whether such an aggregate opens would tell how large the noise is.
#[test]
fn an_aggregate_with_any_bit_of_any_coefficient_changed_is_refused() {
    for preset in [Preset::Fast, Preset::Compact] {
        let scheme = Oneshot::new(Params { preset, ..params(8) }).unwrap();
        let keys = scheme.keygen(&(0..8).collect::<Vec<_>>(), 1).unwrap();
        let layout = layout(&[(3, 8), (20, 12)]);
        let clients = clients(&layout, &[0, 1, 2]);
        let updates = clients.iter().map(|c| encrypt(&scheme, &keys, &layout, ROUND, c, &[])).collect();
        let round = Round { scheme, keys, layout, clients, updates };
        let frame = round.aggregate(&[]);
        let parsed = wire::parse(&frame).unwrap();
        let answers = 4 + u32::from_le_bytes(*parsed.payload.first_chunk().unwrap()) as usize;
        for bit in 8 * answers..8 * parsed.payload.len() {
            let mut payload = parsed.payload.to_vec();
            payload[bit / 8] ^= 1 << (bit % 8);
            assert!(opened(&round.scheme, &round.keys, 0, &parsed.header.frame(&payload)).is_err(), "bit {bit}");
        }
        assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums());
    }
}

/// With it a server that sees sums, by `reveal="server"` or from a reader, could compute the key of tags.
#[test]
fn the_server_gets_no_sum_of_pads() {
    for reveal in [Reveal::Server, Reveal::Clients] {
        let round = round(Params { reveal, ..params(8) }, &[0, 2, 5]);
        let roster = Roster::parse(&round.keys.clients[0].secret[SECRET_LEN..]).unwrap();
        let digest = roster.digest(round.scheme.digest(), 1);
        let (mut sums, mut shown) = (Vec::new(), Vec::new());
        for (member, request) in round.added().requests().unwrap() {
            let key = &round.keys.clients[member as usize];
            let identity = Identity::of(&key.sign, &key.secret[..SECRET_LEN]).unwrap();
            let mut sum = Element::default();
            for ((client, ..), update) in round.clients.iter().zip(&round.updates) {
                let sealed = wire::parse(update).unwrap().payload[shares(member as usize)].to_vec();
                let share = identity.secret.open(&share_info(&digest, ROUND, *client, member), &sealed).unwrap();
                sum += Element::from_wire(*share.last_chunk().unwrap()).unwrap();
            }
            sums.push(sum);
            let answer = round.scheme.member(key, None).unwrap().answer(&request).unwrap();
            let answer = wire::parse(&answer).unwrap();
            let (secrets, rest) = answer.payload[4..].split_at(FIELD);
            let context = RoundContext::of(digest, &wire::parse(&round.updates[0]).unwrap().header);
            let veil = round.keys.clients[7].mac().unwrap().veil(&context.answer(
                &answer.header.contributions,
                member,
                secrets,
            ));
            // What every party could take off, had it the server's frames.
            assert_eq!((sum + veil).to_wire() == rest[..TAG_LEN], reveal == Reveal::Server);
            assert_ne!(sum.to_wire(), rest[..TAG_LEN]);
            shown.push(Element::new(u128::from_le_bytes(*rest.first_chunk().unwrap())));
        }
        let joined = |all: &[Element], by: [usize; 4]| Pads::joined(&by.map(|member| (member, &all[member])));
        assert_ne!(joined(&sums, [0, 1, 2, 3]), Element::default());
        for by in [[0, 1, 2, 3], [1, 2, 3, 4]] {
            assert_eq!(joined(&sums, by), joined(&sums, [0, 1, 3, 4]));
            assert_ne!(joined(&shown, by), joined(&sums, by));
        }
    }
}

/// Adversary C: the server's frames and corrupt parties' keys.
#[test]
fn members_below_the_threshold_open_nothing_and_one_more_opens_the_sum() {
    for pack in 1..=2 {
        let round = round(Params { pack, ..params(8) }, &[0, 1, 2, 5]);
        let needed = 3 + pack;
        for count in 0..=5usize {
            let mut aggregator = round.added();
            let dead: Vec<u32> = (count as u32..5).collect();
            asked(&round.scheme, &round.keys, aggregator.as_mut(), &dead);
            match aggregator.finish() {
                Ok(frame) => {
                    assert!(count >= needed);
                    assert_eq!(opened(&round.scheme, &round.keys, 5, &frame).unwrap(), round.sums());
                }
                Err(error) => assert!(count < needed && matches!(error, Error::Committee { .. })),
            }
        }
    }
}

#[test]
fn committees_that_could_be_split_are_refused_with_the_cure() {
    let refused = |params: Params, cure: &str| {
        let said = Oneshot::new(params).map_or_else(|error| error.to_string(), |_| "accepted".into());
        assert!(said.contains(cure), "{said}, where {cure} is wanted");
    };
    refused(Params { threshold: 3, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(Params { threshold: 4, corrupt_members: 3, ..params(8) }, "take members=5, threshold=5, pack=1");
    refused(Params { threshold: 6, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(
        Params { members: 2, threshold: 2, corrupt_members: 2, ..params(8) },
        "take members=3, threshold=3, pack=1",
    );
    refused(Params { corrupt_clients: 2, ..params(8) }, "take 4");
    assert!(Oneshot::new(Params { corrupt_members: 2, ..params(8) }).is_ok());
    let few = Bounds::new(3, 3, Some(3)).unwrap();
    refused(Params { corrupt_clients: 2, bounds: few, ..params(8) }, "take 4 with clients=4");
    refused(Params { pack: 3, ..params(8) }, "take members=5, threshold=4, pack=2");
    // Three members could open one set of clients, and as many others all but say another (attack 21).
    refused(
        Params { members: 6, threshold: 3, corrupt_members: 0, pack: 2, ..params(8) },
        "take members=6, threshold=4, pack=2",
    );
    refused(Params { pack: 0, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(Params { preset: Preset::FedbitPaper, ..params(8) }, "\"compact\"");
    let scheme = Oneshot::new(params(8)).unwrap();
    assert!(scheme.keygen(&[0, 1, 2], 1).unwrap_err().to_string().contains("committee of 5"));
}

/// A roster's maker that seals another secret to one party: that party would know memories of the rule of sets by other
/// names, and so no earlier sum.
#[test]
fn attack_32_a_secret_that_is_not_the_rosters_is_not_joined() {
    let identities: Vec<Identity> = (0..5).map(|_| Identity::generate().unwrap()).collect();
    let roles = Roles { client: true, member: true, reader: true };
    let make = || {
        let cards = identities.iter().zip(0u32..).map(|(own, id)| Card::of(own, id, &format!("site-{id}"), roles));
        Roster::new(cards.collect()).unwrap().to_bytes().to_vec()
    };
    let (listed, other, sealed) = (make(), make(), 32 + OVERHEAD);
    let each = (listed.len() - 44) / 5;
    let scheme = Oneshot::new(params(8)).unwrap();
    for (party, own) in identities.iter().enumerate() {
        let join = |bytes: &[u8]| scheme.join(&Roster::parse(bytes).unwrap(), own, 1);
        let end = 44 + (party + 1) * each;
        let mut spliced = listed.clone();
        spliced[end - sealed..end].copy_from_slice(&other[end - sealed..end]);
        let refused = join(&spliced).unwrap_err().to_string();
        assert!(refused.contains("another secret") && refused.contains(&format!("site-{party}")), "{refused}");
        let mut digest = listed.clone();
        digest[8] ^= 1;
        assert!(join(&digest).unwrap_err().to_string().contains("another secret"));
        join(&listed).unwrap();
    }
}

/// Where the share of one of five members lies. Three are of a seed, as threshold 4 has it, and two of field elements,
/// each with one of the pad and what sealing adds.
fn shares(member: usize) -> std::ops::Range<usize> {
    let lengths = [32, 32, 32, FIELD, FIELD].map(|share| share + TAG_LEN + OVERHEAD);
    let at = lengths[..member].iter().sum();
    at..at + lengths[member]
}

/// Client `id`'s update, changed by itself: its signature is that of what it sends.
fn resigned(round: &Round, id: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let parsed = wire::parse(&round.updates[id]).unwrap();
    let mut payload = parsed.payload.to_vec();
    change(&mut payload);
    let key = &round.keys.clients[id];
    let roster = Roster::parse(&key.secret[SECRET_LEN..]).unwrap().digest(round.scheme.digest(), key.tag.epoch);
    let context = RoundContext::of(roster, &parsed.header);
    let (body, tag, _) = split(&payload).unwrap();
    let mut signed = blake3::hash(&body[shares(4).end..]).as_bytes().to_vec();
    for member in 0..5 {
        signed.extend_from_slice(&Sha256::digest(&body[shares(member)]));
    }
    let signer = Signer { key: Arc::new(key.sign.clone()), context };
    let end = signer.end(parsed.header.contributions[0], tag, &signed);
    parsed.header.frame(&[&payload[..payload.len() - END_LEN], &end].concat())
}

/// A share that opens and is none: nobody can tell whose it is, and the round does not open.
#[test]
fn a_false_share_spoils_the_round_and_opens_nothing() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let key = &round.keys.clients[3];
    let roster = Roster::parse(&key.secret[SECRET_LEN..]).unwrap();
    let member = roster.members().next().unwrap();
    let info = share_info(&roster.digest(round.scheme.digest(), 1), ROUND, 3, member.id);
    let false_share = member.sealing().unwrap().seal(&info, &[7; 32 + TAG_LEN]).unwrap();
    let lie = resigned(&round, 3, |payload| payload[..false_share.len()].copy_from_slice(&false_share));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.add(&lie).unwrap();
    asked(&round.scheme, &round.keys, aggregator.as_mut(), &[4]);
    let frame = aggregator.finish().unwrap();
    assert!(matches!(opened(&round.scheme, &round.keys, 0, &frame), Err(Error::Decrypt { .. })));
}

/// Members' words about a client that has sealed no share count by how many members may lie, not by how many clients.
#[test]
fn a_client_is_accused_by_more_members_than_may_lie() {
    for (corrupt_clients, corrupt_members) in [(1, 0), (0, 1), (0, 2)] {
        let round = round(Params { corrupt_clients, corrupt_members, ..params(8) }, &[0, 1, 2, 3]);
        let second = shares(2).start;
        let lie = resigned(&round, 3, |payload| [0, shares(1).start, second].iter().for_each(|at| payload[*at] ^= 1));
        let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
        round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
        aggregator.add(&lie).unwrap();
        let requests = aggregator.requests().unwrap();
        for (said, (_, request)) in requests.iter().enumerate().take(corrupt_members + 1) {
            assert!(aggregator.accused().is_empty(), "{corrupt_members} members may lie, {said} have spoken");
            let complaint = round.scheme.member(&round.keys.clients[said], None).unwrap().answer(request);
            assert!(matches!(aggregator.answer(&complaint.unwrap()), Err(Error::FalseShare { .. })));
        }
        assert_eq!(aggregator.accused(), [3]);
    }
}

/// A client that seals garbage, under its own signature.
#[test]
fn a_member_names_who_sealed_no_share_and_spends_nothing() {
    let round = round(params(8), &[0, 1, 2, 3]);
    // Its first two shares, which are of one size.
    let second = shares(1).start;
    let lie = resigned(&round, 3, |payload| [0, second].iter().for_each(|at| payload[*at] ^= 1));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.add(&lie).unwrap();
    let requests = aggregator.requests().unwrap();
    let member = round.scheme.member(&round.keys.clients[0], None).unwrap();
    let complaint = member.answer(&requests[0].1).unwrap();
    assert!(matches!(aggregator.answer(&complaint), Err(Error::FalseShare { member: 0, clients }) if clients == [3]));
    // One may be lying: a corrupt member is reckoned with.
    assert!(aggregator.accused().is_empty());
    let other = round.scheme.member(&round.keys.clients[1], None).unwrap().answer(&requests[1].1).unwrap();
    for _ in 0..2 {
        assert!(matches!(aggregator.answer(&other), Err(Error::FalseShare { member: 1, .. })));
    }
    assert_eq!(aggregator.accused(), [3]);
    // It has not spoken for any set yet.
    let mut without = round.scheme.aggregator(&round.keys.server, Some(ROUND)).unwrap();
    round.updates[..3].iter().for_each(|update| without.add(update).map(drop).unwrap());
    let requests = without.requests().unwrap();
    asked(&round.scheme, &round.keys, without.as_mut(), &[]);
    assert!(without.finish().is_ok());
    member.answer(&requests[0].1).unwrap();
}
