//! Connections to the hosts of `http://` and `https://` URLs, for hyper's client.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::stream::Stream;
use crate::trust::Trust;

/// The time limit for establishing a connection, and again for encrypting it.
const CONNECT: Duration = Duration::from_secs(5);
/// The time after which an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Connects to servers, encrypted for `https://`. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Connector {
    tcp: HttpConnector,
    authorities: Option<PathBuf>,
    /// Read at the first encrypted connection: most programs have none, and reading the machine's authorities takes
    /// milliseconds.
    trust: Arc<OnceLock<Trust>>,
}

impl Connector {
    /// Creates a connector that trusts the authorities in this PEM file, or the machine's own without one.
    pub fn new(authorities: Option<PathBuf>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        Connector { tcp, authorities, trust: Arc::default() }
    }

    /// Returns the trusted authorities.
    pub fn trust(&self) -> Result<Trust, crate::Error> {
        if let Some(trust) = self.trust.get() {
            return Ok(trust.clone());
        }
        let trust = Trust::new(self.authorities.as_deref())?;
        Ok(self.trust.get_or_init(|| trust).clone())
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_ready(cx).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, connector) = (self.tcp.call(uri.clone()), self.clone());
        Box::pin(async move {
            let stream = connecting.await.map_err(io::Error::other)?.into_inner();
            if uri.scheme_str() != Some("https") {
                return Ok(TokioIo::new(Stream::Plain(stream)));
            }
            let trust = connector.trust().map_err(io::Error::other)?;
            let host = uri.host().unwrap_or_default();
            match tokio::time::timeout(CONNECT, trust.connect(host, stream)).await {
                Ok(encrypted) => Ok(TokioIo::new(Stream::Connected(Box::new(encrypted?)))),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the server did not encrypt the connection within {} s", CONNECT.as_secs()),
                )),
            }
        })
    }
}
