//! The training hosts that the authority has revoked, as far as this engine knows.

use crate::error::Error;
use std::collections::BTreeSet;
use tokio::sync::watch;

/// A name is enrolled once, so a revoked name stays revoked.
#[derive(Debug, Default)]
pub struct RevokedHosts(watch::Sender<BTreeSet<String>>);

impl RevokedHosts {
    /// Adds the authority's current list.
    pub fn revoked(&self, names: impl IntoIterator<Item = String>) {
        let names: BTreeSet<String> = names.into_iter().collect();
        self.0.send_if_modified(|known| {
            let before = known.len();
            for name in names {
                if known.insert(name.clone()) {
                    tracing::warn!(host = name, "revoked: its streams are cut, its calls refused");
                }
            }
            known.len() != before
        });
    }

    #[must_use]
    pub fn is_revoked(&self, name: &str) -> bool {
        self.0.borrow().contains(name)
    }

    /// Returns once `name` is revoked; never returns without a name.
    pub async fn cut(&self, name: Option<&str>) -> Error {
        let Some(name) = name else { return std::future::pending().await };
        let mut following = self.0.subscribe();
        // The sender belongs to this object, so it is not closed.
        let _ = following.wait_for(|known| known.contains(name)).await;
        Error::Revoked(format!("host {name}"))
    }
}
