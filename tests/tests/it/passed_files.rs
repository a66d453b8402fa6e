//! Files in `outputs` that reach steps on other hosts through the server.

use serde_json::json;
use sprag_tests::{HandWorker, Signal, Started, until};

use crate::remote::Scene;

/// Starts a worker with a data directory and a label of its own, as on a machine of its own.
fn worker(scene: &Scene, label: &str) -> Started {
    let url = scene.url();
    let mut command = scene.sandbox.command(["worker", "--server", &url, "--label", label]);
    command.env("SPRAG_DATA", scene.sandbox.path(label)).env("SPRAG_TOKEN", &scene.server.token);
    let worker = scene.sandbox.start_command(command);
    until("the worker is there", || worker.stderr().contains("serves"));
    worker
}

fn end(workers: Vec<Started>) {
    for worker in workers {
        worker.signal(Signal::TERM);
        worker.finish().expect(0);
    }
}

/// P16: a file that a step on one host wrote reaches steps on another host, also inside steps and in child runs, with its
/// content and under the same name; the server has it as an artifact.
#[test]
fn p16_a_file_reaches_a_step_on_another_host() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "passed",
        r#"
outputs: { report: "{{ steps.write.outputs.report }}" }
steps:
  - id: write
    labels: [north]
    run: |
      echo "all is well" > report.txt
      head -c 3000000 /dev/zero > big.bin
      : > empty
    outputs: { report: report.txt, big: big.bin, none: empty }
  - id: gone
    labels: [north]
    run: rm report.txt big.bin empty
  - id: read
    labels: [south]
    run: |
      cat {{ steps.write.outputs.report }} >> got
      wc -c < {{ steps.write.outputs.big }} >> got
      wc -c < {{ steps.write.outputs.none }} >> got
      dirname {{ steps.write.outputs.report }} >> where
  - id: each
    foreach: ["{{ steps.write.outputs.report }}"]
    steps:
      - id: deep
        labels: [south]
        run: cat {{ item }} {{ steps.write.outputs.report }} >> got
"#,
    );
    let workers = vec![worker(&scene, "north"), worker(&scene, "south")];
    let run = scene.detach("passed");
    scene.sandbox.ends_as(&run, "completed");
    let got: Vec<String> = scene.sandbox.lines("got").iter().map(|line| line.trim().to_owned()).collect();
    assert_eq!(got, ["all is well", "3000000", "0", "all is well", "all is well"]);
    let place = scene.sandbox.read("where");
    assert!(place.starts_with(&*scene.sandbox.path("south").to_string_lossy()), "{place}");
    let status = scene.server.get(&format!("/v1/runs/{run}/artifacts"));
    assert!(status.to_string().contains("report.txt"), "{status}");
    end(workers);
}

/// P16: a worker reads only files that its step names, and only of its own family of runs, whatever the names are.
#[test]
fn p16_a_worker_reads_no_file_of_another_run() {
    let scene = Scene::new();
    scene.sandbox.yaml(
        "secret",
        "steps:\n  - { id: write, run: echo mine > mine.txt, outputs: { mine: mine.txt } }\n",
    );
    scene.sandbox.yaml(
        "curious",
        "inputs: { path: string }\nsteps:\n  - { id: read, run: 'cat {{ inputs.path }}' }\n",
    );
    let other = scene.detach("secret");
    let first = HandWorker::new(&scene.server, 'a');
    let lease = first.claim(1).expect("work");
    let fence = &lease["fence"];
    let chunk = |name: &str, file: &str| {
        format!("files?run={other}&step=0&attempt=1&fence={fence}&name={name}&file={file}&offset=0")
    };
    for (name, file) in [("..", "x"), ("a%2Fb", "x"), ("mine", ".."), ("mine", "%2Fetc%2Fx"), ("mine", "")] {
        first.post(&chunk(name, file), &json!("x")).problem(422, "invalid");
    }
    let kept = first.post(&chunk("mine", "mine.txt"), &json!("mine")).expect(200).json();
    let path = kept["path"].as_str().expect("a path").to_owned();
    assert!(path.contains(&other), "{path}");
    first.complete(&lease).expect(200);
    let input = format!("path={path}");
    let told = scene.sandbox.json(["run", "curious.yaml", "-i", &input, "--detach", "--json"]);
    assert!(told["run"].is_string());
    let second = HandWorker::new(&scene.server, 'b');
    let lease = second.claim(1).expect("work");
    second.post("file", &json!({ "lease": lease, "path": path, "offset": 0 })).problem(404, "not_found");
    first.post("file", &json!({ "lease": lease, "path": path, "offset": 0 })).problem(409, "refused");
}
