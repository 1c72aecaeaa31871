//! Seconds since the machine booted. This clock cannot be set, so its hours are real hours. It runs while the machine
//! is suspended, and restarts with each boot. Each boot has its own name.

use crate::error::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A moment of one boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootTime {
    pub boot: String,
    pub seconds: u64,
}

impl BootTime {
    pub fn now() -> Result<Self> {
        let path = Path::new(BOOT);
        let boot = std::fs::read_to_string(path).map_err(|e| Error::file(path, &e))?.trim().to_owned();
        Ok(BootTime { boot, seconds: u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or_default() })
    }

    /// Seconds since `earlier`; `None` if that was in another boot.
    #[must_use]
    pub fn since(&self, earlier: &BootTime) -> Option<u64> {
        (self.boot == earlier.boot).then(|| self.seconds.saturating_sub(earlier.seconds))
    }
}

impl std::fmt::Display for BootTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.seconds, self.boot)
    }
}

impl std::str::FromStr for BootTime {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once(' ').and_then(|(seconds, boot)| Some((seconds.parse().ok()?, boot)));
        let (seconds, boot) = parts.ok_or_else(|| Error::Store(format!("{text:?} is not a time since a boot")))?;
        Ok(BootTime { boot: boot.to_owned(), seconds })
    }
}
