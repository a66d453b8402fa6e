//! Structured output from agents whose wire has no field for it: requested in the prompt, and found in the answer.

use serde_json::Value;

/// Returns the part of a prompt that asks for output matching the schema.
pub(crate) fn instruction(schema: &Value) -> String {
    format!(
        "\n\nEnd your work with one JSON value in a ```json block as the last thing in your answer. It must fit this JSON schema:\n{schema}\n"
    )
}

/// Finds the JSON value at the end of an answer: the whole answer, its last fenced block, or its last object.
pub(crate) fn extract(answer: &str) -> Option<Value> {
    let answer = answer.trim();
    let structured = |text: &str| {
        serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array())
    };
    structured(answer)
        .or_else(|| structured(last_block(answer)?))
        .or_else(|| structured(last_object(answer)?))
}

fn last_block(answer: &str) -> Option<&str> {
    let body = answer[..answer.rfind("```")?].trim_end();
    let start = body.rfind("```")?;
    // The first line names the language.
    let (_, inside) = body[start..].split_once('\n')?;
    Some(inside.trim())
}

/// Returns the text from the opening brace of the last object to its end, if the answer ends with it.
fn last_object(answer: &str) -> Option<&str> {
    let end = answer.rfind('}')? + 1;
    // The outermost brace of an object is the first one from the left after which everything up to the end is JSON.
    let starts = answer[..end].match_indices('{').map(|(at, _)| at);
    starts
        .take(MAX_STARTS)
        .map(|at| &answer[at..end])
        .find(|text| serde_json::from_str::<Value>(text).is_ok())
}

/// The most braces that are tried as the start of the object; a longer search would take quadratic time.
const MAX_STARTS: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_value_is_found_where_agents_put_it() {
        let expected = json!({"verdict": "good", "list": [{"a": 1}]});
        let compact = expected.to_string();
        for answer in [
            compact.clone(),
            format!("All done.\n\n```json\n{expected:#}\n```"),
            format!("First ```json\n{{\"verdict\":1}}\n``` and then\n```\n{compact}\n```\n"),
            format!("The {{result}} is {compact}"),
            format!("Here: {compact} That is all."),
        ] {
            assert_eq!(extract(&answer), Some(expected.clone()), "{answer}");
        }
        for answer in ["", "Done.", "{oops", "```json\n```", "42", "\"text\"", "}{"] {
            assert_eq!(extract(answer), None, "{answer}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(answer in "[`{}\\[\\]\"a:,\n é]{0,60}") {
            extract(&answer);
        }
    }
}
