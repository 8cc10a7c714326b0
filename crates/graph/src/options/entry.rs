//! An entry of the table: what an option is, and the field that it sets.

use std::path::PathBuf;

use super::error::OptionError;
use super::reader::Reader;
use super::spec::{Changes, DefaultValue, Group, Kind, Qmp, Spec};

/// An option, and where it is kept in `O`.
#[derive(Debug)]
pub struct Entry<O: 'static> {
    spec: Spec,
    field: Field<O>,
}

/// How a value of type `T` is put into `O`, and read from it: `None` where nothing was given.
#[derive(Debug)]
pub struct At<O: 'static, T> {
    /// Puts a value there.
    pub set: fn(&mut O, T),
    /// Reads it.
    pub get: fn(&O) -> Option<T>,
}

/// The field of an option, by what it holds.
#[derive(Debug)]
pub(crate) enum Field<O: 'static> {
    Switch(At<O, bool>),
    /// The place of a name in the list of choices.
    Choice(At<O, usize>),
    Size(At<O, u64>),
    Whole(At<O, u32>),
    Text(At<O, String>),
    Path(At<O, PathBuf>),
    /// Options of a part, which are read by themselves.
    Part,
    /// A driver, which is read by itself.
    Driver(fn(&O) -> Option<&'static str>),
}

/// A value, to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Switch(bool),
    Choice(usize),
    Number(u64),
    Text(String),
    Path(PathBuf),
}

/// Accessors of a field of `$options`, whose type is that of the value or an `Option` of it.
#[macro_export]
macro_rules! at {
    ($options:ty, $($field:ident).+) => {
        $crate::options::entry::At {
            set: |options: &mut $options, value| options.$($field).+ = value.into(),
            get: |options: &$options| options.$($field).+.clone().into(),
        }
    };
}

/// Likewise a field that holds a value of the list `$known`; with the names in it.
#[macro_export]
macro_rules! choice_at {
    ($options:ty, $known:expr, $($field:ident).+) => {
        (
            const { &$crate::options::entry::names(&$known) },
            $crate::options::entry::At {
                set: |options: &mut $options, place| options.$($field).+ = $known[place].1.into(),
                get: |options: &$options| $crate::options::entry::place_of(&$known, options.$($field).+),
            },
        )
    };
}

pub use {at, choice_at};

/// The names in a list of choices.
pub const fn names<T, const N: usize>(known: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut place = 0;
    while place < N {
        names[place] = known[place].0;
        place += 1;
    }
    names
}

/// The first place of `value` in a list of choices.
pub fn place_of<T: PartialEq, const N: usize>(
    known: &[(&'static str, T); N],
    value: impl Into<Option<T>>,
) -> Option<usize> {
    let value = value.into()?;
    known.iter().position(|(_, known)| *known == value)
}

/// Names of options and of their choices, and where they are kept.
pub type Choice<O> = (&'static [&'static str], At<O, usize>);

impl<O> Entry<O> {
    /// `on` or `off`.
    pub const fn switch(name: &'static str, at: At<O, bool>, help: &'static str) -> Self {
        Self { spec: Spec::new(name, Kind::Switch, help), field: Field::Switch(at) }
    }

    /// One of a list of names.
    pub const fn choice(name: &'static str, choice: Choice<O>, help: &'static str) -> Self {
        Self { spec: Spec::new(name, Kind::Choice(choice.0), help), field: Field::Choice(choice.1) }
    }

    /// Bytes, with a suffix if one likes.
    pub const fn size(name: &'static str, at: At<O, u64>, help: &'static str) -> Self {
        let kind = Kind::Size { multiple_of: 1, max: u64::MAX };
        Self { spec: Spec::new(name, kind, help), field: Field::Size(at) }
    }

    /// A whole number.
    pub const fn whole(name: &'static str, at: At<O, u32>, help: &'static str) -> Self {
        let kind = Kind::Whole { min: 0, max: u32::MAX as u64 };
        Self { spec: Spec::new(name, kind, help), field: Field::Whole(at) }
    }

    /// A text.
    pub const fn text(name: &'static str, at: At<O, String>, help: &'static str) -> Self {
        let spec = Spec::new(name, Kind::Text { bytes_max: None }, help);
        Self { spec, field: Field::Text(at) }
    }

    /// The path of a file.
    pub const fn path(name: &'static str, at: At<O, PathBuf>, help: &'static str) -> Self {
        Self { spec: Spec::new(name, Kind::Path, help), field: Field::Path(at) }
    }

    /// A file or an image, whose options are read by themselves.
    pub const fn part(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { spec: Spec::new(name, kind, help), field: Field::Part }
    }

    /// A driver, which is read by itself.
    pub const fn driver(
        name: &'static str,
        kind: Kind,
        get: fn(&O) -> Option<&'static str>,
        help: &'static str,
    ) -> Self {
        Self { spec: Spec::new(name, kind, help), field: Field::Driver(get) }
    }

    /// What holds where it is not given, if that is not `off`.
    pub const fn default(mut self, value: &'static str) -> Self {
        self.spec.default = DefaultValue::Is(value);
        self
    }

    /// Likewise, where it is not one value.
    pub const fn default_follows(mut self, words: &'static str) -> Self {
        self.spec.default = DefaultValue::Follows(words);
        self
    }

    /// It must be given.
    pub const fn needed(mut self) -> Self {
        self.spec.default = DefaultValue::None;
        self
    }

    /// When it can change, if it is not fixed.
    pub const fn changes(mut self, changes: Changes) -> Self {
        self.spec.changes = changes;
        self
    }

    /// It can change at blockdev-reopen.
    pub const fn reopens(self) -> Self {
        self.changes(Changes::AtReopen)
    }

    /// Another name of it.
    pub const fn alias(mut self, alias: &'static str) -> Self {
        self.spec.alias = Some(alias);
        self
    }

    /// What QMP calls it, if that is different.
    pub const fn qmp(mut self, qmp: Qmp) -> Self {
        self.spec.qmp = qmp;
        self
    }

    /// It takes multiples of this only.
    pub const fn multiple_of(mut self, multiple_of: u64) -> Self {
        self.spec.kind = Kind::Size { multiple_of, max: u64::MAX };
        self
    }

    /// It is a size of at most this.
    pub const fn at_most(mut self, max: u64) -> Self {
        self.spec.kind = Kind::Size { multiple_of: 1, max };
        self
    }

    /// What the option is.
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Takes the option from `reader`, if it was given there, and puts it into `options`.
    pub(crate) fn read(&self, reader: &mut Reader, options: &mut O) -> Result<(), OptionError> {
        match &self.field {
            Field::Switch(at) => self.put(at, reader, options, Reader::switch),
            Field::Choice(at) => self.put(at, reader, options, |reader, name| self.place(reader, name)),
            Field::Size(at) => self.put(at, reader, options, |reader, name| self.bytes(reader, name)),
            Field::Whole(at) => self.put(at, reader, options, Reader::whole_number),
            Field::Text(at) => self.put(at, reader, options, Reader::text),
            Field::Path(at) => self.put(at, reader, options, Reader::path),
            Field::Part | Field::Driver(_) => Ok(()),
        }
    }

    fn put<T: PartialEq>(
        &self,
        at: &At<O, T>,
        reader: &mut Reader,
        options: &mut O,
        read: impl Fn(&mut Reader, &str) -> Result<Option<T>, OptionError>,
    ) -> Result<(), OptionError> {
        let found = match self.spec.alias {
            None => read(reader, self.spec.name)?,
            Some(alias) => reader.either([self.spec.name, alias], read)?,
        };
        if let Some(value) = found {
            (at.set)(options, value);
        }
        Ok(())
    }

    fn place(&self, reader: &mut Reader, name: &str) -> Result<Option<usize>, OptionError> {
        let Kind::Choice(names) = self.spec.kind else { return Ok(None) };
        reader.choice(name, names)
    }

    fn bytes(&self, reader: &mut Reader, name: &str) -> Result<Option<u64>, OptionError> {
        match (reader.size(name)?, self.spec.kind) {
            (Some(bytes), Kind::Size { multiple_of, .. }) if !bytes.is_multiple_of(multiple_of) => {
                Err(reader.value(name, &bytes.to_string(), format!("multiples of {multiple_of}")))
            }
            (Some(bytes), Kind::Size { max, .. }) if bytes > max => {
                Err(reader.value(name, &bytes.to_string(), format!("0 to {max}")))
            }
            (bytes, _) => Ok(bytes),
        }
    }

    /// What `options` have there.
    pub(crate) fn value(&self, options: &O) -> Option<Value> {
        match &self.field {
            Field::Switch(at) => (at.get)(options).map(Value::Switch),
            Field::Choice(at) => (at.get)(options).map(Value::Choice),
            Field::Size(at) => (at.get)(options).map(Value::Number),
            Field::Whole(at) => (at.get)(options).map(|number| Value::Number(number.into())),
            Field::Text(at) => (at.get)(options).map(Value::Text),
            Field::Path(at) => (at.get)(options).map(Value::Path),
            Field::Part => None,
            Field::Driver(get) => get(options).map(|name| Value::Text(name.to_owned())),
        }
    }
}

/// A part of the table: options that stand together.
pub const fn in_group<O, const N: usize>(group: Group, mut entries: [Entry<O>; N]) -> [Entry<O>; N] {
    let mut place = 0;
    while place < N {
        entries[place].spec.group = group;
        place += 1;
    }
    entries
}

/// Takes all options of a part of the table from `reader`.
///
/// # Errors
/// For the first value that an option does not take.
pub fn read_all<O>(entries: &[Entry<O>], reader: &mut Reader, options: &mut O) -> Result<(), OptionError> {
    entries.iter().try_for_each(|entry| entry.read(reader, options))
}

/// The first option that is fixed while a disk is open, and that `new` has otherwise than `old`.
pub fn first_fixed_of<O>(entries: &[Entry<O>], old: &O, new: &O) -> Option<String> {
    let differs =
        |entry: &&Entry<O>| entry.spec.changes == Changes::AtOpen && entry.value(old) != entry.value(new);
    entries.iter().find(differs).map(|entry| entry.spec.full_name())
}

/// The first option of a part of the table that `reader` was given, by its full name.
pub(super) fn first_given<O>(reader: &Reader, entries: &[Entry<O>]) -> Option<String> {
    reader.first_such(|given| entries.iter().any(|entry| entry.spec.is_called(given)))
}
