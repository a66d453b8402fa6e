//! The errors of this crate.

use std::io;
use std::path::PathBuf;

use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem;

/// The reason why a connection cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file with certificates or a key cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not a PEM file: {error}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The place that cannot be parsed.
        error: pem::Error,
    },
    /// A file has no certificate.
    #[error("{} has no certificate (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file has no private key.
    #[error("{} has no private key (-----BEGIN PRIVATE KEY-----)", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not fit each other, or are of a kind that is not supported.
    #[error("the certificate {} and its key cannot be used: {error}", path.display())]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
    /// A file has a certificate that cannot be an authority's.
    #[error("{} cannot be trusted: {error}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
    /// The machine trusts no authority.
    #[error("this machine trusts no authority (is the package ca-certificates installed?)")]
    NoAuthorities,
    /// The host of a URL is neither a name nor an address.
    #[error("{0:?} is not a host name")]
    HostName(String),
    /// The TLS library refuses its own settings.
    #[error(transparent)]
    Settings(rustls::Error),
}
