//! The state that a revocation leaves when its caller has gone.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::Epoch;
use fedcipher_engine::authority::Authority;
use fedcipher_engine::certificates::{Role, Subject, Terms};

/// As `fedcipher spec` has it.
const SPEC: &str = r#"{"scheme": "flashe", "params": {"clients": 4, "max_weight": 1, "min_contributions": 3, "masking":
    "double", "key_bits": 128, "per_client_top": null}, "codec": {"bits": 16, "clip": "auto", "margin":
    2.0, "floor": null, "start": 1.0, "rounding": "nearest", "target": "weights", "top": null}}"#;

/// The epochs and how many keys each has.
fn epochs(authority: &Authority) -> Vec<(u64, usize)> {
    authority.status().unwrap().epochs.into_iter().map(|(epoch, _, _, keys)| (epoch.get(), keys)).collect()
}

#[test]
fn a_revocation_that_was_killed_before_its_rotation_still_gets_it() {
    for (rotation, expected) in [(true, vec![(1, 2), (2, 1)]), (false, vec![(1, 2)])] {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("store");
        drop(Authority::init(&store, SPEC, vec!["localhost".into()], None).unwrap());
        let mut authority = Authority::open(&store).unwrap();
        for name in ["stays", "goes"] {
            let party = Subject::new(Role::Device, name);
            authority.enrol(&party, &Terms::days(1, vec![]), None, &root.path().join(name)).unwrap();
        }
        assert_eq!(authority.rotate(false).unwrap(), Epoch::new(1));
        authority.revoke("goes", rotation).unwrap();
        drop(authority);
        let mut authority = Authority::open(&store).unwrap();
        assert_eq!(epochs(&authority), [(1, 2)]);
        authority.finish_epoch(Epoch::new(1)).unwrap();
        assert_eq!(epochs(&authority), expected);
    }
}
