//! Objects that commands make and name: throttle groups, TLS credentials.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use graph::front::ThrottleGroup;
use net::tls::Terms;

use super::authz::{Authorizations, Rules};
use super::monitors::Monitor;
use super::threads::Threads;

/// Something with an id.
#[derive(Debug)]
pub struct Object {
    /// Its id.
    pub id: String,
    /// What it is.
    pub kind: ObjectKind,
}

/// What an object is.
#[derive(Debug)]
pub enum ObjectKind {
    /// Holds a group also while no disk is in it.
    ThrottleGroup(Arc<ThrottleGroup>),
    /// A password, which is in the graph's secrets.
    Secret {
        /// It was read from the kernel's keyring.
        in_keyring: bool,
    },
    /// Says which threads do the work, without effect.
    Threads(Threads),
    /// Says which clients are admitted by their certificates.
    Authorization(Arc<Rules>),
    /// Takes commands at a character device.
    Monitor(Rc<Monitor>),
    /// Where certificates lie.
    TlsCredentials {
        /// Holds `ca-cert.pem`, and `server-cert.pem` with `server-key.pem` or `client-cert.pem` with `client-key.pem`.
        directory: PathBuf,
        /// The other side must have a certificate that the authority signed.
        verify_peer: bool,
        /// Whose they are.
        endpoint: Endpoint,
        /// How they are used.
        terms: Terms,
    },
}

/// The side of a connection that credentials are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The NBD server's.
    Server,
    /// Credentials for disks that are exports of other servers; they are in the graph's credentials.
    Client,
}

impl Endpoint {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

impl ObjectKind {
    /// Its type's name.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::ThrottleGroup(_) => "throttle-group",
            Self::Threads(threads) => threads.type_name,
            Self::Secret { in_keyring: false } => "secret",
            Self::Secret { in_keyring: true } => "secret_keyring",
            Self::Authorization(rules) => rules.type_name(),
            Self::Monitor(_) => "monitor-qmp",
            Self::TlsCredentials { .. } => "tls-creds-x509",
        }
    }
}

/// All objects, in the order of their making.
#[derive(Debug, Default)]
pub struct Objects {
    list: RefCell<Vec<Rc<Object>>>,
    /// The rules of those by which clients with certificates are admitted.
    pub authorizations: Authorizations,
}

impl Objects {
    /// All of them.
    pub fn all(&self) -> Vec<Rc<Object>> {
        self.list.borrow().clone()
    }

    /// The object called `id`, also as a path.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, id: &str) -> Result<Rc<Object>, QmpError> {
        let id = id.strip_prefix("/objects/").unwrap_or(id);
        let found = self.list.borrow().iter().find(|object| object.id == id).cloned();
        found.ok_or_else(|| QmpError::generic(format!("there is no object {id:?}")))
    }

    /// Adds one.
    ///
    /// # Errors
    /// When the id is in use.
    pub fn add(&self, object: Object) -> Result<(), QmpError> {
        if self.find(&object.id).is_ok() {
            return Err(QmpError::generic(format!("there is an object {:?} already", object.id)));
        }
        if let ObjectKind::Authorization(rules) = &object.kind {
            self.authorizations.add(&object.id, Arc::clone(rules));
        }
        self.list.borrow_mut().push(Rc::new(object));
        Ok(())
    }

    /// Removes one that nothing uses.
    pub fn remove(&self, object: &Rc<Object>) {
        self.authorizations.remove(&object.id);
        self.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, object));
    }
}
