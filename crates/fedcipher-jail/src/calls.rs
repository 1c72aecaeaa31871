//! seccomp: system calls that no app needs and that other walls, or the kernel, would be attacked with.
//!
//! The list is of what is refused, because apps bring their own libraries. Calls that are newer than this list do not
//! exist for the app: these, and the calls of other architectures, would get past it.

use crate::{Result, Step};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};
use std::collections::BTreeMap;

/// The newest system call that this list knows.
const NEWEST: c_long = libc::SYS_mseal;

/// Refused with `EPERM`, whatever their arguments.
const REFUSED: &[c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Namespaces, mounts and roots.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    // Files by handle, and those of others.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Parts of the kernel that attacks have used most.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_memfd_secret,
    libc::SYS_vmsplice,
    libc::SYS_personality,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
];

/// Unknown to the app, so that libraries take the older call: the arguments of the first lie in memory, where no
/// filter sees them, and the others pass by the filter.
const ABSENT: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Flags of `clone` that make namespaces.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// The bits of a socket's type that are not flags.
const SOCKET_TYPE: u64 = 0xf;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Outcome<T> = std::result::Result<T, seccompiler::Error>;

/// Restricts this process and all that it starts.
pub fn restrict() -> Result<()> {
    let filters = filters().step("seccomp", || "filters".to_owned())?;
    // The last one is asked first, and none of them refuses the call that adds another.
    filters.iter().try_for_each(|filter| apply_filter(filter)).step("seccomp", || "filters".to_owned())
}

fn filters() -> Outcome<[BpfProgram; 4]> {
    Ok([
        filter(refused()?, libc::EPERM)?,
        filter(families()?, libc::EAFNOSUPPORT)?,
        filter(ABSENT.iter().map(|call| (*call, Vec::new())).collect(), libc::ENOSYS)?,
        newer_are_absent(),
    ])
}

/// A program that answers the calls of `rules` with an error, and kills a process of another architecture.
fn filter(rules: Rules, error: i32) -> Outcome<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error.cast_unsigned()), arch)?;
    Ok(filter.try_into()?)
}

fn refused() -> Outcome<Rules> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let flags = NAMESPACES.iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        rule(&[(0, SeccompCmpOp::MaskedEq(flag), flag)])
    });
    rules.insert(libc::SYS_clone, flags.collect::<Outcome<_>>()?);
    Ok(rules)
}

/// Sockets are UNIX sockets, and streams of TCP.
fn families() -> Outcome<Rules> {
    let number = |value: i32| u64::from(value.cast_unsigned());
    let others: Vec<_> = FAMILIES.iter().map(|family| (0, SeccompCmpOp::Ne, number(*family))).collect();
    let not_unix = (0, SeccompCmpOp::Ne, number(libc::AF_UNIX));
    let mut socket = vec![rule(&others)?];
    for kind in (0..=SOCKET_TYPE).filter(|kind| *kind != number(libc::SOCK_STREAM)) {
        socket.push(rule(&[not_unix.clone(), (1, SeccompCmpOp::MaskedEq(SOCKET_TYPE), kind)])?);
    }
    socket.push(rule(&[
        not_unix.clone(),
        (2, SeccompCmpOp::Ne, number(libc::IPPROTO_IP)),
        (2, SeccompCmpOp::Ne, number(libc::IPPROTO_TCP)),
    ])?);
    Ok([(libc::SYS_socket, socket), (libc::SYS_socketpair, vec![rule(&[not_unix])?])].into())
}

/// A rule that holds if all of its conditions on arguments do.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Outcome<SeccompRule> {
    let conditions = conditions
        .iter()
        .map(|(argument, operator, value)| SeccompCondition::new(*argument, Dword, operator.clone(), *value))
        .collect::<std::result::Result<_, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

/// Calls newer than this list, and those of x32, whose numbers are above 2^30, do not exist.
fn newer_are_absent() -> BpfProgram {
    const LOAD_NUMBER: (u16, u32) = (0x20, 0);
    const IF_GREATER: u16 = 0x25;
    const RETURN: u16 = 0x06;
    let absent = u32::from(SeccompAction::Errno(libc::ENOSYS.cast_unsigned()));
    let statement = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        statement(LOAD_NUMBER.0, 0, 0, LOAD_NUMBER.1),
        statement(IF_GREATER, 0, 1, u32::try_from(NEWEST).unwrap_or(0)),
        statement(RETURN, 0, 0, absent),
        statement(RETURN, 0, 0, u32::from(SeccompAction::Allow)),
    ]
}

#[cfg(test)]
mod tests;
