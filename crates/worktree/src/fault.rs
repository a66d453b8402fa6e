//! Points at which a test can kill or pause the process. They do nothing without the feature `testing`.

/// Marks a point that a test can select.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub(crate) fn point(_name: &str) {}

/// Applies the fault of the variable `SPRAG_WORKTREE_FAULT`. `kill:NAME` kills the process at that point.
/// `hold:NAME:FILE` creates FILE.here and waits until FILE is gone, at most ten seconds. `delay:NAME:MS`
/// pauses.
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
