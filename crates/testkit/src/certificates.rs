//! A certificate for the loopback address, and the authority that signed it.

use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = r#"
set -e
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=A test's authority" -keyout ca.key -out ca.crt
openssl req -newkey rsa:2048 -nodes -subj /CN=sprag -keyout server.key -out server.csr
echo subjectAltName=IP:127.0.0.1 > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt
chmod 600 server.key
"#;

/// A certificate for 127.0.0.1, as PEM files.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes an authority and a certificate in this folder, which exists.
    ///
    /// # Panics
    ///
    /// If openssl is not installed.
    pub fn make(folder: &Path) -> Certificates {
        make_certificates(Command::new("sh"), folder);
        Certificates {
            authority: folder.join("ca.crt"),
            certificate: folder.join("server.crt"),
            key: folder.join("server.key"),
        }
    }
}

/// Makes the files in a folder with this shell.
pub(crate) fn make_certificates(mut shell: Command, folder: &Path) {
    let output = shell.args(["-c", SCRIPT]).current_dir(folder).output().expect("a shell");
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}
