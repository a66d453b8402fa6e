//! The shipped units and compose file: they start the current program, and keep its data private to its user.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sprag_process::CREDENTIALS;
use sprag_tests::{Sandbox, program};

const SERVICES: [&str; 4] =
    ["sprag-server.service", "sprag-worker.service", "sprag-gc.service", "sprag-rules.service"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn unit(name: &str) -> String {
    fs::read_to_string(deploy().join("systemd").join(name)).expect("a unit")
}

/// Returns the settings of one section of a unit; each name may be given several times.
fn section(unit: &str, wanted: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut inside = false;
    for line in unit.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        match (line.strip_prefix('[').and_then(|line| line.strip_suffix(']')), line.split_once('=')) {
            (Some(name), _) => inside = name == wanted,
            (None, Some((key, value))) if inside => {
                settings.entry(key.to_owned()).or_default().push(value.to_owned());
            }
            (None, Some(_)) => {}
            (None, None) => panic!("{line:?} is no setting"),
        }
    }
    settings
}

#[test]
fn e05_units_keep_the_data_to_the_services_user() {
    for name in SERVICES {
        let service = section(&unit(name), "Service");
        let only = |key: &str| match service.get(key).map(Vec::as_slice) {
            Some([value]) => value.clone(),
            other => panic!("{name}: {key}: {other:?}"),
        };
        assert_eq!(only("User"), "sprag", "{name}");
        assert_eq!(only("Environment"), "SPRAG_DATA=/var/lib/sprag", "{name}: nothing else is in the unit");
        assert_eq!(only("EnvironmentFile"), "/etc/sprag/env", "{name}: credentials are in a file of root's");
        let start = only("ExecStart");
        // Every user reads units and command lines.
        for shown in CREDENTIALS.iter().chain(&["--token", "--store", "--bus", "--auth"]) {
            assert!(!start.contains(shown), "{name}: {start}");
        }
        match name {
            // Its steps keep the umask that they are given.
            "sprag-worker.service" => assert_eq!(service.get("UMask"), None),
            _ => assert_eq!(only("UMask"), "0077", "{name}"),
        }
        if !["sprag-gc.service", "sprag-rules.service"].contains(&name) {
            assert_eq!(
                (only("StateDirectory"), only("StateDirectoryMode")),
                ("sprag".into(), "0700".into()),
                "{name}"
            );
        }
    }
    let server = section(&unit("sprag-server.service"), "Service");
    for (key, value) in [
        ("NoNewPrivileges", "true"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "true"),
        ("PrivateTmp", "true"),
    ] {
        assert_eq!(server[key], [value]);
    }
    // What a step leaves behind ends with it, and the worker ends it itself.
    let worker = section(&unit("sprag-worker.service"), "Service");
    assert_eq!(
        (&worker["Delegate"], &worker["KillMode"]),
        (&vec!["yes".to_owned()], &vec!["mixed".to_owned()])
    );
}

#[test]
fn units_start_the_program_with_options_that_exist() {
    let sandbox = Sandbox::new();
    for name in SERVICES {
        let service = section(&unit(name), "Service");
        let mut words = service["ExecStart"][0].split(' ').map(str::to_owned);
        assert_eq!(words.next().as_deref(), Some("/usr/local/bin/sprag"), "{name}");
        // An option that it does not know is told before help is.
        let told = sandbox.sprag(words.chain(["--help".to_owned()])).expect(0);
        assert!(told.stdout.contains("Usage: sprag"), "{told:?}");
    }
}

/// Returns systemd's messages about a unit that starts the program under test; none if systemd is not installed.
fn verified(folder: &Path, name: &str, text: &str) -> Option<String> {
    let path = folder.join(name);
    fs::write(&path, text.replace("/usr/local/bin/sprag", &program().display().to_string())).expect("a unit");
    let told = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output().ok()?;
    Some(format!("{}{}", String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr)))
}

#[test]
fn systemd_takes_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in SERVICES.into_iter().chain(["sprag-gc.timer", "sprag-rules.timer"]) {
        match verified(folder.path(), name, &unit(name)) {
            Some(told) => assert_eq!(told, "", "{name}"),
            None => return println!("PASSED OVER: there is no systemd-analyze"),
        }
    }
    let wrong = format!("{}Colour=blue\n", unit("sprag-server.service"));
    let told = verified(folder.path(), "wrong.service", &wrong).expect("as before");
    assert!(told.contains("Colour"), "it tells what it does not know: {told}");
}

#[test]
fn e05_the_compose_file_holds_no_password_and_is_open_to_this_machine_alone() {
    let text = fs::read_to_string(deploy().join("compose.yaml")).expect("the file");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let passwords: Vec<&str> = lines.filter(|line| line.contains("PASSWORD")).collect();
    assert!(
        passwords.len() >= 2 && passwords.iter().all(|line| line.contains("${SPRAG_DB_PASSWORD")),
        "{passwords:?}"
    );
    assert!(!text.contains("--auth"));
    let ports: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("ports:")).collect();
    assert!(!ports.is_empty() && ports.iter().all(|line| line.contains("\"127.0.0.1:")), "{ports:?}");
}
