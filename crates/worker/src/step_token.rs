//! The token of a step: the right of the step's own agent to the small tool set of `mcp: [sprag]`, for one execution.
//!
//! It names the run, the step, the attempt and the fence, signed by the store. It is void when the execution ends, is
//! cancelled or changes hands: the store compares it with the execution's row in each request, and in the transaction
//! of each write.

use ring::hmac;
use sprag_lifecycle::{ExecutionId, RunId, StepNo};
use sprag_store::Lease;

/// The start of every token of a step, by which servers tell it from an access token.
pub const STEP_TOKEN_PREFIX: &str = "sprag_step_";
/// The purpose that is part of the signed text: the tokens of tasks are signed with the same key.
const PURPOSE: &str = "the token of a step: ";
/// The number of bytes of the signature.
const SIGNATURE_BYTES: usize = 32;

/// Returns the token of an execution, signed with a store's key.
pub fn sign_step_token(key: &str, lease: Lease) -> String {
    let ExecutionId { run, step, attempt } = lease.execution;
    let place = format!("{run}.{step}.{attempt}.{}", lease.fence);
    let signature = hmac::sign(&signer(key), format!("{PURPOSE}{place}").as_bytes());
    let digits: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{STEP_TOKEN_PREFIX}{place}.{digits}")
}

/// Returns the execution that a token names, if the store with this key has signed it.
pub fn read_step_token(key: &str, token: &str) -> Option<Lease> {
    let (place, digits) = token.strip_prefix(STEP_TOKEN_PREFIX)?.rsplit_once('.')?;
    if digits.len() != 2 * SIGNATURE_BYTES || !digits.is_ascii() {
        return None;
    }
    let signature: Option<Vec<u8>> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect();
    hmac::verify(&signer(key), format!("{PURPOSE}{place}").as_bytes(), &signature?).ok()?;
    let mut parts = place.split('.');
    let run: RunId = parts.next()?.parse().ok()?;
    let step: StepNo = parts.next()?.parse().ok()?;
    let attempt = parts.next()?.parse().ok()?;
    let fence = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(Lease { execution: ExecutionId { run, step, attempt }, fence })
}

fn signer(key: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(step: StepNo, attempt: u32, fence: u32) -> Lease {
        let run = RunId::new(1_700_000_000_000, 7);
        Lease { execution: ExecutionId { run, step, attempt }, fence }
    }

    #[test]
    fn s19_a_token_is_for_one_fence_of_one_attempt_and_cannot_be_changed() {
        let own = lease(3, 1, 2);
        let token = sign_step_token("key", own);
        assert_eq!(read_step_token("key", &token), Some(own));
        assert_eq!(read_step_token("another key", &token), None);
        let (place, signature) = token.rsplit_once('.').expect("a signature");
        for other in [lease(4, 1, 2), lease(3, 2, 2), lease(3, 1, 3)] {
            let forged = sign_step_token("key", other);
            let (elsewhere, _) = forged.rsplit_once('.').expect("a signature");
            assert_eq!(read_step_token("key", &format!("{elsewhere}.{signature}")), None);
        }
        let bare = place.strip_prefix(STEP_TOKEN_PREFIX).expect("the prefix");
        for wrong in [
            "",
            "sprag_step_",
            place,
            &format!("{bare}.{signature}"),
            &token[..token.len() - 2],
            &format!("{token}00"),
        ] {
            assert_eq!(read_step_token("key", wrong), None, "{wrong}");
        }
    }
}
