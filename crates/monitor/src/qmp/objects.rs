//! object-add, object-del, qom-get, qom-set, qom-list.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use catalog::{TlsCredentials, tls_terms};
use control::{
    Argument, Class, Form, Kind, NUMBER, QmpError, Takes, arguments, choice, members, optional, variants,
};
use graph::SecretOptions;
use luks::Secret;
use net::tls::ClientFiles;
use serde_json::{Map, Value, json};
use throttle::{Dialect, Options, PARAMETERS, Setting};

use crate::inventory::Inventory;
use crate::inventory::authz::{self, NewList, NewListFile, NewSimple, Rules};
use crate::inventory::chardevs::not_found;
use crate::inventory::objects::{Endpoint, Object, ObjectKind};
use crate::inventory::threads::Threads;
use crate::qmp::limits::{limits_of, limits_value, put};
use crate::qmp::node_options::{LimitName, limits};

static LIMITS: [Argument; PARAMETERS.len()] = limits(LimitName::Limits);

static OLD_LIMITS: [Argument; PARAMETERS.len()] = limits(LimitName::Property);

members! {
    /// ThrottleLimits.
    pub struct Limits = &LIMITS;

    /// Limits under their older names.
    pub struct OldLimits = &OLD_LIMITS;

    /// Numbers of threads that poll.
    pub struct Polling = &[
        optional("poll-max-ns", NUMBER),
        optional("poll-grow", NUMBER),
        optional("poll-shrink", NUMBER),
        optional("poll-weight", Kind::Whole(63)),
        optional("aio-max-batch", NUMBER),
        optional("thread-pool-min", NUMBER),
        optional("thread-pool-max", NUMBER),
    ];

    /// Numbers of a pool of threads.
    pub struct Pool = &[
        optional("aio-max-batch", NUMBER),
        optional("thread-pool-min", NUMBER),
        optional("thread-pool-max", NUMBER),
    ];
}

arguments! {
    /// An object to be.
    pub struct Add { id: String } with qom_type: Kinds

    /// Of throttle-group.
    pub struct Group { limits: Option<Limits>, ..old: OldLimits }

    /// Of secret.
    pub struct NewSecret { data: Option<String>, file: Option<String>, format: Option<Coding> }

    /// Of secret_keyring.
    pub struct Keyring { serial: i32, format: Option<Coding> }

    /// Of thread-context: taken, and nothing is done with it.
    pub struct Affinity { "cpu-affinity": Option<Vec<u64>>, "node-affinity": Option<Vec<u64>> }

    /// Of monitor-qmp.
    pub struct Monitor { chardev: String, pretty: Option<bool> }

    /// Of tls-creds-x509.
    pub struct Credentials {
        dir: String, endpoint: Option<Side>, verify_peer: Option<bool>, priority: Option<String>,
        passwordid: Option<String>, sanity_check: Option<bool>,
    }

    /// A node that moves to a thread.
    pub struct SetIothread {
        node_name: String, iothread: Value = Kind::Either(&[&Kind::Text, &Kind::Null]),
        "force": Option<bool>,
    }

    /// The object that goes.
    pub struct Del { id: String }

    /// A property with its new value.
    pub struct Set { path: String, property: String, value: Value }

    /// A property.
    pub struct Get { path: String, property: String }

    /// An object.
    pub struct List { path: String }
}

variants! {
    /// Kinds of objects.
    pub enum Kinds by "qom-type" {
        ThrottleGroup(Group),
        Secret(NewSecret),
        "secret_keyring" SecretKeyring(Keyring),
        Iothread(Polling),
        MainLoop(Pool),
        ThreadContext(Affinity),
        MonitorQmp(Monitor),
        AuthzSimple(NewSimple),
        AuthzList(NewList),
        AuthzListfile(NewListFile),
        "tls-creds-x509" TlsCreds(Credentials),
    }
}

choice! {
    /// How a secret is written.
    pub enum Coding { Raw, Base64 }

    /// Whose credentials.
    pub enum Side { Client, Server }
}

/// Makes an object.
pub fn add(inventory: &Inventory, Add { id, qom_type }: &Add) -> Result<(), QmpError> {
    if inventory.objects.find(id).is_ok() {
        return Err(QmpError::generic(format!("there is an object {id:?} already")));
    }
    let kind = match qom_type {
        Kinds::ThrottleGroup(Group { limits, old }) => {
            let mut options = Options::new();
            let limits = limits.iter().flat_map(|limits| &limits.0).chain(&old.0);
            limits
                .into_iter()
                .try_for_each(|(name, value)| put(&mut options, name, Dialect::Limits, value))?;
            let limits = limits_of(&options, Dialect::Limits)?;
            let group = inventory.graph.rules().groups.find_or_create(id);
            group.set_limits(limits);
            ObjectKind::ThrottleGroup(group)
        }
        Kinds::Secret(NewSecret { data, file, format }) => {
            let options = SecretOptions {
                data: data.as_ref().map(|data| Secret::new(data.as_bytes().to_vec())),
                file: file.as_ref().map(PathBuf::from),
                base64: *format == Some(Coding::Base64),
                serial: None,
                keyid: false,
            };
            add_secret(inventory, id, options, false)?
        }
        Kinds::SecretKeyring(Keyring { serial, format }) => {
            let options = SecretOptions {
                data: None,
                file: None,
                base64: *format == Some(Coding::Base64),
                serial: Some(*serial),
                keyid: false,
            };
            add_secret(inventory, id, options, true)?
        }
        Kinds::AuthzSimple(NewSimple { identity }) => {
            ObjectKind::Authorization(Arc::new(Rules::Simple(identity.clone())))
        }
        Kinds::AuthzList(list) => ObjectKind::Authorization(Arc::new(Rules::List(authz::List::of(list)?))),
        Kinds::AuthzListfile(file) => ObjectKind::Authorization(Arc::new(Rules::of_file(file)?)),
        Kinds::MonitorQmp(Monitor { chardev, pretty }) => {
            let device = inventory.chardevs.find(chardev).ok_or_else(|| not_found(chardev))?;
            let form = if *pretty == Some(true) { Form::Indented } else { Form::Lines };
            ObjectKind::Monitor(inventory.monitors.add(device, form)?)
        }
        Kinds::Iothread(Polling(numbers)) => ObjectKind::Threads(Threads::with("iothread", numbers)?),
        Kinds::MainLoop(Pool(numbers)) => ObjectKind::Threads(Threads::with("main-loop", numbers)?),
        Kinds::ThreadContext(_) => ObjectKind::Threads(Threads::with("thread-context", &Map::new())?),
        Kinds::TlsCreds(credentials) => add_credentials(inventory, id, credentials)?,
    };
    inventory.objects.add(Object { id: id.clone(), kind })
}

fn add_secret(
    inventory: &Inventory,
    id: &str,
    options: SecretOptions,
    in_keyring: bool,
) -> Result<ObjectKind, QmpError> {
    memory::secret::leave_no_core_dump()
        .map_err(|error| QmpError::generic(format!("cannot keep passwords out of core dumps: {error}")))?;
    inventory.graph.rules().secrets.add(id, options).map_err(|error| QmpError::of(&error))?;
    Ok(ObjectKind::Secret { in_keyring })
}

/// Moves a node to a thread. It stays where its clients are: the loops are the program's own.
pub fn set_iothread(inventory: &Inventory, given: &SetIothread) -> Result<(), QmpError> {
    inventory.disk(&given.node_name)?;
    if let Some(id) = given.iothread.as_str() {
        inventory.objects.find(id)?;
    }
    Ok(())
}

/// Credentials of a server are read when it starts, those of a client now.
fn add_credentials(inventory: &Inventory, id: &str, given: &Credentials) -> Result<ObjectKind, QmpError> {
    let directory = PathBuf::from(&given.dir);
    let verify_peer = given.verify_peer.unwrap_or(true);
    let (priority, password) = (given.priority.as_deref(), given.passwordid.as_deref());
    let secrets = &inventory.graph.rules().secrets;
    let terms = tls_terms(priority, password, given.sanity_check == Some(true), secrets)
        .map_err(|error| QmpError::of(&error))?;
    let endpoint = match given.endpoint {
        Some(Side::Server) => Endpoint::Server,
        Some(Side::Client) | None => {
            let files =
                ClientFiles { terms: terms.clone(), ..ClientFiles::of_directory(&directory, verify_peer) };
            let added = TlsCredentials::default().add(id, &files);
            added.map_err(|error| QmpError::of(&error))?;
            Endpoint::Client
        }
    };
    Ok(ObjectKind::TlsCredentials { directory, verify_peer, endpoint, terms })
}

/// Removes an object.
pub fn del(inventory: &Inventory, Del { id }: &Del) -> Result<(), QmpError> {
    let object = inventory.objects.find(id)?;
    inventory.graph.check_group_unused(&object.id).map_err(|error| inventory.refused(&error))?;
    match object.kind {
        ObjectKind::Secret { .. } => {
            inventory.graph.rules().secrets.remove(&object.id);
        }
        ObjectKind::TlsCredentials { endpoint: Endpoint::Client, .. } => {
            TlsCredentials::default().remove(&object.id);
        }
        _ => {}
    }
    inventory.objects.remove(&object);
    Ok(())
}

/// Changes a property: the limits of a throttle group, of which those stay that are not given, or a number of threads.
pub fn set(inventory: &Inventory, Set { path, property, value }: &Set) -> Result<(), QmpError> {
    let object = by_path(inventory, path)?;
    let property = property.as_str();
    let group = match &object.kind {
        ObjectKind::ThrottleGroup(group) => group,
        ObjectKind::Threads(threads) => {
            let set = threads.set(property, value);
            return set.unwrap_or_else(|| Err(unknown_property(&object, property)));
        }
        _ => return Err(QmpError::generic(format!("object {:?} has nothing that can be set", object.id))),
    };
    let mut newer = Options::new();
    match (property, value) {
        ("limits", Value::Object(limits)) => {
            Limits::KIND.check_members(limits, "value.")?;
            limits.iter().try_for_each(|(name, value)| put(&mut newer, name, Dialect::Limits, value))?;
        }
        ("limits", _) => return Err(QmpError::generic("argument 'value' must be an object of limits")),
        (name, value) if name.starts_with("x-") => put(&mut newer, name, Dialect::Limits, value)?,
        (name, _) => return Err(unknown_property(&object, name)),
    }
    let mut options = group.limits().options();
    options.update(&newer);
    group.set_limits(limits_of(&options, Dialect::Limits)?);
    Ok(())
}

/// A property.
pub fn get(inventory: &Inventory, path: &str, property: &str) -> Result<Value, QmpError> {
    if path == "/objects" {
        return Ok(match property {
            "type" => json!("container"),
            id => json!(format!("/objects/{}", inventory.objects.find(id)?.id)),
        });
    }
    let object = by_path(inventory, path)?;
    match (&object.kind, property) {
        (kind, "type") => Ok(json!(kind.type_name())),
        (ObjectKind::Threads(threads), name) if let Some(number) = threads.get(name) => Ok(json!(number)),
        (ObjectKind::ThrottleGroup(group), "limits") => Ok(limits_value(&group.limits(), Dialect::Limits)),
        (ObjectKind::ThrottleGroup(group), name)
            if let Some(limit) = name.strip_prefix("x-")
                && let Some(value) = limits_value(&group.limits(), Dialect::Limits).get(limit) =>
        {
            Ok(value.clone())
        }
        (ObjectKind::Monitor(monitor), "chardev") => Ok(json!(monitor.device())),
        (ObjectKind::Monitor(monitor), "pretty") => Ok(json!(monitor.is_pretty())),
        (ObjectKind::TlsCredentials { directory, .. }, "dir") => Ok(json!(directory.to_string_lossy())),
        (ObjectKind::TlsCredentials { verify_peer, .. }, "verify-peer") => Ok(json!(verify_peer)),
        (ObjectKind::TlsCredentials { endpoint, .. }, "endpoint") => Ok(json!(endpoint.name())),
        (_, name) => Err(unknown_property(&object, name)),
    }
}

/// The objects, or the properties of one.
pub fn list(inventory: &Inventory, path: &str) -> Result<Value, QmpError> {
    if matches!(path, "/objects" | "/objects/") {
        let child = |object: &Object| json!({ "name": object.id, "type": format!("child<{}>", object.kind.type_name()) });
        return Ok(std::iter::once(of_type())
            .chain(inventory.objects.all().iter().map(|object| child(object)))
            .collect());
    }
    if path == "/" {
        return Ok(json!([of_type(), { "name": "objects", "type": "child<container>" }]));
    }
    let object = by_path(inventory, path)?;
    Ok(match &object.kind {
        ObjectKind::ThrottleGroup(_) => {
            json!([of_type(), { "name": "limits", "type": "ThrottleLimits" }])
        }
        // Their values are never shown.
        ObjectKind::Secret { .. } | ObjectKind::Authorization(_) => {
            json!([of_type()])
        }
        ObjectKind::Monitor(_) => json!([
            of_type(),
            { "name": "chardev", "type": "string" },
            { "name": "pretty", "type": "bool" },
        ]),
        ObjectKind::Threads(threads) => {
            let number = |name: &str| json!({ "name": name, "type": "int" });
            std::iter::once(of_type()).chain(threads.names().map(number)).collect()
        }
        ObjectKind::TlsCredentials { .. } => json!([
            of_type(),
            { "name": "dir", "type": "string" },
            { "name": "verify-peer", "type": "bool" },
            { "name": "endpoint", "type": "QCryptoTLSCredsEndpoint" },
        ]),
    })
}

/// The object at a path or of a name. QEMU has a class of its own for one that is not there.
fn by_path(inventory: &Inventory, path: &str) -> Result<Rc<Object>, QmpError> {
    inventory.objects.find(path).map_err(|error| QmpError { class: Class::DeviceNotFound, ..error })
}

/// What everything has: its type's name.
fn of_type() -> Value {
    json!({ "name": "type", "type": "string" })
}

fn unknown_property(object: &Object, name: &str) -> QmpError {
    let known = matches!(Setting::named(name, Dialect::Limits), Some(Setting::Limit(_)));
    let hint = if known { "; set it in 'limits'" } else { "" };
    QmpError::generic(format!("object {:?} has no property {name:?}{hint}", object.id))
}
