//! What a command takes, as a struct: each field is an argument, and its type the kind of that. The schema is made of the same declaration, so that a
//! handler and its schema cannot drift apart.
//!
//! [`arguments!`](crate::arguments), [`choice!`](crate::choice) and [`variants!`](crate::variants) declare such types.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::QmpError;
use crate::schema::{Argument, Kind, NUMBER, Variant};

/// What arguments can be read into.
pub trait Takes: DeserializeOwned {
    /// What the schema says of it.
    const KIND: Kind;
    /// An argument of it cannot be left out.
    const REQUIRED: bool = true;
}

/// An object.
pub trait Members: Takes {
    /// Its members, without those of its union.
    const MEMBERS: &'static [Argument];
}

/// An object whose members depend on one of them.
pub trait Tagged: Takes {
    /// The member that decides.
    const TAG: &'static str;
    /// What there is for each of its values.
    const VARIANTS: &'static [Variant];
}

/// Arguments that were checked against the schema of the same type.
///
/// # Errors
/// When they were not.
pub fn taken<'a, T: Deserialize<'a>>(arguments: &'a Map<String, Value>) -> Result<T, QmpError> {
    T::deserialize(arguments)
        .map_err(|error| QmpError::generic(format!("arguments that no schema has: {error}")))
}

macro_rules! kinds {
    ($($type:ty: $kind:expr),* $(,)?) => {$(
        impl Takes for $type {
            const KIND: Kind = $kind;
        }
    )*};
}

kinds! {
    String: Kind::Text,
    bool: Kind::Switch,
    i32: Kind::Whole(i32::MAX as u64),
    u16: Kind::Whole(u16::MAX as u64),
    u32: Kind::Whole(u32::MAX as u64),
    u64: NUMBER,
    Value: Kind::Any,
    Map<String, Value>: Kind::Any,
}

impl<T: Takes> Takes for Option<T> {
    const KIND: Kind = T::KIND;
    const REQUIRED: bool = false;
}

impl<T: Takes> Takes for Vec<T> {
    const KIND: Kind = Kind::List(&T::KIND);
}

/// What stands in a member of its own, `data`, as older commands have it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Data<T> {
    /// It.
    pub data: T,
}

impl<T: Takes> Takes for Data<T> {
    const KIND: Kind = Kind::Object(Self::MEMBERS);
}

impl<T: Takes> Members for Data<T> {
    const MEMBERS: &'static [Argument] = &[Argument { name: "data", kind: T::KIND, required: T::REQUIRED }];
}

/// Declares structs of arguments: `name: Type`, of which an `Option` may be left out. Names are those of the fields, with `-` for `_`.
///
/// - `name: Type = kind` narrows what the type takes.
/// - `"name": Type` is taken and changes nothing: the struct has no such field.
/// - `..group: Type` stands for the members of another struct.
/// - `} with variant: Type` behind all is what a member decides about, declared with [`variants!`](crate::variants).
#[macro_export]
macro_rules! arguments {
    (@argument [$name:literal] [] [] $type:ty, [$($kind:expr)?]) => {
        &[$crate::arguments!(@named $name, $type, [$($kind)?])]
    };
    (@argument [] [$field:ident] [] $type:ty, [$($kind:expr)?]) => {
        &[$crate::arguments!(@named $crate::kebab!($field), $type, [$($kind)?])]
    };
    (@argument [] [] [$group:ident] $type:ty, []) => {
        <$type as $crate::Members>::MEMBERS
    };
    (@named $name:expr, $type:ty, []) => {
        $crate::arguments!(@named $name, $type, [<$type as $crate::Takes>::KIND])
    };
    (@named $name:expr, $type:ty, [$kind:expr]) => {
        $crate::Argument { name: $name, kind: $kind, required: <$type as $crate::Takes>::REQUIRED }
    };
    (@kind $name:ident) => {
        $crate::Kind::Object(<$name as $crate::Members>::MEMBERS)
    };
    (@kind $name:ident $union:ty) => {
        $crate::Kind::Union {
            tag: <$union as $crate::Tagged>::TAG,
            common: <$name as $crate::Members>::MEMBERS,
            variants: <$union as $crate::Tagged>::VARIANTS,
        }
    };
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {$(
            $($only:literal)? $($field:ident)? $(.. $group:ident)? : $type:ty $(= $kind:expr)?
        ),* $(,)?} $(with $variant:ident : $union:ty)?
    )*) => {$(
        $(#[$meta])*
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub struct $name {
            $(
                $(pub $field: $type,)?
                $(#[serde(flatten)] pub $group: $type,)?
            )*
            $(#[serde(flatten)] pub $variant: $union,)?
        }

        impl $crate::Takes for $name {
            const KIND: $crate::Kind = $crate::arguments!(@kind $name $($union)?);
        }

        impl $crate::Members for $name {
            const MEMBERS: &'static [$crate::Argument] = {
                const PARTS: &[&[$crate::Argument]] = &[$(
                    $crate::arguments!(@argument [$($only)?] [$($field)?] [$($group)?] $type, [$($kind)?])
                ),*];
                const ALL: [$crate::Argument; $crate::takes::count(PARTS)] = $crate::takes::joined(PARTS);
                &ALL
            };
        }
    )*};
}

/// Declares enums of texts: those are the names of the variants, in small letters, with `-` between words.
#[macro_export]
macro_rules! choice {
    ($($(#[$meta:meta])* pub enum $name:ident { $($variant:ident),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($variant),* }

        impl $name {
            /// As clients have it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $crate::kebab!($variant)),* }
            }
        }

        impl $crate::Takes for $name {
            const KIND: $crate::Kind = $crate::Kind::Choice(&[$($crate::kebab!($variant)),*]);
        }
    )*};
}

/// Declares unions: enums of structs of arguments, one for each value of the member behind `by`, which is named as in [`choice!`](crate::choice), or by
/// the text before the variant.
#[macro_export]
macro_rules! variants {
    (@tag $variant:ident) => { $crate::kebab!($variant) };
    (@tag $variant:ident $tag:literal) => { $tag };
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident by $by:literal {$($($tag:literal)? $variant:ident($type:ty)),* $(,)?}
    )*) => {$(
        $(#[$meta])*
        #[derive(serde::Deserialize)]
        #[serde(tag = $by, rename_all = "kebab-case")]
        pub enum $name {
            $($(#[serde(rename = $tag)])? $variant($type)),*
        }

        impl $crate::Takes for $name {
            const KIND: $crate::Kind = $crate::Kind::Union {
                tag: <Self as $crate::Tagged>::TAG,
                common: &[],
                variants: <Self as $crate::Tagged>::VARIANTS,
            };
        }

        impl $crate::Tagged for $name {
            const TAG: &'static str = $by;
            const VARIANTS: &'static [$crate::Variant] = &[$($crate::Variant {
                tag: $crate::variants!(@tag $variant $($tag)?),
                members: <$type as $crate::Members>::MEMBERS,
            }),*];
        }
    )*};
}

/// Declares objects that are passed on as they are; their members are those of a table.
#[macro_export]
macro_rules! members {
    ($($(#[$meta:meta])* pub struct $name:ident = $members:expr;)*) => {$(
        $(#[$meta])*
        #[derive(serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub serde_json::Map<String, serde_json::Value>);

        impl $crate::Takes for $name {
            const KIND: $crate::Kind = $crate::Kind::Object(<Self as $crate::Members>::MEMBERS);
        }

        impl $crate::Members for $name {
            const MEMBERS: &'static [$crate::Argument] = $members;
        }
    )*};
}

/// Declares events with what is reported, by the types of arguments.
#[macro_export]
macro_rules! events {
    ($($(#[$meta:meta])* pub $event:ident = $name:literal { $($member:literal: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        pub const $event: $crate::EventSpec = $crate::EventSpec {
            name: $name,
            data: $crate::Kind::Object(&[$($crate::arguments!(@named $member, $type, [])),*]),
        };
    )*};
}

/// A name of Rust's as clients have it, as `serde` makes it.
#[doc(hidden)]
#[macro_export]
macro_rules! kebab {
    ($name:ident) => {{
        const NAME: &str = stringify!($name);
        const BYTES: [u8; $crate::takes::kebab_len(NAME)] = $crate::takes::kebab(NAME);
        $crate::takes::text(&BYTES)
    }};
}

arguments! {
    /// No arguments.
    pub struct Nothing {}
}

/// How many arguments there are in all parts.
#[doc(hidden)]
pub const fn count(parts: &[&[Argument]]) -> usize {
    let (mut part, mut all) = (0, 0);
    while part < parts.len() {
        all += parts[part].len();
        part += 1;
    }
    all
}

/// The arguments of all parts.
#[doc(hidden)]
pub const fn joined<const N: usize>(parts: &[&[Argument]]) -> [Argument; N] {
    let mut all = [Argument { name: "", kind: Kind::Any, required: false }; N];
    let (mut part, mut filled) = (0, 0);
    while part < parts.len() {
        let mut place = 0;
        while place < parts[part].len() {
            all[filled] = parts[part][place];
            (filled, place) = (filled + 1, place + 1);
        }
        part += 1;
    }
    all
}

/// Where the name begins: `r#` is not part of it.
const fn begin(name: &[u8]) -> usize {
    if name.len() > 2 && name[1] == b'#' { 2 } else { 0 }
}

/// Bytes of a name as clients have it.
#[doc(hidden)]
pub const fn kebab_len(name: &str) -> usize {
    let name = name.as_bytes();
    let (mut at, mut len) = (begin(name), 0);
    while at < name.len() {
        len += if at > 0 && name[at].is_ascii_uppercase() { 2 } else { 1 };
        at += 1;
    }
    len
}

/// Those bytes.
#[doc(hidden)]
pub const fn kebab<const N: usize>(name: &str) -> [u8; N] {
    let name = name.as_bytes();
    let (mut made, mut at, mut filled) = ([b'-'; N], begin(name), 0);
    while at < name.len() {
        if at > 0 && name[at].is_ascii_uppercase() {
            filled += 1;
        }
        if name[at] != b'_' {
            made[filled] = name[at].to_ascii_lowercase();
        }
        (filled, at) = (filled + 1, at + 1);
    }
    made
}

/// Bytes of ASCII as a text.
#[doc(hidden)]
pub const fn text(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{CommandSpec, optional, required};

    crate::choice! {
        /// How.
        pub enum How { OnSuccess, Never }
    }

    crate::arguments! {
        /// A part.
        pub struct Part { how: How, up_to: Option<u16> }

        /// A file.
        pub struct File { path: String, r#abstract: Option<bool> }

        /// All there is.
        pub struct All {
            id: String,
            ..part: Part,
            percent: Option<u32> = Kind::Whole(99),
            "x-ignored": Option<bool>,
            names: Option<Vec<String>>,
            "new_state": u32,
            value: Value,
        } with place: Place
    }

    crate::variants! {
        /// Where.
        pub enum Place by "type" { LocalFile(File), "far_away" FarAway(Data<File>) }
    }

    const SPEC: CommandSpec = CommandSpec { name: "x", arguments: All::KIND };

    #[test]
    fn a_declaration_is_the_schema_and_what_the_arguments_are_read_into() {
        static FILE: [Argument; 2] = [required("path", Kind::Text), optional("abstract", Kind::Switch)];
        const BY_HAND: Kind = Kind::Union {
            tag: "type",
            common: &[
                required("id", Kind::Text),
                required("how", Kind::Choice(&["on-success", "never"])),
                optional("up-to", Kind::Whole(65535)),
                optional("percent", Kind::Whole(99)),
                optional("x-ignored", Kind::Switch),
                optional("names", Kind::List(&Kind::Text)),
                required("new_state", Kind::Whole(u32::MAX as u64)),
                required("value", Kind::Any),
            ],
            variants: &[
                Variant { tag: "local-file", members: &FILE },
                Variant { tag: "far_away", members: &[required("data", Kind::Object(&FILE))] },
            ],
        };
        assert_eq!(format!("{:?}", All::KIND), format!("{BY_HAND:?}"));
        let given = json!({
            "id": "a", "how": "on-success", "names": ["x", "y"], "x-ignored": true, "new_state": 1,
            "value": null, "type": "far_away", "data": { "path": "p", "abstract": true },
        });
        let given = given.as_object().unwrap();
        SPEC.check(given).unwrap();
        let all: All = taken(given).unwrap();
        assert_eq!((all.id.as_str(), all.part.how, all.part.up_to), ("a", How::OnSuccess, None));
        assert_eq!((all.percent, all.names.unwrap().len(), all.value), (None, 2, Value::Null));
        let Place::FarAway(Data { data }) = all.place else { panic!("another place") };
        assert_eq!((data.path.as_str(), data.r#abstract), ("p", Some(true)));
        assert_eq!(How::Never.name(), "never");
        let local = json!({ "id": "a", "how": "never", "new_state": 1, "value": 1, "type": "local-file", "path": "p" });
        let all: All = taken(local.as_object().unwrap()).unwrap();
        assert!(matches!(all.place, Place::LocalFile(File { r#abstract: None, .. })));
    }

    #[test]
    fn what_was_not_checked_is_an_error() {
        assert!(taken::<Part>(&Map::new()).is_err_and(|error| error.desc.contains("how")));
    }
}
