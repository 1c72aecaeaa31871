//! When closed keys are replaced: not at one client's word, and once an hour whatever the clock says.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::Epoch;
use fedcipher_engine::authority::Authority;
use fedcipher_engine::boot_time::BootTime;
use fedcipher_engine::certificates::{Role, Subject, Terms};
use std::collections::BTreeSet;
use tempfile::TempDir;

/// As `fedcipher spec` has it.
const SPEC: &str = r#"{"scheme": "flashe", "params": {"clients": 4, "max_weight": 1, "min_contributions": 3, "masking":
    "double", "key_bits": 128, "per_client_top": null}, "codec": {"bits": 16, "clip": "auto", "margin":
    2.0, "floor": null, "start": 1.0, "rounding": "nearest", "target": "weights", "top": null}}"#;
const DEVICES: [&str; 4] = ["a", "b", "c", "d"];
const HOUR: u64 = 3600;
const ENGINE: &[u8] = &[7; 16];

fn at(seconds: u64) -> BootTime {
    BootTime { boot: "first".into(), seconds }
}

/// An authority whose four devices have the key of epoch 1.
fn authority(root: &TempDir, corrupt_clients: u64) -> Authority {
    let store = root.path().join("store");
    drop(Authority::init(&store, SPEC, vec!["localhost".into()], Some(corrupt_clients)).unwrap());
    let mut authority = Authority::open(&store).unwrap();
    for name in DEVICES {
        authority
            .enrol(&Subject::new(Role::Device, name), &Terms::days(1, vec![]), None, &root.path().join(name))
            .unwrap();
    }
    authority.rotate(false).unwrap();
    issue(&mut authority);
    authority
}

fn issue(authority: &mut Authority) {
    for name in DEVICES {
        authority.device_keys(name, ENGINE, &[]).unwrap();
    }
}

fn newest(authority: &Authority) -> u64 {
    authority.usable().unwrap().last().unwrap().get()
}

#[test]
fn one_client_that_reports_its_key_closed_each_round_brings_no_rotation() {
    let root = TempDir::new().unwrap();
    let mut authority = authority(&root, 1);
    for round in 0..1000 {
        authority.report_closed("a", ENGINE, &[Epoch::new(1)]).unwrap();
        assert_eq!(authority.replace_closed(&at(round * HOUR)).unwrap(), None);
    }
    // In every epoch that others make, too, and after a restart.
    for epoch in 2..5 {
        assert_eq!(authority.rotate(true).unwrap(), Epoch::new(epoch));
        issue(&mut authority);
        drop(authority);
        authority = Authority::open(&root.path().join("store")).unwrap();
        authority.report_closed("a", ENGINE, &Epoch::list([1, 2, 3, 4, epoch])).unwrap();
        assert_eq!(authority.replace_closed(&at(5000 * HOUR)).unwrap(), None);
    }
    let noted = authority.status().unwrap().audit.into_iter().filter(|(_, _, action, _)| action == "closed").count();
    assert_eq!(noted, 4, "once for each epoch");
}

#[test]
fn more_clients_than_may_lie_bring_one_rotation_an_hour() {
    for corrupt_clients in 0..3 {
        let root = TempDir::new().unwrap();
        let mut authority = authority(&root, corrupt_clients);
        let (mut epoch, mut replaced, mut reported) = (1, Vec::new(), BTreeSet::new());
        // All of them, every minute of three hours.
        for minute in 0..180 {
            for (k, name) in DEVICES.iter().enumerate() {
                authority.report_closed(name, ENGINE, &[Epoch::new(epoch)]).unwrap();
                reported.insert(*name);
                // Neither the store's life nor the process's is the clock.
                if minute % 7 == k as u64 {
                    drop(authority);
                    authority = Authority::open(&root.path().join("store")).unwrap();
                }
                if let Some(next) = authority.replace_closed(&at(50 + 60 * minute)).unwrap() {
                    assert_eq!(next, Epoch::new(epoch + 1));
                    assert!(reported.len() > corrupt_clients as usize, "too few have said so");
                    reported.clear();
                    replaced.push(minute);
                    epoch = next.get();
                    issue(&mut authority);
                }
            }
        }
        assert_eq!(replaced, [0, 60, 120], "{corrupt_clients}");
    }
}

#[test]
fn a_clock_that_jumps_and_a_machine_that_boots_bring_no_rotation_sooner() {
    let root = TempDir::new().unwrap();
    let mut authority = authority(&root, 1);
    let report = |authority: &mut Authority| {
        let epoch = newest(authority);
        issue(authority);
        for name in DEVICES {
            authority.report_closed(name, ENGINE, &[Epoch::new(epoch)]).unwrap();
        }
    };
    report(&mut authority);
    assert_eq!(authority.replace_closed(&at(10 * HOUR)).unwrap(), Some(Epoch::new(2)));
    report(&mut authority);
    for back in [0, HOUR, 10 * HOUR + 3599] {
        assert_eq!(authority.replace_closed(&at(back)).unwrap(), None);
    }
    // The time that a machine was off is unknown: the hour begins with its first report.
    let booted = |seconds| BootTime { boot: "second".into(), seconds };
    for seconds in [99 * HOUR, 99 * HOUR + 1, 99 * HOUR + 3599] {
        assert_eq!(authority.replace_closed(&booted(seconds)).unwrap(), None);
    }
    assert_eq!(authority.replace_closed(&booted(100 * HOUR)).unwrap(), Some(Epoch::new(3)));
    // The first boot's clock says nothing any more either.
    report(&mut authority);
    assert_eq!(authority.replace_closed(&at(1000 * HOUR)).unwrap(), None);
    let now = BootTime::now().unwrap();
    assert_eq!(now.to_string().parse::<BootTime>().unwrap(), now);
}

#[test]
fn reports_of_the_revoked_of_other_epochs_and_of_other_engines_count_nothing() {
    let root = TempDir::new().unwrap();
    let mut authority = authority(&root, 1);
    authority.rotate(false).unwrap();
    // The epoch before, an epoch to come, and an epoch whose key their engines do not have.
    for name in DEVICES {
        authority.report_closed(name, ENGINE, &Epoch::list([1, 2, 3, u64::MAX])).unwrap();
    }
    assert_eq!(authority.replace_closed(&at(0)).unwrap(), None);
    issue(&mut authority);
    for name in DEVICES {
        authority.report_closed(name, ENGINE, &Epoch::list([1, 3, u64::MAX])).unwrap();
        authority.report_closed(name, &[8; 16], &[Epoch::new(2)]).unwrap();
        authority.report_closed("nobody", ENGINE, &[Epoch::new(2)]).unwrap();
    }
    assert_eq!(authority.replace_closed(&at(0)).unwrap(), None);
    // One that was revoked after its report, and one that is not.
    authority.report_closed("a", ENGINE, &[Epoch::new(2)]).unwrap();
    authority.revoke("a", false).unwrap();
    authority.report_closed("b", ENGINE, &[Epoch::new(2)]).unwrap();
    assert_eq!(authority.replace_closed(&at(0)).unwrap(), None);
    authority.report_closed("c", ENGINE, &[Epoch::new(2)]).unwrap();
    assert_eq!(authority.replace_closed(&at(0)).unwrap(), Some(Epoch::new(3)));
}

#[test]
fn an_epoch_that_a_federation_still_needs_is_not_rotated_away_for_closed_keys() {
    let root = TempDir::new().unwrap();
    let mut authority = authority(&root, 1);
    authority.server_keys(&[]).unwrap();
    authority.rotate(false).unwrap();
    issue(&mut authority);
    for name in ["a", "b"] {
        authority.report_closed(name, ENGINE, &[Epoch::new(2)]).unwrap();
    }
    assert_eq!(authority.replace_closed(&at(0)).unwrap(), None);
    authority.finish_epoch(Epoch::new(2)).unwrap();
    assert_eq!(authority.replace_closed(&at(1)).unwrap(), Some(Epoch::new(3)), "what did not rotate has taken no hour");
}
