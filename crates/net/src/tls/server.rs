//! What a server shows, and whom it admits.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use crate::tls::certificates::{ConfigError, authorities, certificates};
use crate::tls::terms::{Side, Terms};

/// Where a server's certificate comes from.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificates that a client's must be signed by, PEM; without it, clients need none.
    pub client_ca: Option<PathBuf>,
    /// How they are used.
    pub terms: Terms,
}

impl ServerFiles {
    /// Reads certificate, key and client CA.
    ///
    /// # Errors
    /// When a file cannot be read, or what is in them does not go together.
    pub fn config(&self) -> Result<Arc<ServerConfig>, ConfigError> {
        let chain = certificates(&self.certificate)?;
        self.terms.check_own(&chain, self.client_ca.as_deref(), Side::Server)?;
        let key = self.terms.private_key(&self.key)?;
        let provider = self.terms.priority.provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.terms.priority.versions())?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                let refused = |cause| ConfigError::ClientCa { path: path.clone(), cause };
                builder.with_client_cert_verifier(verifier.map_err(refused)?)
            }
        };
        Ok(Arc::new(builder.with_single_cert(chain, key)?))
    }
}
