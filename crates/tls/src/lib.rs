//! Encrypted connections of servers and clients.
//!
//! ```text
//!   server:  Certificate (files, read again when they change) ──▶ accept(TcpStream) ──▶ Stream
//!   client:  Trust (the machine's authorities, or a file) ──▶ Connector: http:// and https:// ──▶ Stream
//! ```
//!
//! There is one kind of encryption: the certificate must name the host, and a trusted authority must have signed it.
//! No option skips this check, because a client that skips it gives its token to any server that answers.

mod certificate;
mod connector;
mod error;
mod stream;
mod trust;

pub use certificate::Certificate;
pub use connector::Connector;
pub use error::Error;
pub use stream::Stream;
pub use trust::Trust;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Returns the cryptography of all connections.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
