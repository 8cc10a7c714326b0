//! Which of the clients that have a certificate are admitted: decided by the name of their certificate's subject.

use std::fmt;
use std::sync::Arc;

/// Decides by the distinguished name of a certificate, as [`crate::tls::TlsStream::peer_name`] gives it.
#[derive(Clone)]
pub struct Authorization(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl Authorization {
    /// One that admits those for whom `admits` is true. It is asked once for each connection, on the loop that serves it.
    pub fn new(admits: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Whether a client with a certificate for `name` is admitted.
    pub fn admits(&self, name: &str) -> bool {
        (self.0)(name)
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}
