//! The prekeys of a committee, as an encryptor takes them.

use crate::{Error, Result};

/// A client's exchange with the committee, through [`super::Encryptor::take_prekeys`].
pub trait Prekeys {
    /// Takes the prekeys that members have published with [`crate::committee::Member::prekey`]. The next updates encrypt their shares to
    /// these, and not to earlier ones. Returns the error of each rejected prekey, which changes nothing. Fails if too
    /// few members have a prekey afterwards.
    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>>;
}
