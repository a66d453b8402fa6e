//! MCP servers of agent steps: the user's own, by name, over stdin and stdout and over HTTP.

use sprag_tests::{Server, program};

use crate::agents::{Bench, in_all_dialects};

const SCRIPT: &str = r#"
turns:
  - - mcp: { server: engine, tool: run_list, input: {} }
    - mcp: { server: over_http, tool: run_list, input: {} }
    - mcp: { server: other, tool: run_list, input: {} }
    - say: Asked.
"#;

#[test]
fn t11_an_agent_gets_the_servers_that_its_step_names_with_their_secrets_alone() {
    in_all_dialects(|dialect| {
        let mut bench = Bench::new(dialect, SCRIPT);
        let server = Server::start(&bench.project.sandbox, &[]);
        let token = server.token.clone();
        bench.set("ENGINE_TOKEN", &token);
        let data = bench.project.sandbox.data();
        bench.add_settings(&format!(
            "[mcp.engine]\ncommand = [{:?}, \"mcp\"]\nenv = {{ SPRAG_DATA = {data:?} }}\n\
             [mcp.over_http]\nurl = \"http://{}/mcp\"\nheaders = {{ Authorization = \"Bearer ${{ENGINE_TOKEN}}\" }}\nsecrets = [\"ENGINE_TOKEN\"]\n\
             [mcp.other]\ncommand = [\"true\"]\n",
            program(),
            server.addr,
        ));
        let steps = "  - id: work\n    agent: { use: robot, prompt: Ask., mcp: [engine, over_http] }\n  - id: plain\n    run: 'test -z \"$ENGINE_TOKEN\"'\n";
        let run = bench.run(steps, 0);
        let events = bench.project.sandbox.data().join("runs").join(&run).join("work.1.events");
        let events = std::fs::read_to_string(events).expect("the events");
        let results: Vec<serde_json::Value> = events
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
            .filter(|event| event.to_string().contains("tool_result"))
            .collect();
        assert_eq!(results.len(), 3, "{events}");
        for asked in &results[..2] {
            assert!(asked.to_string().contains(&run), "{dialect:?}: {asked}");
        }
        assert!(
            !results[2].to_string().contains(&run),
            "a server that the step does not name: {}",
            results[2]
        );
        let start = bench.given().into_iter().find(|line| line.get("start").is_some()).expect("a start");
        assert!(start["env"].get("ENGINE_TOKEN").is_none(), "{start}");
        for file in crate::agents::files_below(data.join("runs")) {
            let text = std::fs::read(&file).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&text).contains(&token), "{}", file.display());
        }
    });
}

#[test]
fn a_server_that_is_unknown_or_not_installed_is_told_before_there_is_a_run() {
    let bench = Bench::new(crate::agents::DIALECTS[0], SCRIPT);
    bench.add_settings("[mcp.gone]\ncommand = [\"no-such-server\"]\n[mcp.closed]\ncommand = [\"true\"]\nsecrets = [\"NOT_SET\"]\n");
    for (name, code, reason) in [
        ("nowhere", 2, "there is no MCP server \"nowhere\""),
        ("gone", 2, "\"no-such-server\" was not found"),
        ("closed", 100, "needs NOT_SET"),
    ] {
        let file = bench
            .pipeline(&format!("  - id: work\n    agent: {{ use: robot, prompt: Ask., mcp: [{name}] }}\n"));
        let answer = bench.sprag(&["run", &file]);
        assert!(answer.code != 0 && answer.stderr.contains(reason), "{name}: {answer:?}");
        assert_eq!(answer.code == 100, code == 100, "{name}: {answer:?}");
    }
    assert_eq!(bench.starts(), 0, "no agent was started");
}
