//! Certificates and keys in PEM files.

use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file holds nothing of what it should.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        cause: pem::Error,
    },
    /// A client CA that can verify no client.
    #[error("{path}: {cause}", path = path.display())]
    ClientCa {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: rustls::server::VerifierBuilderError,
    },
    /// An authority with a certificate that means nothing.
    #[error("{path}: {cause}", path = path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: rustls::Error,
    },
    /// This machine trusts no authority.
    #[error(
        "this machine has no certificates of authorities (Debian: package ca-certificates; SSL_CERT_FILE names a file of them)"
    )]
    NoAuthorities,
    /// A private key that cannot be read.
    #[error("{path}: {what}", path = path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// No server has such a name.
    #[error("{name:?} is no host name and no address")]
    Name {
        /// What was given.
        name: String,
    },
    /// Certificate and key cannot be used.
    #[error("certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Whether the first certificate in a file is for `name`: a host name, or an address. `false` if there is none to be read.
pub fn certificate_names(file: &Path, name: &str) -> bool {
    let Ok(name) = ServerName::try_from(name.to_owned()) else { return false };
    let certificates = certificates(file).unwrap_or_default();
    let parsed = certificates.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let failed = |cause| of_file(path, cause);
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    match found.is_empty() {
        true => Err(failed(pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

fn of_file(path: &Path, cause: pem::Error) -> ConfigError {
    let path = path.to_owned();
    match cause {
        pem::Error::Io(source) => ConfigError::Read { path, source },
        cause => ConfigError::File { path, cause },
    }
}

pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    PrivateKeyDer::from_pem_file(path).map_err(|cause| of_file(path, cause))
}

/// The authorities of a file.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|cause| ConfigError::Authority { path: path.to_owned(), cause })?;
    }
    Ok(roots)
}
