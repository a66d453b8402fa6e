//! Encrypted connections. There is one kind: the server's certificate must name the host, and a trusted authority must
//! have signed it, either one of the machine's own or the one that the URL names. Encryption without that check would
//! only stop passive listeners, and would give the password to any server that answers.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// The TLS settings of connections; none where they are not encrypted.
#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    /// Returns settings without encryption.
    pub(super) fn off() -> Tls {
        Tls(None)
    }

    /// Trusts the authorities in this file, or the machine's own. The error says what is wrong with them.
    pub(super) fn trusting(file: Option<&Path>) -> Result<Tls, String> {
        let roots = match file {
            Some(file) => from_file(file)?,
            None => of_this_machine()?,
        };
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Tls(Some(Arc::new(config))))
    }
}

fn from_file(file: &Path) -> Result<RootCertStore, String> {
    let wrong = |why: String| format!("sslrootcert: {}: {why}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("there is no certificate in it (PEM, -----BEGIN CERTIFICATE-----)".into()));
    }
    Ok(roots)
}

fn of_this_machine() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    match added {
        0 => Err("this machine trusts no authority (ca-certificates is not installed): name one with \
                  sslrootcert=FILE in the URL"
            .into()),
        _ => Ok(roots),
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Shake;
    type Error = io::Error;

    // The library calls this for every connection, also for unencrypted ones.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<Shake> {
        Ok(Shake { config: self.0.clone(), host: host.to_owned() })
    }
}

/// The TLS handshake with a server of this name.
pub(super) struct Shake {
    config: Option<Arc<ClientConfig>>,
    host: String,
}

impl TlsConnect<Socket> for Shake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("it is not to be encrypted"))?;
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            let shaken = TlsConnector::from(config).connect(host, stream).await?;
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
