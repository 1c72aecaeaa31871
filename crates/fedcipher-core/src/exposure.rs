//! The ways in which other users could replace a file or a folder, each with its remedy.

use crate::os::{self, Exposed, TRUSTED_GROUP};
use std::fs::Metadata;
use std::path::Path;

/// The way in which another user could replace the file at `path`, and the remedy; `None` if no other user can. Links
/// are followed, and every folder on the path is checked.
pub fn replaceable(path: &Path) -> std::io::Result<Option<String>> {
    Ok(os::exposed_path(path)?.map(|(place, exposed)| told(&place, exposed)))
}

/// The way in which another user could write to the folder at `path` or replace it; `None` if no other user can.
pub fn changeable(path: &Path) -> std::io::Result<Option<String>> {
    Ok(os::exposed_folder(path)?.map(|(place, exposed)| told(&place, exposed)))
}

fn told(place: &Path, exposed: Exposed) -> String {
    let group = trust_group(place.metadata().ok().as_ref());
    let place = place.display();
    match exposed {
        Exposed::OfUser(user) => {
            format!("may be replaced by user {user}, to whom {place} belongs: make this user or root its owner (chown)")
        }
        Exposed::Sticky => {
            format!(
                "may be replaced by every user, as all write to {place}: move it to a folder of its own (mkdir -m 700)"
            )
        }
        Exposed::Writable(mode) | Exposed::Readable(mode) => {
            format!(
                "may be replaced by other users, who may write to {place} (mode {mode:04o}): chmod go-w {place}{group}"
            )
        }
    }
}

/// A further remedy if only a group of this process may read or replace a file or folder.
pub fn trust_group(about: Option<&Metadata>) -> String {
    about.and_then(os::group_to_trust).map_or_else(String::new, |group| {
        format!(" (if only this service is in group {group}, set {TRUSTED_GROUP}={group}: docs/how-to/deploy.md)")
    })
}
