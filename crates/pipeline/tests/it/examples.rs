//! The examples do what they claim: runs their commands one after the other, as a worker would.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sprag_pipeline::{StepSpec, load, render_step};

/// Returns the output of the pipeline's steps. Each step has as many attempts as its policy allows.
fn run(file: &str, inputs: serde_json::Value) -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
    let loaded = load(&path).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    let given = serde_json::from_value(inputs).unwrap();
    let context = json!({
        "inputs": loaded.pipeline.complete(&given).unwrap(),
        "run": { "id": format!("test{}", std::process::id()), "name": "test" },
    });
    let mut printed = String::new();
    let mut failed = None;
    for step in loaded.pipeline.plan(&given).unwrap().steps {
        if failed.is_some() && !step.policy.always {
            continue;
        }
        let spec: StepSpec = serde_json::from_str(&step.spec).unwrap();
        let spec = render_step(&spec, &context).unwrap();
        let argv = spec.argv().unwrap();
        let succeeded = (1..=step.policy.attempts).any(|attempt| {
            let mut command = Command::new(&argv[0]);
            command.args(&argv[1..]).envs(&spec.env).stdin(Stdio::null());
            command
                .env("SPRAG_RUN_ID", "r")
                .env("SPRAG_STEP_ID", &step.id)
                .env("SPRAG_ATTEMPT", attempt.to_string());
            let done = command.output().unwrap();
            printed.push_str(&String::from_utf8_lossy(&done.stdout));
            done.status.success()
        });
        if !succeeded {
            failed = Some(step.id);
        }
    }
    failed.map_or(Ok(printed.clone()), |step| Err(format!("{step} failed\n{printed}")))
}

#[test]
fn examples_do_what_they_say() {
    let hostile = json!({ "name": "$(echo nobody) 'and' \"all\"" });
    assert!(run("hello.yaml", json!({})).unwrap().starts_with("Hello, world!\nThis is step look of run r."));
    assert!(run("hello.yaml", hostile).unwrap().starts_with("Hello, $(echo nobody) 'and' \"all\"!\n"));
    assert!(
        run("retry.yaml", json!({})).unwrap().starts_with("attempt 1\nattempt 2\nit works now\nruns once")
    );
    assert_eq!(run("diamond.yaml", json!({})).unwrap(), "start\nleft\nright\nboth are done\n");
    assert!(run("cleanup.yaml", json!({})).unwrap().ends_with("the scratch folder is gone\n"));
    let failed = run("cleanup.yaml", json!({ "fail": true })).unwrap_err();
    assert!(
        failed.starts_with("work failed\n") && failed.ends_with("the scratch folder is gone\n"),
        "{failed}"
    );
}
