//! What a command takes: names, kinds, what must be there.

use nearest::nearest;
use serde_json::{Map, Value};

use crate::QmpError;

/// Numbers of bytes and operations, as JSON programs can hold them in 64 signed bits.
pub const NUMBER_MAX: u64 = i64::MAX as u64;

/// A number of something.
pub const NUMBER: Kind = Kind::Whole(NUMBER_MAX);

/// A command.
#[derive(Debug)]
pub struct CommandSpec {
    /// Its name.
    pub name: &'static str,
    /// Its arguments: an object or a union.
    pub arguments: Kind,
}

/// Something that clients are notified of.
#[derive(Debug)]
pub struct EventSpec {
    /// Its name.
    pub name: &'static str,
    /// What is reported: an object.
    pub data: Kind,
}

/// An argument, or a member of an object among them.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// It cannot be left out.
    pub required: bool,
}

/// What an argument holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A text.
    Text,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A number without fraction, from 0 to this.
    Whole(u64),
    /// `null`.
    Null,
    /// A list of these.
    List(&'static Kind),
    /// An object with these members.
    Object(&'static [Argument]),
    /// An object whose members depend on one of them.
    Union {
        /// The member that decides.
        tag: &'static str,
        /// What all have.
        common: &'static [Argument],
        /// What else there is.
        variants: &'static [Variant],
    },
    /// The first of these that fits the value's JSON type.
    Either(&'static [&'static Kind]),
    /// What is described there: kinds may contain themselves.
    Ref(&'static Kind),
    /// Whatever: the handler looks for itself.
    Any,
}

/// The members that one value of a tag brings.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The tag's value.
    pub tag: &'static str,
    /// The members.
    pub members: &'static [Argument],
}

/// An argument that must be there.
pub const fn required(name: &'static str, kind: Kind) -> Argument {
    Argument { name, kind, required: true }
}

/// An argument that may be left out.
pub const fn optional(name: &'static str, kind: Kind) -> Argument {
    Argument { name, kind, required: false }
}

impl CommandSpec {
    /// Checks the arguments.
    ///
    /// # Errors
    /// Names the first argument that is unknown, missing or of the wrong kind.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), QmpError> {
        self.arguments.check_members(arguments, "")
    }
}

fn members(object: &Map<String, Value>, known: &[&[Argument]], prefix: &str) -> Result<(), QmpError> {
    let all = || known.iter().copied().flatten();
    for (name, value) in object {
        let path = format!("{prefix}{name}");
        match all().find(|argument| argument.name == name) {
            Some(argument) => argument.kind.check(value, &path)?,
            None => return Err(unknown(&path, name, all())),
        }
    }
    match all().find(|argument| argument.required && !object.contains_key(argument.name)) {
        Some(missing) => Err(QmpError::generic(format!("argument '{prefix}{}' is missing", missing.name))),
        None => Ok(()),
    }
}

fn unknown<'a>(path: &str, name: &str, known: impl Iterator<Item = &'a Argument>) -> QmpError {
    let near = nearest(name, known.map(|argument| argument.name));
    let hint = match near.first() {
        Some(near) => format!("; did you mean '{near}'?"),
        None => String::new(),
    };
    QmpError::generic(format!("argument '{path}' is unknown{hint}"))
}

/// The variant that the tag names.
fn chosen<'a>(
    object: &Map<String, Value>,
    tag: &str,
    variants: &'a [Variant],
    prefix: &str,
) -> Result<&'a Variant, QmpError> {
    match object.get(tag) {
        None => Err(QmpError::generic(format!("argument '{prefix}{tag}' is missing"))),
        Some(Value::String(found)) => variants.iter().find(|variant| variant.tag == found).ok_or_else(|| {
            let allowed = variants.iter().map(|variant| variant.tag).collect::<Vec<_>>().join(", ");
            QmpError::generic(format!("argument '{prefix}{tag}' is {found:?}; allowed: {allowed}"))
        }),
        Some(other) => Err(Kind::Text.wrong(other, &format!("{prefix}{tag}"))),
    }
}

impl Kind {
    fn check(&self, value: &Value, path: &str) -> Result<(), QmpError> {
        match (self, value) {
            (Self::Any, _)
            | (Self::Text, Value::String(_))
            | (Self::Switch, Value::Bool(_))
            | (Self::Null, Value::Null) => Ok(()),
            (Self::Choice(choices), Value::String(text)) => match choices.contains(&text.as_str()) {
                true => Ok(()),
                false => Err(QmpError::generic(format!(
                    "argument '{path}' is {text:?}; allowed: {}",
                    choices.join(", ")
                ))),
            },
            (Self::Whole(most), Value::Number(number)) if number.as_u64().is_some_and(|n| n <= *most) => {
                Ok(())
            }
            (Self::Whole(most), Value::Number(number)) => Err(QmpError::generic(format!(
                "argument '{path}' is {number}; allowed: a whole number from 0 to {most}"
            ))),
            (Self::List(kind), Value::Array(items)) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| kind.check(item, &format!("{path}[{index}]"))),
            (Self::Ref(kind), value) => kind.check(value, path),
            (Self::Object(_) | Self::Union { .. }, Value::Object(object)) => {
                self.check_members(object, &format!("{path}."))
            }
            (Self::Either(kinds), value) => match kinds.iter().find(|kind| kind.fits(value)) {
                Some(kind) => kind.check(value, path),
                None => Err(self.wrong(value, path)),
            },
            _ => Err(self.wrong(value, path)),
        }
    }

    /// Checks the members of an object, whose names stand behind `prefix` in messages.
    pub fn check_members(&self, object: &Map<String, Value>, prefix: &str) -> Result<(), QmpError> {
        match self {
            Self::Ref(kind) => kind.check_members(object, prefix),
            Self::Object(known) => members(object, &[known], prefix),
            Self::Union { tag, common, variants } => {
                let own = [required(tag, Kind::Text)];
                let variant = chosen(object, tag, variants, prefix)?;
                members(object, &[&own, common, variant.members], prefix)
            }
            _ => Ok(()),
        }
    }

    fn fits(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Ref(kind) => kind.fits(value),
            Self::Text | Self::Choice(_) => value.is_string(),
            Self::Switch => value.is_boolean(),
            Self::Whole(_) => value.is_number(),
            Self::Null => value.is_null(),
            Self::List(_) => value.is_array(),
            Self::Object(_) | Self::Union { .. } => value.is_object(),
            Self::Either(kinds) => kinds.iter().any(|kind| kind.fits(value)),
        }
    }

    fn wrong(&self, value: &Value, path: &str) -> QmpError {
        QmpError::generic(format!("argument '{path}' is {}; it must be {}", json_kind(value), self.words()))
    }

    /// As part of a sentence.
    fn words(&self) -> String {
        match self {
            Self::Any => "anything".to_owned(),
            Self::Ref(kind) => kind.words(),
            Self::Text => "a text".to_owned(),
            Self::Choice(choices) => format!("one of {}", choices.join(", ")),
            Self::Switch => "true or false".to_owned(),
            Self::Whole(_) => "a whole number".to_owned(),
            Self::Null => "null".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) | Self::Union { .. } => "an object".to_owned(),
            Self::Either(kinds) => kinds.iter().map(|kind| kind.words()).collect::<Vec<_>>().join(" or "),
        }
    }
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    static NODE: Kind = Kind::Union {
        tag: "driver",
        common: &[optional("read-only", Kind::Switch)],
        variants: &[
            Variant { tag: "file", members: &[required("filename", Kind::Text)] },
            Variant { tag: "raw", members: &[required("file", Kind::Either(&[&Kind::Text, &NODE]))] },
        ],
    };

    static SPEC: CommandSpec = CommandSpec {
        name: "x",
        arguments: Kind::Object(&[
            required("size", Kind::Whole(100)),
            optional("mode", Kind::Choice(&["safe", "hard"])),
            optional("names", Kind::List(&Kind::Text)),
            optional("node", Kind::Any),
        ]),
    };

    fn check(arguments: Value) -> String {
        SPEC.check(arguments.as_object().unwrap()).err().map_or(String::new(), |error| error.desc)
    }

    #[test]
    fn an_argument_that_is_wrong_is_named() {
        let table = [
            (json!({"size": 1, "mode": "hard", "names": ["a"], "node": null}), ""),
            (json!({}), "argument 'size' is missing"),
            (json!({"size": 1, "mdoe": "x"}), "argument 'mdoe' is unknown; did you mean 'mode'?"),
            (json!({"size": "1"}), "argument 'size' is a text; it must be a whole number"),
            (json!({"size": 101}), "argument 'size' is 101; allowed: a whole number from 0 to 100"),
            (json!({"size": -1}), "argument 'size' is -1; allowed: a whole number from 0 to 100"),
            (json!({"size": 1.5}), "argument 'size' is 1.5; allowed: a whole number from 0 to 100"),
            (json!({"size": 1, "mode": "soft"}), "argument 'mode' is \"soft\"; allowed: safe, hard"),
            (json!({"size": 1, "names": ["a", 1]}), "argument 'names[1]' is a number; it must be a text"),
        ];
        for (arguments, expected) in table {
            assert_eq!(check(arguments), expected);
        }
    }

    #[test]
    fn a_union_takes_the_members_of_its_variant_at_any_depth() {
        let check = |node: Value| {
            let error = NODE.check_members(node.as_object().unwrap(), "").err();
            error.map_or(String::new(), |error| error.desc)
        };
        assert_eq!(check(json!({"driver": "file", "filename": "x", "read-only": true})), "");
        assert_eq!(check(json!({"driver": "raw", "file": "node"})), "");
        assert_eq!(check(json!({"driver": "raw", "file": {"driver": "file", "filename": "x"}})), "");
        assert_eq!(
            check(json!({"driver": "raw", "file": {"driver": "file"}})),
            "argument 'file.filename' is missing"
        );
        assert_eq!(
            check(json!({"driver": "raw", "file": 1})),
            "argument 'file' is a number; it must be a text or an object"
        );
        assert_eq!(
            check(json!({"driver": "raw", "file": {"driver": "raw", "file": {"driver": "x"}}})),
            "argument 'file.file.driver' is \"x\"; allowed: file, raw"
        );
        assert_eq!(
            check(json!({"driver": "file", "file": "x"})),
            "argument 'file' is unknown; did you mean 'filename'?"
        );
        assert_eq!(check(json!({})), "argument 'driver' is missing");
    }
}
