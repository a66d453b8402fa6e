//! A pager for texts that are longer than the terminal.

use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Failure;
use crate::show::defused;

/// Shows a text in the user's pager, if it is longer than the terminal. Returns whether it was shown.
///
/// The pager is `SPRAG_PAGER`, else `PAGER`, else `less`; an empty name or `cat` means none.
pub(crate) fn show(text: &str) -> Result<bool, Failure> {
    let out = std::io::stdout();
    let rows = rustix::termios::tcgetwinsize(&out).map_or(24, |size| usize::from(size.ws_row));
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if !out.is_terminal() || is_dumb || text.lines().count() < rows {
        return Ok(false);
    }
    let named = ["SPRAG_PAGER", "PAGER"].iter().find_map(|name| std::env::var(name).ok());
    let pager = named.unwrap_or_else(|| "less".to_owned());
    if pager.trim().is_empty() || pager.trim() == "cat" {
        return Ok(false);
    }
    // Ctrl-C is for the pager: this process outlives it, so that the terminal is given back whole.
    let _interrupt = signal(SignalKind::interrupt())?;
    let mut command = Command::new("sh");
    command.args(["-c", &pager]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Colours, and no pager at all for a text that fits.
        command.env("LESS", "FRX");
    }
    let Ok(mut child) = command.spawn() else { return Ok(false) };
    if let Some(mut pipe) = child.stdin.take() {
        // A pager that is left early closes the pipe.
        let _ = pipe.write_all(defused(text).as_bytes());
    }
    let ended = child.wait()?;
    // The shell ends with 127 if it finds no such program.
    Ok(ended.code() != Some(127))
}
