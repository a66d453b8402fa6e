//! The authorities that a client trusts.

use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::Error;
use crate::provider;

/// The authorities whose certificates a client accepts. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts the authorities in this PEM file, or the machine's own without one.
    pub fn new(file: Option<&Path>) -> Result<Trust, Error> {
        let roots = match file {
            Some(file) => from_file(file)?,
            None => of_this_machine()?,
        };
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(Error::Settings)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Trust(Arc::new(config)))
    }

    /// Returns the settings of the TLS library.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }

    /// Encrypts a connection to this host, and checks the certificate that the host shows.
    pub async fn connect<S>(&self, host: &str, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare)
            .map_err(|_| std::io::Error::other(Error::HostName(host.to_owned())))?;
        TlsConnector::from(self.config()).connect(name, stream).await
    }
}

fn from_file(path: &Path) -> Result<RootCertStore, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::File { path: path.to_owned(), error })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| Error::Pem { path: path.to_owned(), error })?;
        roots.add(certificate).map_err(|error| Error::Authority { path: path.to_owned(), error })?;
    }
    if roots.is_empty() { Err(Error::NoCertificate { path: path.to_owned() }) } else { Ok(roots) }
}

fn of_this_machine() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 { Err(Error::NoAuthorities) } else { Ok(roots) }
}
