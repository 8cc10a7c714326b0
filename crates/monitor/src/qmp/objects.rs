//! object-add, object-del, qom-get, qom-set, qom-list.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use catalog::{TlsCredentials, tls_terms};
use control::{Arguments, Class, Form, QmpError};
use graph::SecretOptions;
use luks::Secret;
use net::tls::ClientFiles;
use serde_json::{Map, Value, json};
use throttle::{Dialect, Options, Setting};

use crate::inventory::Inventory;
use crate::inventory::authz::Rules;
use crate::inventory::chardevs::not_found;
use crate::inventory::objects::{Endpoint, Object, ObjectKind};
use crate::inventory::threads::Threads;
use crate::qmp::limits::{limits_of, limits_value, put};
use crate::qmp::object_schema;

/// Makes an object.
pub fn add(inventory: &Inventory, given: &Map<String, Value>) -> Result<Value, QmpError> {
    let arguments = Arguments(given);
    let id = arguments.text("id")?.to_owned();
    if inventory.objects.find(&id).is_ok() {
        return Err(QmpError::generic(format!("there is an object {id:?} already")));
    }
    let kind = match arguments.text("qom-type")? {
        "throttle-group" => {
            let mut options = Options::new();
            if let Some(limits) = arguments.maybe_object("limits") {
                put_all(&mut options, limits.0)?;
            }
            let old_names = given.iter().filter(|(name, _)| name.starts_with("x-"));
            for (name, value) in old_names {
                put(&mut options, name, Dialect::Limits, value)?;
            }
            let limits = limits_of(&options, Dialect::Limits)?;
            let group = inventory.graph.rules().groups.find_or_create(&id);
            group.set_limits(limits);
            ObjectKind::ThrottleGroup(group)
        }
        kind @ ("secret" | "secret_keyring") => {
            memory::secret::leave_no_core_dump().map_err(|error| {
                QmpError::generic(format!("cannot keep passwords out of core dumps: {error}"))
            })?;
            // The schema has bounded it.
            let serial = arguments.maybe_whole("serial").and_then(|serial| i32::try_from(serial).ok());
            let options = SecretOptions {
                data: arguments.maybe_text("data").map(|data| Secret::new(data.as_bytes().to_vec())),
                file: arguments.maybe_text("file").map(PathBuf::from),
                base64: arguments.maybe_text("format") == Some("base64"),
                serial,
                keyid: false,
            };
            let added = inventory.graph.rules().secrets.add(&id, options);
            added.map_err(|error| QmpError::of(&error))?;
            ObjectKind::Secret { in_keyring: kind == "secret_keyring" }
        }
        kind if kind.starts_with("authz-") => {
            ObjectKind::Authorization(Arc::new(Rules::of(kind, arguments)?))
        }
        "monitor-qmp" => {
            let chardev = arguments.text("chardev")?;
            let device = inventory.chardevs.find(chardev).ok_or_else(|| not_found(chardev))?;
            let form = if arguments.is_on("pretty") { Form::Indented } else { Form::Lines };
            ObjectKind::Monitor(inventory.monitors.add(device, form)?)
        }
        kind if let Some(threads) = Threads::of(kind) => {
            for name in threads.names() {
                given.get(name).and_then(|value| threads.set(name, value)).transpose()?;
            }
            ObjectKind::Threads(threads)
        }
        _ => add_credentials(inventory, &id, arguments)?,
    };
    inventory.objects.add(Object { id, kind })?;
    Ok(json!({}))
}

/// Moves a node to a thread. It stays where its clients are: the loops are the program's own.
pub fn set_iothread(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    inventory.disk(arguments.text("node-name")?)?;
    if let Some(id) = arguments.maybe_text("iothread") {
        inventory.objects.find(id)?;
    }
    Ok(json!({}))
}

/// Credentials of a server are read when it starts, those of a client now.
fn add_credentials(
    inventory: &Inventory,
    id: &str,
    arguments: Arguments<'_>,
) -> Result<ObjectKind, QmpError> {
    let directory = PathBuf::from(arguments.text("dir")?);
    let verify_peer = arguments.maybe_switch("verify-peer").unwrap_or(true);
    let (priority, password) = (arguments.maybe_text("priority"), arguments.maybe_text("passwordid"));
    let secrets = &inventory.graph.rules().secrets;
    let terms = tls_terms(priority, password, arguments.is_on("sanity-check"), secrets)
        .map_err(|error| QmpError::of(&error))?;
    let endpoint = match arguments.maybe_text("endpoint") {
        Some("server") => Endpoint::Server,
        _ => {
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
pub fn del(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let object = inventory.objects.find(arguments.text("id")?)?;
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
    Ok(json!({}))
}

/// Changes a property: the limits of a throttle group, of which those stay that are not given, or a number of threads.
pub fn set(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let object = by_path(inventory, arguments.text("path")?)?;
    let (property, value) = (arguments.text("property")?, &arguments.0["value"]);
    let group = match &object.kind {
        ObjectKind::ThrottleGroup(group) => group,
        ObjectKind::Threads(threads) => {
            let set = threads.set(property, value);
            return set.unwrap_or_else(|| Err(unknown_property(&object, property))).map(|()| json!({}));
        }
        _ => return Err(QmpError::generic(format!("object {:?} has nothing that can be set", object.id))),
    };
    let mut newer = Options::new();
    match (property, value) {
        ("limits", Value::Object(limits)) => {
            object_schema::LIMITS.check_members(limits, "value.")?;
            put_all(&mut newer, limits)?;
        }
        ("limits", _) => return Err(QmpError::generic("argument 'value' must be an object of limits")),
        (name, value) if name.starts_with("x-") => put(&mut newer, name, Dialect::Limits, value)?,
        (name, _) => return Err(unknown_property(&object, name)),
    }
    let mut options = group.limits().options();
    options.update(&newer);
    group.set_limits(limits_of(&options, Dialect::Limits)?);
    Ok(json!({}))
}

/// A property.
pub fn get(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let path = arguments.text("path")?;
    if path == "/objects" {
        return Ok(match arguments.text("property")? {
            "type" => json!("container"),
            id => json!(format!("/objects/{}", inventory.objects.find(id)?.id)),
        });
    }
    let object = by_path(inventory, path)?;
    match (&object.kind, arguments.text("property")?) {
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
pub fn list(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let path = arguments.text("path")?;
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

fn put_all(options: &mut Options, limits: &Map<String, Value>) -> Result<(), QmpError> {
    limits.iter().try_for_each(|(name, value)| put(options, name, Dialect::Limits, value))
}

fn unknown_property(object: &Object, name: &str) -> QmpError {
    let known = matches!(Setting::named(name, Dialect::Limits), Some(Setting::Limit(_)));
    let hint = if known { "; set it in 'limits'" } else { "" };
    QmpError::generic(format!("object {:?} has no property {name:?}{hint}", object.id))
}
