//! How a driver reaches a device: a board's would be PCIe with a DMA engine, the simulated one's is a library.

use zeroize::Zeroizing;

/// A stream to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Polynomials a.
    A = 0,
    /// Errors, plaintexts, or sums of c0.
    B = 1,
}

/// The bus refused an access (SLVERR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slverr;

/// The reply, received as one packet.
#[derive(Debug, Clone)]
pub struct Packet {
    pub bytes: Zeroizing<Vec<u8>>,
    /// The device ended it before its time.
    pub aborted: bool,
}

pub trait Bus: Send {
    /// `None` if the device does not answer.
    fn write(&mut self, address: u8, value: u32) -> Option<Result<(), Slverr>>;
    fn read(&mut self, address: u8) -> Option<Result<u32, Slverr>>;
    /// One packet, of whole beats of 16 bytes, to be taken when the device is ready for it.
    fn send(&mut self, port: Port, beats: &[u8]);
    /// The next packet that has come.
    fn receive(&mut self) -> Option<Packet>;
    /// Forgets packets of both directions.
    fn drop_packets(&mut self);
    /// Until the device's interrupt, or so many of its cycles.
    fn wait(&mut self, cycles: u64);
    /// Lets so many cycles pass.
    fn idle(&mut self, cycles: u64);
}
