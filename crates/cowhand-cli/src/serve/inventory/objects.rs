//! Objects that commands make and name: throttle groups, TLS credentials.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use graph::TlsCredentials;
use graph::front::ThrottleGroup;
use tls::Terms;

use super::Inventory;
use super::authz::Rules;
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

impl Inventory {
    /// All objects, in the order of their making.
    pub fn objects(&self) -> Vec<Rc<Object>> {
        self.objects.borrow().clone()
    }

    /// The object called `id`, also as a path.
    ///
    /// # Errors
    /// When there is none.
    pub fn object(&self, id: &str) -> Result<Rc<Object>, QmpError> {
        let id = id.strip_prefix("/objects/").unwrap_or(id);
        let objects = self.objects.borrow();
        let found = objects.iter().find(|object| object.id == id).cloned();
        found.ok_or_else(|| QmpError::generic(format!("there is no object {id:?}")))
    }

    /// Adds one.
    ///
    /// # Errors
    /// When the id is in use.
    pub fn add_object(&self, object: Object) -> Result<(), QmpError> {
        if self.object(&object.id).is_ok() {
            return Err(QmpError::generic(format!("there is an object {:?} already", object.id)));
        }
        if let ObjectKind::Authorization(rules) = &object.kind {
            self.authorizations.add(&object.id, Arc::clone(rules));
        }
        self.objects.borrow_mut().push(Rc::new(object));
        Ok(())
    }

    /// Removes one.
    ///
    /// # Errors
    /// When there is none, or a filter names it.
    pub fn remove_object(&self, id: &str) -> Result<(), QmpError> {
        let object = self.object(id)?;
        self.graph.check_group_unused(&object.id).map_err(|error| self.refused(&error))?;
        if matches!(object.kind, ObjectKind::Secret { .. }) {
            self.graph.rules().secrets.remove(&object.id);
        }
        if matches!(object.kind, ObjectKind::TlsCredentials { endpoint: Endpoint::Client, .. }) {
            TlsCredentials::default().remove(&object.id);
        }
        self.authorizations.remove(&object.id);
        self.objects.borrow_mut().retain(|other| !Rc::ptr_eq(other, &object));
        Ok(())
    }
}
