//! The program's user, without capabilities and without a way to get any, and the program's limits.

use crate::{Limits, Result, Step};
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, getegid, geteuid, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_capabilities_secure_bits, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

const WALL: &str = "privileges";

/// The user and the group that own no files on Linux. A jail of root runs as them.
const OTHER: u32 = 65534;

/// The user that the program runs as.
#[derive(Debug, Clone, Copy)]
pub enum User {
    /// The caller's. An unprivileged user has no other.
    Own(u32, u32),
    /// `OTHER`, so that the program never has root's id. Root's is known in the jail while that is built.
    Other,
}

impl User {
    pub fn of_this_process() -> Self {
        match geteuid() {
            user if user.is_root() => Self::Other,
            user => Self::Own(user.as_raw(), getegid().as_raw()),
        }
    }

    /// Says which users and groups the jail's are, from outside.
    pub fn map(self, init: Pid) -> Result<()> {
        let write = |file: &str, text: &str| {
            std::fs::write(format!("/proc/{}/{file}", init.as_raw_pid()), text)
                .step("namespaces", || format!("{file} of the new user namespace"))
        };
        match self {
            Self::Own(user, group) => {
                write("setgroups", "deny")?;
                write("gid_map", &format!("{group} {group} 1"))?;
                write("uid_map", &format!("{user} {user} 1"))
            }
            Self::Other => {
                let both = format!("0 0 1\n{OTHER} {OTHER} 1");
                write("gid_map", &both)?;
                write("uid_map", &both)
            }
        }
    }

    fn assume(self) -> Result<()> {
        if let Self::Own(..) = self {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(OTHER), Gid::from_raw(OTHER));
        set_thread_groups(&[]).step(WALL, || "groups".to_owned())?;
        set_thread_res_gid(group, group, group).step(WALL, || "the group".to_owned())?;
        set_thread_res_uid(user, user, user).step(WALL, || "the user".to_owned())
    }
}

/// Sets the limits that the processes of the jail have. A lower limit of the caller's stays.
pub fn limit(limits: &Limits) -> Result<()> {
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Data, limits.memory),
        (Resource::As, limits.memory.saturating_mul(4)),
        (Resource::Fsize, limits.file_size),
        (Resource::Nofile, limits.open_files),
        (Resource::Nproc, limits.processes),
    ] {
        let most = getrlimit(resource).maximum.map_or(most, |before| before.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .step(WALL, || format!("the limit {resource:?}"))?;
    }
    // Where memory ends, the kernel ends the app and not the guard.
    std::fs::write("/proc/self/oom_score_adj", "1000").step(WALL, || "who is killed without memory".to_owned())
}

/// Becomes a user without capabilities for good.
pub fn drop_all(user: User) -> Result<()> {
    empty_bounding_set()?;
    let locked = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(locked).step(WALL, || "securebits".to_owned())?;
    user.assume()?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).step(WALL, || "capabilities".to_owned())?;
    let left = capabilities(None).step(WALL, || "capabilities".to_owned())?;
    if left != none {
        return Err(format!("{left:?} are left")).step(WALL, || "capabilities".to_owned());
    }
    set_no_new_privs(true).step(WALL, || "no_new_privs".to_owned())
}

/// The kernel may know more capabilities than this code: all numbers are tried until the first unknown one.
fn empty_bounding_set() -> Result<()> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(error) => return Err(error).step(WALL, || format!("capability {number} of the bounding set")),
        }
    }
    Ok(())
}
