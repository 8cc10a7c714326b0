//! Certificates and keys to a TLS configuration for the door.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::settings::TlsFiles;
use crate::failure::Failure;

/// Reads the files and puts them together. With a client authority, clients without a certificate
/// of it are turned away in the handshake.
///
/// # Errors
/// When a file cannot be read, holds no PEM of its kind, or certificate and key do not belong together.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, Failure> {
    let chain = certificates(&files.cert)?;
    let key = private_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::because("cannot set up TLS", &error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| cannot_use(path, &error))?)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(|error| {
        let pair = format!("cannot use {} with {}", files.cert.display(), files.key.display());
        Failure::because(pair, &error)
    })?;
    Ok(Arc::new(config))
}

fn cannot_use(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot use {}", path.display()), error)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let file = File::open(path).map_err(|error| cannot_use(path, &error))?;
    let found: Vec<_> = CertificateDer::pem_reader_iter(BufReader::new(file))
        .collect::<Result<_, _>>()
        .map_err(|error| cannot_use(path, &error))?;
    match found.is_empty() {
        true => {
            Err(Failure::new(format!("{} holds no certificate (PEM, BEGIN CERTIFICATE)", path.display())))
        }
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let file = File::open(path).map_err(|error| cannot_use(path, &error))?;
    PrivateKeyDer::from_pem_reader(BufReader::new(file)).map_err(|error| cannot_use(path, &error))
}

fn roots(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| cannot_use(path, &error))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
    }

    fn files(cert: &str, key: &str, client_ca: Option<&str>) -> TlsFiles {
        TlsFiles { cert: file(cert), key: file(key), client_ca: client_ca.map(file) }
    }

    #[test]
    fn a_certificate_with_its_key_serves() {
        assert!(server_config(&files("server.pem", "server-key.pem", None)).is_ok());
        assert!(server_config(&files("server.pem", "server-key.pem", Some("ca.pem"))).is_ok());
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let refused = |files| server_config(&files).unwrap_err().to_string();
        assert!(refused(files("missing.pem", "server-key.pem", None)).contains("missing.pem"));
        assert!(refused(files("server-key.pem", "server-key.pem", None)).contains("holds no certificate"));
        assert!(refused(files("server.pem", "server.pem", None)).contains("server.pem"));
        assert!(refused(files("ca.pem", "server-key.pem", None)).contains("cannot use"));
    }
}
