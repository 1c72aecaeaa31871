//! Hardening of the process before it holds a key: no core dumps, no tracing by the same user, no swap.

use crate::{Error, Result};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Disables core dumps, `ptrace` and `/proc/<pid>/mem` for the same user, and locks all memory.
///
/// The whole memory is locked, because derived secrets (key schedules, transformed ring secrets) lie beside the keys.
/// With
/// `allow_swap`, the process continues without the lock if the limit of locked memory is too low.
pub fn harden(allow_swap: bool) -> Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(|e| Error::Configuration(format!("core dumps stay on: {e}")))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| Error::Configuration(format!("the process stays traceable: {e}")))?;
    let unlimited = rustix::process::getrlimit(Resource::Memlock).current.is_none();
    let locked = if unlimited || rustix::process::geteuid().is_root() {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(|e| e.to_string())
    } else {
        Err("the limit of locked memory is finite".to_owned())
    };
    match locked {
        Ok(()) => Ok(()),
        Err(reason) if allow_swap => {
            tracing::warn!("memory is not locked ({reason}): keys may reach swap");
            Ok(())
        }
        Err(reason) => Err(Error::Configuration(format!(
            "memory cannot be locked: {reason}; raise it (LimitMEMLOCK=infinity, ulimit -l unlimited), or start with \
             --allow-swap on a machine without swap"
        ))),
    }
}

/// Sends SIGTERM to this process when its parent dies, so that a local run leaves no orphans.
pub fn exit_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|e| Error::Configuration(format!("cannot follow the parent: {e}")))
}
