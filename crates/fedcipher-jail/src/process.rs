//! Processes and their descriptors.

use crate::{Result, Step};
use rustix::process::Pid;
use std::fs::{File, OpenOptions};
use std::io;

/// Everything that a jail has of its own.
pub const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Fails if another thread could hold a lock that a new process would wait for.
pub fn has_one_thread() -> Result<()> {
    let threads = std::fs::read_dir("/proc/self/task").step("namespaces", || "threads cannot be counted".to_owned())?;
    match threads.count() {
        1 => Ok(()),
        n => Err(format!("{n} threads")).step("namespaces", || "a jail starts from a process with one".to_owned()),
    }
}

/// A copy of this process in new namespaces; none in the copy. Zero gives an ordinary child.
#[allow(unsafe_code)]
pub fn clone(namespaces: i32) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without a stack and without CLONE_VM, the call gives a copy of this process as fork does. The process
    // has one thread, so no lock is held in the copy.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) if pid > 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once. Handlers and buffers are those of the process that it is a copy of.
#[allow(unsafe_code)]
pub fn leave(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Lets a program that is started have no descriptor of this process but the first three.
#[allow(unsafe_code)]
pub fn close_on_exec() -> io::Result<()> {
    // SAFETY: the call takes numbers only. Descriptors stay open until a program is started.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Undoes what Python ignores. A program that is started would inherit that.
#[allow(unsafe_code)]
pub fn restore_signals() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: the default action is not a function.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

pub fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// Lets go of standard input, output and error.
pub fn silence() -> io::Result<()> {
    let null = null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
