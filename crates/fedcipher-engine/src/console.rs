//! Output of the programs on standard output. Its reader may be gone, or its disk full. That is an ordinary error,
//! reported after the requested work is done.

use crate::{Error, Result};
use clap::Parser;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The parsed command line `words`; or the exit code, if the command line asked for help or is wrong. The first word is
/// the program's name.
pub fn options<T: Parser>(words: impl IntoIterator<Item = OsString>) -> std::result::Result<T, ExitCode> {
    T::try_parse_from(words).map_err(|said| match said.print().and_then(|()| std::io::stdout().flush()) {
        Ok(()) => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
        Err(_) => ExitCode::from(2),
    })
}

/// Writes a line.
pub fn say(line: impl Display) -> Result<()> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|e| Error::file(Path::new("standard output"), &e))
}
