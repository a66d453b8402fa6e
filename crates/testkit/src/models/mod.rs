//! A loopback stand-in for the models' APIs: Anthropic Messages, OpenAI Responses, Gemini.
//!
//! ```text
//!   claude ── POST /v1/messages ───────────┐
//!   codex ─── POST /v1/responses ──────────┼─▶ ModelRequest ─▶ Script ─▶ Reply ─▶ SSE or JSON
//!   gemini ── POST …:streamGenerateContent ┘    one form for      text, tool call,     in the dialect
//!                                               three dialects    401, 429, 500, hang  of the request
//! ```
//!
//! The script is chosen by the conversation itself (the last prompt that names a scene, and the number of the model's answers after
//! it), so that retries, resumed sessions and several agents at once get the same answers in any order.
//!
//! ```no_run
//! use sprag_testkit::models::{Models, Reply, Script};
//!
//! let script = Script::new().scene("make a commit", [Reply::shell("git commit -m x"), Reply::text("Done.")]);
//! let models = Models::start(script);
//! println!("ANTHROPIC_BASE_URL={}", models.url());
//! ```

mod anthropic;
mod gemini;
mod http;
mod request;
mod responses;
mod script;
mod server;

pub use request::{Api, ModelRequest, Part};
pub use script::{Failure, Reply, Script};
pub use server::Models;
