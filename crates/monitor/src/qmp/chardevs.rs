//! chardev-add, chardev-change, chardev-remove, chardev-send-break, query-chardev, query-chardev-backends: as qemu-storage-daemon has them, where
//! monitors are their only users.

use control::{Data, Nothing, QmpError, Tagged, arguments, variants};
use serde_json::{Value, json};

use super::nbd_server::Address;
use crate::endpoint::absolute;
use crate::inventory::Inventory;
use crate::inventory::chardevs::{Place, not_found};

arguments! {
    /// A device to be, or to become.
    pub struct Device { id: String, backend: Backend }

    /// Which device is meant.
    pub struct ById { id: String }

    /// A file.
    pub struct File { out: String, r#in: Option<String>, append: Option<bool> }

    /// A pipe.
    pub struct Pipe { device: String }

    /// A socket.
    pub struct Socket { addr: Address, server: Option<bool>, wait: Option<bool>, "nodelay": Option<bool> }

    /// Standard input and output.
    pub struct Stdio { "signal": Option<bool> }
}

variants! {
    /// What a device is, by its kind.
    pub enum Backend by "type" {
        File(Data<File>),
        Pipe(Data<Pipe>),
        Socket(Data<Socket>),
        Null(Data<Nothing>),
        Stdio(Data<Stdio>),
    }
}

/// chardev-remove.
pub fn remove(inventory: &Inventory, ById { id }: &ById) -> Result<(), QmpError> {
    inventory.chardevs.remove(id)
}

/// chardev-send-break: none of the kinds has a line on which a break could be seen; QEMU does nothing for them either.
pub fn send_break(inventory: &Inventory, ById { id }: &ById) -> Result<(), QmpError> {
    inventory.chardevs.find(id).map(drop).ok_or_else(|| not_found(id))
}

/// query-chardev-backends.
pub fn backends() -> Value {
    Backend::VARIANTS.iter().map(|kind| json!({ "name": kind.tag })).collect()
}

/// chardev-add.
pub fn add(inventory: &Inventory, Device { id, backend }: &Device) -> Result<(), QmpError> {
    let added = inventory.chardevs.add(id, place(inventory, backend)?);
    added.map_err(|failure| {
        let words = failure.to_string().replace("\n  because: ", ": ");
        QmpError::generic(without_number(&words))
    })
}

/// The system's words without its number.
fn without_number(words: &str) -> String {
    words.split_once(" (os error ").map_or(words, |(words, _)| words).to_owned()
}

/// chardev-change.
pub fn change(inventory: &Inventory, Device { id, backend }: &Device) -> Result<(), QmpError> {
    inventory.chardevs.change(id, place(inventory, backend)?)
}

/// query-chardev.
pub fn query(inventory: &Inventory) -> Value {
    let devices = inventory.chardevs.shown().into_iter();
    let shown = |(id, place, is_used)| json!({ "frontend-open": is_used, "filename": place, "label": id });
    devices.map(shown).collect()
}

/// What a command describes.
fn place(inventory: &Inventory, backend: &Backend) -> Result<Place, QmpError> {
    if !inventory.as_qemu {
        return Err(QmpError::generic(
            "character devices are those of cowhand as qemu-storage-daemon; here commands come in at the socket of --qmp",
        ));
    }
    let path = |text: &String| {
        absolute(std::path::Path::new(text)).map_err(|failure| QmpError::generic(failure.to_string()))
    };
    Ok(match backend {
        Backend::File(Data { data }) => Place::File {
            path: path(&data.out)?,
            append: data.append == Some(true),
            commands: data.r#in.as_ref().map(path).transpose()?,
        },
        Backend::Pipe(Data { data }) => Place::Pipe(path(&data.device)?),
        Backend::Stdio(_) => Place::Stdio,
        Backend::Null(_) => Place::Null,
        Backend::Socket(Data { data }) => socket(inventory, data)?,
    })
}

fn socket(inventory: &Inventory, data: &Socket) -> Result<Place, QmpError> {
    let endpoint = data.addr.endpoint(inventory, false)?;
    let is_server = data.server.unwrap_or(true);
    if data.wait == Some(true) {
        return Err(QmpError::generic(match is_server {
            true => "no client is waited for: leave 'wait' out",
            false => "'wait' option is incompatible with socket in client connect mode",
        }));
    }
    Ok(if is_server { Place::Socket(endpoint) } else { Place::Client(endpoint) })
}
