//! The rule of sets where sums are opened and answered for: kept on disk, by identity, whatever begins anew.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::bounds::Bounds;
use fedcipher_core::keys::{ClientKey, Cohort};
use fedcipher_core::ledger::{Holder, OpenedLedger, Sum};
use fedcipher_core::mac::memory::MemoryId;
use fedcipher_core::plain::Plain;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::sets::Name;
use fedcipher_core::wire::{Contribution, Header, Kind};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use std::fs;
use std::path::{Path, PathBuf};

fn key() -> ClientKey {
    Plain::new(Bounds::new(20, Weight::ONE, None).unwrap())
        .keygen(&ClientId::list([0, 1]), Epoch::new(1))
        .unwrap()
        .clients
        .remove(0)
}

/// The sum of `clients` in `round`, which counts in the memory of this number; 0 for none.
fn sum(key: &ClientKey, round: u64, memory: u8, clients: &[u32]) -> Sum {
    let memory = (memory > 0).then(|| MemoryId::of(&[1, memory]));
    Sum::new(key.tag.key_id, RoundId::new(round), 3, memory, clients.iter().map(|client| Name::from(*client)).collect())
}

fn digest(sum: &Sum) -> [u8; 32] {
    *blake3::hash(format!("{sum:?}").as_bytes()).as_bytes()
}

/// As in a new process.
fn opened(key: &ClientKey, state: &Path, sum: &Sum) -> Result<(), Error> {
    let holder = Holder { key, roster: None, minimum: 3 };
    OpenedLedger::open(&holder, Some(state))?.claim(sum, &digest(sum))
}

fn is_set(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Set { .. }))
}

fn is_opened(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Opened { .. }))
}

fn file(state: &Path, suffix: &str) -> PathBuf {
    let mut found = fs::read_dir(state).unwrap().map(|f| f.unwrap().path());
    found.find(|path| path.to_string_lossy().ends_with(suffix)).unwrap()
}

#[test]
fn attack_32_sums_of_one_memory_keep_to_the_rule_over_restarts() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let open = |round, tag, clients: &[u32]| opened(&key, state.path(), &sum(&key, round, tag, clients));
    open(1, 1, &[1, 2, 3, 4, 5, 6]).unwrap();
    // One client fewer, another instead, one more; the named case; then what the rule allows.
    for clients in [&[1, 2, 3, 4, 5][..], &[1, 2, 3, 4, 5, 7], &[1, 2, 3, 4, 5, 6, 7]] {
        assert!(is_set(open(2, 1, clients)), "{clients:?}");
    }
    open(3, 1, &[4, 5, 6]).unwrap();
    assert!(is_set(open(4, 1, &[1, 2, 3, 7])), "three sets give client 7");
    // Another memory knows nothing of it; and the same set counts once.
    open(4, 2, &[1, 2, 3, 7]).unwrap();
    open(5, 1, &[1, 2, 3, 4, 5, 6]).unwrap();
    open(6, 1, &[1, 2, 3]).unwrap();
}

#[test]
fn sums_of_one_round_are_disjoint_and_none_is_older() {
    for memory in [true, false] {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        let holder = Holder { key: &key, roster: None, minimum: 3 };
        let alone = OpenedLedger::open(&holder, None).unwrap();
        let open = |sum: &Sum| match memory {
            true => alone.claim(sum, &digest(sum)),
            false => opened(&key, state.path(), sum),
        };
        let sum = |round, tag, clients: &[u32]| self::sum(&key, round, tag, clients);
        let first = sum(5, 1, &[0, 1, 2]);
        open(&first).unwrap();
        open(&sum(5, 1, &[3, 4, 5])).unwrap();
        open(&sum(5, 2, &[6, 7, 8])).unwrap();
        // A client of another sum of the round, also in another memory; no memory; no longer of this round.
        assert!(is_opened(open(&sum(5, 1, &[5, 9, 10, 11]))));
        assert!(is_opened(open(&sum(5, 3, &[0, 9, 10, 11]))));
        assert!(is_opened(open(&sum(5, 0, &[9, 10, 11]))));
        open(&first).unwrap();
        open(&sum(6, 0, &[0, 1, 2])).unwrap();
        assert!(is_opened(open(&sum(6, 1, &[3, 4, 5]))), "beside a sum without a memory");
        assert!(is_opened(open(&sum(5, 1, &[9, 10, 11]))));
        open(&first).unwrap();
    }
}

/// Under other keys, whose tags are others, and other numbers; by what headers say.
#[test]
fn a_memory_outlives_keys_and_numbers_of_one_identity() {
    let (state, old, new) = (tempfile::tempdir().unwrap(), key(), key());
    // The signing key of client `n`, and the number that a roster gives to client `n`.
    let roster =
        |first: u32| -> Cohort { (0..10u8).map(|n| (ClientId::new((u32::from(n) + first) % 10), [n; 32])).collect() };
    let (first, second) = (roster(0), roster(5));
    let open = |key: &ClientKey, own: u8, cohort: &Cohort, round: u64, memory: &[u8], clients: &[u8]| {
        let holder = Holder { key, roster: Some((&[own; 32], cohort)), minimum: 3 };
        let openings = OpenedLedger::open(&holder, Some(state.path())).unwrap();
        let number = |of: u8| *cohort.iter().find(|(_, signs)| **signs == [of; 32]).unwrap().0;
        let mut named: Vec<ClientId> = clients.iter().map(|of| number(*of)).collect();
        named.sort_unstable();
        let contributions = named.iter().map(|client| Contribution { client: *client, weight: Weight::ONE }).collect();
        let header = key.tag.header(Kind::Aggregate, RoundId::new(round), contributions);
        let sum = openings.sum(&Header { memory: key.mac().unwrap().memory_tag(memory), ..header })?;
        openings.claim(&sum, &digest(&sum))
    };
    let here = b"\x01the first position";
    open(&old, 7, &first, 1, here, &[1, 2, 3, 4, 5, 6]).unwrap();
    assert!(is_set(open(&new, 7, &second, 1, here, &[1, 2, 3, 4, 5])));
    open(&new, 7, &second, 1, here, &[4, 5, 6]).unwrap();
    assert!(is_set(open(&old, 7, &first, 2, here, &[3, 4, 5, 6])));
    open(&new, 7, &second, 2, b"\x01another position", &[1, 2, 3, 4, 5]).unwrap();
    open(&new, 8, &second, 3, here, &[1, 2, 3, 4, 5]).unwrap();
}

/// A later roster with a smaller minimum: clients of sums under the larger one keep the larger one.
#[test]
fn attack_32_a_smaller_minimum_divides_no_group_that_a_larger_one_made() {
    for folder in [true, false] {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        let state = folder.then(|| state.path());
        let of = |minimum| OpenedLedger::open(&Holder { key: &key, roster: None, minimum }, state).unwrap();
        let (strict, lax) = (of(3), of(2));
        let claim = |openings: &OpenedLedger, minimum: u64, round: u64, clients: &[u32]| {
            let clients = clients.iter().map(|client| Name::from(*client)).collect();
            let sum = Sum::new(key.tag.key_id, RoundId::new(round), minimum, Some(MemoryId::of(&[1, 1])), clients);
            openings.claim(&sum, &digest(&sum))
        };
        // Without a folder only one object remembers. It is given sums of both minimums.
        let lax = if folder { &lax } else { &strict };
        claim(&strict, 3, 1, &[0, 1, 2, 3, 4, 5]).unwrap();
        for (round, few) in [&[0, 1, 2, 3][..], &[0, 1], &[0, 1, 2, 3, 6, 7], &[0, 1, 2, 3, 4]].iter().enumerate() {
            let refused = claim(lax, 2, 2 + round as u64, few);
            assert!(matches!(refused, Err(Error::Set { minimum: 3, .. })), "{few:?}: {refused:?}");
        }
        // Clients 6 and 7 have agreed to two. Clients of a sum under three keep three.
        claim(lax, 2, 10, &[6, 7]).unwrap();
        claim(lax, 2, 11, &[0, 1, 2, 6, 7]).unwrap();
        claim(lax, 2, 12, &[8, 9, 10, 11, 12, 13]).unwrap();
        claim(lax, 2, 13, &[8, 9]).unwrap();
        claim(&strict, 3, 14, &[10, 11, 12, 13]).unwrap();
        assert!(is_set(claim(lax, 2, 15, &[10, 11])), "halves of four");
        assert!(is_set(claim(&strict, 3, 16, &[8, 9, 14])), "one more under three");
    }
}

/// A tag that was made under an independent secret, or drawn, deciphers to no memory.
#[test]
fn a_memory_of_another_secret_is_refused() {
    let (old, new) = (key(), key());
    let openings = OpenedLedger::open(&Holder { key: &new, roster: None, minimum: 3 }, None).unwrap();
    let header = |memory| Header { memory, ..new.tag.header(Kind::Aggregate, RoundId::new(1), Vec::new()) };
    for foreign in [old.mac().unwrap().memory_tag(b"here"), [1; 16]] {
        assert!(matches!(openings.sum(&header(foreign)), Err(Error::Memory { round }) if round.get() == 1));
    }
    let own = openings.sum(&header(new.mac().unwrap().memory_tag(b"here"))).unwrap();
    assert_eq!(own, Sum::new(new.tag.key_id, RoundId::new(1), 3, Some(MemoryId::of(b"here")), Vec::new()));
    assert!(!openings.sum(&header([0; 16])).unwrap().has_memory());
}

#[test]
fn pinned_memories_are_never_forgotten_and_of_the_others_the_newest_stay() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let holder = Holder { key: &key, roster: None, minimum: 3 };
    for folder in [Some(state.path()), None] {
        let openings = OpenedLedger::open(&holder, folder).unwrap();
        let claim = |round: u64, id: &[u8], clients: &[u32]| {
            let clients = clients.iter().map(|client| Name::from(*client)).collect();
            let sum = Sum::new(key.tag.key_id, RoundId::new(round), 3, Some(MemoryId::of(id)), clients);
            openings.claim(&sum, &digest(&sum))
        };
        let (all, fewer): (Vec<u32>, Vec<u32>) = ((0..10).collect(), (0..9).collect());
        let id = |number: u32| [&b"\0position "[..], &number.to_le_bytes()].concat();
        claim(1, b"\x01queries", &all).unwrap();
        for number in 0..700u32 {
            claim(u64::from(2 + number), &id(number), &all).unwrap();
        }
        assert!(is_set(claim(2000, b"\x01queries", &fewer)), "pinned by its id");
        for number in [699, 600, 699 - 255] {
            assert!(is_set(claim(2000, &id(number), &fewer)), "{number} of the newest");
        }
        claim(2000, &id(0), &fewer).unwrap();
    }
    let length = |suffix| fs::metadata(file(state.path(), suffix)).unwrap().len();
    assert!(length("-0.sets") < 200_000, "{} bytes", length("-0.sets"));
}

/// A member of two rosters, whose journal of sets is of both.
struct Remembering {
    keys: [ClientKey; 2],
    openings: [OpenedLedger; 2],
}

impl Remembering {
    fn new(state: Option<&Path>) -> Self {
        let (keys, cohort) = ([key(), key()], Cohort::new());
        let open =
            |key| OpenedLedger::of_answers(&Holder { key, roster: Some((&[1; 32], &cohort)), minimum: 3 }, state);
        let openings = keys.each_ref().map(|key| open(key).unwrap());
        Remembering { keys, openings }
    }

    fn sum(&self, key: usize, round: u64, position: u32, clients: &[Name]) -> Sum {
        let id = [&b"\0position "[..], &position.to_le_bytes()].concat();
        Sum::new(self.keys[key].tag.key_id, RoundId::new(round), 3, Some(MemoryId::of(&id)), clients.to_vec())
    }

    fn agree(&self, key: usize, round: u64, position: u32, clients: &[Name]) -> Result<(), Error> {
        self.openings[key].agree(&self.sum(key, round, position, clients), Vec::new()).map(drop)
    }
}

/// A server holds clients at a position, and makes their first sum there forgotten: by many sums of others at few round
/// numbers, by later rounds, by rounds of another key, by old sums shown again.
#[test]
fn attack_35_no_sum_from_a_position_is_forgotten_while_its_clients_still_send() {
    let state = tempfile::tempdir().unwrap();
    let all: Vec<Name> = (0..10).collect();
    for folder in [Some(state.path()), None] {
        let of = Remembering::new(folder);
        of.agree(0, 1, 0, &all).unwrap();
        // Five positions a round, up to the last number that the held clients take.
        for number in 0..600 {
            of.agree(0, 2 + u64::from(number) / 5, 1 + number, &all).unwrap();
            of.agree(1, 10_000 + u64::from(number), 5000 + number, &all).unwrap();
        }
        assert!(is_set(of.agree(0, 129, 0, &all[..9])), "remembered");
        for number in 0..600 {
            of.agree(0, 200 + u64::from(number), 2000 + number, &all).unwrap();
        }
        assert!(is_forgotten(of.agree(0, 129, 0, &all[..9])));
        assert!(is_forgotten(of.agree(0, 70, 5, &all)), "an old proposal shown again");
        let asked = of.sum(0, 129, 0, &all[..9]);
        assert!(
            is_forgotten(of.openings[0].answer(&asked, &digest(&asked), Vec::new()).map(drop)),
            "nor is it answered"
        );
        // Both runs go on.
        of.agree(0, 900, 4000, &all).unwrap();
        of.agree(1, 10_600, 6000, &all).unwrap();
        assert!(is_set(of.agree(0, 901, 4000, &all[..9])));
    }
}

/// A server keeps updates that were sent while members remembered. When the memory is forgotten, late clients make it anew.
#[test]
fn attack_35_a_memory_that_late_clients_make_anew_lets_no_kept_update_in() {
    let state = tempfile::tempdir().unwrap();
    let (all, late): (Vec<Name>, Vec<Name>) = ((0..10).collect(), (10..20).collect());
    for folder in [Some(state.path()), None] {
        let of = Remembering::new(folder);
        of.agree(0, 1, 0, &all).unwrap();
        for number in 0..600 {
            of.agree(0, 300 + u64::from(number), 1 + number, &all).unwrap();
        }
        of.agree(0, 1000, 0, &late).unwrap();
        assert!(is_forgotten(of.agree(0, 2, 0, &all[..9])));
        let asked = of.sum(0, 2, 0, &all[..9]);
        assert!(is_forgotten(of.openings[0].answer(&asked, &digest(&asked), Vec::new()).map(drop)));
    }
}

/// A position is forgotten 128 round numbers after its last round, which is the last round of the same set.
#[test]
fn attack_35_a_position_is_too_old_only_when_its_last_round_is() {
    let state = tempfile::tempdir().unwrap();
    let all: Vec<Name> = (0..10).collect();
    for folder in [Some(state.path()), None] {
        let of = Remembering::new(folder);
        for number in 0..300 {
            of.agree(0, 1, number, &all).unwrap();
        }
        of.agree(0, 100, 0, &all).unwrap();
        of.agree(0, 356, 1000, &all).unwrap();
        for round in [101, 228] {
            assert!(is_forgotten(of.agree(0, round, 0, &all[..9])), "{round}");
        }
        of.agree(0, 229, 0, &all[..9]).unwrap();
    }
}

fn is_forgotten(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Forgotten { .. }))
}

#[test]
fn a_long_journal_is_rewritten_and_says_the_same() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let all: Vec<u32> = (0..20).map(|n| 7 * n).collect();
    // One memory of a run whose models the server sets: every round the same clients, or half of them.
    let mut longest = 0;
    for round in 1..=600u64 {
        let clients = if round % 3 == 0 { &all[..10] } else { &all[..] };
        let openings = OpenedLedger::open(&Holder { key: &key, roster: None, minimum: 3 }, Some(state.path())).unwrap();
        let sum = sum(&key, round, 1, clients);
        openings.claim(&sum, &digest(&sum)).unwrap();
        longest = longest.max(fs::metadata(file(state.path(), "-0.sets")).unwrap().len());
    }
    assert!(longest < 80_000, "{longest} bytes");
    assert!(is_set(opened(&key, state.path(), &sum(&key, 601, 1, &all[..9]))));
    opened(&key, state.path(), &sum(&key, 601, 1, &all[10..])).unwrap();
    // The file is read as a whole, or not at all.
    let (path, holder) = (file(state.path(), "-0.sets"), Holder { key: &key, roster: None, minimum: 3 });
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[64 + 32 + 16 + 40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (openings, fewer) = (OpenedLedger::open(&holder, Some(state.path())).unwrap(), sum(&key, 602, 1, &all[..9]));
    for _ in 0..2 {
        assert_eq!(openings.claim(&fewer, &digest(&fewer)).unwrap_err().class(), "LedgerError");
    }
    fs::write(&path, whole).unwrap();
    assert!(is_set(openings.claim(&fewer, &digest(&fewer))));
    // The same for the round that was the last one when the journal was rewritten.
    assert!(is_opened(opened(&key, state.path(), &sum(&key, 601, 1, &all))));
}

#[test]
fn attack_25_the_sets_put_back_cut_damaged_or_deleted_are_refused() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let open = |round, clients: &[u32]| opened(&key, state.path(), &sum(&key, round, 1, clients));
    let lost = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(error.class() == "LedgerError" && error.to_string().contains("rotate the keys"), "{error}");
    };
    open(1, &[1, 2, 3, 4, 5, 6]).unwrap();
    let path = file(state.path(), "-0.sets");
    let copy = fs::read(&path).unwrap();
    open(2, &[7, 8, 9]).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &copy).unwrap();
    lost(open(3, &[7, 8, 9, 10]));
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        lost(open(3, &[1, 2, 3]));
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        lost(open(3, &[1, 2, 3]));
    }
    for torn in 1..100 {
        fs::write(&path, [&whole[..], &vec![3; torn][..]].concat()).unwrap();
        assert!(is_set(open(3, &[7, 8, 9, 10])));
        assert_eq!(fs::read(&path).unwrap(), whole, "what a crash has left is cut off");
    }
    fs::remove_file(&path).unwrap();
    lost(open(3, &[1, 2, 3]));
}

/// Members: the answer is stored with the claim, and is given again.
#[test]
fn an_answer_is_given_again_as_it_was() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    for (folder, tag) in [(Some(state.path()), 1), (None, 1), (None, 0)] {
        let holder = Holder { key: &key, roster: None, minimum: 3 };
        let first = OpenedLedger::of_answers(&holder, folder).unwrap();
        let restarted = OpenedLedger::of_answers(&holder, folder).unwrap();
        let again = if folder.is_some() { &restarted } else { &first };
        let round = 1 + u64::from(tag);
        let asked = sum(&key, round, tag, &[1, 2, 3]);
        assert_eq!(first.answered(&asked, &[1; 32]).unwrap(), None);
        assert_eq!(first.answer(&asked, &[1; 32], b"an answer".to_vec()).unwrap(), b"an answer");
        assert_eq!(again.answered(&asked, &[1; 32]).unwrap().unwrap(), b"an answer");
        assert_eq!(again.answer(&asked, &[1; 32], b"another".to_vec()).unwrap(), b"an answer", "the first stands");
        assert!(again.answer(&asked, &[2; 32], b"another".to_vec()).is_err(), "a client once a round");
        let beside = sum(&key, round, tag, &[4, 5, 6]);
        assert_eq!(again.answer(&beside, &[3; 32], b"beside".to_vec()).is_ok(), tag != 0);
        let next = sum(&key, round + 1, tag, &[1, 2, 3]);
        again.answer(&next, &[4; 32], b"the next".to_vec()).unwrap();
        assert!(again.answer(&asked, &[1; 32], Vec::new()).is_err(), "a round that is over");
    }
}

/// Two processes, and threads of one, with one key and one folder.
#[test]
fn openings_of_several_objects_agree_on_sets() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let taken: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let tries = (0..8u32).map(|thread| {
            let (key, state) = (&key, state.path());
            scope.spawn(move || {
                let clients: Vec<u32> = (thread..thread + 4).collect();
                opened(key, state, &sum(key, 1, 1, &clients)).is_ok().then_some(clients)
            })
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let mut clients = taken.concat();
    clients.sort_unstable();
    clients.dedup();
    assert!(!taken.is_empty() && clients.len() == 4 * taken.len(), "{taken:?}");
}
