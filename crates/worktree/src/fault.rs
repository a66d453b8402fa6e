//! Points at which a test can kill or hold the process. Without the feature `testing` they are nothing.

/// A point on the way that a test may pick.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub(crate) fn point(_name: &str) {}

/// `SPRAG_WORKTREE_FAULT=kill:NAME` ends the process there; `hold:NAME:FILE` makes FILE.here and waits
/// until FILE is gone, for ten seconds at most; `delay:NAME:MS` takes that long.
#[cfg(feature = "testing")]
pub(crate) fn point(name: &str) {
    const LOOKS: u32 = 2_000;
    let Ok(fault) = std::env::var("SPRAG_WORKTREE_FAULT") else { return };
    match fault.splitn(3, ':').collect::<Vec<_>>().as_slice() {
        ["kill", at] if *at == name => {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            crate::clock::pause_ms(10_000);
        }
        ["hold", at, file] if *at == name => {
            let _ = std::fs::write(format!("{file}.here"), name);
            for _ in 0..LOOKS {
                if !std::path::Path::new(file).exists() {
                    return;
                }
                crate::clock::pause_ms(5);
            }
        }
        ["delay", at, ms] if *at == name || *at == "*" => crate::clock::pause_ms(ms.parse().unwrap_or(0)),
        _ => {}
    }
}
