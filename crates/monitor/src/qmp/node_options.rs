//! What QMP takes of the options of drives and limits: read from their tables.

use control::{Argument, Kind, NUMBER, NUMBER_MAX, optional, required};
use graph::options::{DefaultValue, Entry, Group, Kind as Takes, Qmp, Spec};
use throttle::{Dialect, Parameter, Part, SETTINGS, Setting, Weight};

use super::node_schema::{BACKING, NODE_OR_OPTIONS};

/// The options of a part of the table that stand in `object`, a member of their node; `""`: in the node itself.
pub const fn count<O>(part: &[Entry<O>], object: &str) -> usize {
    let (mut found, mut place) = (0, 0);
    while place < part.len() {
        if member(part[place].spec(), object).is_some() {
            found += 1;
        }
        place += 1;
    }
    found
}

/// Those options, behind `first`.
pub const fn members<O, const A: usize, const N: usize>(
    first: [Argument; A],
    part: &[Entry<O>],
    object: &str,
) -> [Argument; N] {
    let mut all = [optional("", Kind::Any); N];
    let (mut filled, mut place) = (0, 0);
    while filled < A {
        all[filled] = first[filled];
        filled += 1;
    }
    while place < part.len() {
        if let Some(argument) = member(part[place].spec(), object) {
            all[filled] = argument;
            filled += 1;
        }
        place += 1;
    }
    assert!(filled == N);
    all
}

/// The option as a member of `object`, if it is one. Not those that the schema describes by itself: `driver` (it decides which members
/// there are), `file` and `overlap-check`; nor what a file has as every node has it.
const fn member(spec: &Spec, object: &str) -> Option<Argument> {
    if !spec.is_in_qmp() {
        return None;
    }
    let Some(name) = behind(spec.name, object) else { return None };
    if same(name, "driver") || same(name, "file") || same(name, "overlap-check") {
        return None;
    }
    if matches!(spec.group, Group::File) && same(name, "node-name") {
        return None;
    }
    match spec.default {
        DefaultValue::None => Some(required(name, kind(spec))),
        DefaultValue::Is(_) | DefaultValue::Follows(_) => Some(optional(name, kind(spec))),
    }
}

/// What an option takes.
pub const fn kind(spec: &Spec) -> Kind {
    if let Qmp::Values(values) = spec.qmp {
        return Kind::Choice(values);
    }
    match spec.kind {
        Takes::Switch => Kind::Switch,
        Takes::Choice(names) => Kind::Choice(names),
        Takes::Size { max, .. } | Takes::Whole { max, .. } if max < NUMBER_MAX => Kind::Whole(max),
        Takes::Size { .. } | Takes::Whole { .. } => NUMBER,
        Takes::Text { .. } | Takes::Path | Takes::Format | Takes::Storage => Kind::Text,
        Takes::File => Kind::Ref(&NODE_OR_OPTIONS),
        Takes::Image => Kind::Ref(&BACKING),
        Takes::List => Kind::List(&Kind::Any),
    }
}

/// The part of the table with one option of that name.
pub const fn find<O>(part: &'static [Entry<O>], name: &str) -> &'static Spec {
    let mut place = 0;
    while !same(part[place].spec().name, name) {
        place += 1;
    }
    part[place].spec()
}

/// What stands behind `object.` in a name; behind nothing: a name without dots.
const fn behind(name: &'static str, object: &str) -> Option<&'static str> {
    let mut dot = 0;
    while dot < name.len() && name.as_bytes()[dot] != b'.' {
        dot += 1;
    }
    if dot == name.len() {
        return if object.is_empty() { Some(name) } else { None };
    }
    let (first, rest) = name.split_at(dot);
    if same(first, object) { Some(rest.split_at(1).1) } else { None }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut place = 0;
    while place < a.len() && place < b.len() && a[place] == b[place] {
        place += 1;
    }
    place == a.len() && place == b.len()
}

/// All limits under the names of one dialect. Where all must be given, those are which hold in the long run.
pub const fn limits<const N: usize>(name: LimitName) -> [Argument; N] {
    let mut all = [optional("", Kind::Any); N];
    let mut place = 0;
    while place < N {
        all[place] = limit(place, &name);
        place += 1;
    }
    all
}

/// Under which name a limit is an argument.
pub enum LimitName {
    /// Of ThrottleLimits.
    Limits,
    /// Of an old throttle-group.
    Property,
    /// Of block_set_io_throttle, with the group and the weight.
    Argument,
}

const fn limit(place: usize, name: &LimitName) -> Argument {
    let names = &SETTINGS[place];
    let kind = match names.setting {
        Setting::Limit(_) => NUMBER,
        Setting::Group => Kind::Text,
        Setting::Weight => Kind::Whole(Weight::MAX.get() as u64),
    };
    match (name, names.setting) {
        (LimitName::Limits, _) => optional(names.in_dialect(Dialect::Limits), kind),
        (LimitName::Property, _) => optional(names.property, kind),
        (LimitName::Argument, Setting::Limit(Parameter::Rate(_, Part::Average))) => {
            required(names.in_dialect(Dialect::Legacy), kind)
        }
        (LimitName::Argument, _) => optional(names.in_dialect(Dialect::Legacy), kind),
    }
}

#[cfg(test)]
mod tests {
    use graph::drive::OptionTree;
    use graph::options::{DiskOptions, table};
    use serde_json::{Map, Value, json};

    use super::super::commands::COMMANDS;
    use super::super::node_schema::BLOCKDEV;
    use super::*;

    /// Options that the schema describes by hand: what is under a node.
    fn is_value(spec: &&Spec) -> bool {
        spec.name != "driver" && !matches!(spec.kind, Takes::File | Takes::Image | Takes::List)
    }

    /// A node with the option.
    fn node(spec: &Spec, value: &Value) -> Map<String, Value> {
        let mut node = match spec.group {
            Group::File => json!({ "driver": "file", "filename": "x" }),
            Group::Storage("blkdebug") => json!({ "driver": "blkdebug", "image": "x" }),
            Group::Storage(driver) => {
                let needed = table::all()
                    .filter(|other| other.group == spec.group && other.default == DefaultValue::None);
                let driver = [("driver".to_owned(), json!(driver))];
                Value::Object(
                    driver
                        .into_iter()
                        .chain(needed.map(|other| (other.name.to_owned(), json!("x"))))
                        .collect(),
                )
            }
            Group::Filter(driver) => {
                let known =
                    graph::drivers::filter_drivers().iter().find(|known| known.name == driver).unwrap();
                let needed = (known.specs)().into_iter().filter(|other| other.default == DefaultValue::None);
                let given = needed.map(|other| match other.kind {
                    Takes::Whole { .. } => (other.name.to_owned(), json!(1)),
                    Takes::List => (other.name.to_owned(), json!(["x"])),
                    _ => (other.name.to_owned(), json!("x")),
                });
                let driver = [("driver".to_owned(), json!(driver))];
                Value::Object(driver.into_iter().chain(given).collect())
            }
            Group::Format(format) => {
                json!({ "driver": format, "file": { "driver": "file", "filename": "x" } })
            }
            _ => json!({ "driver": "qcow2", "file": { "driver": "file", "filename": "x" } }),
        };
        match spec.name.split_once('.') {
            Some((object, member)) => node[object][member] = value.clone(),
            None => node[spec.name] = value.clone(),
        }
        // What some values need beside them.
        match (spec.name, value.as_str()) {
            ("encrypt.key-secret", _) => node["encrypt"]["format"] = json!("luks"),
            ("detect-zeroes", Some("unmap")) => node["discard"] = json!("unmap"),
            ("force-share", _) => node["read-only"] = json!(true),
            ("tls-hostname", _) => node["tls-creds"] = json!("t"),
            ("bitmap.node", _) => node["bitmap"]["name"] = json!("x"),
            ("bitmap.name", _) => node["bitmap"]["node"] = json!("x"),
            _ => {}
        }
        node.as_object().cloned().unwrap_or_default()
    }

    fn most(spec: &Spec) -> Option<u64> {
        match spec.kind {
            Takes::Size { multiple_of, max } => Some(max.min(NUMBER_MAX) / multiple_of * multiple_of),
            Takes::Whole { max, .. } => Some(max.min(NUMBER_MAX)),
            _ => None,
        }
    }

    fn taken(spec: &Spec) -> Vec<Value> {
        match (spec.qmp, spec.kind, most(spec)) {
            (Qmp::Values(names), ..) | (_, Takes::Choice(names), _) => {
                names.iter().map(|name| json!(name)).collect()
            }
            (_, Takes::Switch, _) => vec![json!(true), json!(false)],
            (_, _, Some(most)) => vec![json!(0), json!(most)],
            _ => vec![json!("a")],
        }
    }

    fn refused(spec: &Spec) -> Vec<Value> {
        match (spec.kind, most(spec)) {
            (Takes::Choice(_), _) => vec![json!("maybe"), json!(1)],
            (Takes::Switch, _) => vec![json!("on"), json!(1)],
            (Takes::Size { .. }, _) => vec![json!(-1), json!(NUMBER_MAX + 1), json!("1M")],
            (_, Some(most)) => vec![json!(-1), json!(most + 1)],
            _ => vec![json!(1), json!(null)],
        }
    }

    #[test]
    fn blockdev_add_knows_every_driver() {
        for driver in graph::drivers::names() {
            let node = json!({ "driver": driver, "no-option": 1 });
            let error = BLOCKDEV.check_members(node.as_object().unwrap(), "").unwrap_err();
            assert!(!error.desc.contains("'driver'"), "{driver}: {}", error.desc);
        }
        let node = json!({ "driver": "floppy" });
        let error = BLOCKDEV.check_members(node.as_object().unwrap(), "").unwrap_err();
        assert!(error.desc.contains("'driver'"), "{}", error.desc);
    }

    #[test]
    fn blockdev_add_takes_every_option_that_the_table_says_it_has() {
        catalog::install();
        let mut seen = 0;
        for spec in table::all().filter(|spec| spec.is_in_qmp()).filter(is_value) {
            for value in taken(spec) {
                let node = node(spec, &value);
                BLOCKDEV.check_members(&node, "").unwrap_or_else(|error| panic!("{node:?}: {}", error.desc));
                if !matches!(spec.group, Group::File | Group::Storage(_) | Group::Filter(_)) {
                    let tree = OptionTree::of_json(node.clone()).unwrap();
                    DiskOptions::of_tree(tree).unwrap_or_else(|error| panic!("{node:?}: {error}"));
                }
                seen += 1;
            }
            for value in refused(spec) {
                let error = BLOCKDEV.check_members(&node(spec, &value), "").expect_err(spec.name);
                assert!(error.desc.contains(&format!("'{}'", spec.name)), "{value}: {}", error.desc);
            }
        }
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn what_the_table_says_is_not_in_qmp_is_refused_there() {
        for spec in
            table::all().filter(|spec| matches!(spec.qmp, Qmp::None) && spec.group != Group::Throttling)
        {
            if spec.name != "cache" {
                let error = BLOCKDEV.check_members(&node(spec, &json!("a")), "").expect_err(spec.name);
                assert!(error.desc.contains(&format!("'{}' is unknown", spec.name)), "{}", error.desc);
            }
        }
        let cache = table::LAYER.iter().find(|entry| entry.spec().name == "cache").unwrap().spec();
        let error = BLOCKDEV.check_members(&node(cache, &json!("none")), "").unwrap_err();
        assert_eq!(error.desc, "argument 'cache' is a text; it must be an object");
    }

    #[test]
    fn the_command_that_changes_limits_takes_each_under_its_name() {
        for spec in table::LIMITS {
            let Qmp::Argument(name) = spec.qmp else { panic!("{}", spec.name) };
            let Some(command) = COMMANDS.iter().find(|command| Some(command.name) == spec.changed_by())
            else {
                panic!("{}: no such command", spec.name)
            };
            let mut arguments = Map::new();
            for needed in ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"] {
                let missing = command.check(&arguments).unwrap_err();
                assert!(missing.desc.ends_with("is missing"), "{}", missing.desc);
                arguments.insert(needed.to_owned(), json!(0));
            }
            let value = if matches!(spec.kind, Takes::Text { .. }) { json!("g") } else { json!(1) };
            arguments.insert(name.to_owned(), value);
            command.check(&arguments).unwrap_or_else(|error| panic!("{name}: {}", error.desc));
            arguments.insert(name.to_owned(), json!(-1));
            assert!(command.check(&arguments).unwrap_err().desc.contains(name));
        }
    }
}
