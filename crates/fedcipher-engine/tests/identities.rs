//! The identity cards of devices that the authority keeps, and the device that each card belongs to.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::oneshot::identity::Identity;
use fedcipher_engine::Error;
use fedcipher_engine::authority::Authority;
use fedcipher_engine::certificates::{Role, Subject, Terms};

/// As `fedcipher spec` has it.
const SPEC: &str = r#"{"scheme": "oneshot", "params": {"clients": 3, "max_weight": 1, "min_contributions": 3,
    "preset": "compact", "members": 3, "threshold": 3, "corrupt_clients": 1, "corrupt_members": 1, "pack": 1, "reveal": "clients",
    "prekey_rounds": 1, "prekey_hours": 24},
    "codec": {"bits": 12, "clip": "auto", "margin": 2.0, "floor": null, "start": 1.0, "rounding": "nearest",
    "target": "weights", "top": null}}"#;

#[test]
fn an_identity_is_one_devices_and_stays_it() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    drop(Authority::init(&store, SPEC, vec!["localhost".into()], None).unwrap());
    let mut authority = Authority::open(&store).unwrap();
    for name in ["one", "two"] {
        let party = Subject::new(Role::Device, name);
        authority.enrol(&party, &Terms::days(1, vec![]), None, &root.path().join(name)).unwrap();
    }
    let [first, second] = [(); 2].map(|()| {
        let identity = Identity::generate().unwrap();
        (identity.verify_keys().to_vec(), identity.secret.public())
    });
    authority.show_card("one", &first.0, &first.1).unwrap();
    authority.show_card("one", &first.0, &first.1).unwrap();
    let other = authority.show_card("one", &second.0, &second.1).unwrap_err();
    assert!(matches!(other, Error::OtherIdentity { .. }), "{other}");
    // Also with another encryption key: the signing key names the party.
    for sealing in [&first.1, &second.1] {
        let taken = authority.show_card("two", &first.0, sealing).unwrap_err();
        assert!(matches!(&taken, Error::Access(why) if why.contains("of another device")), "{taken}");
    }
    authority.show_card("two", &second.0, &second.1).unwrap();
}
