//! Objects that say which threads do the work, which here the program's own loops do: their numbers are kept and shown.

use std::cell::Cell;

use control::{NUMBER_MAX, QmpError};
use serde_json::{Map, Value};

/// A number of such an object, with QEMU's default.
#[derive(Debug)]
struct Property {
    name: &'static str,
    default: u64,
    max: u64,
}

const fn property(name: &'static str, default: u64) -> Property {
    Property { name, default, max: NUMBER_MAX }
}

const POOL_MIN: &str = "thread-pool-min";
const POOL_MAX: &str = "thread-pool-max";

static POOL: [Property; 3] = [property("aio-max-batch", 0), property(POOL_MIN, 0), property(POOL_MAX, 64)];

static POLLING: [Property; 4] = [
    property("poll-max-ns", 32768),
    property("poll-grow", 2),
    property("poll-shrink", 2),
    Property { max: 63, ..property("poll-weight", 3) },
];

/// An object of one of these types.
#[derive(Debug)]
pub struct Threads {
    /// Its type.
    pub type_name: &'static str,
    numbers: Vec<(&'static Property, Cell<u64>)>,
}

impl Threads {
    /// An object of the type `type_name` with QEMU's defaults; `None` for types of other objects.
    pub fn of(type_name: &str) -> Option<Self> {
        let (type_name, polls, has_pool) = match type_name {
            "iothread" => ("iothread", true, true),
            "main-loop" => ("main-loop", false, true),
            "thread-context" => ("thread-context", false, false),
            _ => return None,
        };
        let properties = POLLING.iter().filter(|_| polls).chain(POOL.iter().filter(|_| has_pool));
        let numbers = properties.map(|property| (property, Cell::new(property.default))).collect();
        Some(Self { type_name, numbers })
    }

    /// Likewise, with other numbers.
    ///
    /// # Errors
    /// When one is out of its range.
    pub fn with(type_name: &str, numbers: &Map<String, Value>) -> Result<Self, QmpError> {
        let threads = Self::of(type_name).ok_or_else(|| QmpError::generic("no such threads"))?;
        for name in threads.names() {
            numbers.get(name).and_then(|value| threads.set(name, value)).transpose()?;
        }
        Ok(threads)
    }

    /// The names of its numbers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.numbers.iter().map(|(property, _)| property.name)
    }

    /// A number; `None` if it has none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.find(name).map(|(_, number)| number.get())
    }

    /// Sets a number; `None` if it has none of that name.
    pub fn set(&self, name: &str, value: &Value) -> Option<Result<(), QmpError>> {
        let (property, number) = self.find(name)?;
        let refused = |what: String| Some(Err(QmpError::generic(what)));
        let Some(value) = value.as_u64().filter(|value| *value <= property.max) else {
            return refused(format!("{name} is {value}; must be 0 to {}", property.max));
        };
        let old = number.replace(value);
        let (min, max) = (self.get(POOL_MIN), self.get(POOL_MAX));
        if min > max {
            number.set(old);
            return refused(format!("{name} is {value}: {POOL_MIN} must be {POOL_MAX} at most"));
        }
        Some(Ok(()))
    }

    fn find(&self, name: &str) -> Option<&(&'static Property, Cell<u64>)> {
        self.numbers.iter().find(|(property, _)| property.name == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_stays_inside_its_range_and_the_pool_above_its_minimum() {
        let object = Threads::of("iothread").unwrap();
        assert_eq!([object.get("poll-max-ns"), object.get("thread-pool-max")], [Some(32768), Some(64)]);
        assert!(
            object.set("poll-max-ns", &json!(5)).unwrap().is_ok() && object.get("poll-max-ns") == Some(5)
        );
        for (name, value) in [
            ("poll-weight", json!(64)),
            ("poll-grow", json!(-1)),
            ("poll-grow", json!("x")),
            (POOL_MIN, json!(65)),
        ] {
            let before = object.get(name);
            assert!(object.set(name, &value).unwrap().is_err() && object.get(name) == before, "{name}");
        }
        assert!(object.set("foo", &json!(1)).is_none() && Threads::of("secret").is_none());
        assert_eq!(Threads::of("main-loop").unwrap().names().count(), 3);
    }
}
