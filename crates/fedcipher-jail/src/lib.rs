//! Starts one program behind walls (Linux only).
//!
//! The caller is a fresh process with one thread, which the guard starts for one app. [`run`] makes the app's first
//! process in new namespaces of users, mounts, processes, network, IPC, host name and control groups. That process is
//! PID 1 of the jail: it builds the other walls around itself, starts the app, and reaps what the app leaves behind.
//! When it ends, the kernel kills every process of the jail. It ends when the app ends, and the kernel kills it when
//! the caller ends. The caller ends when the guard's socket closes.
//!
//! The order matters: the network and the new root need capabilities, so they come before the capabilities are
//! dropped. Landlock forbids changes of mounts, and seccomp forbids most of what the other walls are built with.
//!
//! Without one wall, the app does not start. The failure goes to the guard with the name of that wall.
#![cfg(target_os = "linux")]

mod calls;
mod files;
mod init;
mod network;
mod privileges;
mod process;
mod report;
mod root;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, waitpid};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The exit status of [`run`] if the app was not started. The guard's socket has the reason.
pub const REFUSED: i32 = 125;

/// The limits of each process in a jail.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of private writable memory, and of each of the two file systems in memory. Addresses: four times as many.
    pub memory: u64,
    /// Processes and threads, all together.
    pub processes: u64,
    /// Bytes of a file.
    pub file_size: u64,
    /// Open descriptors.
    pub open_files: u64,
}

/// A program and what it may see.
#[derive(Debug, Clone)]
pub struct Jail {
    /// Files and folders that are there to read, at the same paths as outside.
    pub read_only: Vec<PathBuf>,
    /// The one folder to write in, and the program's working folder.
    pub work: PathBuf,
    /// The program, by an absolute path, and its arguments.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The port of 127.0.0.1 at which the guard listens inside of the jail.
    pub port: u16,
    pub limits: Limits,
}

/// A wall that cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("{wall}: {what}: {cause}")]
pub struct Error {
    /// The wall's name, one of [`WALLS`].
    pub wall: &'static str,
    what: String,
    cause: String,
}

/// The walls, in the order in which they are built.
pub const WALLS: [&str; 6] = ["namespaces", "network", "files", "privileges", "landlock", "seccomp"];

type Result<T> = std::result::Result<T, Error>;

/// Names the wall and the step of a failure.
trait Step<T> {
    fn step(self, wall: &'static str, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Step<T> for std::result::Result<T, E> {
    fn step(self, wall: &'static str, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error { wall, what: what(), cause: cause.to_string() })
    }
}

/// Runs the program in a jail and returns its exit status, or 128 and the number of the signal that ended it.
///
/// `guard` is a socket of type `SOCK_SEQPACKET`. It carries the listening socket, then one message: the app has
/// started, or why not. The program's output goes to this process's standard output and error. The app is killed when
/// the guard closes or shuts down its end.
pub fn run(jail: &Jail, guard: OwnedFd) -> i32 {
    match start(jail, &guard) {
        Ok((init, lifeline)) => supervise(init, &guard, lifeline),
        Err(error) => {
            report::failed(&guard, &error);
            REFUSED
        }
    }
}

/// Makes PID 1 of the jail. The second value is a pipe: PID 1 does not start the app once it is closed.
fn start(jail: &Jail, guard: &OwnedFd) -> Result<(Pid, OwnedFd)> {
    process::has_one_thread()?;
    let user = privileges::User::of_this_process();
    let (parent, lifeline) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("namespaces", || "a pipe".to_owned())?;
    let Some(init) =
        process::clone(process::NAMESPACES).step("namespaces", || "new namespaces cannot be made".to_owned())?
    else {
        drop(lifeline);
        init::main(jail, user, guard, &parent)
    };
    let mapped = user.map(init).and_then(|()| {
        (&File::from(lifeline.try_clone().step("namespaces", || "a pipe".to_owned())?))
            .write_all(b"g")
            .step("namespaces", || "the first process of the jail has ended".to_owned())
    });
    if let Err(error) = mapped {
        end(init);
        return Err(error);
    }
    Ok((init, lifeline))
}

/// Waits until the jail or the guard has ended. No process of the jail is left when it returns.
fn supervise(init: Pid, guard: &OwnedFd, lifeline: OwnedFd) -> i32 {
    // The guard reads the output to its end, so the app alone may hold it.
    let _ = process::silence();
    if let Ok(ended) = pidfd_open(init, rustix::process::PidfdFlags::empty()) {
        loop {
            let mut fds = [
                PollFd::new(guard, PollFlags::IN | PollFlags::RDHUP),
                PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) if fds[1].revents().is_empty() => break end(init),
                Ok(_) => break wait(init),
                Err(_) => break end(init),
            }
        }
    } else {
        drop(lifeline);
        end(init)
    }
}

/// Kills the jail. The kernel has killed all processes of a PID namespace when its first one is reaped.
fn end(init: Pid) -> i32 {
    let _ = kill_process(init, Signal::KILL);
    wait(init)
}

fn wait(pid: Pid) -> i32 {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) | Ok(None) => {}
            Ok(Some((_, status))) => return code(status),
            Err(_) => return REFUSED,
        }
    }
}

/// A status as a shell shows it.
fn code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(REFUSED)
}
