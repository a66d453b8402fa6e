//! Keys that stand for further steps, and the checks of an answer's fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sprag_lifecycle::{OnFail, Plan, WorkKind};
use sprag_pipeline::{Kind, SandboxNetwork, StepSpec, complete_fields, parse, when_holds};

fn plan(source: &str) -> Plan {
    let loaded = parse("p.yaml", source).unwrap_or_else(|wrong| panic!("{source}\n{wrong}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    loaded.pipeline.plan(&BTreeMap::new()).unwrap()
}

fn spec(plan: &Plan, id: &str) -> StepSpec {
    let step = plan.steps.iter().find(|step| step.id == id).unwrap_or_else(|| panic!("no step {id}"));
    serde_json::from_str(&step.spec).unwrap()
}

/// Returns the first error of a file.
fn refused(source: &str) -> String {
    let wrong = parse("p.yaml", source).map(|_| ()).unwrap_err();
    let first = wrong.iter().next().unwrap();
    format!("{}:{} {}", first.line.unwrap_or(0), first.column.unwrap_or(0), first.message)
}

#[test]
fn handlers_are_steps_at_the_end_with_the_condition_of_their_kind() {
    let plan = plan(
        "handlers:\n  success: [{id: s, run: x}]\n  failure: [{id: f, run: x}, {id: g, when: steps.a.exit_code == 3, run: x}]\n  cancel: [{id: c, run: x}]\n  finally: [{id: z, run: x}]\nsteps:\n- {id: a, run: x}\n- {id: b, needs: [], run: x}\n",
    );
    let needs = |id: &str| {
        let step = plan.steps.iter().find(|step| step.id == id).unwrap();
        step.needs.iter().map(|need| plan.step(*need).id.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(["s", "f", "g", "c", "z"].map(needs), ["a b", "a b", "f", "a b", "s g c"]);
    assert!(plan.steps[2..].iter().all(|step| step.policy.always));
    for (id, status, others) in [
        ("s", "running", ["failing", "cancelling"]),
        ("f", "failing", ["running", "cancelling"]),
        ("c", "cancelling", ["running", "failing"]),
    ] {
        let holds =
            |status: &str| when_holds(&spec(&plan, id), &json!({ "run": { "status": status } })).unwrap();
        assert!(holds(status), "{id} runs in a run that is {status}");
        others.iter().for_each(|other| assert!(!holds(other), "{id} does not run in a run that is {other}"));
    }
    let after = |status: &str, code: u32| {
        let names = json!({ "run": { "status": "failing" }, "steps": { "f": { "status": status }, "a": { "exit_code": code } } });
        when_holds(&spec(&plan, "g"), &names).unwrap()
    };
    assert!(after("done", 3) && !after("failed", 3) && !after("done", 4));
    assert!(spec(&plan, "z").when.is_none());
}

#[test]
fn a_gate_after_the_last_rework_stands_behind_its_step() {
    let plan = plan(
        "steps:\n- {id: a, run: x}\n- {id: b, run: x, on_fail: {rework: a, max: 2, then: {gate: {ask: Go on?}}}}\n- {id: c, needs: [b], run: x}\n",
    );
    let ids: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "b-gate", "c"]);
    assert_eq!(
        (plan.step(2).work, &plan.step(2).needs[..], &plan.step(3).needs[..]),
        (WorkKind::Gate, &[1][..], &[1, 2][..])
    );
    assert_eq!(plan.step(1).policy.on_fail, OnFail::Rework { step: 0, max: 2 });
    assert!(plan.step(1).policy.then_continue);
    let asks = |status: &str| {
        when_holds(&spec(&plan, "b-gate"), &json!({ "steps": { "b": { "status": status } } })).unwrap()
    };
    assert!(asks("failed") && !asks("done"));
}

#[test]
fn a_choice_skips_the_steps_that_only_others_lead_to() {
    let plan = plan(
        "steps:\n- {id: g, gate: {ask: x, choices: [{a: {to: a}}, {b: {to: b}}, no]}}\n- {id: a, needs: g, run: x}\n- {id: a2, needs: a, run: x}\n- {id: b, needs: g, run: x}\n- {id: both, needs: [a2, b], run: x}\n- {id: tidy, needs: both, always: true, run: x}\n",
    );
    let runs = |choice: Option<&str>, status: &str| {
        let outputs = choice.map_or(json!({}), |choice| json!({ "choice": choice }));
        let names = json!({ "steps": { "g": { "status": status, "outputs": outputs } } });
        let ids = ["a", "a2", "b", "both", "tidy"];
        ids.into_iter()
            .filter(|id| when_holds(&spec(&plan, id), &names).unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(runs(Some("a"), "done"), "a a2 both tidy");
    assert_eq!(runs(Some("b"), "done"), "b both tidy");
    assert_eq!(runs(Some("no"), "failed"), "tidy");
    assert_eq!(runs(None, "failed"), "tidy");
    assert_eq!(runs(None, "skipped"), "a a2 b both tidy");
}

#[test]
fn mistakes_in_gates_and_handlers_are_refused() {
    for (source, expected) in [
        (
            "steps:\n- {id: g, gate: {ask: x, choices: [{a: {to: nope}}, no]}}\n",
            "2:45 there is no step `nope`",
        ),
        (
            "steps:\n- {id: a, run: x}\n- {id: g, gate: {ask: x, choices: [{a: {to: a}}, no]}}\n",
            "3:45 step `a` does not come after this gate",
        ),
        (
            "steps:\n- {id: g, gate: {ask: x, choices: [{a: {to: g}, b: {to: g}}]}}\n",
            "2:36 a choice has one name",
        ),
        (
            "steps:\n- {id: g, gate: {ask: x, fields: {choice: string}}}\n",
            "2:35 a field cannot be named `choice`",
        ),
        (
            "steps:\n- {id: g, gate: {ask: x, fields: {n: {type: integer, default: a}}}}\n",
            "2:63 the default of input `n`",
        ),
        (
            "steps:\n- {id: g, gate: {ask: x, timeout: 1s, default: 'yes', fields: {n: {required: true}}}}\n",
            "2:48 `default` answers the question without the required field `n`",
        ),
        (
            "handlers: {success: [{id: s, needs: a, run: x}]}\nsteps: [{id: a, run: x}]\n",
            "1:30 `needs` has no effect in a handler",
        ),
        (
            "handlers: {success: [{id: s, end: completed}]}\nsteps: [{id: a, run: x}]\n",
            "1:30 a handler cannot end the run",
        ),
        (
            "handlers: {failure: [{id: s, run: x, on_fail: {rework: a}}]}\nsteps: [{id: a, run: x}]\n",
            "1:56 a handler cannot send the run back",
        ),
        ("handlers: {failed: [{id: s, run: x}]}\nsteps: [{id: a, run: x}]\n", "1:12 "),
        (
            "handlers: {success: [{id: a, run: x}]}\nsteps: [{id: a, run: x}]\n",
            "1:27 two steps have the id `a`",
        ),
    ] {
        let found = refused(source);
        assert!(found.starts_with(expected), "{source}\n{found}");
    }
}

#[test]
fn the_fields_of_an_answer_are_checked_and_completed() {
    let source = "steps:\n- id: g\n  gate: {ask: x, fields: {why: {required: true, min: 2}, n: {type: integer, default: 1, max: 9}, c: {enum: [a, b]}}}\n";
    let Kind::Gate { fields, .. } = spec(&plan(source), "g").kind else { panic!("a gate") };
    let check = |values: Value, texts: &[(&str, &str)], approval: bool| {
        let Value::Object(values) = values else { panic!("an object") };
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        complete_fields(&fields, &values, &texts, approval)
            .map(Value::Object)
            .map_err(|error| error.to_string())
    };
    assert_eq!(check(json!({ "why": "so" }), &[("n", "3")], true), Ok(json!({ "why": "so", "n": 3 })));
    assert_eq!(check(json!({}), &[], false), Ok(json!({ "n": 1 })));
    for (values, texts, why) in [
        (json!({}), &[][..], "`why` is required"),
        (json!({ "why": "x" }), &[], "`why` cannot be \"x\"; expected at least 2 characters"),
        (json!({ "why": 3 }), &[], "`why` cannot be 3; expected text"),
        (json!({ "why": "so" }), &[("n", "many")], "`n` cannot be \"many\"; expected a whole number"),
        (json!({ "why": "so", "n": 10 }), &[], "`n` cannot be 10; expected at most 9"),
        (json!({ "why": "so", "c": "d" }), &[], "`c` cannot be \"d\"; expected one of \"a\", \"b\""),
        (json!({ "why": "so", "m": 1 }), &[], "no field \"m\"; expected one of why, n, c"),
    ] {
        let refused = check(values.clone(), texts, true).expect_err(&values.to_string());
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(complete_fields(&[], &Map::new(), &BTreeMap::new(), true), Ok(Map::new()));
}

#[test]
fn s19_a_sandbox_is_required_and_keeps_the_bounds_of_its_pipeline() {
    let plan = plan(
        "sandbox: {memory: 1GiB, network: all}\nsteps:\n- {id: a, run: x}\n- {id: b, run: x, sandbox: {network: none}}\n- {id: c, run: x, sandbox: {required: false}}\n- {id: d, run: x, sandbox: none}\n",
    );
    let sandbox = |id: &str| spec(&plan, id).sandbox;
    for (id, required, network) in [
        ("a", true, SandboxNetwork::All),
        ("b", true, SandboxNetwork::None),
        ("c", false, SandboxNetwork::All),
    ] {
        let found = sandbox(id).unwrap_or_else(|| panic!("{id} has a sandbox"));
        assert_eq!(
            (found.required, found.network, found.memory_bytes),
            (required, network, Some(1 << 30)),
            "{id}"
        );
    }
    assert_eq!(sandbox("d"), None);
}
