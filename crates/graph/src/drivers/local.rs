//! `file`, `host_device` and `host_cdrom`: paths on this machine.

use super::storage_driver::{StorageDriver, StorageKind};
use crate::options::OptionError;

/// Regular files.
pub const FILE: StorageDriver = StorageDriver { name: "file", prefixes: &[], kind: StorageKind::Path };

/// Devices.
pub const HOST_DEVICE: StorageDriver =
    StorageDriver { name: "host_device", prefixes: &[], kind: StorageKind::Path };

/// QEMU's name for a device whose medium can be changed. What is in it when it is opened is read.
pub const HOST_CDROM: StorageDriver =
    StorageDriver { name: "host_cdrom", prefixes: &[], kind: StorageKind::Path };

/// The driver for a file of this machine, by what it is.
pub(crate) fn of_file(is_device: bool) -> &'static StorageDriver {
    if is_device { &HOST_DEVICE } else { &FILE }
}

impl StorageDriver {
    /// The driver that was asked for, if it is for what the file is; the usual one if none was.
    ///
    /// # Errors
    /// When it is for the other kind of file.
    pub(crate) fn fitting(
        asked: Option<&'static Self>,
        is_device: bool,
    ) -> Result<&'static Self, OptionError> {
        match asked {
            None => Ok(of_file(is_device)),
            Some(asked) if (asked == &FILE) != is_device => Ok(asked),
            Some(asked) => {
                let (needs, found) = match is_device {
                    true => ("regular files", "a device: host_device is for it"),
                    false => ("devices", "a regular file: file is for it"),
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
        let fitting = |asked, is_device| {
            StorageDriver::fitting(asked, is_device)
                .map(|driver| driver.name)
                .map_err(|error| error.to_string())
        };
        assert_eq!(fitting(None, false).unwrap(), "file");
        assert_eq!(fitting(None, true).unwrap(), "host_device");
        assert_eq!(fitting(Some(&HOST_CDROM), true).unwrap(), "host_cdrom");
        let refused =
            "option file.driver is file, which is for regular files; this is a device: host_device is for it";
        assert_eq!(fitting(Some(&FILE), true).unwrap_err(), refused);
        for driver in [&HOST_DEVICE, &HOST_CDROM] {
            let refused = format!(
                "option file.driver is {}, which is for devices; this is a regular file: file is for it",
                driver.name
            );
            assert_eq!(fitting(Some(driver), false).unwrap_err(), refused);
        }
    }
}
