#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::collections::BTreeSet;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 62 | 0xc000_0000;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 183 | 0xc000_0000;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;

const fn error(number: i32) -> u32 {
    0x0005_0000 | number.cast_unsigned()
}

/// Runs a filter over one call, like the kernel.
fn run(filter: &BpfProgram, call: c_long, architecture: u32, arguments: &[u64]) -> u32 {
    let mut data = [0u8; 64];
    data[..4].copy_from_slice(&u32::try_from(call).unwrap().to_le_bytes());
    data[4..8].copy_from_slice(&architecture.to_le_bytes());
    for (k, argument) in arguments.iter().enumerate() {
        data[16 + 8 * k..24 + 8 * k].copy_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut register) = (0, 0u32);
    loop {
        let step = &filter[at];
        let jump = |holds| usize::from(if holds { step.jt } else { step.jf });
        at += 1;
        match step.code {
            0x20 => {
                let from = usize::try_from(step.k).unwrap();
                register = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
            }
            0x54 => register &= step.k,
            0x05 => at += usize::try_from(step.k).unwrap(),
            0x15 => at += jump(register == step.k),
            0x25 => at += jump(register > step.k),
            0x35 => at += jump(register >= step.k),
            0x06 => return step.k,
            code => unimplemented_code(code),
        }
    }
}

#[allow(clippy::panic, reason = "the interpreter must know every instruction")]
fn unimplemented_code(code: u16) -> ! {
    panic!("instruction {code:#x}")
}

/// The filter's answer that is not "allowed", if there is one.
fn answer(call: c_long, arguments: &[u64]) -> u32 {
    let answers = filters().unwrap().map(|filter| run(&filter, call, ARCHITECTURE, arguments));
    *answers.iter().find(|answer| **answer != ALLOW).unwrap_or(&ALLOW)
}

fn socket(family: i32, kind: i32, protocol: i32) -> u32 {
    answer(libc::SYS_socket, &[family, kind, protocol].map(|n| u64::from(n.cast_unsigned())))
}

#[test]
fn every_refused_call_fails_whatever_its_arguments() {
    for call in REFUSED {
        for argument in [0, 1, u64::MAX] {
            assert_eq!(answer(*call, &[argument; 6]), error(libc::EPERM), "call {call}");
        }
    }
}

#[test]
fn the_list_has_the_calls_that_leave_a_jail() {
    for call in [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_mount_setattr,
        libc::SYS_open_by_handle_at,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
    ] {
        assert_eq!(answer(call, &[]), error(libc::EPERM), "call {call}");
    }
}

#[test]
fn no_call_is_in_the_list_twice() {
    let all: Vec<_> = REFUSED.iter().chain(ABSENT).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[test]
fn io_uring_and_clone3_do_not_exist() {
    for call in [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        assert_eq!(answer(call, &[]), error(libc::ENOSYS), "call {call}");
    }
}

#[test]
fn a_call_newer_than_the_list_does_not_exist() {
    assert_eq!(answer(NEWEST, &[]), ALLOW);
    for call in [NEWEST + 1, 1000, 0x4000_0000, 0x4000_0000 + libc::SYS_read, 0xffff_ffff] {
        assert_eq!(answer(call, &[]), error(libc::ENOSYS), "call {call}");
    }
}

#[test]
fn a_call_of_another_architecture_kills() {
    const I386: u32 = 3 | 0x4000_0000;
    let answers = filters().unwrap().map(|filter| run(&filter, libc::SYS_read, I386, &[]));
    assert!(answers.contains(&KILL));
}

#[test]
fn a_process_or_thread_starts_and_a_namespace_does_not() {
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    for flags in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, thread] {
        assert_eq!(answer(libc::SYS_clone, &[u64::from(flags.cast_unsigned())]), ALLOW);
        for namespace in NAMESPACES {
            let flags = u64::from((flags | namespace).cast_unsigned());
            assert_eq!(answer(libc::SYS_clone, &[flags]), error(libc::EPERM), "flags {flags:#x}");
        }
    }
}

#[test]
fn sockets_are_unix_sockets_and_tcp() {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        assert_eq!(socket(libc::AF_UNIX, kind | flags, 0), ALLOW);
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [0, libc::IPPROTO_TCP] {
            assert_eq!(socket(family, libc::SOCK_STREAM | flags, protocol), ALLOW);
        }
        for kind in [0, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET, 15] {
            assert_ne!(socket(family, kind | flags, 0), ALLOW, "type {kind}");
        }
        for protocol in [libc::IPPROTO_MPTCP, libc::IPPROTO_SCTP, libc::IPPROTO_UDP] {
            assert_ne!(socket(family, libc::SOCK_STREAM, protocol), ALLOW, "protocol {protocol}");
        }
    }
    for family in (0..64).filter(|family| !FAMILIES.contains(family)) {
        assert_eq!(socket(family, libc::SOCK_STREAM, 0), error(libc::EAFNOSUPPORT), "family {family}");
        assert_ne!(answer(libc::SYS_socketpair, &[u64::from(family.cast_unsigned()), 1, 0]), ALLOW, "family {family}");
    }
    assert_eq!(answer(libc::SYS_socketpair, &[1, 1, 0]), ALLOW);
}

#[test]
fn the_upper_half_of_an_argument_changes_nothing() {
    let packet = u64::from(libc::AF_PACKET.cast_unsigned());
    assert_ne!(answer(libc::SYS_socket, &[packet | 1 << 32, 1, 0]), ALLOW);
    let user = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    assert_ne!(answer(libc::SYS_clone, &[user | 1 << 40]), ALLOW);
}
