//! What a client shows, and which servers it believes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::tls::certificates::{ConfigError, authorities, certificates};
use crate::tls::terms::{Side, Terms};

/// Where a client's certificate comes from, and the authority that servers' are signed by.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// Certificates that the server's must be signed by, PEM; `None` believes every server (`verify-peer=off`).
    pub authority: Option<PathBuf>,
    /// The client's certificate chain and private key, PEM, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// How they are used.
    pub terms: Terms,
}

impl ClientFiles {
    /// QEMU's and libnbd's names of files in one directory: `ca-cert.pem`, and `client-cert.pem` with `client-key.pem` if one of
    /// them is there.
    pub fn of_directory(directory: &Path, verify_peer: bool) -> Self {
        let (certificate, key) = (directory.join("client-cert.pem"), directory.join("client-key.pem"));
        let has_identity = certificate.exists() || key.exists();
        Self {
            authority: verify_peer.then(|| directory.join("ca-cert.pem")),
            identity: has_identity.then_some((certificate, key)),
            terms: Terms::default(),
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// When a file cannot be read, or what is in them does not go together.
    pub fn read(&self) -> Result<ClientCredentials, ConfigError> {
        let provider = self.terms.priority.provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.terms.priority.versions())?;
        let builder = match &self.authority {
            Some(path) => builder.with_root_certificates(authorities(path)?),
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                self.terms.check_own(&chain, self.authority.as_deref(), Side::Client)?;
                builder.with_client_auth_cert(chain, self.terms.private_key(key)?)?
            }
        };
        Ok(ClientCredentials(Arc::new(config)))
    }
}

/// What [`ClientFiles`] hold: read once, used for any number of servers.
#[derive(Clone, Debug)]
pub struct ClientCredentials(Arc<ClientConfig>);

impl ClientCredentials {
    /// Believes the authorities that this machine believes, and shows no certificate. The first call that finds some reads files, some
    /// hundred of them: not on a loop's thread. Later calls return the same, also in a sandbox that has no files.
    ///
    /// # Errors
    /// When the machine has no authorities.
    pub fn of_machine() -> Result<Self, ConfigError> {
        static READ: OnceLock<ClientCredentials> = OnceLock::new();
        if let Some(credentials) = READ.get() {
            return Ok(credentials.clone());
        }
        let credentials = Self::read_of_machine()?;
        Ok(READ.get_or_init(|| credentials).clone())
    }

    fn read_of_machine() -> Result<Self, ConfigError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            return Err(ConfigError::NoAuthorities);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(Self(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
    }
}

/// How a client makes connections to one server.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server: ServerName<'static>,
}

impl ClientTls {
    /// To the server whose certificate is for `server`: a host name, or an address.
    ///
    /// # Errors
    /// When no server has such a name.
    pub fn new(credentials: &ClientCredentials, server: &str) -> Result<Self, ConfigError> {
        let name = ServerName::try_from(server.to_owned());
        let name = name.map_err(|_| ConfigError::Name { name: server.to_owned() })?;
        Ok(Self { config: Arc::clone(&credentials.0), server: name })
    }
}

/// Believes every certificate. The server must still have the key of the one that it shows.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
