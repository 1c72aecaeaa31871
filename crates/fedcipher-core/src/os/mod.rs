//! What key files and ledgers ask of the system. Everything that Unix and Windows do differently is here.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

/// What a mode, which only Unix has, says against a key that lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(windows, expect(dead_code, reason = "no modes there"))]
pub enum Exposed {
    /// Others may read the file; its mode.
    Readable(u32),
    /// Others may write to its folder, though not remove what is there where it is `sticky`.
    Replaceable { sticky: bool },
}

/// Why a file of ours does not open, where there is something to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unopened {
    /// A link, which is not followed.
    Link,
    /// The process has too many files open.
    TooMany,
    Other,
}
