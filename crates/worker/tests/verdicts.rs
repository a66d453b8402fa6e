//! The end of an agent's turn is never success by itself.

use serde_json::{Value, json};
use sprag_agent::{Outcome, TurnEnd, Verdict};
use sprag_worker::judged_end;

fn end(outcome: &Value, output: &Value) -> TurnEnd {
    let mut written =
        json!({ "turn": 1, "reason": "end_turn", "text": "Done.", "output": output, "tool_calls": 1 });
    for (name, value) in outcome.as_object().expect("an object") {
        written[name] = value.clone();
    }
    serde_json::from_value(written).expect("the end of a turn")
}

#[test]
fn t02_only_an_end_that_nothing_contradicts_is_success() {
    let completed = serde_json::to_value(Outcome::Completed).expect("JSON");
    let interrupted = serde_json::to_value(Outcome::Interrupted).expect("JSON");
    let schema = json!({ "type": "object", "required": ["verdict"] });
    assert_eq!(judged_end(&end(&completed, &Value::Null), None), Verdict::Success);
    assert_eq!(judged_end(&end(&completed, &json!({ "verdict": "good" })), Some(&schema)), Verdict::Success);
    for (outcome, output, schema) in [
        (&interrupted, Value::Null, None),
        (&completed, Value::Null, Some(&schema)),
        (&completed, json!({ "other": 1 }), Some(&schema)),
        (&completed, json!("good"), Some(&schema)),
    ] {
        assert_ne!(judged_end(&end(outcome, &output), schema), Verdict::Success, "{outcome} {output}");
    }
}
