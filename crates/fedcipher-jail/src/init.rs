//! PID 1 of a jail: builds the walls around itself, starts the app, and ends with it.

use crate::privileges::{self, User};
use crate::{Error, Jail, REFUSED, Result, Step, calls, code, files, network, process, report, root};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior, set_parent_process_death_signal, setsid, umask,
    wait,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs the app in this process's namespaces and ends this process.
pub fn main(jail: &Jail, user: User, guard: &OwnedFd, parent: &OwnedFd) -> ! {
    let status = match build(jail, user, guard, parent).and_then(|landlock| start(jail, parent, landlock)) {
        Ok((app, landlock)) => {
            report::started(guard, landlock);
            reap_until(app)
        }
        Err(error) => {
            report::failed(guard, &error);
            REFUSED
        }
    };
    process::leave(status)
}

/// Builds every wall around this process. The app inherits them. Returns the ABI of Landlock.
fn build(jail: &Jail, user: User, guard: &OwnedFd, parent: &OwnedFd) -> Result<i32> {
    end_with_parent()?;
    wait_for_the_map(parent)?;
    rustix::system::sethostname(b"app").step("namespaces", || "the host's name".to_owned())?;
    report::listening(guard, &network::listen(jail.port)?)?;
    let seen = root::enter(jail)?;
    privileges::limit(&jail.limits)?;
    privileges::drop_all(user)?;
    let landlock = files::restrict(&seen, jail.port)?;
    calls::restrict()?;
    // Another user's id has cleared the signal, and a process of this user may not look into this one.
    end_with_parent()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("privileges", || "a process to look into".to_owned())?;
    Ok(landlock)
}

/// The kernel kills this process, and with it the jail, when the process that made it ends.
fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .step("namespaces", || "a jail that outlives the guard".to_owned())
}

fn wait_for_the_map(parent: &OwnedFd) -> Result<()> {
    let mut byte = [0];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(parent, &mut byte));
    match read {
        Ok(1) => Ok(()),
        _ => Err(gone()),
    }
}

fn gone() -> Error {
    Error { wall: "namespaces", what: "the process that made the jail".to_owned(), cause: "it has ended".to_owned() }
}

/// Starts the app. A program that cannot be started is an error too.
fn start(jail: &Jail, parent: &OwnedFd, landlock: i32) -> Result<(Pid, i32)> {
    // A parent that ended before the signal was set again has closed its end.
    let mut ends = [PollFd::new(parent, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut ends, Some(&now)).is_err() || !ends[0].revents().is_empty() {
        return Err(gone());
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).step("seccomp", || "a pipe".to_owned())?;
    let Some(app) = process::clone(0).step("privileges", || "the app's process".to_owned())? else {
        let cause = exec(jail);
        let _ = File::from(writer).write_all(cause.as_bytes());
        process::leave(REFUSED)
    };
    drop(writer);
    process::silence().step("files", || "/dev/null".to_owned())?;
    let mut cause = String::new();
    File::from(reader).read_to_string(&mut cause).step("files", || "the app's start".to_owned())?;
    if cause.is_empty() {
        return Ok((app, landlock));
    }
    Err(cause).step("files", || format!("{} does not start", jail.argv[0].display()))
}

/// Becomes the app. Returns the reason if that fails.
fn exec(jail: &Jail) -> String {
    let prepared = process::null()
        .and_then(|null| rustix::stdio::dup2_stdin(null).map_err(Into::into))
        .and_then(|()| setsid().map_err(Into::into))
        .and_then(|_| process::close_on_exec());
    if let Err(error) = prepared {
        return error.to_string();
    }
    process::restore_signals();
    umask(Mode::from_raw_mode(0o077));
    let environment = jail.env.iter().map(|(name, value)| (name, value));
    Command::new(&jail.argv[0])
        .args(&jail.argv[1..])
        .env_clear()
        .envs(environment)
        .current_dir(&jail.work)
        .exec()
        .to_string()
}

/// Reaps all children until the app has ended.
fn reap_until(app: Pid) -> i32 {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == app => return code(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return REFUSED,
        }
    }
}
