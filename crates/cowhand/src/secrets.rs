//! Passwords and keys that options name by an id.

use graph::{SecretError, SecretOptions, Secrets};
use luks::Secret;

use crate::error::{Error, ErrorKind};

/// Adds the password or key that options call `id` (`encrypt.key-secret` of a qcow2 image, `key-secret` of a LUKS file), for all disks of the process. The bytes
/// are copied into locked memory that core dumps leave out, and overwritten where they were. A disk looks its secret up when it is opened. Where no secret of an
/// id was added, the systemd credential of that name counts.
///
/// # Errors
/// [`ErrorKind::Exists`] where there is one of that id; [`ErrorKind::Invalid`] where it has more than 2 MiB.
pub fn add_secret(id: &str, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
    let data = Some(Secret::new(bytes.into()));
    let added = Secrets::default().add(id, SecretOptions { data, ..SecretOptions::default() });
    added.map_err(|error| {
        let kind = match error {
            SecretError::Twice { .. } => ErrorKind::Exists,
            _ => ErrorKind::Invalid,
        };
        Error::said(kind, error.to_string())
    })
}

/// Removes the secret called `id`, and overwrites it; disks that were opened with it stay open. Returns whether there was one.
pub fn remove_secret(id: &str) -> bool {
    Secrets::default().remove(id)
}
