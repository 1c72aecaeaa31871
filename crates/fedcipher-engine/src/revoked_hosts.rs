//! Training hosts that the authority has revoked, as far as this engine has heard.

use crate::error::Error;
use std::collections::BTreeSet;
use tokio::sync::watch;

/// Names are enrolled once, so one that has been revoked stays so.
#[derive(Debug, Default)]
pub struct RevokedHosts(watch::Sender<BTreeSet<String>>);

impl RevokedHosts {
    /// What the authority says now.
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

    /// Ends when `name` is revoked; never without a name.
    pub async fn cut(&self, name: Option<&str>) -> Error {
        let Some(name) = name else { return std::future::pending().await };
        let mut following = self.0.subscribe();
        // The sender is this object's own.
        let _ = following.wait_for(|known| known.contains(name)).await;
        Error::Revoked(format!("host {name}"))
    }
}
