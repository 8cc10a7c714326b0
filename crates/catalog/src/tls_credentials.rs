//! Credentials of TLS clients by id, as `--object tls-creds-x509` and object-add give them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use net::tls::{ClientCredentials, ClientFiles, ConfigError, Priority, PriorityError, Terms};
use parking_lot::Mutex;
use thiserror::Error;

use graph::{SecretError, Secrets};

/// Credentials by id. Clones are the same table; the default is the process's.
#[derive(Clone)]
pub struct TlsCredentials(Arc<Mutex<BTreeMap<String, ClientCredentials>>>);

/// Credentials that are not there, or cannot be made.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// No credentials of that id were given.
    #[error(
        "there are no TLS credentials {id:?} of a client: give --object tls-creds-x509,id={id},endpoint=client,dir=DIR"
    )]
    Missing {
        /// Which.
        id: String,
    },
    /// There are some already.
    #[error("there are TLS credentials {id:?} already")]
    Twice {
        /// Which.
        id: String,
    },
    /// `priority` asks for what is not there.
    #[error("TLS credentials: {0}")]
    Priority(#[from] PriorityError),
    /// There is no password of that id.
    #[error("TLS credentials: passwordid: {0}")]
    Password(#[from] SecretError),
    /// Their files are not what they should be.
    #[error("TLS credentials {id:?}: {source}")]
    Files {
        /// Which.
        id: String,
        /// What is wrong.
        source: ConfigError,
    },
}

/// How credentials are used: `priority`, `passwordid` (a secret of `secrets`) and `sanity-check`.
///
/// # Errors
/// When the priority asks for what the library cannot do, or there is no such secret.
pub fn tls_terms(
    priority: Option<&str>,
    password: Option<&str>,
    checks_own: bool,
    secrets: &Secrets,
) -> Result<Terms, CredentialsError> {
    let priority = priority.map(Priority::parse).transpose()?.unwrap_or_default();
    let password = password.map(|id| secrets.get(id)).transpose()?.map(Arc::new);
    Ok(Terms { priority, password, checks_own })
}

impl Default for TlsCredentials {
    fn default() -> Self {
        static OF_PROCESS: LazyLock<TlsCredentials> = LazyLock::new(|| TlsCredentials(Arc::default()));
        OF_PROCESS.clone()
    }
}

impl fmt::Debug for TlsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl TlsCredentials {
    /// Adds credentials called `id`. Reads the files now: what becomes of them later changes nothing.
    ///
    /// # Errors
    /// When there are some of that name, or the files are not what they should be.
    pub fn add(&self, id: &str, files: &ClientFiles) -> Result<(), CredentialsError> {
        let read = files.read();
        let credentials = read.map_err(|source| CredentialsError::Files { id: id.into(), source })?;
        let mut table = self.0.lock();
        if table.contains_key(id) {
            return Err(CredentialsError::Twice { id: id.into() });
        }
        table.insert(id.into(), credentials);
        Ok(())
    }

    /// Removes them; whether they were there. Connections that were made with them stay, and still reconnect
    /// with them.
    pub fn remove(&self, id: &str) -> bool {
        self.0.lock().remove(id).is_some()
    }

    /// Those called `id`.
    ///
    /// # Errors
    /// When there are none.
    pub fn get(&self, id: &str) -> Result<ClientCredentials, CredentialsError> {
        let found = self.0.lock().get(id).cloned();
        found.ok_or_else(|| CredentialsError::Missing { id: id.into() })
    }
}
