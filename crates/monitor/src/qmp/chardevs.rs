//! chardev-add, chardev-change, chardev-remove, chardev-send-break, query-chardev, query-chardev-backends: as qemu-storage-daemon has them, where
//! monitors are their only users.

use control::{Argument, Arguments, Kind, QmpError, Variant, optional, required};
use serde_json::{Value, json};

use super::export_schema::ADDRESS;
use super::nbd_server::inet;
use crate::endpoint::{Endpoint, absolute};
use crate::inventory::Inventory;
use crate::inventory::chardevs::{Place, not_found};

/// Kinds of devices, in the order of the schema.
const KINDS: [&str; 5] = ["file", "pipe", "socket", "null", "stdio"];

const FILE: &[Argument] =
    &[required("out", Kind::Text), optional("in", Kind::Text), optional("append", Kind::Switch)];
const SOCKET: &[Argument] = &[
    required("addr", Kind::Ref(&ADDRESS)),
    optional("server", Kind::Switch),
    optional("wait", Kind::Switch),
    optional("nodelay", Kind::Switch),
];

static BACKEND: Kind = Kind::Union {
    tag: "type",
    common: &[],
    variants: &[
        Variant { tag: "file", members: &[required("data", Kind::Object(FILE))] },
        Variant {
            tag: "pipe",
            members: &[required("data", Kind::Object(&[required("device", Kind::Text)]))],
        },
        Variant { tag: "socket", members: &[required("data", Kind::Object(SOCKET))] },
        Variant { tag: "null", members: &[required("data", Kind::Object(&[]))] },
        Variant {
            tag: "stdio",
            members: &[required("data", Kind::Object(&[optional("signal", Kind::Switch)]))],
        },
    ],
};

/// What chardev-add and chardev-change take.
pub const DEVICE: Kind =
    Kind::Object(&[required("id", Kind::Text), required("backend", Kind::Ref(&BACKEND))]);

/// Answers a command that was done.
fn done(outcome: Result<(), QmpError>) -> Result<Value, QmpError> {
    outcome.map(|()| json!({}))
}

/// chardev-remove.
pub fn remove(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    done(inventory.chardevs.remove(arguments.text("id")?))
}

/// chardev-send-break: none of the kinds has a line on which a break could be seen; QEMU does nothing for them either.
pub fn send_break(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let id = arguments.text("id")?;
    done(inventory.chardevs.find(id).map(drop).ok_or_else(|| not_found(id)))
}

/// query-chardev-backends.
pub fn backends() -> Value {
    KINDS.iter().map(|kind| json!({ "name": kind })).collect()
}

/// chardev-add.
pub fn add(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (id, place) = (arguments.text("id")?, place(inventory, arguments)?);
    let added = inventory.chardevs.add(id, place);
    done(added.map_err(|failure| {
        let words = failure.to_string().replace("\n  because: ", ": ");
        QmpError::generic(without_number(&words))
    }))
}

/// The system's words without its number.
fn without_number(words: &str) -> String {
    words.split_once(" (os error ").map_or(words, |(words, _)| words).to_owned()
}

/// chardev-change.
pub fn change(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let place = place(inventory, arguments)?;
    done(inventory.chardevs.change(arguments.text("id")?, place))
}

/// query-chardev.
pub fn query(inventory: &Inventory) -> Value {
    let devices = inventory.chardevs.shown().into_iter();
    let shown = |(id, place, is_used)| json!({ "frontend-open": is_used, "filename": place, "label": id });
    devices.map(shown).collect()
}

/// What a command describes.
fn place(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Place, QmpError> {
    if !inventory.as_qemu {
        return Err(QmpError::generic(
            "character devices are those of cowhand as qemu-storage-daemon; here commands come in at the socket of --qmp",
        ));
    }
    let missing = || QmpError::generic("argument 'backend.data' is missing");
    let backend = arguments.maybe_object("backend").ok_or_else(missing)?;
    let data = backend.maybe_object("data").ok_or_else(missing)?;
    let path = |text: &str| {
        absolute(std::path::Path::new(text)).map_err(|failure| QmpError::generic(failure.to_string()))
    };
    Ok(match backend.text("type")? {
        "file" => Place::File {
            path: path(data.text("out")?)?,
            append: data.is_on("append"),
            commands: data.maybe_text("in").map(path).transpose()?,
        },
        "pipe" => Place::Pipe(path(data.text("device")?)?),
        "stdio" => Place::Stdio,
        "null" => Place::Null,
        _ => socket(inventory, data)?,
    })
}

fn socket(inventory: &Inventory, data: Arguments<'_>) -> Result<Place, QmpError> {
    let missing = || QmpError::generic("argument 'backend.data.addr' is missing");
    let address = data.maybe_object("addr").ok_or_else(missing)?;
    let at = address.maybe_object("data").ok_or_else(missing)?;
    let endpoint = match address.text("type")? {
        "unix" => Endpoint::unix(at)?,
        _ => inet(inventory, at, false)?,
    };
    let is_server = data.maybe_switch("server").unwrap_or(true);
    if data.is_on("wait") {
        return Err(QmpError::generic(match is_server {
            true => "no client is waited for: leave 'wait' out",
            false => "'wait' option is incompatible with socket in client connect mode",
        }));
    }
    Ok(if is_server { Place::Socket(endpoint) } else { Place::Client(endpoint) })
}
