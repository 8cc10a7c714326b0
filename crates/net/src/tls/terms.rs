//! What is said of credentials beside their files.

use std::path::Path;
use std::sync::Arc;

use memory::secret::Secret;
use pkcs8::EncryptedPrivateKeyInfo;
use pkcs8::der::SecretDocument;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};

use crate::tls::certificates::{ConfigError, authorities, private_key};
use crate::tls::priority::Priority;

/// The heading of a key that a password encrypts.
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";

/// How credentials are used.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Versions and ciphers.
    pub priority: Priority,
    /// What opens the private key, if it is encrypted (PKCS #8).
    pub password: Option<Arc<Secret>>,
    /// The own certificate must be valid now, and signed by the authority that others must show one of, before it is used.
    pub checks_own: bool,
}

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

impl Terms {
    /// The private key in a file.
    pub(crate) fn private_key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
        let Some(password) = &self.password else { return private_key(path) };
        let wrong = |what: &str| ConfigError::Key { path: path.to_owned(), what: what.to_owned() };
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = zeroize::Zeroizing::new(std::fs::read_to_string(path).map_err(read)?);
        if !text.contains(ENCRYPTED) {
            return private_key(path);
        }
        let document = SecretDocument::from_pem(&text).map_err(|_| wrong("it is no key in PEM form"))?.1;
        let key = EncryptedPrivateKeyInfo::try_from(document.as_bytes())
            .map_err(|_| wrong("it is encrypted in a way that is not read (PBES2 with AES is)"))?;
        let plain = key.decrypt(password.bytes()).map_err(|_| wrong("the password is another one"))?;
        Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
    }

    /// Checks the own certificate, if that is asked for.
    pub(crate) fn check_own(
        &self,
        chain: &[CertificateDer<'_>],
        authority: Option<&Path>,
        side: Side,
    ) -> Result<(), ConfigError> {
        let (Some(authority), [own, between @ ..], true) = (authority, chain, self.checks_own) else {
            return Ok(());
        };
        let (roots, now) = (authorities(authority)?, UnixTime::now());
        let provider = self.priority.provider();
        if side == Side::Server {
            let algorithms = provider.signature_verification_algorithms.all;
            let parsed = ParsedCertificate::try_from(own)?;
            return Ok(verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, now, algorithms)?);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let refused = |cause| ConfigError::ClientCa { path: authority.to_owned(), cause };
        verifier.map_err(refused)?.verify_client_cert(own, between, now)?;
        Ok(())
    }
}
