//! Encrypted connections. There is one kind: the server's certificate must name the host, and a trusted authority must
//! have signed it, either one of the machine's own or the one that the URL names. Encryption without that check would
//! only stop passive listeners, and would give the password to any server that answers.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use sprag_tls::Trust;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// The TLS settings of connections; none where they are not encrypted.
#[derive(Clone)]
pub(super) struct Tls(Option<Trust>);

impl Tls {
    /// Returns settings without encryption.
    pub(super) fn off() -> Tls {
        Tls(None)
    }

    /// Trusts the authorities in this file, or the machine's own. The error says what is wrong with them.
    pub(super) fn trusting(file: Option<&Path>) -> Result<Tls, String> {
        let trust = Trust::new(file).map_err(|error| match error {
            error @ sprag_tls::Error::NoAuthorities => {
                format!("{error}: name one with sslrootcert=FILE in the URL")
            }
            error => format!("sslrootcert: {error}"),
        })?;
        Ok(Tls(Some(trust)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Shake;
    type Error = io::Error;

    // The library calls this for every connection, also for unencrypted ones.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<Shake> {
        Ok(Shake { trust: self.0.clone(), host: host.to_owned() })
    }
}

/// The TLS handshake with a server of this name.
pub(super) struct Shake {
    trust: Option<Trust>,
    host: String,
}

impl TlsConnect<Socket> for Shake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let trust = self.trust.ok_or_else(|| io::Error::other("it is not to be encrypted"))?;
            let shaken = trust.connect(&self.host, stream).await?;
            Ok(Encrypted(Box::new(shaken)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Encrypted(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
