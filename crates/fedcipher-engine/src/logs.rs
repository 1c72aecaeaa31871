//! What the programs say while they run, on standard error.

use std::io::IsTerminal;
use tracing_subscriber::{EnvFilter, fmt};

/// What a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people; in colours where they look on.
    Text,
    /// An object of JSON: `timestamp`, `level`, `message` and what else is known.
    Json,
}

/// Begins the log: what `RUST_LOG` asks for, else what concerns whoever runs the program.
pub fn begin(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let lines = fmt().with_writer(std::io::stderr).with_env_filter(filter).with_target(false);
    match format {
        Format::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).with_current_span(false).init(),
    }
}
