//! How builds before 0.1.0 named schemes and parameters: by the SHA-256 of these texts, which Rust printed of its structures.
//! Frozen: keys of those builds are known by them (`tests/golden/0.1.0.dev1.tar.xz`), and nothing new is.

use crate::bounds::{Bounds, Privacy};
use crate::flashe::mask::Masking;
use crate::flashe::params::{FlasheParams, Policy};
use crate::oneshot::params::{OneshotParams, Reveal};
use crate::rlwe::params::{BfvParams, Preset};

fn list<T: ToString>(values: &[T]) -> String {
    format!("[{}]", values.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

pub fn privacy(clip: f64, noise_multiplier: f64, rounds: u64, delta: f64) -> String {
    format!(
        "PrivacySpec {{ clip: {clip:?}, noise_multiplier: {noise_multiplier:?}, rounds: {rounds}, delta: {delta:?} }}"
    )
}

fn bounds(of: &Bounds) -> String {
    let Bounds { clients, max_weight, min_contributions, privacy } = of;
    let privacy = privacy.map_or_else(String::new, |Privacy { former, rounds, .. }| {
        format!(", privacy: Privacy {{ digest: {}, rounds: {rounds} }}", list(&former))
    });
    format!(
        "Bounds {{ clients: {clients}, max_weight: {max_weight}, min_contributions: {min_contributions}{privacy} }}"
    )
}

fn preset(of: Preset) -> &'static str {
    match of {
        Preset::Compact => "Compact",
        Preset::Fast => "Fast",
        Preset::FedbitPaper => "FedbitPaper",
    }
}

pub fn plain(of: &Bounds) -> String {
    format!("plain|{}", bounds(of))
}

pub fn flashe(of: &FlasheParams) -> String {
    let policy = match of.policy {
        Policy::Fixed(Masking::Single) => "Fixed(Single)",
        Policy::Fixed(Masking::Double) => "Fixed(Double)",
        Policy::Adaptive => "Adaptive",
    };
    let top = of.per_client_top.map_or_else(|| "None".to_owned(), |top| format!("Some({top:?})"));
    // Frames of another permutation's coordinates must not open.
    let order = if of.per_client_top.is_some() { "|order 2" } else { "" };
    format!(
        "flashe|Params {{ bounds: {}, policy: {policy}, key_bits: {}, per_client_top: {top} }}{order}",
        bounds(&of.bounds),
        of.key_bits
    )
}

pub fn bfv(of: &BfvParams, primes: &[u64]) -> String {
    format!(
        "bfv|Params {{ bounds: {}, preset: {}, bits: {}, server_weights: {} }}|{}",
        bounds(&of.bounds),
        preset(of.preset),
        list(&of.bits),
        of.server_weights,
        list(primes)
    )
}

pub fn oneshot(of: &OneshotParams, primes: &[u64]) -> String {
    let reveal = match of.reveal {
        Reveal::Clients => "Clients",
        Reveal::Server => "Server",
    };
    format!(
        "oneshot 3|Params {{ bounds: {}, preset: {}, bits: {}, members: {}, threshold: {}, corrupt_clients: {}, \
         corrupt_members: {}, pack: {}, reveal: {reveal}, life: Life {{ rounds: {}, hours: {} }} }}|{}",
        bounds(&of.bounds),
        preset(of.preset),
        list(&of.bits),
        of.members,
        of.threshold,
        of.corrupt_clients,
        of.corrupt_members,
        of.pack,
        of.life.rounds,
        of.life.hours,
        list(primes)
    )
}

pub fn pasta(of: &Bounds, variant: u32, prime: u64, moduli: &[u64]) -> String {
    format!("pasta-bfv|Params {{ bounds: {}, variant: {variant}, prime: {prime} }}|{}", bounds(of), list(moduli))
}

/// ``params`` is the JSON text that the host made.
pub fn library(name: &str, params: &str, of: &Bounds) -> String {
    format!("{name}|{params}|{}", bounds(of))
}
