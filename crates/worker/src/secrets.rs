//! The secrets of a step: the ones that it receives, and the ones that are masked in everything that it leaves.

use std::ffi::OsString;

use serde_json::Value;
use sprag_pipeline::StepSpec;
use sprag_process::{Order, Secrets, inherited, variable};
use sprag_store::Ending;

use crate::secret_sources;
use crate::slots::Ended;

/// Adds the step's environment to an order: the inherited variables and its secrets. Also lists the values that the
/// supervisor masks.
pub(crate) fn equip(order: &mut Order, spec: &StepSpec) -> Result<(), String> {
    let others: Vec<String> =
        spec.masks.iter().filter(|name| !spec.secrets.contains(name)).cloned().collect();
    order.inherits = Some(inherited(&spec.inherit, &others));
    for name in &spec.secrets {
        if !spec.sources.contains_key(name) {
            let value = variable(name)
                .ok_or_else(|| format!("the secret {name} is not set in the worker's environment"))?;
            value.into_string().map_err(|_| format!("the secret {name} is not UTF-8 text"))?;
        }
        let value =
            secret_sources::value(spec, name).ok_or_else(|| format!("the secret {name} was not read"))?;
        order.env.insert(name.clone(), value);
    }
    order.secrets = values(spec);
    Ok(())
}

/// Returns the masker for everything that the step leaves.
pub(crate) fn masker(spec: &StepSpec) -> Secrets {
    if spec.masks.is_empty() && spec.secrets.is_empty() && spec.private.is_empty() {
        return Secrets::default();
    }
    Secrets::new(&values(spec))
}

/// Returns the values of all secrets that any step of the pipeline names, as far as they are set here, and of its secret
/// inputs.
fn values(spec: &StepSpec) -> Vec<String> {
    let names = spec.masks.iter().chain(&spec.secrets);
    let set = names.filter_map(|name| variable(name).map(OsString::into_string)?.ok());
    let read = if spec.masks.is_empty() { Vec::new() } else { secret_sources::all_read() };
    set.chain(read).chain(spec.private.iter().cloned()).collect()
}

/// Masks the secrets in a step's ending: outputs, messages, feedback, warnings and everything else in its result.
pub(crate) fn mask(ended: Ended, secrets: &Secrets) -> Ended {
    let Ended::Report(mut ending) = ended else { return ended };
    let result = match &mut ending {
        Ending::Completed { result }
        | Ending::Failed { result, .. }
        | Ending::Blocked { result }
        | Ending::TimedOut { result } => result,
        Ending::Limited(limit) => {
            limit.message = secrets.mask(&limit.message).into();
            return Ended::Report(ending);
        }
        Ending::Parked | Ending::Cancelled => return Ended::Report(ending),
    };
    if let Some(text) = result.as_deref().filter(|_| !secrets.is_empty()) {
        let clean = match serde_json::from_str::<Value>(text) {
            Ok(mut value) => {
                secrets.mask_json(&mut value);
                value.to_string()
            }
            Err(_) => secrets.mask(text),
        };
        *result = Some(clean.into());
    }
    Ended::Report(ending)
}

#[cfg(test)]
mod tests {
    use sprag_store::UsageLimit;

    use super::*;

    #[test]
    fn e06_every_end_of_a_step_is_masked() {
        let secrets = Secrets::new(&["s3cret-w0rd"]);
        let result = || Some(r#"{"message":"a s3cret-w0rd","s3cret-w0rd":1}"#.into());
        for ending in [
            Ending::Completed { result: result() },
            Ending::Failed { result: result(), retriable: true },
            Ending::Blocked { result: result() },
            Ending::TimedOut { result: result() },
            Ending::Failed { result: Some("no JSON, s3cret-w0rd".into()), retriable: false },
        ] {
            let masked = mask(Ended::Report(ending), &secrets);
            let told = format!("{masked:?}");
            assert!(told.contains("***") && !told.contains("s3cret-w0rd"), "{told}");
        }
        assert_eq!(mask(Ended::Report(Ending::Cancelled), &secrets), Ended::Report(Ending::Cancelled));
        let limit = |message: &str| Ending::Limited(UsageLimit { until_ms: None, message: message.into() });
        let Ended::Report(Ending::Limited(masked)) = mask(Ended::Report(limit("a s3cret-w0rd")), &secrets)
        else {
            panic!("a limit stays one");
        };
        assert!(!masked.message.contains("s3cret-w0rd"), "{masked:?}");
    }
}
