//! Landlock: a second wall around files, connections, and signals to and sockets of processes outside.

use crate::root::Seen;
use crate::{Result, Step};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort, PathBeneath, PathFd,
    PathFdError, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::error::Error;
use std::path::Path;

/// The newest ABI whose rules are asked for. An older kernel takes those it knows.
const ABI_ASKED: ABI = ABI::V9;

/// Restricts this process and all that it starts. Returns the ABI that the kernel has.
pub fn restrict(seen: &Seen, port: u16) -> Result<i32> {
    let status =
        rules(seen, port).and_then(|rules| Ok(rules.restrict_self()?)).step("landlock", || "rules".to_owned())?;
    abi(&status).ok_or("the kernel has none").step("landlock", || "Landlock".to_owned())
}

fn rules(seen: &Seen, port: u16) -> std::result::Result<RulesetCreated, Box<dyn Error>> {
    let everything = AccessFs::from_all(ABI_ASKED);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(ABI_ASKED))?
        .scope(Scope::from_all(ABI_ASKED))?
        .create()?
        .add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    for path in &seen.to_read {
        rules = rules.add_rule(beneath(path, AccessFs::from_read(ABI_ASKED))?)?;
    }
    for path in &seen.to_write {
        rules = rules.add_rule(beneath(path, everything)?)?;
    }
    Ok(rules)
}

/// A file takes fewer rights than a folder.
fn beneath(path: &Path, access: BitFlags<AccessFs>) -> std::result::Result<PathBeneath<PathFd>, PathFdError> {
    let file = if path.is_dir() { BitFlags::all() } else { AccessFs::from_file(ABI_ASKED) };
    Ok(PathBeneath::new(PathFd::new(path)?, access & file))
}

fn abi(status: &RestrictionStatus) -> Option<i32> {
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } if status.ruleset != RulesetStatus::NotEnforced => {
            Some(effective_abi as i32)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::thread::spawn;

    /// Inside of a jail the network's namespace hides such sockets, so no jail can show what Landlock does.
    #[test]
    fn an_abstract_socket_of_a_process_outside_is_out_of_reach() {
        let address = SocketAddr::from_abstract_name(format!("fedcipher-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        // Landlock restricts the thread that asks for it.
        let restricted = spawn(move || {
            let before = UnixStream::connect_addr(&address).map(drop).map_err(|error| error.kind());
            let abi = restrict(&Seen { to_read: Vec::new(), to_write: Vec::new() }, 1);
            let after = UnixStream::connect_addr(&address).map(drop).map_err(|error| error.kind());
            (before, abi, after)
        });
        let (before, abi, after) = restricted.join().unwrap();
        drop(listener);
        assert_eq!(before, Ok(()));
        if abi.is_ok_and(|abi| abi >= 6) {
            assert_eq!(after, Err(std::io::ErrorKind::PermissionDenied));
        }
    }
}
