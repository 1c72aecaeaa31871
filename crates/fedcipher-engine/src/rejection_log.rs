//! Counts rejected attempts for the audit log, by party, reason and minute. A persistent attacker so fills a few rows,
//! not the disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of parties that are counted separately in one minute. Further parties are counted together.
const PARTIES: usize = 64;
const OTHERS: &str = "others";

/// A row: the number of rejections of `party` for one reason in `minute`.
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
    /// Counts of this minute that are not in the store yet, by party and reason.
    known: BTreeMap<(String, String), u64>,
    /// Rows of earlier minutes.
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

/// Rejections that are not in the store yet.
#[derive(Clone, Default)]
pub struct RejectionLog(Arc<Mutex<Counts>>);

impl RejectionLog {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one rejection. Returns true if it is the first of its kind in `minute`.
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

    /// Removes and returns the rows for the store.
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
