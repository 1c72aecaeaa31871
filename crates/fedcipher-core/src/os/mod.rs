//! The system functions for key files and ledgers. All differences between Unix and Windows are here.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

/// The variable that names the group whose members are taken for this user: its number, or `own` for all that the
/// process is in.
pub const TRUSTED_GROUP: &str = "FEDCIPHER_TRUSTED_GROUP";

/// Objections to a key's place by its owners and modes. Only Unix has these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(windows, expect(dead_code, reason = "no modes there"))]
pub enum Exposed {
    /// Others may read the file; its mode.
    Readable(u32),
    /// It is another user's, neither this one's nor root's.
    OfUser(u32),
    /// Other users may write to the folder and replace its content; with the folder's mode.
    Writable(u32),
    /// The file is in a folder where all users may make files, although they cannot remove each other's.
    Sticky,
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
