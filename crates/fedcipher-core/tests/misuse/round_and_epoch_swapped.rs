use fedcipher_core::keys::{KeySet, ServerKey};
use fedcipher_core::scheme::{Aggregator, Scheme};
use fedcipher_core::{ClientId, Epoch, Result, RoundId};

fn new_keys(scheme: &dyn Scheme, cohort: &[ClientId], round: RoundId) -> Result<KeySet> {
    scheme.keygen(cohort, round)
}

fn new_round(scheme: &dyn Scheme, key: &ServerKey, epoch: Epoch) -> Result<Box<dyn Aggregator>> {
    scheme.aggregator(key, Some(epoch))
}

fn main() {}
