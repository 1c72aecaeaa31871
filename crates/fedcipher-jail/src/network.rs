//! A network of the jail's own: loopback, and one socket at which the guard listens.

use crate::{Result, Step};
use rustix::net::{AddressFamily, SocketType, socket};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;

/// A socket that listens on 127.0.0.1 of this process's network.
pub fn listen(port: u16) -> Result<TcpListener> {
    loopback_up().step("network", || "loopback stays down".to_owned())?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).step("network", || format!("port {port} of 127.0.0.1"))
}

#[allow(unsafe_code)]
fn loopback_up() -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: the structure is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request names an interface and its flags, and outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
