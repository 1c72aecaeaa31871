//! The jail's messages to the guard. The first letter of each is its kind.

use crate::{Error, Result, Step};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

/// Hands over the socket that listens inside of the jail's network.
pub fn listening(guard: &OwnedFd, listener: &TcpListener) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(guard, &[IoSlice::new(b"L")], &mut ancillary, SendFlags::NOSIGNAL)
        .step("network", || "the listening socket cannot be handed to the guard".to_owned())?;
    Ok(())
}

/// The app runs, behind a Landlock of this ABI.
pub fn started(guard: &OwnedFd, landlock: i32) {
    let _ = send(guard, format!("S{landlock}").as_bytes(), SendFlags::NOSIGNAL);
}

/// The app was not started. A guard that has ended gets no message.
pub fn failed(guard: &OwnedFd, error: &Error) {
    let _ = send(guard, format!("F{error}").as_bytes(), SendFlags::NOSIGNAL);
}
