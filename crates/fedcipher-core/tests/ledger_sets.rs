//! The rule of sets where sums are opened and answered for: kept on disk, by identity, whatever begins anew.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::Error;
use fedcipher_core::bounds::Bounds;
use fedcipher_core::keys::ClientKey;
use fedcipher_core::ledger::{Holder, Openings, Sum};
use fedcipher_core::plain::Plain;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::wire::{Contribution, Header, Kind};
use std::fs;
use std::path::{Path, PathBuf};

fn key() -> ClientKey {
    Plain::new(Bounds::new(20, 1, None).unwrap()).keygen(&[0, 1], 1).unwrap().clients.remove(0)
}

/// The sum of `clients` in `round`, whose memory has this tag; `id` where the opener knows it.
fn sum(key: &ClientKey, round: u64, tag: u8, id: Option<&[u8]>, clients: &[u32]) -> Sum {
    let contributions = clients.iter().map(|client| Contribution { client: *client, weight: 1 }).collect();
    let header = key.tag.header(Kind::Aggregate, round, contributions);
    Sum::of(&Header { memory: [tag; 16], ..header }, id)
}

fn digest(sum: &Sum) -> [u8; 32] {
    *blake3::hash(format!("{sum:?}").as_bytes()).as_bytes()
}

/// As in a new process.
fn opened(key: &ClientKey, state: &Path, sum: &Sum) -> Result<(), Error> {
    let holder = Holder { key, identity: None, minimum: 3 };
    Openings::open(&holder, Some(state))?.claim(sum, &digest(sum))
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
    let open = |round, tag, clients: &[u32]| opened(&key, state.path(), &sum(&key, round, tag, None, clients));
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
        let holder = Holder { key: &key, identity: None, minimum: 3 };
        let alone = Openings::open(&holder, None).unwrap();
        let open = |sum: &Sum| match memory {
            true => alone.claim(sum, &digest(sum)),
            false => opened(&key, state.path(), sum),
        };
        let sum = |round, tag, clients: &[u32]| self::sum(&key, round, tag, None, clients);
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

#[test]
fn a_memory_outlives_keys_of_one_identity() {
    let (state, old, new) = (tempfile::tempdir().unwrap(), key(), key());
    let open = |key: &ClientKey, identity: Option<&[u8; 32]>, sum: &Sum| {
        let holder = Holder { key, identity, minimum: 3 };
        Openings::open(&holder, Some(state.path())).unwrap().claim(sum, &digest(sum))
    };
    let own = [7; 32];
    // The tag of a memory is another under another key; its id says which it is. A sum that came without counts too.
    open(&old, Some(&own), &sum(&old, 1, 1, None, &[1, 2, 3, 4, 5, 6])).unwrap();
    open(&old, Some(&own), &sum(&old, 2, 1, Some(b"\x01the first position"), &[1, 2, 3, 4, 5, 6])).unwrap();
    let fewer = sum(&new, 1, 9, Some(b"\x01the first position"), &[1, 2, 3, 4, 5]);
    assert!(is_set(open(&new, Some(&own), &fewer)));
    // From here on the new tag says it as well.
    open(&new, Some(&own), &sum(&new, 1, 9, Some(b"\x01the first position"), &[4, 5, 6])).unwrap();
    assert!(is_set(open(&new, Some(&own), &sum(&new, 2, 9, None, &[3, 4, 5, 6]))));
    open(&new, Some(&own), &sum(&new, 3, 9, Some(b"\x01another position"), &[1, 2, 3, 4, 5])).unwrap_err();
    open(&new, Some(&[8; 32]), &sum(&new, 4, 9, Some(b"\x01the first position"), &[1, 2, 3, 4, 5])).unwrap();
}

#[test]
fn pinned_memories_are_never_forgotten_and_of_the_others_the_newest_stay() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let holder = Holder { key: &key, identity: None, minimum: 3 };
    for folder in [Some(state.path()), None] {
        let openings = Openings::open(&holder, folder).unwrap();
        let tag = |number: u32| {
            let mut tag = [3; 16];
            tag[..4].copy_from_slice(&number.to_le_bytes());
            tag
        };
        let claim = |round: u64, number: u32, id: Option<&[u8]>, clients: &[u32]| {
            let contributions = clients.iter().map(|client| Contribution { client: *client, weight: 1 }).collect();
            let header = key.tag.header(Kind::Aggregate, round, contributions);
            let sum = Sum::of(&Header { memory: tag(number), ..header }, id);
            openings.claim(&sum, &digest(&sum))
        };
        let (all, fewer): (Vec<u32>, Vec<u32>) = ((0..10).collect(), (0..9).collect());
        claim(1, 1, Some(b"\x01queries"), &all).unwrap();
        claim(2, 2, None, &all).unwrap();
        for number in 0..700u32 {
            let id = [&b"\0position "[..], &number.to_le_bytes()].concat();
            claim(u64::from(3 + number), 100 + number, Some(&id), &all).unwrap();
        }
        assert!(is_set(claim(2000, 1, Some(b"\x01queries"), &fewer)), "pinned by its id");
        assert!(is_set(claim(2000, 2, None, &fewer)), "pinned, since nobody knows its id");
        let id = |number: u32| [&b"\0position "[..], &number.to_le_bytes()].concat();
        for number in [699, 600, 699 - 255] {
            assert!(is_set(claim(2000, 100 + number, Some(&id(number)), &fewer)), "{number} of the newest");
        }
        claim(2000, 100, Some(&id(0)), &fewer).unwrap();
    }
    let length = |suffix| fs::metadata(file(state.path(), suffix)).unwrap().len();
    assert!(length("-0.sets") < 200_000, "{} bytes", length("-0.sets"));
}

#[test]
fn a_long_journal_is_rewritten_and_says_the_same() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let all: Vec<u32> = (0..20).map(|n| 7 * n).collect();
    // One memory of a run whose models the server sets: every round the same clients, or half of them.
    let mut longest = 0;
    for round in 1..=600u64 {
        let clients = if round % 3 == 0 { &all[..10] } else { &all[..] };
        let openings = Openings::open(&Holder { key: &key, identity: None, minimum: 3 }, Some(state.path())).unwrap();
        let sum = sum(&key, round, 1, None, clients);
        openings.claim(&sum, &digest(&sum)).unwrap();
        longest = longest.max(fs::metadata(file(state.path(), "-0.sets")).unwrap().len());
    }
    assert!(longest < 80_000, "{longest} bytes");
    assert!(is_set(opened(&key, state.path(), &sum(&key, 601, 1, None, &all[..9]))));
    opened(&key, state.path(), &sum(&key, 601, 1, None, &all[10..])).unwrap();
    // What is kept is read as a whole, or not at all.
    let (path, holder) = (file(state.path(), "-0.sets"), Holder { key: &key, identity: None, minimum: 3 });
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[64 + 32 + 16 + 40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (openings, fewer) = (Openings::open(&holder, Some(state.path())).unwrap(), sum(&key, 602, 1, None, &all[..9]));
    for _ in 0..2 {
        assert_eq!(openings.claim(&fewer, &digest(&fewer)).unwrap_err().class(), "LedgerError");
    }
    fs::write(&path, whole).unwrap();
    assert!(is_set(openings.claim(&fewer, &digest(&fewer))));
    // Of the round that was the last when the journal was rewritten too.
    assert!(is_opened(opened(&key, state.path(), &sum(&key, 601, 1, None, &all))));
}

#[test]
fn attack_25_the_sets_put_back_cut_damaged_or_deleted_are_refused() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let open = |round, clients: &[u32]| opened(&key, state.path(), &sum(&key, round, 1, None, clients));
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
        let holder = Holder { key: &key, identity: None, minimum: 3 };
        let first = Openings::of_answers(&holder, folder).unwrap();
        let restarted = Openings::of_answers(&holder, folder).unwrap();
        let again = if folder.is_some() { &restarted } else { &first };
        let round = 1 + u64::from(tag);
        let asked = sum(&key, round, tag, None, &[1, 2, 3]);
        assert_eq!(first.answered(&asked, &[1; 32]).unwrap(), None);
        assert_eq!(first.answer(&asked, &[1; 32], b"an answer".to_vec()).unwrap(), b"an answer");
        assert_eq!(again.answered(&asked, &[1; 32]).unwrap().unwrap(), b"an answer");
        assert_eq!(again.answer(&asked, &[1; 32], b"another".to_vec()).unwrap(), b"an answer", "the first stands");
        assert!(again.answer(&asked, &[2; 32], b"another".to_vec()).is_err(), "a client once a round");
        let beside = sum(&key, round, tag, None, &[4, 5, 6]);
        assert_eq!(again.answer(&beside, &[3; 32], b"beside".to_vec()).is_ok(), tag != 0);
        let next = sum(&key, round + 1, tag, None, &[1, 2, 3]);
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
                opened(key, state, &sum(key, 1, 1, None, &clients)).is_ok().then_some(clients)
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
