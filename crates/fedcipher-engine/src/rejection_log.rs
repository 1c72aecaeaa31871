//! Rejected attempts on their way to the audit log, counted by party, reason and minute: whoever tries all day
//! fills a few rows, not the disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parties told apart in one minute; the others are counted together.
const PARTIES: usize = 64;
const OTHERS: &str = "others";

/// A row: how often `party` was refused something in `minute`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub minute: String,
    pub party: String,
    pub what: String,
    pub count: u64,
}

#[derive(Default)]
struct Counts {
    minute: String,
    /// Of this minute: how many of each are not in the store yet.
    known: BTreeMap<(String, String), u64>,
    /// Of minutes before.
    past: Vec<Rejection>,
}

impl Counts {
    fn drain(&mut self) -> Vec<Rejection> {
        let mut rows = std::mem::take(&mut self.past);
        for ((party, what), count) in &mut self.known {
            if *count > 0 {
                let (minute, party, what) = (self.minute.clone(), party.clone(), what.clone());
                rows.push(Rejection { minute, party, what, count: std::mem::take(count) });
            }
        }
        rows
    }
}

/// What has been refused and is not in the store yet.
#[derive(Clone, Default)]
pub struct RejectionLog(Arc<Mutex<Counts>>);

impl RejectionLog {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one refusal; true if it is the first of its kind in `minute`.
    pub fn note(&self, minute: &str, party: String, what: &str) -> bool {
        let mut counts = self.counts();
        if counts.minute != minute {
            let past = counts.drain();
            *counts = Counts { minute: minute.to_owned(), known: BTreeMap::new(), past };
        }
        let mut key = (party, what.to_owned());
        if !counts.known.contains_key(&key) && counts.known.len() >= PARTIES {
            key.0 = OTHERS.to_owned();
        }
        let new = !counts.known.contains_key(&key);
        *counts.known.entry(key).or_default() += 1;
        new
    }

    /// The rows for the store, each count once.
    #[must_use]
    pub fn take(&self) -> Vec<Rejection> {
        self.counts().drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_attempts_are_few_rows_and_no_attempt_is_lost() {
        let refusals = RejectionLog::default();
        assert!(refusals.note("10:00", "device a".into(), "refuse revoked"));
        assert!(!refusals.note("10:00", "device a".into(), "refuse revoked"));
        assert_eq!(refusals.take()[0].count, 2);
        assert!(!refusals.note("10:00", "device a".into(), "refuse revoked"), "its row is there");
        for k in 0..10_000 {
            refusals.note("10:00", format!("address {k}"), "refuse silent connection");
        }
        refusals.note("10:01", "device a".into(), "refuse revoked");
        let rows = refusals.take();
        assert!(rows.len() <= PARTIES + 2, "{}", rows.len());
        assert_eq!(rows.iter().map(|r| r.count).sum::<u64>(), 10_002);
        assert_eq!(rows.last().map(|r| r.minute.as_str()), Some("10:01"));
        assert!(refusals.take().is_empty());
    }
}
