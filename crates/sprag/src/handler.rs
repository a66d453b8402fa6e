//! Typed handlers: JSON becomes the handler's input, and its output becomes JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sprag_app::HandlerError;

/// Reads a step's `with` as the input of a handler. A step without `with` stands for no value, or for an object without
/// fields, whichever the type accepts.
pub(crate) fn read_input<I: DeserializeOwned>(handler: &str, with: Value) -> Result<I, HandlerError> {
    if with.is_null() {
        let empty = Value::Object(serde_json::Map::new());
        if let Ok(input) = I::deserialize(Value::Null).or_else(|_| I::deserialize(empty)) {
            return Ok(input);
        }
    }
    serde_path_to_error::deserialize(with).map_err(|error| {
        let field = match error.path().to_string() {
            path if path == "." => "its `with`".to_owned(),
            path => format!("`with.{path}`"),
        };
        // No retry changes what the pipeline says.
        HandlerError::permanent(format!("handler {handler:?} cannot read {field}: {}", error.inner()))
    })
}

/// Returns the output of a handler as JSON.
pub(crate) fn write_output<O: Serialize>(handler: &str, output: &O) -> Result<Value, HandlerError> {
    serde_json::to_value(output).map_err(|error| {
        HandlerError::permanent(format!("the output of handler {handler:?} is not JSON: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    struct Order {
        items: Vec<Item>,
        note: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    struct Item {
        cents: u32,
    }

    fn failure(with: Value) -> String {
        read_input::<Order>("charge", with).expect_err("a wrong input").message
    }

    #[test]
    fn a_wrong_input_names_the_handler_and_the_field() {
        let wrong = failure(json!({ "items": [{ "cents": 1 }, { "cents": "two" }] }));
        assert!(wrong.contains("\"charge\"") && wrong.contains("`with.items[1].cents`"), "{wrong}");
        let missing = failure(json!({ "note": "no items" }));
        assert!(missing.contains("its `with`") && missing.contains("missing field `items`"), "{missing}");
        let absent = failure(Value::Null);
        assert!(absent.contains("\"charge\""), "{absent}");
    }

    #[test]
    fn a_step_without_with_fits_every_type_that_needs_nothing() {
        #[derive(Deserialize)]
        struct AllOptional {
            note: Option<String>,
        }
        assert!(read_input::<()>("h", Value::Null).is_ok());
        assert_eq!(read_input::<Value>("h", Value::Null), Ok(Value::Null));
        assert_eq!(read_input::<AllOptional>("h", Value::Null).expect("an input").note, None);
        let order = read_input::<Order>("h", json!({ "items": [{ "cents": 7 }] })).expect("an order");
        assert_eq!((order.items[0].cents, order.note), (7, None));
    }
}
