//! The programs' log, on standard error.

use crate::text::one_line;
use std::io::{Result, Write};
use tracing_subscriber::{EnvFilter, fmt};

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// JSON objects with `timestamp`, `level`, `message` and further fields.
    Json,
}

/// Starts the log at the level of `RUST_LOG`. The default level shows what an operator needs.
pub fn begin(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let lines = fmt().with_writer(|| Lines(std::io::stderr())).with_env_filter(filter).with_target(false);
    match format {
        // Without colours, so that an escape sequence in the log is never from this program.
        Format::Text => lines.with_ansi(false).init(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).with_current_span(false).init(),
    }
}

/// Writes each event as one line, whatever text it contains. An event arrives in one piece.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = one_line(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn attack_29_an_event_is_one_line_whatever_others_have_said() {
        let written = Written::default();
        let to = written.clone();
        let log = fmt().with_writer(move || Lines(to.clone())).with_ansi(false).finish();
        tracing::subscriber::with_default(log, || {
            tracing::warn!(host = "x\nINFO forged", device = ?"y\ny", "said: {}", "z\r\n\x1b[2J\u{2028}forged");
            tracing::info!("the next");
        });
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.trim_end().lines().any(|line| line.chars().any(|c| c.is_control() || c == '\u{2028}')), "{text}");
    }
}
