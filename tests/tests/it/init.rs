//! `sprag init`: the pipeline that it writes runs wherever the tools are installed.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use sprag_tests::{Answer, Sandbox};

const FILE: &str = ".sprag/pipelines/ci.yaml";
/// Building a small program, or making a Python environment, on a busy machine.
const LONG: Duration = Duration::from_secs(300);

fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns a folder with these files, and the pipeline that `sprag init` writes for it.
fn folder(files: &[(&str, &str)]) -> Sandbox {
    let sandbox = Sandbox::new();
    for (name, text) in files {
        let path = sandbox.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    sandbox.sprag(["init"]).expect(0);
    sandbox.sprag(["validate", "--strict", FILE]).expect(0);
    sandbox
}

fn run(sandbox: &Sandbox) -> Answer {
    let mut command = sandbox.command(["run", FILE]);
    command.env("CARGO_TARGET_DIR", sandbox.path("target")).env("npm_config_audit", "false");
    sandbox.start_command(command).finish_within(LONG)
}

#[test]
fn a_bare_folder_gets_an_example_that_runs() {
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(["init"]).expect(0).stdout;
    assert!(told.starts_with(&format!("wrote {FILE} (an example")) && !told.contains("git add"), "{told}");
    assert!(told.contains("sprag run ci"), "{told}");
    assert!(!sandbox.data().exists(), "no data is needed");
    let ran = run(&sandbox).expect(0);
    assert!(ran.stdout.contains("it is over") || ran.stderr.contains("it is over"), "{ran:?}");
}

#[test]
fn init_overwrites_nothing_without_force() {
    let sandbox = Sandbox::new();
    sandbox.sprag(["init"]).expect(0);
    let written = sandbox.read(FILE);
    fs::write(sandbox.path(FILE), "mine").expect("a file");
    let refused = sandbox.sprag(["init"]).expect(1).stderr;
    assert!(
        refused.contains(&format!("{FILE} is already there")) && refused.contains("--force"),
        "{refused}"
    );
    assert_eq!(sandbox.read(FILE), "mine");
    let printed = sandbox.sprag(["init", "--stdout"]).expect(0).stdout;
    assert_eq!((printed.as_str(), sandbox.read(FILE).as_str()), (written.as_str(), "mine"));
    assert_eq!(sandbox.sprag(["init", "--dry"]).expect(0).stdout, printed);
    sandbox.sprag(["init", "--force"]).expect(0);
    assert_eq!(sandbox.read(FILE), written);
    sandbox.sprag(["init", "nightly"]).expect(0);
    assert!(sandbox.read(".sprag/pipelines/nightly.yaml").contains("\nname: nightly\n"));
    for bad in ["", "../up", "a/b", ".hidden", "a b", "ä"] {
        let refused = sandbox.sprag(["init", bad]).expect(2).stderr;
        assert!(refused.contains("cannot be a pipeline's name"), "{refused}");
    }
}

#[test]
fn json_output_has_the_findings() {
    let sandbox = Sandbox::new();
    sandbox.write("go.mod", "module x\n");
    fs::create_dir(sandbox.path(".git")).expect("a folder");
    let told = sandbox.json(["init", "--json"]);
    assert_eq!(told, json!({ "file": FILE, "found": ["go.mod"] }));
    let told = sandbox.sprag(["init", "--force"]).expect(0).stdout;
    assert!(told.contains("(from go.mod)") && told.contains(&format!("git add {FILE}")), "{told}");
    fs::write(sandbox.path("blocked"), "").expect("a file");
    fs::remove_dir_all(sandbox.path(".sprag")).expect("gone");
    fs::write(sandbox.path(".sprag"), "a file in the way").expect("a file");
    let failed = sandbox.sprag(["init"]).expect(1).stderr;
    assert!(failed.contains("cannot make .sprag/pipelines"), "{failed}");
}

#[test]
fn a_rust_package_is_formatted_built_linted_and_tested() {
    if !(has("cargo") && has("cargo-fmt") && has("cargo-clippy")) {
        return;
    }
    let sandbox = folder(&[
        (
            "Cargo.toml",
            "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n",
        ),
        ("src/lib.rs", "//! Small.\n\n#[test]\nfn works() {}\n"),
    ]);
    run(&sandbox).expect(0);
}

#[test]
fn a_node_package_runs_its_scripts() {
    if !has("npm") {
        return;
    }
    let package = r#"{"name": "small", "version": "1.0.0", "scripts": {"test": "echo tested > tested", "build": "echo built > built", "start": "exit 1"}}"#;
    let sandbox = folder(&[("package.json", package)]);
    run(&sandbox).expect(0);
    assert_eq!((sandbox.read("tested").trim(), sandbox.read("built").trim()), ("tested", "built"));
}

#[test]
fn a_python_folder_gets_its_environment_and_its_tests() {
    if !(has("python3")
        && Command::new("python3").args(["-c", "import ensurepip"]).status().is_ok_and(|s| s.success()))
    {
        return;
    }
    let test = "import unittest\n\n\nclass Small(unittest.TestCase):\n    def test_works(self):\n        open('tested', 'w').close()\n";
    let sandbox =
        folder(&[("requirements.txt", ""), ("tests/__init__.py", ""), ("tests/test_small.py", test)]);
    run(&sandbox).expect(0);
    assert!(sandbox.path("tested").exists());
}

#[test]
fn a_makefile_gives_its_targets() {
    if !has("make") {
        return;
    }
    let sandbox =
        folder(&[("Makefile", "build:\n\techo built >> order\ntest: x\n\techo tested >> order\nx:\n")]);
    run(&sandbox).expect(0);
    assert_eq!(sandbox.lines("order"), ["built", "tested"]);
}

#[test]
fn a_failing_step_of_a_starter_fails_the_run() {
    if !has("make") {
        return;
    }
    let sandbox = folder(&[("Makefile", "test:\n\texit 3\n")]);
    run(&sandbox).expect(100);
}
