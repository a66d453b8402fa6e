//! Child pipelines: loaded from the parent's folder, refused where they would never end, read once however many refer
//! to them.

use std::path::Path;

use sprag_pipeline::{Kind, load};

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn refused(folder: &Path, name: &str) -> String {
    match load(&folder.join(name)) {
        Ok(_) => panic!("{name} was accepted"),
        Err(wrong) => wrong.iter().next().unwrap().message.clone(),
    }
}

#[test]
fn a_child_is_kept_with_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "parent.yaml", "steps: [{id: a, pipeline: sub/child.yaml}]");
    write(folder.path(), "sub/child.yaml", "steps: [{id: b, pipeline: ../other.yaml}]");
    write(folder.path(), "other.yaml", "steps: [{id: c, run: echo}]");
    let parent = load(&folder.path().join("parent.yaml")).unwrap().pipeline;
    let Kind::Pipeline { definition, .. } = &parent.steps[0].spec.kind else { panic!("no child") };
    // Later changes of the files do not matter.
    drop(folder);
    let child = definition.parse().unwrap().pipeline;
    let Kind::Pipeline { definition, .. } = &child.steps[0].spec.kind else { panic!("no child") };
    assert_eq!(definition.parse().unwrap().pipeline.steps[0].id, "c");
}

#[test]
fn a_pipeline_that_contains_itself_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "self.yaml", "steps: [{id: a, pipeline: self.yaml}]");
    write(folder.path(), "one.yaml", "steps: [{id: a, pipeline: two.yaml}]");
    write(folder.path(), "two.yaml", "steps: [{id: a, pipeline: ./sub/../one.yaml}]");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    assert!(
        refused(folder.path(), "self.yaml")
            .contains("it contains itself, directly or through another pipeline")
    );
    assert!(
        refused(folder.path(), "one.yaml")
            .contains("it contains itself, directly or through another pipeline")
    );
    for level in 0..20 {
        let text = format!("steps: [{{id: a, pipeline: l{}.yaml}}]", level + 1);
        write(folder.path(), &format!("l{level}.yaml"), &text);
    }
    assert!(refused(folder.path(), "l0.yaml").contains("levels of child pipelines"));
}

#[test]
fn concurrent_loads_of_the_same_child_succeed() {
    let folder = tempfile::tempdir().unwrap();
    const LEVELS: usize = 12;
    for level in 0..LEVELS {
        let steps: String =
            (0..10).map(|no| format!("  - {{id: s{no}, pipeline: l{}.yaml}}\n", level + 1)).collect();
        write(folder.path(), &format!("l{level}.yaml"), &format!("steps:\n{steps}"));
    }
    write(folder.path(), &format!("l{LEVELS}.yaml"), "steps: [{id: a, run: echo}]");
    // Reading each file again for every reference would take a million million reads.
    let loaded = load(&folder.path().join("l0.yaml")).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(loaded.pipeline.steps.len(), 10);
}

#[test]
fn inputs_are_checked_against_the_child() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "child.yaml",
        "inputs: {who: {required: true}}\nsteps: [{id: a, run: 'echo {{ inputs.who }}'}]",
    );
    write(folder.path(), "none.yaml", "steps: [{id: a, pipeline: child.yaml}]");
    write(
        folder.path(),
        "typo.yaml",
        "steps: [{id: a, pipeline: {file: child.yaml, inputs: {who: y, whom: x}}}]",
    );
    write(folder.path(), "broken.yaml", "steps: [{id: a, pipeline: bad.yaml}]");
    write(folder.path(), "bad.yaml", "steps: [{id: a, rum: x}]");
    assert_eq!(refused(folder.path(), "none.yaml"), "the child pipeline needs the input `who`");
    assert_eq!(refused(folder.path(), "typo.yaml"), "the child pipeline has no input `whom`");
    assert!(refused(folder.path(), "broken.yaml").contains("a step has no key `rum`"));
}

#[test]
fn all_errors_of_a_child_are_reported_at_their_places_once() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "parent.yaml",
        "steps:\n- {id: a, pipeline: sub/child.yaml}\n- {id: b, pipeline: sub/child.yaml}\n- {id: c, rum: x}\n",
    );
    write(folder.path(), "sub/child.yaml", "steps:\n- {id: a, rum: x}\n- {id: b, run: x, needs: z}\n");
    let wrong = load(&folder.path().join("parent.yaml")).unwrap_err();
    let places: Vec<String> = wrong
        .iter()
        .map(|one| {
            let file = Path::new(&one.file).file_name().unwrap().to_string_lossy();
            format!("{file}:{}:{}", one.line.unwrap(), one.column.unwrap())
        })
        .collect();
    assert_eq!(
        places,
        ["parent.yaml:2:21", "child.yaml:2:11", "child.yaml:3:26", "parent.yaml:3:21", "parent.yaml:4:11"],
        "{wrong}"
    );
    // Each is shown with a line of its own file.
    assert!(wrong.to_string().contains("3 | - {id: b, run: x, needs: z}"), "{wrong}");
}

#[test]
fn all_errors_of_further_pipelines_in_a_file_are_reported_at_their_places() {
    let text = "steps:\n- {id: a, pipeline: {name: part}}\n- {id: b, pipeline: {name: part}}\n---\nname: part\nsteps:\n- {id: a, rum: x}\n\
                - {id: b, run: x, needs: z}\n---\nname: alone\nsteps:\n- {id: a, rum: x}\n- {id: b, run: x, needs: z}\n";
    let wrong = sprag_pipeline::parse("p.yaml", text).unwrap_err();
    let places: Vec<_> = wrong.iter().map(|one| (one.line.unwrap(), one.column.unwrap())).collect();
    assert_eq!(places, [(7, 11), (8, 26), (12, 11), (13, 26)], "{wrong}");
    assert!(wrong.to_string().contains("13 | - {id: b, run: x, needs: z}"), "{wrong}");
}
