//! Expressions in `{{ }}` and after `when:`, in the expression language of Jinja.
//!
//! ```text
//!   text ── token ── parse ──▶ Expression (an arena of nodes) ── evaluate ──▶ JSON value
//!           bounded  bounded                    ▲                  takes each byte and value that it
//!           in size  in depth                   │ names()          makes or reads from a Budget
//! ```
//!
//! Anyone who may start a run may write an expression, and servers and workers evaluate it on threads that serve
//! everyone. So every dimension is bounded: the text and its nesting are limited before parsing, no chain of operators
//! makes the parser or the evaluator recurse, and an evaluation fails when its budget is used up. Values do not cause
//! deep recursion either: JSON is nested at most 128 levels deep.

mod arithmetic;
mod budget;
mod evaluate;
mod filters;
mod functions;
mod lists;
mod parse;
mod patterns;
mod predicates;
mod texts;
mod token;
mod value;

use serde_json::Value;

pub use budget::Budget;
pub(crate) use functions::NOW;
pub(crate) use patterns::{check_glob, check_pattern, fits_glob, fits_pattern};
pub(crate) use value::kind as kind_of;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expression {
    nodes: Vec<parse::Node>,
    root: parse::Id,
}

impl Expression {
    /// Parses an expression, or returns a message about the mistake.
    pub(crate) fn read(text: &str) -> Result<Expression, String> {
        parse::parse(text)
    }

    /// Returns the names that it uses from the context, with their attributes: `inputs.issue`, `steps.test.outputs`.
    pub(crate) fn names(&self) -> Vec<String> {
        // The name at the head of a chain is listed as part of the chain.
        let heads = self.nodes.iter().filter_map(parse::Node::head).collect::<std::collections::HashSet<_>>();
        let is_listed =
            |id: usize, node: &parse::Node| matches!(node, parse::Node::Name(_)) && heads.contains(&id);
        let listed = self.nodes.iter().enumerate().filter(|(id, node)| !is_listed(*id, node));
        let mut names: Vec<String> = listed.filter_map(|(_, node)| node.path(&self.nodes)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Evaluates the expression. An undefined value is an error.
    pub(crate) fn evaluate(&self, context: &Value, budget: &Budget) -> Result<Value, String> {
        evaluate::evaluate(&self.nodes, self.root, context, budget)
    }

    /// Evaluates the expression as a condition, which is true or false.
    pub(crate) fn holds(&self, context: &Value, budget: &Budget) -> Result<bool, String> {
        evaluate::holds(&self.nodes, self.root, context, budget)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluate(text: &str) -> Result<Value, String> {
        let context = json!({
            "now": 1_794_945_600_000_i64,
            "inputs": { "n": 3, "s": "a b", "list": [3, 1, 2], "people": [
                { "name": "Bo", "age": 30, "tags": ["x"] }, { "name": "al", "age": 20 },
            ], "none": null, "map": { "b": 2, "a": 1 }, "slow-one": 7 },
            "steps": { "slow-tests": { "status": "done" } },
        });
        Expression::read(text)?.evaluate(&context, &Budget::default())
    }

    #[test]
    fn expressions_have_their_values() {
        for (text, expected) in [
            ("1 + 2 * 3 - 4 // 3 - 7 % 4", json!(3)),
            ("2 ** 3 ** 2", json!(64)),
            ("-inputs.n ** 2", json!(9)),
            ("6 / 2", json!(3.0)),
            ("-7 // 2", json!(-4)),
            ("-7 % 3", json!(2)),
            ("7 // -2.0", json!(-4.0)),
            ("1_000 + 0x10 + 0b11 + 1.5e1", json!(1034.0)),
            ("'a' ~ 1 ~ [1, 'x']", json!("a1[1,\"x\"]")),
            ("'a' 'b' + 'c'", json!("abc")),
            ("'ab' * 2 ~ '|' ~ 2 * 'c'", json!("abab|cc")),
            ("[1] * 3 + [2]", json!([1, 1, 1, 2])),
            ("(1, 2) + ()", json!([1, 2])),
            ("{'a': 1, 'b': {'c': [1]},}.b.c[0]", json!(1)),
            ("inputs.list[0], ", json!(null)),
            ("inputs.list[-1]", json!(2)),
            ("inputs.list[1:]", json!([1, 2])),
            ("inputs.list[::-1]", json!([2, 1, 3])),
            ("inputs.list[5:0:-1]", json!([2, 1])),
            ("'abc'[0:2:-1]", json!("")),
            ("'abcd'[::2] ~ 'abcd'[-1]", json!("acd")),
            ("inputs.list.1", json!(1)),
            ("inputs['slow-one'] + steps['slow-tests'].status | length", json!(11)),
            ("1 < inputs.n <= 3 != 4", json!(true)),
            ("1 in inputs.list and 'a' in inputs.map and 'b' in 'abc' and 9 not in [1]", json!(true)),
            ("not not 0 or inputs.none or 'x'", json!("x")),
            ("1 == 1.0 and [1, {'a': 2}] == [1.0, {'a': 2.0}] and true != 1", json!(true)),
            ("'yes' if inputs.n > 2 else 'no'", json!("yes")),
            ("'a' if false else 'b' if false else 'c'", json!("c")),
            ("inputs.nope | default('d')", json!("d")),
            ("(inputs.none | default('d', true)) ~ ('' | d('e', boolean=true))", json!("de")),
            ("inputs.nope is undefined and inputs.n is defined and inputs.none is none", json!(true)),
            ("inputs.n is not even and 9 is divisibleby 3 and 'ab' is startingwith('a')", json!(true)),
            ("inputs.list | sort | join(',')", json!("1,2,3")),
            ("inputs.list | sort(reverse=true)", json!([3, 2, 1])),
            ("inputs.people | sort(attribute='name') | map(attribute='age') | list", json!([20, 30])),
            ("inputs.people | selectattr('age', 'gt', 25) | map(attribute='name') | first", json!("Bo")),
            ("inputs.people | rejectattr('tags', 'defined') | length", json!(1)),
            ("inputs.people | map(attribute='tags.0', default='-') | join", json!("x-")),
            ("inputs.people | sum('age') + inputs.list | sum(start=1)", json!(57)),
            ("['a', 'B'] | map('upper') | join('-', )", json!("A-B")),
            ("[1, null, 0, 2] | select | list", json!([1, 2])),
            ("[1, 2, 3] | reject('odd') | list", json!([2])),
            ("[1, 1.0, 'a', 'A'] | unique | list", json!([1, 1.0, "a"])),
            ("inputs.map | dictsort | last", json!(["b", 2])),
            ("inputs.map | dictsort(by='value', reverse=true) | first", json!(["b", 2])),
            ("inputs.map | items | list", json!([["a", 1], ["b", 2]])),
            (
                "inputs.list | min ~ inputs.list | max ~ (inputs.people | max(attribute='age')).name",
                json!("13Bo"),
            ),
            ("[1, 2, 3] | batch(2, 0)", json!([[1, 2], [3, 0]])),
            ("[1, 2, 3] | slice(2)", json!([[1, 2], [3]])),
            ("[1, 2] | zip('ab') | list", json!([[1, "a"], [2, "b"]])),
            ("[1] | chain([2], [3]) | list", json!([1, 2, 3])),
            ("'a b  c' | split ~ 'a,b,c' | split(',', 1)", json!("[\"a\",\"b\",\"c\"][\"a\",\"b,c\"]")),
            ("'a\\nb' | lines", json!(["a", "b"])),
            ("'a\\n\\nb' | indent(2)", json!("a\n\n  b")),
            ("'aXbX' | replace('X', '--') | upper | title", json!("A--B--")),
            ("' x ' | trim ~ 'xxax' | trim('x') ~ 'hELLO' | capitalize", json!("xaHello")),
            ("'12' | int + '0x1f' | int(base=16) + 'no' | int(5) + 2.9 | int", json!(50)),
            ("('1.5' | float) + (true | float)", json!(2.5)),
            (
                "2.567 | round(2) ~ ' ' ~ 2.5 | round ~ ' ' ~ 2.1 | round(method='ceil') ~ ' ' ~ 25 | round(-1)",
                json!("2.57 2.0 3.0 20"),
            ),
            ("-3 | abs ~ 'abc' | reverse ~ [1, 2] | reverse", json!("3cba[2,1]")),
            ("{'a': [1, 'é']} | tojson", json!("{\"a\":[1,\"é\"]}")),
            ("[1] | tojson(indent=2)", json!("[\n  1\n]")),
            ("'é\\u00e9\\x41\\ud83d\\ude00' | length", json!(4)),
            ("{'a': {'b': 5}} | attr('a.b') | string", json!("5")),
            ("1 | bool and '' | bool == false and 'False' | bool == false and 'yes' | bool", json!(true)),
            ("range(3) + range(1, 3) + range(3, 0, -2)", json!([0, 1, 2, 1, 2, 3, 1])),
            ("now() ~ ' ' ~ now('%Y/%m/%d')", json!("2026-11-17T20:00:00Z 2026/11/17")),
            ("[1, [2, [3]], []] | flatten", json!([1, 2, 3])),
            ("[1, [2, [3]]] | flatten(1)", json!([1, 2, [3]])),
            ("('{\"a\": [1]}' | fromjson).a[0]", json!(1)),
            ("'a b/c&d=é' | urlencode", json!("a%20b/c%26d%3D%C3%A9")),
            ("'v1.2' is match('v[0-9]') and 'x v1' is not match('v') and 'x v1' is search('v')", json!(true)),
            ("['a.rs', 'b.md'] | select('glob', '*.rs') | list", json!(["a.rs"])),
            ("'v1.20' | regex_replace('v([0-9]+)', '$1')", json!("1.20")),
            ("'a=1, b=2' | regex_findall('([a-z])=([0-9])')", json!([["a", "1"], ["b", "2"]])),
            ("('v1.20' | regex_search('v(?P<major>[0-9]+)')).major", json!("1")),
        ] {
            if expected.is_null() {
                assert!(evaluate(text).is_err(), "{text}: {:?}", evaluate(text));
            } else {
                assert_eq!(evaluate(text), Ok(expected), "{text}");
            }
        }
    }

    #[test]
    fn an_invalid_expression_has_a_reason() {
        for (text, expected) in [
            ("", "it ends where a value is expected"),
            ("1 +", "it ends where a value is expected"),
            ("1 2", "unexpected a number after the expression"),
            ("length(3)", "there is no function `length`; use a filter: `x | length`"),
            ("success()", "there is no function `success`; write `failed()` or `succeeded()`"),
            ("always()", "there is no function `always`; give the step `always: true`"),
            ("range()", "the function `range` takes 1 to 3 values, not 0"),
            ("range(1, 9, 0)", "the step of a range cannot be 0"),
            ("range(1e9 | int)", "a range of 1000000000 numbers is longer than 100000"),
            ("failed()", "the run has no status here"),
            ("now('%999999Y')", "`%999999Y` is not a format of time such as %Y-%m-%d"),
            ("'x' | fromjson", "not JSON (expected value at line 1 column 1)"),
            ("'maybe' | bool", "`maybe` is neither true nor false"),
            ("'x' is search('(')", "not a regular expression: unclosed group"),
            ("inputs.s.upper()", "a value cannot be called; use a filter: `x | length`"),
            ("a b", "unexpected `b` after the expression"),
            ("'x", "a text has no closing quote"),
            ("1 | lenght", "there is no filter `lenght`; did you mean `length`?"),
            ("1 is evn", "there is no test `evn`; did you mean `even`?"),
            ("'a' | replace('b')", "the filter `replace` needs 2 values"),
            ("1 | round(digits=2)", "the filter `round` has no argument `digits`"),
            ("1 | abs(1)", "the filter `abs` takes at most 0 arguments"),
            ("inputs.nope", "`inputs.nope` is undefined"),
            ("inputs.nope.more", "a part of `inputs.nope.more` is undefined"),
            ("nope.more | default(1)", "`nope` is undefined"),
            ("not inputs.nope", "`inputs.nope` is undefined"),
            ("inputs.nope == 1", "`inputs.nope` is undefined"),
            ("1 < 'a'", "a number and text cannot be ordered"),
            ("[1, 'a'] | sort", "text and a number cannot be ordered"),
            ("inputs.none ~ 'x'", "null has no text form"),
            ("1 + 'a'", "cannot apply `+` to a number and text"),
            ("1 // 0", "`//` by zero"),
            ("2 ** 200", "the result of `**` is too large"),
            ("9223372036854775807 * 4", "the number 36893488147419103228 is too large"),
            ("1e308 * 10", "the result of `*` is not a finite number"),
            ("{1: 2}", "a number cannot be a key of a map"),
            ("1 in 2", "`in` needs a list, an object or a text, not a number"),
            ("'x' | int", "text is not a number"),
            ("[1][0:1:0]", "the step of a slice cannot be 0"),
            ("'a' | indent(99999)", "`indent` takes a width from 0 to 1000, not 99999"),
        ] {
            assert_eq!(evaluate(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_expression_lists_the_paths_that_it_names() {
        let names = |text: &str| Expression::read(text).unwrap().names();
        assert_eq!(
            names("inputs.a.b ~ run.id if steps.x.y else inputs"),
            ["inputs", "inputs.a.b", "run.id", "steps.x.y"]
        );
        assert_eq!(
            names("steps['slow-tests'].status | default(env.X)"),
            ["env.X", "steps.slow-tests.status"]
        );
        assert_eq!(
            names("(item | first).a + [matrix.os][0] + steps[inputs.n].z"),
            ["inputs.n", "item", "matrix.os", "steps"]
        );
        assert!(names("1 + 'inputs.x' | length").is_empty());
    }

    /// Expressions that once made a server abort, hang or grow without bound: each is refused or fails within its
    /// budget.
    #[test]
    fn e03_no_expression_does_harm() {
        let many = |part: &str| format!("1{}", part.repeat(20_000));
        for text in [
            many("+1"),
            many(".a"),
            many("[0]"),
            many("|abs"),
            many(" and 1"),
            many(" or 0"),
            many(" if 1 else 1"),
            many("~1"),
            many(" is odd"),
            many(" < 2"),
            format!("{}1", "not ".repeat(20_000)),
            format!("{}1", "-".repeat(20_000)),
            format!("{}1{}", "(".repeat(20_000), ")".repeat(20_000)),
            format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000)),
            format!("{}1{}", "{'a':".repeat(20_000), "}".repeat(20_000)),
            format!("{}1{}", "x[".repeat(2_000), "]".repeat(2_000)),
            format!("{}1{}", "1|default(".repeat(1_000), ")".repeat(1_000)),
        ] {
            let read = Expression::read(&text);
            assert!(read.is_err(), "{}…", &text[..40]);
        }
        // Chains of the maximum length are harmless too.
        for part in ["+1", " and 1", "|abs", "~1", " if 1 else 1", "*1", " is odd"] {
            let text = format!("1{}", part.repeat(1_300));
            let _ = evaluate(&text);
        }
        let deep = format!("{}1{}", "(".repeat(39), ")".repeat(39));
        assert_eq!(evaluate(&deep), Ok(json!(1)));
        let large = json!({
            "s": "x".repeat(1 << 20), "list": vec![json!(1); 500_000], "one": "y",
            "words": vec![json!("word"); 100_000],
        });
        let spent = "the expressions of this step exceed their evaluation limit: pass large data in files";
        for text in [
            "('a\\nb' | indent(9223372036854775807)) == 'x'",
            "s | replace('', s)",
            "s | replace('x', s)",
            "'ab' * 10000000000",
            "[1] * 10000000000",
            "[s] * 100",
            "list | select('in', list) | list",
            "list | reject('in', [2, 3] * 1000) | list",
            "words | join(s)",
            "words | map('replace', 'w', s) | list",
            "list | batch(10000000000, 1)",
            "list | slice(10000000000)",
            "[1] | batch(10000000, s)",
            "list | zip(list, list, list, list, list, list, list, list, list, list)",
            "list | tojson(indent=16)",
            "words | sort(attribute='a') ~ (words | sort) ~ (words | unique) ~ (words | sort)",
            "s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s",
            "s | list",
            "s | split('')",
            "words | join('\\n') | indent(1000)",
            "s | regex_replace('x', '$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0')",
            "words | map('regex_replace', '.', s) | list",
            "[s, s, s] | map('regex_findall', 'x') | list",
            "list | flatten ~ (list | flatten)",
            "(s * 10) | urlencode",
        ] {
            let context = &large;
            let found = Expression::read(text).and_then(|e| e.evaluate(context, &Budget::default()));
            let why = found.map(|_| ()).expect_err(text);
            assert!(why == spent || why.contains("indent"), "{text}: {why}");
        }
        // Large but reasonable expressions succeed.
        for text in [
            "s | length",
            "list | sum",
            "words | first",
            "s == s",
            "list | length + words | length",
            "'x' in s",
        ] {
            let found = Expression::read(text).and_then(|e| e.evaluate(&large, &Budget::default()));
            assert!(found.is_ok(), "{text}: {found:?}");
        }
    }
}
