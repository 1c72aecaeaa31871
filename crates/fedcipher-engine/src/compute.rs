//! Encryption work beside the event loop.

use crate::error::{Error, Result};
use tokio::sync::oneshot;

/// Runs `work` on the encryption threads, while the event loop continues.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, done) = oneshot::channel();
    rayon::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // The receiver is gone if the stream was dropped.
        let _ = sender.send(result.unwrap_or_else(|_| Err(Error::Protocol("the engine failed on this input".into()))));
    });
    done.await.unwrap_or_else(|_| Err(Error::Protocol("the engine is ending".into())))
}
