//! The drivers against the fake agent in every dialect: success cases.

use std::collections::BTreeMap;

use serde_json::json;
use sprag_agent::fake::{Dialect, script_of};
use sprag_agent::{
    Answer, Event, FailureKind, McpServer, McpTransport, Outcome, Permissions, Refused, Reset, Session,
    Steer, ToolStatus, Verdict, judge,
};

use super::common::fakes::{Fake, in_each_dialect};
use super::common::process::commits;

const SCHEMA: &str =
    r#"{"type":"object","required":["verdict"],"properties":{"verdict":{"enum":["good","bad"]}}}"#;

#[test]
fn the_builtin_script_commits_and_fits_a_schema() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, "builtin");
        let mut launch = fake.launch();
        launch.output_schema = serde_json::from_str(SCHEMA).ok();
        launch.system = Some("Be brief.".to_owned());
        let mut agent = fake.start(&launch);
        let end = agent.turn("do something");
        assert_eq!(end.outcome, Outcome::Completed, "{}", agent.story());
        assert_eq!(end.output, Some(json!({"verdict": "good"})), "{}", agent.story());
        assert_eq!((end.tool_calls, end.usage.total_tokens()), (1, 1280), "{}", agent.story());
        assert_eq!(commits(&fake.dir()), ["A small commit of the fake agent", "first"]);
        agent.close();
        assert!(fake.given().contains("do something") && fake.given().contains("Be brief."));
    });
}

#[test]
fn t02_each_end_of_a_turn_is_what_it_is() {
    let script = "
turns:
  - [say: Done., end: ok]
  - [end: error_500]
  - [end: auth]
  - [end: { limit: 1900000000 }]
  - [say: Half done., end: false_success]
  - [end: empty]
  - [end: refusal]
  - [end: max_turns]
";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut agent = fake.begin();
        assert_eq!(agent.turn("1").outcome, Outcome::Completed, "{}", agent.story());
        assert_eq!(agent.failure("2").kind, FailureKind::Overload, "{}", agent.story());
        assert_eq!(agent.failure("3").kind, FailureKind::Auth, "{}", agent.story());
        let limit = agent.failure("4");
        assert_eq!(
            (limit.kind, limit.resets),
            (FailureKind::Limit, Some(Reset::At(1_900_000_000))),
            "{}",
            agent.story()
        );
        let kind = agent.failure("5").kind;
        assert!(matches!(kind, FailureKind::FalseSuccess | FailureKind::Overload), "{}", agent.story());
        assert_eq!(agent.failure("6").kind, FailureKind::Empty, "{}", agent.story());
        assert_eq!(agent.failure("7").kind, FailureKind::Refusal, "{}", agent.story());
        let kind = agent.failure("8").kind;
        assert!(matches!(kind, FailureKind::MaxTurns | FailureKind::Budget), "{}", agent.story());
        agent.close();
    });
}

#[test]
fn t02_an_output_that_does_not_fit_is_found_by_the_judge() {
    in_each_dialect(|dialect| {
        let fake = Fake::new(
            dialect,
            "turns: [[say: Done., end: bad_schema], [say: Done., output: { verdict: good }]]",
        );
        let mut launch = fake.launch();
        launch.output_schema = serde_json::from_str(SCHEMA).ok();
        let mut agent = fake.start(&launch);
        let validate = |output: &serde_json::Value| -> Result<(), String> {
            if output["verdict"] == "good" { Ok(()) } else { Err("verdict is missing".to_owned()) }
        };
        let end = agent.turn("1");
        let Verdict::Failed(failure) = judge(&end, Some(&validate)) else { panic!("{}", agent.story()) };
        assert_eq!(failure.kind, FailureKind::SchemaNotMet);
        assert_eq!(judge(&agent.turn("2"), Some(&validate)), Verdict::Success);
        agent.close();
    });
}

#[test]
fn t03_a_session_is_resumed_where_it_was_left() {
    let script = "turns: [[say: first], [say: second], [say: third]]";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut launch = fake.launch();
        let mut agent = fake.start(&launch);
        assert_eq!(agent.turn("a").text, "first", "{}", agent.story());
        launch.session = Session::Resume { id: agent.session() };
        agent.close();
        let mut agent = fake.start(&launch);
        let end = agent.turn("b");
        assert_eq!(end.text, "second", "{}", agent.story());
        assert_eq!(end.usage.total_tokens(), 120, "the turn's own figures: {}", agent.story());
        agent.close();
    });
}

#[test]
fn t06_messages_steer_after_a_tool_at_once_or_not_at_all() {
    let script = "turns: [[shell: sleep 0.3, say: went on], [silent], [say: replaced]]";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut agent = fake.begin();
        agent.prompt("a");
        agent.wait_for(|event| matches!(event, Event::ToolCall(_)));
        if dialect == Dialect::Acp {
            return;
        }
        agent.steer("more", Steer::AfterTool);
        let end = agent.turn_end();
        assert_eq!((end.turn, end.text.as_str()), (1, "went on"), "{}", agent.story());
        let delivered =
            agent.events().iter().filter(|event| matches!(event, Event::MessageDelivered { .. })).count();
        assert_eq!(delivered, 2, "{}", agent.story());
        if dialect == Dialect::Claude {
            agent.prompt("b");
            agent.wait_for(|event| matches!(event, Event::TurnStarted { turn: 2, .. }));
            agent.steer("now", Steer::Now);
            assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
            let end = agent.turn_end();
            assert_eq!((end.turn, end.text.as_str()), (3, "replaced"), "{}", agent.story());
        }
        agent.close();
    });
}

#[test]
fn t06_a_wire_without_steering_says_so() {
    let fake = Fake::new(Dialect::Acp, "turns: [[silent]]");
    let mut conversation = fake.launch().conversation(sprag_agent::Limits::default());
    conversation.begin();
    let lines = [
        json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {}}}),
        json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}}),
    ];
    for line in lines {
        conversation.receive(format!("{line}\n").as_bytes());
    }
    let message = |id: &str| sprag_agent::Message::new(id, "x");
    assert_eq!(conversation.steer(&message("a"), Steer::AfterTool), Err(Refused::NoTurn));
    assert_eq!(conversation.prompt(&message("a")), Ok(1));
    assert_eq!(conversation.prompt(&message("b")), Err(Refused::TurnOpen));
    for how in [Steer::AfterTool, Steer::Now] {
        assert!(matches!(conversation.steer(&message("b"), how), Err(Refused::Unsupported { .. })));
    }
    assert!(matches!(conversation.answer("9", &Answer::Allow), Err(Refused::UnknownRequest { .. })));
}

#[test]
fn t05_permission_is_asked_for_and_the_answer_counts() {
    let script = "
turns:
  - [ask: touch allowed, say: done]
  - [ask: touch denied, say: done]
  - [ask: { tool: Write, input: { file_path: x } }, say: done]
  - [ask: touch never]
";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut launch = fake.launch();
        launch.permissions = Permissions::Ask;
        let mut agent = fake.start(&launch);
        agent.prompt("1");
        let request = agent.asked();
        agent.answer(&request, Answer::Allow);
        assert_eq!(agent.turn_end().outcome, Outcome::Completed, "{}", agent.story());
        agent.prompt("2");
        let request = agent.asked();
        agent.answer(&request, Answer::Deny { message: "no".to_owned() });
        assert_eq!(agent.turn_end().outcome, Outcome::Completed, "{}", agent.story());
        agent.prompt("3");
        let request = agent.asked();
        agent.answer(&request, Answer::Allow);
        assert_eq!(agent.turn_end().outcome, Outcome::Completed, "{}", agent.story());
        agent.prompt("4");
        agent.asked();
        agent.interrupt();
        assert_eq!(agent.turn_end().outcome, Outcome::Interrupted, "{}", agent.story());
        assert!(fake.dir().join("allowed").exists() && !fake.dir().join("denied").exists());
        agent.close();
    });
}

#[test]
fn without_asking_everything_or_nothing_is_allowed() {
    in_each_dialect(|dialect| {
        for (permissions, expected) in [(Permissions::Auto, true), (Permissions::ReadOnly, false)] {
            // Claude Code denies by itself; the driver only sees requests.
            if permissions == Permissions::ReadOnly && dialect != Dialect::Acp {
                continue;
            }
            let fake = Fake::new(dialect, "turns: [[ask: touch it, say: done]]");
            let mut launch = fake.launch();
            launch.permissions = permissions;
            let mut agent = fake.start(&launch);
            assert_eq!(agent.turn("1").outcome, Outcome::Completed, "{}", agent.story());
            assert_eq!(fake.dir().join("it").exists(), expected, "{}", agent.story());
            agent.close();
        }
    });
}

#[test]
fn an_mcp_server_is_called_with_its_secret() {
    let server = r#"
        read a; echo '{"jsonrpc":"2.0","id":1,"result":{}}'
        read b; read c; echo '{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"token '$TOKEN'"}]}}'"#;
    let server = McpServer {
        name: "sprag".to_owned(),
        transport: McpTransport::Stdio {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), server.to_owned()],
            env: BTreeMap::from([("TOKEN".to_owned(), "t-1".to_owned())]),
        },
    };
    in_each_dialect(|dialect| {
        let script =
            "turns: [[mcp: { server: sprag, tool: note }, mcp: { server: other, tool: x }, say: done]]";
        let fake = Fake::new(dialect, script);
        let mut launch = fake.launch();
        launch.mcp_servers = vec![server.clone()];
        let mut agent = fake.start(&launch);
        assert_eq!(agent.turn("1").tool_calls, 2, "{}", agent.story());
        let results = agent.events().iter().filter_map(|event| match event {
            Event::ToolResult(result) => Some((result.status, result.output.clone())),
            _ => None,
        });
        let results: Vec<_> = results.collect();
        assert_eq!(results[0], (ToolStatus::Ok, "token t-1".to_owned()), "{}", agent.story());
        assert_eq!(results[1].0, ToolStatus::Failed, "{}", agent.story());
        agent.close();
    });
}

#[test]
fn a_recorded_thread_is_played_again() {
    let script = "
turns:
  - [think: hm, say: I look., shell: echo hi, ask: echo ho, usage: { input: 7, output: 3 }, say: Done., end: ok]
  - [say: Half., end: { limit: 1900000000 }]
";
    in_each_dialect(|dialect| {
        let fake = Fake::new(dialect, script);
        let mut launch = fake.launch();
        launch.permissions = Permissions::Ask;
        let play = |launch: &sprag_agent::Launch| {
            let mut agent = fake.start(launch);
            agent.prompt("1");
            let request = agent.asked();
            agent.answer(&request, Answer::Allow);
            agent.turn_end();
            agent.turn("2");
            let texts: Vec<String> = agent
                .events()
                .iter()
                .filter_map(|event| match event {
                    Event::Text { text, .. } => Some(text.clone()),
                    Event::ToolResult(result) => Some(result.output.clone()),
                    Event::TurnEnded(end) => Some(format!("{:?} {}", end.outcome, end.usage.total_tokens())),
                    _ => None,
                })
                .collect();
            (script_of(agent.events()), texts)
        };
        let (recorded, first) = play(&launch);
        fake.rewrite(&recorded.to_yaml());
        launch.session = Session::New { id: "22222222-2222-4222-8222-222222222222".to_owned() };
        let (again, second) = play(&launch);
        assert_eq!(first, second, "{}", recorded.to_yaml());
        assert_eq!(recorded, again);
    });
}
