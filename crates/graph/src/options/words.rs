//! What help and messages say of an option.

use super::spec::{Group, Kind, Spec};
use crate::drivers::{format_drivers, formats, storage_drivers};
use crate::format::Format;

impl Group {
    /// Whose options they are.
    pub fn title(self) -> &'static str {
        match self {
            Self::Disk => "the disk",
            Self::Throttling => "the disk's limits",
            Self::Layer => "an image of any format",
            Self::Format(name) => {
                format_drivers().iter().find(|driver| driver.name == name).map_or(name, |driver| driver.title)
            }
            Self::File => "the file below an image",
            Self::Storage(driver) | Self::Filter(driver) => driver,
        }
    }
}

impl Kind {
    /// The names of which it takes one; none of other kinds.
    pub fn choices(self) -> Vec<&'static str> {
        match self {
            Self::Choice(names) => names.to_vec(),
            Self::Format => formats().map(Format::name).collect(),
            Self::Storage => storage_drivers().iter().map(|driver| driver.name).collect(),
            _ => Vec::new(),
        }
    }
}

impl Spec {
    /// How it is written on a drive line: `discard=ignore|unmap`.
    pub fn usage(&self) -> String {
        let takes = match self.kind {
            Kind::Switch => "=on|off".to_owned(),
            Kind::Choice(_) | Kind::Format | Kind::Storage => format!("={}", self.kind.choices().join("|")),
            Kind::Size { .. } => "=SIZE".to_owned(),
            Kind::Whole { .. } => "=N".to_owned(),
            Kind::Text { .. } => "=NAME".to_owned(),
            Kind::Path | Kind::File => "=PATH".to_owned(),
            Kind::Image => ".OPTION=...".to_owned(),
            Kind::List => ".N.OPTION=...".to_owned(),
        };
        format!("{}{takes}", self.full_name())
    }

    /// What it takes, in words.
    pub fn takes(&self) -> String {
        match self.kind {
            Kind::Switch => "on, off".to_owned(),
            Kind::Choice(_) | Kind::Format | Kind::Storage => self.kind.choices().join(", "),
            Kind::Size { multiple_of: 1, max: u64::MAX } => "a size".to_owned(),
            Kind::Size { multiple_of: 1, max } => format!("a size of at most {max}"),
            Kind::Size { multiple_of, .. } => format!("a size, a multiple of {multiple_of}"),
            Kind::Whole { min, max } => format!("{min} to {max}"),
            Kind::Text { bytes_max: None } => "a name".to_owned(),
            Kind::Text { bytes_max: Some(max) } => format!("a name of at most {max} bytes"),
            Kind::Path => "a path".to_owned(),
            Kind::File => "a path, or options of a file".to_owned(),
            Kind::Image => "options of an image".to_owned(),
            Kind::List => "numbered groups of options".to_owned(),
        }
    }
}
