//! Seconds on the link between host and card, from bytes: a model, and kept apart from cycles.

/// A link that carries both directions at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second, each way, after the protocol's overhead.
    pub rate: f64,
    /// Seconds from a doorbell to the first byte, once a command and direction.
    pub latency: f64,
}

impl Link {
    /// PCIe 3.0 x16: 8 GT/s x 16 lanes x 128/130, and 256-byte payloads behind 24 bytes of header and framing, give
    /// 14.4 GB/s; a microsecond for a descriptor's fetch and the first completion.
    pub const PCIE3_X16: Link = Link { rate: 8e9 * 16.0 / 8.0 * (128.0 / 130.0) * (256.0 / 280.0), latency: 1e-6 };

    /// Seconds of one command that moves so many bytes to and from the card: the directions overlap.
    #[must_use]
    pub fn seconds(&self, to: u64, from: u64) -> f64 {
        let way = |bytes: u64| if bytes == 0 { 0.0 } else { self.latency + bytes as f64 / self.rate };
        way(to).max(way(from))
    }
}
