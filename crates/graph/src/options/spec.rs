//! What one option of a drive is: its name, what it takes, when it changes. Entries of the table ([`super::table`]) are made of these.

/// An option, as parsers, schemas, help and documentation know it.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Where it stands.
    pub group: Group,
    /// Its name there, without the group's prefix.
    pub name: &'static str,
    /// Another name of it: an older one of QEMU's, in full.
    pub alias: Option<&'static str>,
    /// What it takes.
    pub kind: Kind,
    /// What holds where it is not given.
    pub default: DefaultValue,
    /// What it says, in a few words.
    pub help: &'static str,
    /// When it can change.
    pub changes: Changes,
    /// What QMP calls it.
    pub qmp: Qmp,
}

/// Options that stand together, because one kind of node takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The disk as a whole: its front.
    Disk,
    /// Its limits.
    Throttling,
    /// An image of any format.
    Layer,
    /// An image of the format whose driver has this name.
    Format(&'static str),
    /// The file below an image, and likewise its data file.
    File,
    /// Likewise, where the driver of this name finds it.
    Storage(&'static str),
    /// A filter over disks whose driver has this name.
    Filter(&'static str),
}

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `on` or `off`.
    Switch,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// The name of a driver of a format.
    Format,
    /// The name of a driver of storage.
    Storage,
    /// Bytes, with a suffix if one likes.
    Size {
        /// Of this they must be a multiple; 1 is any number.
        multiple_of: u64,
        /// The most.
        max: u64,
    },
    /// A whole number.
    Whole {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A name.
    Text {
        /// Bytes at most.
        bytes_max: Option<usize>,
    },
    /// The path of a file.
    Path,
    /// A file with options of its own; a path is short for its `filename`.
    File,
    /// The backing image, with options of its own; empty: none.
    Image,
    /// Numbered groups of options.
    List,
}

/// What holds where an option is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// This value.
    Is(&'static str),
    /// What these words say.
    Follows(&'static str),
    /// Nothing: it must be given.
    None,
}

/// When an option can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Never while the disk is open.
    AtOpen,
    /// By blockdev-reopen, or `cowhand reopen`.
    AtReopen,
    /// By this command of QMP.
    By(&'static str),
    /// As the options that it sets.
    AsItsParts,
}

/// What QMP calls an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qmp {
    /// It has no word for it.
    None,
    /// As here, among the options of blockdev-add: a dotted name is a member of an object.
    Same,
    /// Likewise, with these of its values.
    Values(&'static [&'static str]),
    /// An argument of this name, of the command that changes it.
    Argument(&'static str),
}

impl Group {
    /// What stands before the names of the group's options.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Disk | Self::Layer | Self::Format(_) | Self::Filter(_) => "",
            Self::Throttling => "throttling.",
            Self::File | Self::Storage(_) => "file.",
        }
    }
}

impl Spec {
    /// With the default `off`, fixed when the disk is opened, and the same in QMP; what differs is said behind.
    pub(super) const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        let (default, changes, qmp) = (DefaultValue::Is("off"), Changes::AtOpen, Qmp::Same);
        Self { group: Group::Layer, name, alias: None, kind, default, help, changes, qmp }
    }

    /// Its full name.
    pub fn full_name(&self) -> String {
        format!("{}{}", self.group.prefix(), self.name)
    }

    /// Its other full name; that of a limit stands by itself.
    pub fn full_alias(&self) -> Option<String> {
        let prefix = if self.group == Group::Throttling { "" } else { self.group.prefix() };
        self.alias.map(|alias| format!("{prefix}{alias}"))
    }

    /// Whether `name` is its own in its group, or the other one.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    /// What holds where it is not given, in words.
    pub const fn default_words(&self) -> &'static str {
        match self.default {
            DefaultValue::Is(words) | DefaultValue::Follows(words) => words,
            DefaultValue::None => "none: it must be given",
        }
    }

    /// The command that changes it while the disk is open; `None`: nothing does.
    pub const fn changed_by(&self) -> Option<&'static str> {
        match (self.changes, self.is_in_qmp()) {
            (Changes::AtOpen, _) => None,
            (Changes::AtReopen, true) => Some("blockdev-reopen"),
            (Changes::AtReopen, false) | (Changes::AsItsParts, _) => Some("x-blockdev-set"),
            (Changes::By(command), _) => Some(command),
        }
    }

    /// What QMP calls it.
    pub const fn qmp_name(&self) -> Option<&'static str> {
        match self.qmp {
            Qmp::None => None,
            Qmp::Same | Qmp::Values(_) => Some(self.name),
            Qmp::Argument(name) => Some(name),
        }
    }

    /// Whether blockdev-add has it.
    pub const fn is_in_qmp(&self) -> bool {
        matches!(self.qmp, Qmp::Same | Qmp::Values(_))
    }
}
