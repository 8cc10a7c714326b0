//! The limits of a drive: `throttling.*`, and the short names that old drive lines use.

use throttle::{Dialect, Limits, Names, Parameter, SETTINGS, Setting, Weight};

use super::entry::{Entry, choice_at, in_group, read_all};
use super::error::OptionError;
use super::reader::Reader;
use super::spec::{Changes, DefaultValue, Group, Kind, Qmp, Spec};

/// What is limited, and how the disk shares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThrottleOptions {
    /// The limits; `None` if none was given, so that a disk that only joins a group leaves its limits alone.
    pub limits: Option<Limits>,
    /// `throttling.group`; `None`: limits of its own.
    pub group: Option<String>,
    /// The group is an object (`driver=throttle`), which must be there: it has its limits from there.
    pub is_object: bool,
    /// `throttling.weight`: its part of the group.
    pub weight: Weight,
    /// `throttling.discard`.
    pub discard: DiscardCharge,
}

/// What a discard costs under limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardCharge {
    /// Its length, up to one cluster: metadata is all that it writes.
    #[default]
    Cluster,
    /// Its length, as if the bytes were written.
    Full,
    /// Nothing.
    Free,
}

/// The part of the table for limits: what `throttle` says of each.
pub const LIMITS: &[Spec] = &{
    let mut limits = [limit(0); SETTINGS.len()];
    let mut place = 0;
    while place < SETTINGS.len() {
        limits[place] = limit(place);
        place += 1;
    }
    limits
};

/// The command that changes limits.
const CHANGES_LIMITS: &str = "block_set_io_throttle";

const fn limit(place: usize) -> Spec {
    let names = SETTINGS[place];
    let (kind, default) = match names.setting {
        Setting::Limit(parameter) => {
            let (min, max) = parameter.range();
            let default = if min == 0 { "0" } else { "1" };
            match parameter.is_bytes() {
                true => (Kind::Size { multiple_of: 1, max }, DefaultValue::Is(default)),
                false => (Kind::Whole { min, max }, DefaultValue::Is(default)),
            }
        }
        Setting::Group => (
            Kind::Text { bytes_max: Some(GROUP_NAME_BYTES_MAX) },
            DefaultValue::Follows("none: limits of its own"),
        ),
        Setting::Weight => (
            Kind::Whole { min: Weight::MIN.get() as u64, max: Weight::MAX.get() as u64 },
            DefaultValue::Is("100"),
        ),
    };
    Spec {
        group: Group::Throttling,
        name: names.limits,
        alias: Some(names.legacy),
        kind,
        default,
        help: names.help,
        changes: Changes::By(CHANGES_LIMITS),
        qmp: Qmp::Argument(names.legacy),
    }
}

const DISCARD: [(&str, DiscardCharge); 3] =
    [("cluster", DiscardCharge::Cluster), ("full", DiscardCharge::Full), ("free", DiscardCharge::Free)];

/// Bytes of a group's name at most: names are kept for as long as the group is.
pub(super) const GROUP_NAME_BYTES_MAX: usize = 255;

/// The part of the table for what no limit says.
pub const THROTTLING: &[Entry<ThrottleOptions>] = &in_group(
    Group::Throttling,
    [Entry::choice(
        "discard",
        choice_at!(ThrottleOptions, DISCARD, discard),
        "what a discard costs: its length up to a cluster, all, nothing",
    )
    .default("cluster")
    .qmp(Qmp::None)],
);

/// Takes the options from the drive's own and from its group `throttling`.
pub(super) fn read(drive: &mut Reader) -> Result<ThrottleOptions, OptionError> {
    let Some(mut group) = drive.group("throttling")? else {
        return Err(OptionError::Shape {
            option: drive.full("throttling"),
            problem: "is null or empty; give single limits (throttling.iops-total=100) or leave it out",
        });
    };
    let mut given = throttle::Options::new();
    let mut dialect = None;
    for names in Setting::all() {
        let long = names.drive.trim_start_matches("throttling.");
        let found = [(Dialect::Drive, &mut group, long), (Dialect::Legacy, &mut *drive, names.legacy)];
        let mut values = Vec::new();
        for (spoken, reader, name) in found {
            if let Some(value) = value(reader, name, names)? {
                dialect.get_or_insert(spoken);
                values.push(value);
            }
        }
        if let [a, b] = &values[..]
            && a != b
        {
            return Err(OptionError::Conflict {
                option: group.full(long),
                other: drive.full(names.legacy),
                rule: "they are two names of one option; give one of them",
            });
        }
        values.into_iter().for_each(|value| value.put(&mut given));
    }
    let mut options = ThrottleOptions::default();
    read_all(THROTTLING, &mut group, &mut options)?;
    let known = THROTTLING.iter().map(Entry::spec).chain(LIMITS).map(|spec| spec.name);
    group.finish(known, &[])?;
    let dialect = dialect.unwrap_or(Dialect::Drive);
    let limits = given.check().map_err(|source| OptionError::Limits { source, dialect })?;
    options.limits = (!limits.is_unlimited()).then_some(limits);
    options.group = given.group;
    options.weight = given.weight.unwrap_or_default();
    Ok(options)
}

/// A value that is right by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(Parameter, u64),
    Group(String),
    Weight(Weight),
}

impl Value {
    fn put(self, options: &mut throttle::Options) {
        match self {
            Self::Number(parameter, value) => _ = options.set(parameter, value),
            Self::Group(name) => options.group = Some(name),
            Self::Weight(weight) => options.weight = Some(weight),
        }
    }
}

fn value(reader: &mut Reader, name: &str, names: &Names) -> Result<Option<Value>, OptionError> {
    Ok(match names.setting {
        Setting::Limit(parameter) if parameter.is_bytes() => {
            reader.size(name)?.map(|value| Value::Number(parameter, value))
        }
        Setting::Limit(parameter) => reader.count(name)?.map(|value| Value::Number(parameter, value)),
        Setting::Group => match reader.text(name)? {
            Some(group) if group.is_empty() || group.len() > GROUP_NAME_BYTES_MAX => {
                let allowed = format!("a name of 1 to {GROUP_NAME_BYTES_MAX} bytes");
                return Err(reader.value(name, &group, allowed));
            }
            group => group.map(Value::Group),
        },
        Setting::Weight => {
            let Some(weight) = reader.count(name)? else { return Ok(None) };
            let dialect = Dialect::Drive;
            let weight = Weight::new(weight).map_err(|source| OptionError::Limits { source, dialect })?;
            Some(Value::Weight(weight))
        }
    })
}
