//! `file` and `host_device`: paths on this machine.

use super::{StorageDriver, StorageKind};
use crate::options::OptionError;

/// Regular files.
pub(super) const FILE: StorageDriver = StorageDriver { name: "file", prefixes: &[], kind: StorageKind::Path };

/// Block devices.
pub(super) const HOST_DEVICE: StorageDriver =
    StorageDriver { name: "host_device", prefixes: &[], kind: StorageKind::Path };

/// The driver for a file of this machine, by what it is.
pub(crate) fn of_file(is_device: bool) -> &'static StorageDriver {
    if is_device { &HOST_DEVICE } else { &FILE }
}

impl StorageDriver {
    /// Refuses a driver that is not for what the file is. `None`: whichever is for it.
    ///
    /// # Errors
    /// When it is for the other kind of file.
    pub(crate) fn check(asked: Option<&'static Self>, is_device: bool) -> Result<(), OptionError> {
        let fitting = of_file(is_device);
        match asked {
            None => Ok(()),
            Some(asked) if asked == fitting => Ok(()),
            Some(asked) => {
                let (needs, found) = match is_device {
                    true => ("regular files", "a block device: host_device is for it"),
                    false => ("block devices", "a regular file: file is for it"),
                };
                Err(OptionError::FileDriver { option: "file.driver", driver: asked.name, needs, found })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_for_one_kind_of_file() {
        let check =
            |asked, is_device| StorageDriver::check(asked, is_device).map_err(|error| error.to_string());
        for (asked, is_device) in
            [(None, false), (None, true), (Some(of_file(false)), false), (Some(of_file(true)), true)]
        {
            assert_eq!(check(asked, is_device), Ok(()));
        }
        let refused = "option file.driver is file, which is for regular files; this is a block device: host_device is for it";
        assert_eq!(check(Some(of_file(false)), true).unwrap_err(), refused);
        let refused = "option file.driver is host_device, which is for block devices; this is a regular file: file is for it";
        assert_eq!(check(Some(of_file(true)), false).unwrap_err(), refused);
    }
}
