//! x-blockdev-amend: a job that changes the keys of an encrypted disk is begun.

use std::rc::Rc;
use std::sync::Arc;

use control::{Argument, Arguments, Kind, QmpError, Variant, optional, required};
use graph::User;
use serde_json::{Value, json};

use super::active;
use super::kinds::NUMBER;
use super::live::new_job;
use crate::inventory::Inventory;
use crate::jobs::{Amendment, Work};

/// Members of a change of keys.
const KEYS: &[Argument] = &[
    required("state", Kind::Choice(&["active", "inactive"])),
    optional("new-secret", Kind::Text),
    optional("old-secret", Kind::Text),
    optional("keyslot", NUMBER),
    optional("iter-time", NUMBER),
    optional("secret", Kind::Text),
];

static ENCRYPT: Kind =
    Kind::Union { tag: "format", common: &[], variants: &[Variant { tag: "luks", members: KEYS }] };

/// What changes.
static OPTIONS: Kind = Kind::Union {
    tag: "driver",
    common: &[],
    variants: &[
        Variant { tag: "qcow2", members: &[optional("encrypt", Kind::Ref(&ENCRYPT))] },
        Variant { tag: "luks", members: KEYS },
    ],
};

/// What x-blockdev-amend takes.
pub const ARGUMENTS: Kind = Kind::Object(&[
    required("job-id", Kind::Text),
    required("node-name", Kind::Text),
    required("options", Kind::Ref(&OPTIONS)),
    optional("force", Kind::Switch),
]);

/// Changes the keys of a disk. The job waits to be dismissed, as in QEMU.
pub fn amend(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (id, name) = (arguments.text("job-id")?, arguments.text("node-name")?);
    let Some(options) = arguments.maybe_object("options") else {
        return Err(QmpError::generic("argument 'options' is missing"));
    };
    let node = inventory.graph.node(name).map_err(|error| inventory.refused(&error))?;
    let disk = node.disk().map_err(|error| inventory.refused(&error))?;
    active::check(disk)?;
    let driver = options.text("driver")?;
    if let Some(format) = disk.format().filter(|format| format.to_string() != driver) {
        return Err(QmpError::generic(format!("argument 'driver' is {driver}; node {name:?} is {format}")));
    }
    let forced = arguments.maybe_switch("force") == Some(true);
    let amendment = Amendment::new(Arc::clone(disk), options.0, forced)?;
    let mut new = new_job(inventory, "amend", id, arguments)?;
    new.terms.waits_for_dismiss = true;
    let hold = inventory.graph.hold(name, User { kind: "job", name: id.to_owned() });
    let hold = hold.map_err(|error| inventory.refused(&error))?;
    inventory.jobs.start(new, Work::Amend(amendment), vec![hold]);
    Ok(json!({}))
}
