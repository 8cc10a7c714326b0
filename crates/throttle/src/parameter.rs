//! The options by name: QEMU's long and short ones, QMP's and virsh's.

use crate::{Direction, LENGTH_MAX, RATE_MAX};

/// What a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Requests, the large ones several times (`iops-size`).
    Operations,
    /// Bytes.
    Bytes,
}

/// One of the six things that can be limited; each has its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flow {
    /// Requests of both directions.
    IopsTotal,
    /// Read requests.
    IopsRead,
    /// Write requests.
    IopsWrite,
    /// Bytes of both directions.
    BpsTotal,
    /// Bytes read.
    BpsRead,
    /// Bytes written.
    BpsWrite,
}

impl Flow {
    /// All six, in the order of [`PARAMETERS`].
    pub const ALL: [Self; 6] =
        [Self::IopsTotal, Self::IopsRead, Self::IopsWrite, Self::BpsTotal, Self::BpsRead, Self::BpsWrite];

    /// What it counts.
    pub const fn measure(self) -> Measure {
        match self {
            Self::IopsTotal | Self::IopsRead | Self::IopsWrite => Measure::Operations,
            Self::BpsTotal | Self::BpsRead | Self::BpsWrite => Measure::Bytes,
        }
    }

    /// The one direction it counts, or `None` for both.
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::IopsTotal | Self::BpsTotal => None,
            Self::IopsRead | Self::BpsRead => Some(Direction::Read),
            Self::IopsWrite | Self::BpsWrite => Some(Direction::Write),
        }
    }

    /// The four that a request in `direction` fills.
    pub(crate) const fn of(direction: Direction) -> [Self; 4] {
        match direction {
            Direction::Read => [Self::IopsTotal, Self::IopsRead, Self::BpsTotal, Self::BpsRead],
            Direction::Write => [Self::IopsTotal, Self::IopsWrite, Self::BpsTotal, Self::BpsWrite],
        }
    }

    /// The place in [`Flow::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// Which of the three numbers of a [`Flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What may pass in the long run, per second.
    Average,
    /// What may pass in a burst, per second.
    Max,
    /// How long a burst may last, in seconds.
    MaxLength,
}

/// One of the 19 numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// A number of one flow.
    Rate(Flow, Part),
    /// Bytes that count as one operation (`iops-size`).
    IopsSize,
}

/// Anything that can be set about throttling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// One of the 19 numbers.
    Limit(Parameter),
    /// The name of the group, `throttling.group`.
    Group,
    /// The member's [`crate::Weight`], `throttling.weight`.
    Weight,
}

/// Who is speaking: the same option has a name in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The drive line and the configuration file: `throttling.iops-total`.
    Drive,
    /// `ThrottleLimits` of QMP, and a throttle-group's `limits`: `iops-total`.
    Limits,
    /// QMP's `block_set_io_throttle` and old drive lines: `iops`.
    Legacy,
    /// `virsh blkdeviotune`: `total-iops-sec`.
    Virsh,
}

/// The names of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// What is named.
    pub setting: Setting,
    /// In [`Dialect::Drive`].
    pub drive: &'static str,
    /// In [`Dialect::Limits`].
    pub limits: &'static str,
    /// In [`Dialect::Legacy`].
    pub legacy: &'static str,
    /// In [`Dialect::Virsh`], without the leading dashes.
    pub virsh: &'static str,
    /// As the property of an old `-object throttle-group`: `x-iops-total`.
    pub property: &'static str,
    /// What it says, in a few words.
    pub help: &'static str,
}

impl Names {
    /// The name in one dialect.
    pub const fn in_dialect(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Drive => self.drive,
            Dialect::Limits => self.limits,
            Dialect::Legacy => self.legacy,
            Dialect::Virsh => self.virsh,
        }
    }
}

macro_rules! names {
    ($setting:expr, $limits:literal, $legacy:literal, $virsh:literal, $help:expr) => {
        Names {
            setting: $setting,
            drive: concat!("throttling.", $limits),
            limits: $limits,
            legacy: $legacy,
            virsh: $virsh,
            property: concat!("x-", $limits),
            help: $help,
        }
    };
}

macro_rules! rate {
    ($flow:ident, $part:ident, $($name:literal),+) => {
        names!(Setting::Limit(Parameter::Rate(Flow::$flow, Part::$part)), $($name),+, help!($flow, $part))
    };
}

macro_rules! help {
    ($flow:ident, Average) => {
        concat!(counted!($flow), " a second in the long run")
    };
    ($flow:ident, Max) => {
        concat!(counted!($flow), " a second in a burst")
    };
    ($flow:ident, MaxLength) => {
        concat!("seconds that a burst of ", counted!($flow), " may last")
    };
}

macro_rules! counted {
    (IopsTotal) => {
        "requests of both directions"
    };
    (IopsRead) => {
        "read requests"
    };
    (IopsWrite) => {
        "write requests"
    };
    (BpsTotal) => {
        "bytes of both directions"
    };
    (BpsRead) => {
        "bytes read"
    };
    (BpsWrite) => {
        "bytes written"
    };
}

/// All 19 parameters and their names; parsers and help texts are made from this table.
pub const PARAMETERS: [Names; 19] = [
    rate!(IopsTotal, Average, "iops-total", "iops", "total-iops-sec"),
    rate!(IopsTotal, Max, "iops-total-max", "iops_max", "total-iops-sec-max"),
    rate!(IopsTotal, MaxLength, "iops-total-max-length", "iops_max_length", "total-iops-sec-max-length"),
    rate!(IopsRead, Average, "iops-read", "iops_rd", "read-iops-sec"),
    rate!(IopsRead, Max, "iops-read-max", "iops_rd_max", "read-iops-sec-max"),
    rate!(IopsRead, MaxLength, "iops-read-max-length", "iops_rd_max_length", "read-iops-sec-max-length"),
    rate!(IopsWrite, Average, "iops-write", "iops_wr", "write-iops-sec"),
    rate!(IopsWrite, Max, "iops-write-max", "iops_wr_max", "write-iops-sec-max"),
    rate!(IopsWrite, MaxLength, "iops-write-max-length", "iops_wr_max_length", "write-iops-sec-max-length"),
    rate!(BpsTotal, Average, "bps-total", "bps", "total-bytes-sec"),
    rate!(BpsTotal, Max, "bps-total-max", "bps_max", "total-bytes-sec-max"),
    rate!(BpsTotal, MaxLength, "bps-total-max-length", "bps_max_length", "total-bytes-sec-max-length"),
    rate!(BpsRead, Average, "bps-read", "bps_rd", "read-bytes-sec"),
    rate!(BpsRead, Max, "bps-read-max", "bps_rd_max", "read-bytes-sec-max"),
    rate!(BpsRead, MaxLength, "bps-read-max-length", "bps_rd_max_length", "read-bytes-sec-max-length"),
    rate!(BpsWrite, Average, "bps-write", "bps_wr", "write-bytes-sec"),
    rate!(BpsWrite, Max, "bps-write-max", "bps_wr_max", "write-bytes-sec-max"),
    rate!(BpsWrite, MaxLength, "bps-write-max-length", "bps_wr_max_length", "write-bytes-sec-max-length"),
    names!(
        Setting::Limit(Parameter::IopsSize),
        "iops-size",
        "iops_size",
        "size-iops-sec",
        "bytes that count as one request"
    ),
];

/// Everything that can be set about throttling: the 19 numbers, the group, the weight.
pub const SETTINGS: [Names; PARAMETERS.len() + 2] = {
    let mut settings = [GROUP; PARAMETERS.len() + 2];
    let mut index = 0;
    while index < PARAMETERS.len() {
        settings[index] = PARAMETERS[index];
        index += 1;
    }
    settings[PARAMETERS.len() + 1] = WEIGHT;
    settings
};

const GROUP: Names =
    names!(Setting::Group, "group", "group", "group-name", "disks that name the same group share its limits");
const WEIGHT: Names =
    names!(Setting::Weight, "weight", "weight", "weight", "the disk's part of what its group may do");

impl Parameter {
    /// The place in [`PARAMETERS`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Rate(flow, part) => 3 * flow.index() + part as usize,
            Self::IopsSize => 18,
        }
    }

    /// Its name in one dialect.
    pub const fn name(self, dialect: Dialect) -> &'static str {
        PARAMETERS[self.index()].in_dialect(dialect)
    }

    /// The least and the most that it may be.
    pub const fn range(self) -> (u64, u64) {
        match self {
            Self::IopsSize => (0, u64::MAX),
            Self::Rate(_, Part::MaxLength) => (1, LENGTH_MAX),
            Self::Rate(_, Part::Average | Part::Max) => (0, RATE_MAX),
        }
    }

    /// Whether it counts bytes, so that it may be written as a size (`10M`).
    pub const fn is_bytes(self) -> bool {
        match self {
            Self::IopsSize => true,
            Self::Rate(_, Part::MaxLength) => false,
            Self::Rate(flow, Part::Average | Part::Max) => matches!(flow.measure(), Measure::Bytes),
        }
    }
}

impl Setting {
    /// All names of all settings: the 19 numbers, the group, the weight.
    pub fn all() -> impl Iterator<Item = &'static Names> {
        SETTINGS.iter()
    }

    /// What `name` means in `dialect`. In [`Dialect::Limits`] the `x-` of old `-object
    /// throttle-group` lines and a leading `limits.` are understood, in [`Dialect::Virsh`] the
    /// leading dashes.
    pub fn named(name: &str, dialect: Dialect) -> Option<Self> {
        let plain = match dialect {
            Dialect::Drive | Dialect::Legacy => name,
            Dialect::Limits => {
                name.strip_prefix("limits.").or_else(|| name.strip_prefix("x-")).unwrap_or(name)
            }
            Dialect::Virsh => name.strip_prefix("--").unwrap_or(name),
        };
        Self::all().find(|names| names.in_dialect(dialect) == plain).map(|names| names.setting)
    }

    /// What `name` means in whichever dialect knows it; no name means two things.
    pub fn from_name(name: &str) -> Option<Self> {
        [Dialect::Drive, Dialect::Limits, Dialect::Legacy, Dialect::Virsh]
            .into_iter()
            .find_map(|dialect| Self::named(name, dialect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_stands_at_its_own_place_in_the_table() {
        for (index, names) in PARAMETERS.iter().enumerate() {
            let Setting::Limit(parameter) = names.setting else { panic!("{names:?} is no limit") };
            assert_eq!(parameter.index(), index);
        }
    }

    #[test]
    fn every_name_of_every_dialect_leads_back_to_its_setting() {
        for names in Setting::all() {
            for dialect in [Dialect::Drive, Dialect::Limits, Dialect::Legacy, Dialect::Virsh] {
                let name = names.in_dialect(dialect);
                assert_eq!(Setting::named(name, dialect), Some(names.setting), "{name}");
                assert_eq!(Setting::from_name(name), Some(names.setting), "{name}");
            }
        }
        assert_eq!(Setting::from_name("--total-iops-sec"), Setting::from_name("throttling.iops-total"));
        assert_eq!(Setting::from_name("x-bps-read-max-length"), Setting::from_name("bps_rd_max_length"));
        assert_eq!(Setting::from_name("throttling.iops"), None);
    }
}
