//! Throttle groups, which drives of `driver=throttle` name.

use std::sync::Arc;

use graph::OpenRules;
use graph::front::ThrottleGroup;
use graph::size::parse_size;
use parking_lot::Mutex;
use throttle::{Dialect, Options, Setting};
use tool::failure::Failure;

/// Groups of the command line. Holding them here keeps them alive.
static GROUPS: Mutex<Vec<Arc<ThrottleGroup>>> = Mutex::new(Vec::new());

/// Makes the group that `parts` describe: `id=ID` and limits under QEMU's names (`limits.iops-total=100`, `x-iops-total=100`).
///
/// # Errors
/// When it has no id, there is such a group, or a limit is unknown or breaks a rule.
pub fn add(parts: impl Iterator<Item = Vec<u8>>) -> Result<(), Failure> {
    let refused = |what: String| Failure::new(format!("--object throttle-group: {what}"));
    let (mut id, mut options) = (None, Options::new());
    for part in parts {
        let part = String::from_utf8(part).map_err(|_| refused("a part is not UTF-8".to_owned()))?;
        let (name, value) = part.split_once('=').unwrap_or((&part, ""));
        if name == "id" {
            id = Some(value.to_owned());
            continue;
        }
        let limit = name.strip_prefix("limits.").or_else(|| name.strip_prefix("x-"));
        let Some(Setting::Limit(parameter)) = limit.and_then(|name| Setting::named(name, Dialect::Limits))
        else {
            let allowed = "id, and limits as limits.iops-total, limits.bps-write-max";
            return Err(refused(format!("unknown option {name:?}; allowed: {allowed}")));
        };
        let value = parse_size(value).map_err(|error| refused(format!("{name} is {value:?} ({error})")))?;
        options.set(parameter, value);
    }
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| refused("it has no id=ID".to_owned()))?;
    let groups = OpenRules::default().groups;
    if groups.find(&id).is_some() {
        return Err(refused(format!("there is a group {id:?} already")));
    }
    let limits = options.check().map_err(|error| refused(error.describe(Dialect::Limits)))?;
    let group = groups.find_or_create(&id);
    group.set_limits(limits);
    GROUPS.lock().push(group);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<(), String> {
        let parts = text.split(',').map(|part| part.as_bytes().to_vec());
        add(parts).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_group_has_an_id_of_its_own_and_limits_that_exist() {
        made("id=objects-test,limits.iops-total=100,x-bps-write=1M").unwrap();
        let group = OpenRules::default().groups.find("objects-test").unwrap();
        assert!(!group.limits().is_unlimited());
        for (text, expected) in [
            ("id=objects-test", "already"),
            ("limits.iops-total=1", "no id=ID"),
            ("id=o,limits.iops=1", "unknown option \"limits.iops\""),
            ("id=o,limits.iops-total=x", "limits.iops-total is \"x\""),
            ("id=o,limits.iops-total=1,limits.iops-read=1", "iops"),
        ] {
            let error = made(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
