//! Attack 7 of the trust model: whatever happens to a ledger's file, no round is encrypted twice.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::key_file::{self, Sharing};
use fedcipher_core::keys::ClientKey;
use fedcipher_core::ledger::{self, Folder, Holder, Ledger, OpenedLedger, Sum};
use fedcipher_core::plain::Plain;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

fn keys(clients: u32) -> Vec<ClientKey> {
    let bounds = fedcipher_core::bounds::Bounds::new(4, Weight::ONE, Some(1)).unwrap();
    Plain::new(bounds).keygen(&ClientId::list(0..clients), Epoch::new(1)).unwrap().clients
}

fn key() -> ClientKey {
    keys(1).remove(0)
}

fn file(state: &Path, suffix: &str) -> PathBuf {
    let mut found = fs::read_dir(state).unwrap().map(|f| f.unwrap().path());
    found.find(|p| p.to_string_lossy().ends_with(suffix)).unwrap()
}

fn dated(seconds_from_now: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (now.checked_add_signed(seconds_from_now).unwrap() << 20) + 7
}

fn opener(key: &ClientKey, state: Option<&Path>) -> Result<OpenedLedger, Error> {
    OpenedLedger::open(&Holder { key, roster: None, minimum: 3 }, state)
}

fn answers(key: &ClientKey, state: &Path) -> Result<OpenedLedger, Error> {
    OpenedLedger::of_answers(&Holder { key, roster: None, minimum: 3 }, Some(state))
}

/// A claim as after a restart.
fn claim(key: &ClientKey, state: &Path, round: u64) -> Result<(), Error> {
    Ledger::open(key, Some(state))?.claim(RoundId::new(round))
}

fn lost(result: Result<(), Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.class(), "LedgerError", "{error}");
    assert!(error.to_string().contains("rotate the keys"), "no fix: {error}");
    error.to_string()
}

#[test]
fn attack_30_a_state_folder_that_others_write_to_is_refused() {
    let (root, key) = (tempfile::tempdir().unwrap(), key());
    let state = root.path().join("state");
    claim(&key, &state, 5).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for place in [state.as_path(), root.path()] {
        for open in [0o777, 0o770, 0o707] {
            mode(place, open);
            let error = claim(&key, &state, 6).unwrap_err();
            assert_eq!(error.class(), "LedgerError", "{error}");
            assert!(error.to_string().contains(&format!("chmod go-w {}", place.display())), "{error}");
        }
        mode(place, 0o700);
    }
    claim(&key, &state, 6).unwrap();
}

#[test]
fn rounds_increase_across_restarts() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    for round in [5, 6, 900, dated(0)] {
        claim(&key, state.path(), round).unwrap();
        for old in [round, round - 1, 0] {
            assert!(
                matches!(claim(&key, state.path(), old), Err(Error::NonceReuse { last, .. }) if last.get() == round)
            );
        }
    }
}

#[test]
fn a_new_ledger_has_had_no_round_not_even_0() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    ledger::register(&key, state.path()).unwrap();
    claim(&key, state.path(), 0).unwrap();
    assert!(
        matches!(claim(&key, state.path(), 0), Err(Error::NonceReuse { round, last, .. }) if round.get() == 0 && last.get() == 0)
    );
}

#[test]
fn no_bit_of_a_ledger_may_flip() {
    for rounds in [0u64, 1, 2] {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        ledger::register(&key, state.path()).unwrap();
        (1..=rounds).for_each(|round| claim(&key, state.path(), round).unwrap());
        let path = file(state.path(), ".nonce");
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            lost(claim(&key, state.path(), rounds.max(1)));
        }
        fs::write(&path, &whole).unwrap();
        claim(&key, state.path(), rounds + 1).unwrap();
    }
}

#[test]
fn a_ledger_that_is_shorter_longer_or_emptied_is_refused() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    (1..=3).for_each(|round| claim(&key, state.path(), round).unwrap());
    let path = file(state.path(), ".nonce");
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        lost(claim(&key, state.path(), 2));
    }
    let mut zeroed = whole.clone();
    zeroed[64..].fill(0);
    let longer = [&whole[..], &[0]].concat();
    for bytes in [vec![0; whole.len()], zeroed, longer] {
        fs::write(&path, bytes).unwrap();
        lost(claim(&key, state.path(), 2));
    }
}

#[test]
fn a_deleted_ledger_is_refused() {
    let (state, keys) = (tempfile::tempdir().unwrap(), keys(2));
    let mut open = Ledger::open(&keys[0], Some(state.path())).unwrap();
    open.claim(RoundId::new(1)).unwrap();
    fs::remove_file(file(state.path(), "-0.nonce")).unwrap();
    lost(open.claim(RoundId::new(2)));
    lost(claim(&keys[0], state.path(), 1));
    claim(&keys[1], state.path(), 1).unwrap();
    // With the list of ledgers gone too: the other ledgers show it.
    fs::remove_file(file(state.path(), "ledgers.index")).unwrap();
    lost(claim(&keys[1], state.path(), 1));
}

#[test]
fn a_ledger_that_is_put_back_or_is_anothers_is_refused() {
    let (state, other, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), keys(2));
    let mut open = Ledger::open(&keys[0], Some(state.path())).unwrap();
    open.claim(RoundId::new(1)).unwrap();
    let (own, old) = (file(state.path(), "-0.nonce"), fs::read(file(state.path(), "-0.nonce")).unwrap());
    open.claim(RoundId::new(2)).unwrap();
    let new = fs::read(&own).unwrap();
    fs::write(&own, &old).unwrap();
    lost(open.claim(RoundId::new(2)));
    // The newest slot alone put back: the two do not follow each other.
    fs::write(&own, &new).unwrap();
    open = Ledger::open(&keys[0], Some(state.path())).unwrap();
    open.claim(RoundId::new(3)).unwrap();
    let mut mixed = fs::read(&own).unwrap();
    mixed[96..].copy_from_slice(&old[96..]);
    fs::write(&own, &mixed).unwrap();
    lost(claim(&keys[0], state.path(), 3));
    // Another client's file, another folder's file.
    claim(&keys[1], state.path(), 1).unwrap();
    fs::copy(file(state.path(), "-1.nonce"), &own).unwrap();
    assert!(lost(claim(&keys[0], state.path(), 9)).contains("the ledger of another key"));
    claim(&keys[0], other.path(), 1).unwrap();
    fs::copy(file(other.path(), "-0.nonce"), &own).unwrap();
    assert!(lost(claim(&keys[0], state.path(), 9)).contains("of another state folder"));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let (state, other, key) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), key());
    claim(&key, state.path(), 1).unwrap();
    let path = file(state.path(), ".nonce");
    fs::rename(&path, other.path().join("elsewhere")).unwrap();
    symlink(other.path().join("elsewhere"), &path).unwrap();
    let refused = || {
        let error = claim(&key, state.path(), 2).unwrap_err();
        assert!(error.class() == "LedgerError" && error.to_string().contains("symbolic link"), "{error}");
    };
    refused();
    let index = file(state.path(), "ledgers.index");
    fs::rename(&index, other.path().join("index")).unwrap();
    symlink(other.path().join("index"), &index).unwrap();
    refused();
}

/// A ledger that cannot be read has not been lost. So the error names no fix that costs the keys.
#[test]
fn a_folder_in_a_ledgers_place_is_no_reason_to_rotate() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    claim(&key, state.path(), 1).unwrap();
    let path = file(state.path(), ".nonce");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = claim(&key, state.path(), 2).unwrap_err();
    assert!(error.class() == "LedgerError" && !error.to_string().contains("rotate the keys"), "{error}");
}

#[test]
fn files_are_their_owners_alone() {
    let (root, key) = (tempfile::tempdir().unwrap(), key());
    let state = root.path().join("a/b/state");
    ledger::register(&key, &state).unwrap();
    opener(&key, Some(&state)).unwrap().claim(&Sum::alone(RoundId::new(1)), &[1; 32]).unwrap();
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    let files: Vec<_> = fs::read_dir(&state).unwrap().map(|f| f.unwrap()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|f| f.metadata().unwrap().permissions().mode() & 0o777 == 0o600));
}

#[test]
fn a_wrong_clock_does_not_brick_a_key() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    ledger::register(&key, state.path()).unwrap();
    for round in [dated(2 * 86_400), u64::MAX] {
        assert!(matches!(claim(&key, state.path(), round), Err(Error::RoundDate { .. })));
        assert!(matches!(Ledger::open(&key, None).unwrap().reserve(RoundId::new(round)), Err(Error::RoundDate { .. })));
        let openings = opener(&key, Some(state.path())).unwrap();
        assert!(matches!(openings.claim(&Sum::alone(RoundId::new(round)), &[0; 32]), Err(Error::RoundDate { .. })));
    }
    claim(&key, state.path(), dated(-3600)).unwrap();
    claim(&key, state.path(), dated(3600)).unwrap();
    ledger::check_date(RoundId::new((1 << 40) - 1)).unwrap();
    // A day ahead is the last that is taken; what is refused says how far ahead it is.
    ledger::check_date(RoundId::new(dated(86_400))).unwrap();
    let error = ledger::check_date(RoundId::new(dated(3 * 86_400 + 3600))).unwrap_err();
    assert!(matches!(error, Error::RoundDate { days: 3, .. }), "{error}");
}

#[test]
fn a_ledger_that_nobody_vouches_for_refuses_rounds_begun_before_it() {
    let (state, other, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), keys(2));
    claim(&keys[0], state.path(), dated(1)).unwrap();
    // The attack: the same rounds again under a new state folder.
    lost(claim(&keys[0], other.path(), dated(-5)));
    claim(&keys[0], other.path(), dated(1)).unwrap();
    ledger::register(&keys[1], other.path()).unwrap();
    claim(&keys[1], other.path(), dated(-5)).unwrap();
}

#[test]
fn a_reservation_is_durable_and_is_used_once() {
    for folder in [Some(tempfile::tempdir().unwrap()), None] {
        let (key, state) = (key(), folder.as_ref().map(|f| f.path()));
        let mut ledger = Ledger::open(&key, state).unwrap();
        ledger.reserve(RoundId::new(5)).unwrap();
        ledger.reserve(RoundId::new(5)).unwrap();
        if let Some(state) = state {
            assert!(matches!(claim(&key, state, 5), Err(Error::NonceReuse { last, .. }) if last.get() == 5));
        }
        assert!(ledger.claim(RoundId::new(4)).is_err());
        ledger.claim(RoundId::new(5)).unwrap();
        assert!(matches!(ledger.claim(RoundId::new(5)), Err(Error::NonceReuse { last, .. }) if last.get() == 5));
        assert!(ledger.reserve(RoundId::new(5)).is_err());
        ledger.reserve(RoundId::new(6)).unwrap();
        ledger.claim(RoundId::new(7)).unwrap();
        assert!(ledger.claim(RoundId::new(6)).is_err(), "a reservation outlived a later round");
    }
}

#[test]
fn one_aggregate_a_round_and_none_older() {
    for folder in [Some(tempfile::tempdir().unwrap()), None] {
        let (key, state) = (key(), folder.as_ref().map(|f| f.path()));
        let openings = opener(&key, state).unwrap();
        for round in [3u64, 4, 9] {
            openings.claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]).unwrap();
        }
        let again = folder.as_ref().map(|f| opener(&key, Some(f.path())).unwrap());
        let openings = again.as_ref().unwrap_or(&openings);
        for round in [9u64, 3, 4] {
            openings.claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]).unwrap();
            assert!(
                matches!(openings.claim(&Sum::alone(RoundId::new(round)), &[0; 32]), Err(Error::Opened { last, .. }) if last.get() == 9)
            );
        }
        for round in [0, 5, 8] {
            let error = openings.claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]).unwrap_err();
            assert_eq!(error.class(), "ReplayError");
        }
        openings.claim(&Sum::alone(RoundId::new(10)), &[0; 32]).unwrap();
    }
}

#[test]
fn openings_of_several_objects_agree() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let open = || opener(&key, Some(state.path())).unwrap();
    let (a, b) = (open(), open());
    for round in 1..=50u64 {
        let (first, second) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        first.claim(&Sum::alone(RoundId::new(round)), &[1; 32]).unwrap();
        assert!(second.claim(&Sum::alone(RoundId::new(round)), &[2; 32]).is_err());
        second.claim(&Sum::alone(RoundId::new(round)), &[1; 32]).unwrap();
    }
    let wins: Vec<bool> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8u8)
            .map(|k| scope.spawn(move || open().claim(&Sum::alone(RoundId::new(51)), &[k; 32]).is_ok()))
            .collect();
        tries.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(wins.into_iter().filter(|won| *won).count(), 1);
}

#[test]
fn damaged_cut_or_deleted_openings_are_refused() {
    let (state, key) = (tempfile::tempdir().unwrap(), key());
    let claim =
        |round: u64| opener(&key, Some(state.path()))?.claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]);
    (1..=3).for_each(|round| claim(RoundId::new(round).get()).unwrap());
    let path = file(state.path(), ".opened");
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 64 + 3 * 64);
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        lost(claim(RoundId::new(4).get()));
    }
    // The last record and the header are read by every claim; an older record when it is looked for.
    for bit in (0..64 * 8).chain((64 + 128) * 8..whole.len() * 8) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        lost(claim(RoundId::new(4).get()));
    }
    let mut bytes = whole.clone();
    bytes[64 + 20] ^= 1;
    fs::write(&path, &bytes).unwrap();
    lost(claim(RoundId::new(1).get()));
    // A crash in the middle of a write leaves part of a record that was never released.
    for torn in 1..64 {
        fs::write(&path, [&whole[..], &vec![7; torn][..]].concat()).unwrap();
        claim(RoundId::new(3).get()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    // The last record in the place of that of another folder, where the key opened another round: no checksum shows it.
    let other = tempfile::tempdir().unwrap();
    for round in [1, 2, 5] {
        opener(&key, Some(other.path())).unwrap().claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]).unwrap();
    }
    let mut mixed = whole.clone();
    mixed[64 + 128..].copy_from_slice(&fs::read(file(other.path(), ".opened")).unwrap()[64 + 128..]);
    fs::write(&path, &mixed).unwrap();
    assert!(lost(claim(RoundId::new(6).get())).contains("does not end as ledgers.index says"));
    // Put back whole, under an object that has seen more.
    fs::write(&path, &whole).unwrap();
    let open = opener(&key, Some(state.path())).unwrap();
    open.claim(&Sum::alone(RoundId::new(4)), &[4; 32]).unwrap();
    fs::write(&path, &whole).unwrap();
    lost(open.claim(&Sum::alone(RoundId::new(5)), &[5; 32]));
    fs::remove_file(&path).unwrap();
    lost(claim(RoundId::new(4).get()));
}

fn key_file(folder: &Path, key: &ClientKey) -> PathBuf {
    let path = folder.join(format!("client-{}.key", key.client));
    fs::write(&path, [b"{}\n", key.to_bytes().as_slice()].concat()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_key_file_has_one_state_folder_and_one_kind_of_user() {
    let root = tempfile::tempdir().unwrap();
    let (state, other, key) = (root.path().join("state"), root.path().join("other"), key());
    let path = key_file(root.path(), &key);
    let take = |state: &Path, sharing| key_file::take(&path, &key, state, sharing);
    let workers = [take(&state, Sharing::Workers).unwrap(), take(&state, Sharing::Workers).unwrap()];
    assert!(matches!(take(&state, Sharing::Alone), Err(Error::KeyInUse { .. })));
    drop(workers);
    let engine = take(&state, Sharing::Alone).unwrap();
    for sharing in [Sharing::Alone, Sharing::Workers] {
        assert_eq!(take(&state, sharing).unwrap_err().class(), "KeyInUseError");
        assert_eq!(take(&other, sharing).unwrap_err().class(), "KeyInUseError");
    }
    drop(engine);
    let error = take(&other, Sharing::Workers).unwrap_err();
    assert!(error.to_string().contains("another state folder"), "{error}");
    // A link to the file, by another way: its marker is the file's.
    let link = root.path().join("link.key");
    symlink(&path, &link).unwrap();
    assert!(key_file::take(&link, &key, &other, Sharing::Workers).is_err());
    // The folder as it was, but for this key's ledgers.
    for suffix in ["-0.nonce", "-0.opened"] {
        let gone = file(&state, suffix);
        let content = fs::read(&gone).unwrap();
        fs::remove_file(&gone).unwrap();
        lost(take(&state, Sharing::Workers).map(drop));
        fs::write(&gone, content).unwrap();
    }
    // And as it was before it knew of them.
    let index = fs::OpenOptions::new().write(true).open(file(&state, "ledgers.index")).unwrap();
    index.set_len(128).unwrap();
    ["-0.nonce", "-0.opened"].iter().for_each(|suffix| fs::remove_file(file(&state, suffix)).unwrap());
    lost(take(&state, Sharing::Workers).map(drop));
    fs::remove_dir_all(&state).unwrap();
    assert!(take(&state, Sharing::Workers).is_err(), "a new folder at the same place is another one");
}

#[test]
fn a_marker_that_is_cut_is_refused_and_one_of_an_earlier_key_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let (state, old, new) = (root.path().join("state"), key(), key());
    let path = key_file(root.path(), &old);
    let held = key_file::take(&path, &old, &state, Sharing::Workers).unwrap();
    key_file(root.path(), &new);
    assert!(matches!(key_file::take(&path, &new, &state, Sharing::Workers), Err(Error::KeyInUse { .. })));
    drop(held);
    drop(key_file::take(&path, &new, &state, Sharing::Workers).unwrap());
    let marker = key_file::marker(&path).unwrap();
    assert_eq!(fs::metadata(&marker).unwrap().permissions().mode() & 0o777, 0o600);
    let whole = fs::read(&marker).unwrap();
    for len in 0..whole.len() {
        fs::write(&marker, &whole[..len]).unwrap();
        let error = key_file::take(&path, &new, &state, Sharing::Workers).unwrap_err();
        assert!(error.to_string().contains("rotate the keys"), "{error}");
    }
}

#[test]
fn a_key_that_others_may_read_or_replace_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = key_file(root.path(), &key());
    assert_eq!(key_file::load(&path).unwrap().0, "{}");
    for mode in [0o644, 0o640, 0o604, 0o620] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = key_file::load(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    for (mode, fix) in [(0o777, "chmod go-w"), (0o770, "chmod go-w"), (0o1777, "mkdir -m 700")] {
        fs::set_permissions(root.path(), fs::Permissions::from_mode(mode)).unwrap();
        let error = key_file::load(&path).unwrap_err();
        assert!(error.to_string().contains(fix), "{error}");
    }
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
    // Nor a folder above, nor one that a link leads through.
    let below = root.path().join("open").join("mine");
    fs::create_dir_all(&below).unwrap();
    let deep = key_file(&below, &key());
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&deep, &link).unwrap();
    for through in [&deep, &link] {
        key_file::load(through).unwrap();
        for mode in [0o777, 0o770] {
            fs::set_permissions(root.path().join("open"), fs::Permissions::from_mode(mode)).unwrap();
            let error = key_file::load(through).unwrap_err();
            assert!(error.to_string().contains("open (mode"), "{error}");
        }
        fs::set_permissions(root.path().join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        key_file::load(through).unwrap();
        fs::set_permissions(root.path().join("open"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..content.len() - 1]).unwrap();
    let error = key_file::load(&path).unwrap_err().to_string();
    assert!(error.contains("damaged") && !error.contains("transmit"), "{error}");
}

#[test]
fn a_torn_list_mends_and_a_damaged_one_admits_no_new_ledger() {
    let (state, keys) = (tempfile::tempdir().unwrap(), keys(3));
    claim(&keys[0], state.path(), 1).unwrap();
    let index = file(state.path(), "ledgers.index");
    let whole = fs::read(&index).unwrap();
    // An entry cut off in mid-write: its ledger was not used yet. It is listed when it is opened.
    ledger::register(&keys[1], state.path()).unwrap();
    let listed = fs::read(&index).unwrap();
    for torn in [0, 1, 63, 127, 128, 200] {
        fs::write(&index, &listed[..whole.len() + torn]).unwrap();
        ledger::register(&keys[1], state.path()).unwrap();
        assert_eq!(fs::read(&index).unwrap(), listed);
    }
    claim(&keys[1], state.path(), 2).unwrap();
    // A damaged entry may be that of a ledger which is gone: those that are there go on, no new one is made.
    let mut bytes = fs::read(&index).unwrap();
    bytes[128 + 30] ^= 1;
    fs::write(&index, &bytes).unwrap();
    claim(&keys[1], state.path(), 100).unwrap();
    lost(claim(&keys[2], state.path(), 1));
    assert_eq!(Folder::open(state.path()).unwrap().path(), state.path());
    #[cfg(unix)]
    for mode in [0o777, 0o770, 0o1777] {
        fs::set_permissions(state.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert!(Folder::open(state.path()).is_err(), "{mode:o}");
    }
}

/// The files of a state folder, one for each kind of memory: (suffix, a claim by a new process).
type Kind = (&'static str, fn(&ClientKey, &Path, u64, u8) -> Result<(), Error>);

const KINDS: [Kind; 3] = [
    ("-0.nonce", |key, state, round, _| claim(key, state, round)),
    ("-0.opened", |key, state, round, digest| {
        opener(key, Some(state))?.claim(&Sum::alone(RoundId::new(round)), &[digest; 32])
    }),
    ("-0.answered", |key, state, round, digest| {
        answers(key, state)?.claim(&Sum::alone(RoundId::new(round)), &[digest; 32])
    }),
];

/// In another file of the same name, as a backup program or an attacker puts it there.
fn put(path: &Path, content: &[u8]) {
    let other = path.with_extension("put");
    fs::write(&other, content).unwrap();
    fs::rename(other, path).unwrap();
}

#[test]
fn attack_25_a_ledger_put_back_is_refused_by_a_new_process() {
    for (suffix, claim) in KINDS {
        for (before, after) in [(0, 1), (0, 3), (1, 1), (1, 2), (4, 1), (4, 5)] {
            let (state, key) = (tempfile::tempdir().unwrap(), key());
            ledger::register(&key, state.path()).unwrap();
            // Another client's claims, which go into the same index.
            let other = &keys(2)[1];
            let claim = |round, digest| claim(&key, state.path(), round, digest);
            (1..=before).for_each(|round| claim(round, 1).unwrap());
            if before == 0 {
                let _ = answers(&key, state.path()).unwrap();
            }
            let path = file(state.path(), suffix);
            let copy = fs::read(&path).unwrap();
            (before + 1..=before + after).for_each(|round| claim(round, 1).unwrap());
            put(&path, &copy);
            // The round again, of another update or aggregate, and what would have come next.
            for round in [before + 1, before + after, before + after + 1] {
                let said = lost(claim(round, 2));
                assert!(said.contains("put back"), "{said}");
            }
            self::claim(other, state.path(), 1).unwrap();
        }
    }
}

#[test]
fn attack_25_an_index_put_back_cut_or_deleted_is_refused_and_loses_no_claim() {
    for (suffix, claim) in KINDS {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        let claim = |round, digest| claim(&key, state.path(), round, digest);
        claim(1, 1).unwrap();
        let index = file(state.path(), "ledgers.index");
        let copy = fs::read(&index).unwrap();
        (2..=3).for_each(|round| claim(round, 1).unwrap());
        let whole = fs::read(&index).unwrap();
        put(&index, &copy);
        for round in [1, 3, 4] {
            lost(claim(round, 2));
        }
        // Behind its entry is that of a ledger that has not been used.
        for len in 0..2 * 128 {
            put(&index, &whole[..len]);
            lost(claim(4, 2));
        }
        fs::remove_file(&index).unwrap();
        lost(claim(4, 2));
        // One claim behind is what a power cut leaves: it is completed, and the claim stands.
        put(&index, &whole);
        claim(4, 1).unwrap();
        put(&index, &whole);
        assert!(matches!(claim(4, 2), Err(Error::NonceReuse { .. } | Error::Opened { .. })), "{suffix}");
        claim(5, 1).unwrap();
    }
}

#[test]
fn attack_25_a_file_of_another_folder_is_refused() {
    for (suffix, claim) in KINDS {
        let (state, other, key) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), key());
        for folder in [&state, &other] {
            (1..=3).for_each(|round| claim(&key, folder.path(), round, 1).unwrap());
        }
        for name in [suffix, "ledgers.index"] {
            let own = file(state.path(), name);
            let content = fs::read(&own).unwrap();
            put(&own, &fs::read(file(other.path(), name)).unwrap());
            lost(claim(&key, state.path(), 4, 1));
            put(&own, &content);
        }
        claim(&key, state.path(), 4, 1).unwrap();
    }
}

#[test]
fn attack_25_no_bit_of_a_ledgers_entry_may_flip() {
    for (_, claim) in KINDS {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        (1..=2).for_each(|round| claim(&key, state.path(), round, 1).unwrap());
        let index = file(state.path(), "ledgers.index");
        let whole = fs::read(&index).unwrap();
        for bit in 128 * 8..2 * 128 * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&index, &bytes).unwrap();
            lost(claim(&key, state.path(), 3, 1));
        }
        fs::write(&index, &whole).unwrap();
        claim(&key, state.path(), 3, 1).unwrap();
    }
}

/// Threads that all ask for the same rounds, while an old copy takes the ledger's place.
#[test]
fn attack_25_threads_claim_no_round_twice_while_a_copy_is_put_back() {
    for (suffix, claim) in KINDS {
        let (state, key) = (tempfile::tempdir().unwrap(), key());
        let (key, folder) = (&key, state.path());
        (1..=5).for_each(|round| claim(key, folder, round, 9).unwrap());
        let path = file(folder, suffix);
        let copy = fs::read(&path).unwrap();
        let claimed: Vec<(u64, u8)> = std::thread::scope(|scope| {
            let tries = (1..=6).map(|thread: u8| {
                scope.spawn(move || {
                    (6..=60u64)
                        .filter(|round| claim(key, folder, *round, thread).is_ok())
                        .map(|r| (r, thread))
                        .collect()
                })
            });
            let tries: Vec<std::thread::ScopedJoinHandle<'_, Vec<_>>> = tries.collect();
            for _ in 0..200 {
                if claim(key, folder, 20, 7).is_ok() {
                    break;
                }
                std::thread::yield_now();
            }
            put(&path, &copy);
            tries.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let rounds: std::collections::BTreeSet<u64> = claimed.iter().map(|(round, _)| *round).collect();
        assert_eq!(rounds.len(), claimed.len(), "{suffix}: a round twice: {claimed:?}");
        lost(claim(key, folder, 100, 1));
    }
}
