//! The keys and settings that an engine accepts from the authority.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::registry;
use fedcipher_core::{ClientId, Epoch};
use fedcipher_engine::Error;
use fedcipher_engine::keyring::Keyring;

/// As `fedcipher spec` has it, but for the masking.
fn spec(masking: &str) -> String {
    format!(
        r#"{{"scheme": "flashe", "params": {{"clients": 3, "max_weight": 1, "min_contributions": 2, "key_bits": 128,
        "masking": "{masking}", "per_client_top": null}}, "codec": {{"bits": 16, "clip": "auto", "margin": 2.0,
        "floor": null, "start": 1.0, "rounding": "nearest", "target": "weights", "top": null}}}}"#
    )
}

#[test]
fn the_scheme_of_a_device_does_not_change() {
    let state = tempfile::tempdir().unwrap();
    let keyring = Keyring::new(state.path(), &["device".into()]);
    let key = |masking: &str, epoch| {
        registry::make(&spec(masking))
            .unwrap()
            .keygen(&ClientId::list([0, 1, 2]), Epoch::new(epoch))
            .unwrap()
            .clients
            .remove(0)
    };
    keyring.insert("device", &spec("double"), &key("double", 1)).unwrap();
    keyring.insert("device", &spec("double"), &key("double", 2)).unwrap();
    // Hosts have been told of the codec and its ranges, and a new scheme would make that wrong.
    let changed = keyring.insert("device", &spec("single"), &key("single", 3)).unwrap_err();
    assert!(matches!(&changed, Error::Configuration(why) if why.contains("changed the scheme")), "{changed}");
    let changed = keyring
        .insert("device", &spec("double").replace(r#""bits": 16"#, r#""bits": 12"#), &key("double", 3))
        .unwrap_err();
    assert!(matches!(changed, Error::Configuration(_)), "{changed}");
}
