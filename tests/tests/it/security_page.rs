//! docs/security.md names a test for every attack, and every test that it names exists.

use std::path::Path;

/// Collects the texts of all Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).expect("a text")));
        }
    }
}

#[test]
fn every_attack_has_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let page = std::fs::read_to_string(root.join("docs/security.md")).expect("the page");
    let (_, table) = page.split_once("| attack | blocked by | test |\n|---|---|---|\n").expect("its table");
    let mut found = Vec::new();
    sources(&root.join("crates"), &mut found);
    sources(&root.join("tests/tests"), &mut found);
    let mut attacks = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test blocks: {row}");
        for test in names {
            let (place, name) = test.rsplit_once("::").unwrap_or_else(|| panic!("{test} names no module"));
            let (krate, module) = place.split_once(' ').unwrap_or(("tests", place));
            // The last part of the module's path is its file, or that of the tests in it.
            let folder = krate.replace("sprag-", "/");
            let module = module.strip_suffix("::tests").unwrap_or(module);
            let module = module.rsplit("::").next().unwrap_or(module);
            let is_there = found.iter().any(|(path, text)| {
                path.contains(&folder)
                    && (path.ends_with(&format!("/{module}.rs")) || path.contains(&format!("/{module}/")))
                    && text.contains(&format!("fn {name}("))
            });
            assert!(is_there, "{test} does not exist, says: {row}");
        }
        attacks += 1;
    }
    assert!(attacks >= 25, "{attacks} attacks");
}
