//! What is set of a disk before it is opened.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use cowhand::{Format, OpenOptions, format_called, formats};

use crate::failure::Failure;

/// The driver that leaves the format to the image's content.
const AUTO: &str = "auto";

/// Queues of a disk at most.
const QUEUES_MAX: u64 = 1024;
/// Requests in flight in a queue at most.
const QUEUE_SIZE_MAX: u64 = 32768;

/// Properties of the interface that are no options of a drive.
pub(crate) mod name {
    pub(crate) const PATH: &str = "path";
    pub(crate) const DRIVE: &str = "drive";
    pub(crate) const DRIVER: &str = "driver";
    pub(crate) const ALLOW_PATH: &str = "allow-path";
    pub(crate) const ALLOW_NAME: &str = "allow-name";
    pub(crate) const NUM_QUEUES: &str = "num-queues";
    pub(crate) const QUEUE_SIZE: &str = "queue-size";
    pub(crate) const READ_ONLY: &str = "read-only";
    pub(crate) const DISCARD: &str = "discard";
}

/// What was set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    format: Option<Format>,
    path: Option<OsString>,
    drive: Option<OsString>,
    allowed_paths: Vec<OsString>,
    allowed_names: Vec<String>,
    /// Options of the drive by name, each once.
    options: Vec<(String, OsString)>,
    pub(crate) num_queues: usize,
    pub(crate) queue_size: usize,
}

impl Settings {
    pub(crate) fn new(driver: &str) -> Result<Self, Failure> {
        let format = match (driver, format_called(driver)) {
            (AUTO, _) => None,
            (_, Some(format)) => Some(format),
            (_, None) => {
                let names: Vec<_> = formats().map(Format::name).collect();
                let text = format!("there is no driver {driver:?}; allowed: {AUTO}, {}", names.join(", "));
                return Err(Failure::new(libc::ENOENT, text));
            }
        };
        Ok(Self {
            format,
            path: None,
            drive: None,
            allowed_paths: Vec::new(),
            allowed_names: Vec::new(),
            options: Vec::new(),
            num_queues: 1,
            queue_size: 256,
        })
    }

    pub(crate) fn driver(&self) -> &'static str {
        self.format.map_or(AUTO, Format::name)
    }

    /// Sets what decides how the disk is opened. The last value of a name counts; `allow-path` and `allow-name` add to a list.
    pub(crate) fn set(&mut self, name: &str, value: &OsStr) -> Result<(), Failure> {
        let utf8 = || {
            let text = value.to_str().map(str::to_owned);
            text.ok_or_else(|| Failure::invalid(format!("the value of {name} is not UTF-8: {value:?}")))
        };
        match name {
            name::PATH => self.path = Some(value.to_owned()),
            name::DRIVE => self.drive = Some(value.to_owned()),
            name::ALLOW_PATH => self.allowed_paths.push(value.to_owned()),
            name::ALLOW_NAME => self.allowed_names.push(utf8()?),
            name::DRIVER => {
                return Err(Failure::new(libc::EACCES, "the property driver is chosen by cowhand_create"));
            }
            _ => match self.options.iter_mut().find(|(option, _)| option == name) {
                Some((_, old)) => *old = value.to_owned(),
                None => self.options.push((name.to_owned(), value.to_owned())),
            },
        }
        Ok(())
    }

    /// Sets what decides which queues are made.
    pub(crate) fn set_queues(&mut self, name: &str, value: &OsStr) -> Result<(), Failure> {
        let max = if name == name::NUM_QUEUES { QUEUES_MAX } else { QUEUE_SIZE_MAX };
        let number =
            value.to_str().and_then(|text| text.parse().ok()).filter(|number| (1..=max).contains(number));
        let Some(number) = number else {
            return Err(Failure::invalid(format!("{name} is {}; allowed: 1 to {max}", value.display())));
        };
        // At most 32768.
        let number = number as usize;
        *(if name == name::NUM_QUEUES { &mut self.num_queues } else { &mut self.queue_size }) = number;
        Ok(())
    }

    /// What was set of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let option = || Some(&self.options.iter().find(|(option, _)| option == name)?.1);
        let value = match name {
            name::PATH => self.path.as_ref(),
            name::DRIVE => self.drive.as_ref(),
            _ => option(),
        };
        value.map(|value| value.as_bytes())
    }

    /// How the library opens the disk.
    pub(crate) fn open_options(&self) -> Result<OpenOptions, Failure> {
        let options = match (&self.path, &self.drive) {
            (Some(path), None) => OpenOptions::new(path),
            (None, Some(drive)) => OpenOptions::drive(drive),
            (None, None) => return Err(Failure::invalid("neither the property path nor drive is set")),
            (Some(_), Some(_)) => {
                return Err(Failure::invalid("the properties path and drive exclude each other"));
            }
        };
        let options = self.format.into_iter().fold(options, OpenOptions::format);
        let options = self.options.iter().fold(options, |options, (name, value)| options.set(name, value));
        let options = self.allowed_paths.iter().fold(options, |options, path| options.allow_path(path));
        Ok(self.allowed_names.iter().fold(options, |options, name| options.allow_name(name)))
    }
}
