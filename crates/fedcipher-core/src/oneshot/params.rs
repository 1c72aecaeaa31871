//! The parameters of `oneshot`.

use super::committee;
use crate::admission::Rules;
use crate::bounds::Bounds;
use crate::mac::Weighting;
use crate::rlwe::params::Preset;
use crate::{Error, Result};

/// The number of hours in a year.
const MAX_HOURS: u64 = 8766;

/// The lifetime of a prekey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Rounds.
    pub rounds: u64,
    /// Hours.
    pub hours: u64,
}

/// The parties that open aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reveal {
    /// The readers of the roster. The server opens nothing.
    Clients,
    /// The readers and the server.
    Server,
}

/// The parameters that the cohort must agree on.
#[derive(Debug, Clone)]
pub struct OneshotParams {
    pub bounds: Bounds,
    pub preset: Preset,
    pub bits: Vec<u32>,
    /// The number of committee members.
    pub members: usize,
    /// `threshold - 1` members' shares reveal nothing.
    pub threshold: usize,
    /// The largest number of clients that may collude with the server.
    pub corrupt_clients: usize,
    /// The largest number of members that may collude with the server.
    pub corrupt_members: usize,
    /// The number of coefficients in one shared polynomial.
    pub pack: usize,
    pub reveal: Reveal,
    /// The time for which a member keeps a prekey.
    pub life: Life,
}

impl OneshotParams {
    pub fn rules(&self) -> Rules {
        Rules::dense(self.bounds, Weighting::Client)
    }

    /// Fails for a committee that could answer for two sets of clients, and for a cohort whose clients do not hide each
    /// other.
    pub fn check(&self) -> Result<()> {
        let OneshotParams { members, threshold, corrupt_clients, corrupt_members, pack, .. } = *self;
        committee::check(members, threshold, corrupt_members, pack)?;
        if !matches!(self.preset, Preset::Compact | Preset::Fast) {
            return Err(Error::parameter("preset", "oneshot takes \"compact\" or \"fast\""));
        }
        if self.life.rounds == 0 {
            return Err(Error::parameter("prekey_rounds", "a prekey serves at least 1 round; take 1"));
        }
        if !(1..=MAX_HOURS).contains(&self.life.hours) {
            return Err(Error::parameter(
                "prekey_hours",
                format!("a prekey is kept from 1 to {MAX_HOURS} hours; take 24"),
            ));
        }
        let (least, clients) = ((corrupt_clients as u64).saturating_add(2), self.bounds.clients);
        if self.bounds.min_contributions < least {
            let more = if clients < least {
                format!(" with clients={least}, or fewer corrupt_clients")
            } else {
                String::new()
            };
            return Err(Error::parameter(
                "min_contributions",
                format!(
                    "{} with corrupt_clients={corrupt_clients} leaves one honest client alone in a sum; take {least}{more}",
                    self.bounds.min_contributions,
                ),
            ));
        }
        Ok(())
    }
}
