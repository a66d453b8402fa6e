//! `sprag serve --open`: shows the dashboard in the user's browser, signed in.
//!
//! The browser gets a code that is valid once, for two minutes. The command line of a process is visible to all users of
//! the machine, so the browser is not started with the code but with a private file that leads to it.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sprag_server::{Auth, Server};

/// The file's name in the data directory.
const FILE: &str = "open.html";

/// The variables by which a program finds the user's desktop and browser.
const DESKTOP: [&str; 10] = [
    "BROWSER",
    "DBUS_SESSION_BUS_ADDRESS",
    "DESKTOP_SESSION",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "XDG_DATA_DIRS",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_TYPE",
];

/// Opens the dashboard. Returns the reason if no browser could be started; the server runs anyway.
pub(super) fn open_page(data: &Path, server: &Server, auth: Auth) -> Result<(), String> {
    let page = address(server);
    let target = match auth {
        Auth::None => page.clone(),
        Auth::Token => {
            let file = write_file(data, &format!("{page}sign-in#{}", server.sign_in_code()));
            let file =
                file.map_err(|error| format!("cannot write {}: {error}", data.join(FILE).display()))?;
            file.display().to_string()
        }
    };
    let usual = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let browser = sprag_process::variable("BROWSER").and_then(|name| name.into_string().ok());
    let browser = browser.filter(|name| !name.is_empty()).unwrap_or_else(|| usual.to_owned());
    let mut command = tokio::process::Command::new(&browser);
    // The server has put most of its environment away, so that steps do not see it.
    command.envs(DESKTOP.iter().filter_map(|name| Some((name, sprag_process::variable(name)?))));
    command.arg(&target).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(mut child) => {
            // It is the user's browser, which may stay open longer than this process.
            tokio::spawn(async move { child.wait().await });
            Ok(())
        }
        Err(error) => Err(format!("cannot start {browser}: {error}; open {page} yourself")),
    }
}

/// Returns the dashboard's address for a browser of this machine.
fn address(server: &Server) -> String {
    let listen = server.addr();
    let scheme = if server.url().starts_with("https:") { "https" } else { "http" };
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("{scheme}://{}/", SocketAddr::new(ip, listen.port()))
}

fn write_file(data: &Path, url: &str) -> std::io::Result<PathBuf> {
    let path = data.join(FILE);
    // A new file, whatever was there before.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    writeln!(
        file,
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\"><title>Sprag</title>"
    )?;
    Ok(path)
}
