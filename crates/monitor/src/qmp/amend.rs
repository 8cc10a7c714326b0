//! x-blockdev-amend: a job that changes the keys of an encrypted disk is begun.

use std::rc::Rc;
use std::sync::Arc;

use control::{QmpError, arguments, variants};
use graph::User;
use tool::amend::keys::ENCRYPT;

use super::active;
use super::live::{JobOptions, new_job};
use crate::inventory::Inventory;
use crate::jobs::{Amendment, Keys, Work};

arguments! {
    /// A job that changes keys.
    pub struct Amend { job_id: String, node_name: String, options: Options, force: Option<bool> }

    /// Of a qcow2 image.
    pub struct Qcow2 { encrypt: Option<Encrypt> }
}

variants! {
    /// What changes.
    pub enum Options by "driver" { Qcow2(Qcow2), Luks(Keys) }

    /// How the image is encrypted.
    pub enum Encrypt by "format" { Luks(Keys) }
}

/// Changes the keys of a disk. The job waits to be dismissed, as in QEMU.
pub fn amend(inventory: &Rc<Inventory>, given: &Amend) -> Result<(), QmpError> {
    let (id, name) = (&given.job_id, &given.node_name);
    let (driver, keys, prefix) = match &given.options {
        Options::Qcow2(Qcow2 { encrypt }) => {
            ("qcow2", encrypt.as_ref().map(|Encrypt::Luks(keys)| keys), ENCRYPT)
        }
        Options::Luks(keys) => ("luks", Some(keys), ""),
    };
    let node = inventory.graph.node(name).map_err(|error| inventory.refused(&error))?;
    let disk = node.disk().map_err(|error| inventory.refused(&error))?;
    active::check(disk)?;
    if let Some(format) = disk.format().filter(|format| format.to_string() != driver) {
        return Err(QmpError::generic(format!("argument 'driver' is {driver}; node {name:?} is {format}")));
    }
    let amendment = Amendment::new(Arc::clone(disk), (keys, prefix), given.force == Some(true))?;
    let mut new = new_job(inventory, "amend", id, JobOptions { id: Some(id), ..JobOptions::default() })?;
    new.terms.waits_for_dismiss = true;
    let hold = inventory.graph.hold(name, User { kind: "job", name: id.clone() });
    let hold = hold.map_err(|error| inventory.refused(&error))?;
    inventory.jobs.start(new, Work::Amend(amendment), vec![hold]);
    Ok(())
}
