//! A server's certificate and key. Both files are read again when they change, so that a renewed certificate needs no
//! restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::Error;
use crate::provider;
use crate::stream::Stream;

/// The shortest time between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);
/// The most bytes that are read from a client that speaks plain HTTP.
const MOST_UNREAD: u64 = 64 << 10;
/// The first byte of a connection that is encrypted: the record type of a handshake.
const HANDSHAKE: u8 = 0x16;
/// The answer to a client that speaks plain HTTP to an encrypted port, in the form of the API's other problems.
const PLAIN: &str = r#"{"type":"urn:sprag:problem:https","title":"Bad Request","status":400,"code":"https",
"message":"this server speaks https alone","next":"write https:// instead of http://","request_id":""}"#;

/// The certificate and the private key of a server. Cloning it is cheap.
#[derive(Clone)]
pub struct Certificate(Arc<Inner>);

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// The state of both files when they were read.
    seen: [Option<(SystemTime, u64)>; 2],
    looked: Instant,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("certificate", &self.0.certificate).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads the certificate chain and the key from PEM files.
    #[expect(clippy::disallowed_methods, reason = "the age of a look at files, not of anything stored")]
    pub fn load(certificate: &Path, key: &Path) -> Result<Certificate, Error> {
        let seen = [state_of(certificate), state_of(key)];
        let config = read(certificate, key)?;
        Ok(Certificate(Arc::new(Inner {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            loaded: Mutex::new(Loaded { config, seen, looked: Instant::now() }),
        })))
    }

    /// Encrypts an accepted connection. A client that speaks plain HTTP is told so, and gets an error here.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            refuse_plain(stream).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client speaks plain HTTP"));
        }
        let stream = TlsAcceptor::from(self.current()).accept(stream).await?;
        Ok(Stream::Accepted(Box::new(stream)))
    }

    /// Returns the settings for the next connection. Reads the files again if they have changed; keeps the former
    /// certificate if the new files cannot be used.
    #[expect(clippy::disallowed_methods, reason = "the age of a look at files, not of anything stored")]
    fn current(&self) -> Arc<ServerConfig> {
        let inner = &*self.0;
        let mut loaded = inner.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.looked.elapsed() >= LOOK {
            loaded.looked = Instant::now();
            let seen = [state_of(&inner.certificate), state_of(&inner.key)];
            if seen != loaded.seen {
                match read(&inner.certificate, &inner.key) {
                    Ok(config) => {
                        tracing::info!(certificate = %inner.certificate.display(), "read the renewed certificate");
                        (loaded.config, loaded.seen) = (config, seen);
                    }
                    // It may be half written: it is read again at the next look.
                    Err(error) => {
                        tracing::warn!(%error, "the renewed certificate cannot be used; the former one stays")
                    }
                }
            }
        }
        Arc::clone(&loaded.config)
    }
}

/// Tells a client that speaks plain HTTP to speak https.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{PLAIN}",
        PLAIN.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // A connection that closes with unread bytes is reset, and the client may then not see the answer.
    let mut unread = stream.take(MOST_UNREAD);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Returns the time of a file's last change, and its length.
fn state_of(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, Error> {
    let bytes_of =
        |path: &Path| std::fs::read(path).map_err(|error| Error::File { path: path.to_owned(), error });
    let chain = CertificateDer::pem_slice_iter(&bytes_of(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::Pem { path: certificate.to_owned(), error })?;
    if chain.is_empty() {
        return Err(Error::NoCertificate { path: certificate.to_owned() });
    }
    let secret =
        PrivateKeyDer::from_pem_slice(&bytes_of(key)?).map_err(|_| Error::NoKey { path: key.to_owned() })?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Settings)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| Error::Unusable { path: certificate.to_owned(), error })?;
    Ok(Arc::new(config))
}
