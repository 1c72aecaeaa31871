//! A ring of chunks in a memory file that host and engine share over a Unix socket. The gRPC stream then carries only
//! the
//! length of each chunk.
//!
//! Both sides copy with `pread` and `pwrite`. Nothing is mapped: the file does not count as a process's own memory, a
//! host
//! that shrinks or rewrites it can damage only its own values, and there is no unsafe code. One call at a time uses a
//! connection's ring. Chunk `n` of a call lies in slot `n % SLOTS`.

use crate::CHUNK;
use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};

/// The number of slots in each direction.
pub const SLOTS: usize = 8;
const UP: u64 = 0;
const DOWN: u64 = (SLOTS * CHUNK) as u64;
/// Offset of one byte: the number of chunks of this call that the host has taken, modulo 256.
const TAKEN: u64 = 2 * DOWN;
const LEN: u64 = TAKEN + 1;
/// First byte of a connection that brings a ring. HTTP/2 starts with another byte.
const HELLO: u8 = b'R';

#[derive(Debug)]
pub struct SharedMemoryRing(File);

impl SharedMemoryRing {
    /// Makes a ring to offer; `None` on a system without memory files.
    pub fn make() -> std::io::Result<Option<Self>> {
        let fd = rustix::fs::memfd_create("fedcipher-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, LEN)?;
        rustix::fs::fcntl_add_seals(&fd, seals() | SealFlags::SEAL)?;
        Ok(Some(SharedMemoryRing(File::from(fd))))
    }

    /// Accepts a ring from the other side. Its size must be right and sealed, because writing beyond the end would
    /// allocate memory.
    fn of(fd: OwnedFd) -> Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|has| has.contains(seals()));
        let len = rustix::fs::fstat(&fd).map(|about| about.st_size);
        if !sealed || len.ok().and_then(|len| u64::try_from(len).ok()) != Some(LEN) {
            return Err(Error::Protocol(format!("a ring is a sealed memfd of {LEN} bytes")));
        }
        Ok(SharedMemoryRing(File::from(fd)))
    }

    /// Sends the ring, before any other data on `socket`.
    pub fn offer(&self, socket: impl AsFd) -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [self.0.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(socket, &[IoSlice::new(&[HELLO])], &mut control, SendFlags::empty())?;
        Ok(())
    }

    /// Reads the start of a connection: a ring, or `None` for HTTP/2. Fails with `WouldBlock` before the first byte.
    pub fn greeting(socket: impl AsFd) -> std::io::Result<Option<Result<Self>>> {
        let mut first = [0u8];
        rustix::net::recv(socket.as_fd(), &mut first, RecvFlags::PEEK)?;
        if first[0] != HELLO {
            return Ok(None);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [IoSliceMut::new(&mut first)];
        rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        Ok(Some(fd.ok_or_else(|| Error::Protocol("a ring is announced and not there".into())).and_then(Self::of)))
    }

    fn offset(base: u64, chunk: u64) -> u64 {
        base + chunk % SLOTS as u64 * CHUNK as u64
    }

    /// Host: writes a part of chunk `chunk`, at offset `at`.
    pub fn write_part(&self, chunk: u64, at: usize, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, Self::offset(UP, chunk) + at as u64).map_err(|e| lost(&e))
    }

    /// Engine: copies chunk `chunk` of the host to private memory.
    pub fn read_slot(&self, chunk: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(bytes, Self::offset(UP, chunk)).map_err(|e| lost(&e))
    }

    /// Engine: whether the host has taken enough chunks that chunk `chunk` has a free slot.
    pub fn slot_is_free(&self, chunk: u64) -> bool {
        let mut taken = [0u8];
        let read = self.0.read_exact_at(&mut taken, TAKEN);
        // Pairs with the release in `taken`: a slot is overwritten only after the host has read it.
        fence(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "counted modulo 256 on both sides")]
        let ahead = (chunk as u8).wrapping_sub(taken[0]);
        read.is_ok() && usize::from(ahead) < SLOTS
    }

    pub fn write_slot(&self, chunk: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, Self::offset(DOWN, chunk)).map_err(|e| lost(&e))
    }

    /// Host: reads chunk `chunk` of the engine, and frees its slot.
    pub fn read_reply_slot(&self, chunk: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(bytes, Self::offset(DOWN, chunk)).map_err(|e| lost(&e))?;
        self.taken(chunk + 1)
    }

    /// Host: sets the number of chunks taken in this call; 0 before a call.
    pub fn taken(&self, chunks: u64) -> Result<()> {
        fence(Ordering::Release);
        #[expect(clippy::cast_possible_truncation, reason = "counted modulo 256 on both sides")]
        self.0.write_all_at(&[chunks as u8], TAKEN).map_err(|e| lost(&e))
    }
}

fn seals() -> SealFlags {
    SealFlags::GROW | SealFlags::SHRINK
}

fn lost(error: &std::io::Error) -> Error {
    Error::Truncated(format!("the shared ring: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn crosses_a_socket_and_carries_both_ways() {
        let (host, engine) = UnixStream::pair().unwrap();
        let ours = SharedMemoryRing::make().unwrap().unwrap();
        ours.offer(&host).unwrap();
        let theirs = SharedMemoryRing::greeting(&engine).unwrap().unwrap().unwrap();
        for chunk in 0..SLOTS as u64 + 1 {
            ours.write_part(chunk, 0, &[chunk as u8; 3]).unwrap();
            ours.write_part(chunk, 3, &[7; 2]).unwrap();
            let mut got = [0u8; 5];
            theirs.read_slot(chunk, &mut got).unwrap();
            assert_eq!(got, [chunk as u8, chunk as u8, chunk as u8, 7, 7]);
        }
        ours.taken(0).unwrap();
        assert!((0..SLOTS as u64).all(|chunk| theirs.slot_is_free(chunk)));
        assert!(!theirs.slot_is_free(SLOTS as u64));
        theirs.write_slot(0, &[9; CHUNK]).unwrap();
        let mut got = vec![0u8; CHUNK];
        ours.read_reply_slot(0, &mut got).unwrap();
        assert!(got.iter().all(|b| *b == 9) && theirs.slot_is_free(SLOTS as u64));
    }

    #[test]
    fn http2_is_left_alone_and_other_files_are_refused() {
        let (host, engine) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &host, b"PRI * HTTP/2.0").unwrap();
        assert!(SharedMemoryRing::greeting(&engine).unwrap().is_none());

        for len in [LEN, LEN - 1] {
            let fd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            if len != LEN {
                rustix::fs::fcntl_add_seals(&fd, seals()).unwrap();
            }
            let (host, engine) = UnixStream::pair().unwrap();
            SharedMemoryRing(File::from(fd)).offer(&host).unwrap();
            assert!(SharedMemoryRing::greeting(&engine).unwrap().unwrap().is_err());
        }
        let (host, engine) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &host, b"R").unwrap();
        assert!(SharedMemoryRing::greeting(&engine).unwrap().unwrap().is_err());
    }
}
