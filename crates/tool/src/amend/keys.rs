//! `-o encrypt.*` of an encrypted image, and the same without the prefix of a LUKS file: changes of key
//! slots.

use std::time::Duration;

use graph::OnLoop;
use graph::Secrets;
use luks::{Area, ITER_TIME_DEFAULT, Removal, add_key, remove_key, replace_key};
use storage::Storage;

use super::options::{OptionDef, each};
use crate::create::options::BadOption;
use crate::numbers::whole;

/// What stands before the options of encryption of a qcow2 image.
pub const ENCRYPT: &str = "encrypt.";

/// Options of keys, in the order of their names.
pub const KNOWN: [OptionDef<KeyOptions>; 5] = [
    OptionDef {
        name: "iter-time",
        takes: "MILLISECONDS",
        help: "time that trying the new password takes (2000)",
        put: |wanted, value| {
            wanted.iter_time_ms = Some(whole(value).ok().filter(|ms| *ms > 0)?);
            Some(())
        },
    },
    OptionDef {
        name: "keyslot",
        takes: "0|1|2|3|4|5|6|7",
        help: "the key slot: to be filled (the first free one), or to be removed",
        put: |wanted, value| {
            wanted.slot = Some(whole(value).ok().filter(|slot| *slot < 8)?);
            Some(())
        },
    },
    OptionDef {
        name: "new-secret",
        takes: "ID",
        help: "the password that will open the image too (--object secret,id=ID,...)",
        put: |wanted, value| {
            wanted.new_secret = Some(value.to_owned());
            Some(())
        },
    },
    OptionDef {
        name: "old-secret",
        takes: "ID",
        help: "the password whose keys are removed",
        put: |wanted, value| {
            wanted.old_secret = Some(value.to_owned());
            Some(())
        },
    },
    OptionDef {
        name: "state",
        takes: "active|inactive",
        help: "add a key, or remove one (the last one only with --force)",
        put: |wanted, value| {
            wanted.active = Some(match value {
                "active" => true,
                "inactive" => false,
                _ => return None,
            });
            Some(())
        },
    },
];

/// The options of encryption, under qemu-img's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOptions {
    /// `state`: a key is added (`active`) or removed.
    pub active: Option<bool>,
    /// `new-secret`
    pub new_secret: Option<String>,
    /// `old-secret`
    pub old_secret: Option<String>,
    /// `keyslot`
    pub slot: Option<usize>,
    /// `iter-time`
    pub iter_time_ms: Option<u32>,
}

/// A change of key slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The password opens the image too: in this slot, or in the first free one.
    Add {
        /// The password's id.
        secret: String,
        /// Which slot.
        slot: Option<usize>,
        /// How long trying the password takes.
        iter_time: Duration,
    },
    /// The key in this slot is removed.
    RemoveSlot(usize),
    /// Every key that this password opens is removed.
    RemovePassword(String),
}

impl KeyOptions {
    /// Reads all `-o` arguments of a LUKS file, in order; a later value replaces an earlier one.
    ///
    /// # Errors
    /// For the first option that there is not, or whose value it does not take.
    pub fn parse(texts: &[String]) -> Result<Self, BadOption> {
        let mut wanted = Self::default();
        each(texts, |name, value| match KNOWN.iter().find(|known| known.name == name) {
            Some(known) => known.put(&mut wanted, name, value),
            None => Err(BadOption(format!(
                "-o {name}: of a LUKS file only keys change. Can be amended: {}",
                KNOWN.map(|known| known.name).join(", ")
            ))),
        })?;
        Ok(wanted)
    }

    /// The one change that this means; `None` if nothing is asked for. `prefix` stands before the names of the options.
    ///
    /// # Errors
    /// When parts are missing, or contradict each other.
    pub fn change(&self, prefix: &str) -> Result<Option<Change>, BadOption> {
        let contradiction = |what: String| Err(BadOption(what));
        let Self { active, new_secret, old_secret, slot, iter_time_ms } = self.clone();
        Ok(Some(match (active, new_secret, old_secret, slot) {
            (None, None, None, None) if iter_time_ms.is_none() => return Ok(None),
            (None, ..) => {
                return contradiction(format!(
                    "-o {prefix}*: {prefix}state=active adds a key, {prefix}state=inactive removes one"
                ));
            }
            (Some(true), Some(secret), None, slot) => {
                let iter_time = iter_time_ms.map(|ms| Duration::from_millis(ms.into()));
                Change::Add { secret, slot, iter_time: iter_time.unwrap_or(ITER_TIME_DEFAULT) }
            }
            (Some(true), ..) => {
                return contradiction(format!(
                    "-o {prefix}state=active: it takes {prefix}new-secret=ID, and no {prefix}old-secret"
                ));
            }
            (Some(false), None, Some(secret), None) if iter_time_ms.is_none() => {
                Change::RemovePassword(secret)
            }
            (Some(false), None, None, Some(slot)) if iter_time_ms.is_none() => Change::RemoveSlot(slot),
            (Some(false), ..) => {
                return contradiction(format!(
                    "-o {prefix}state=inactive: it takes {prefix}keyslot=NUMBER or {prefix}old-secret=ID, one of them"
                ));
            }
        }))
    }
}

impl Change {
    /// Makes the change in the key slots at `area` of `file`, which has no other user. `opened_with` is the
    /// id of the password that opens the disk, if it has one.
    ///
    /// # Errors
    /// When a password is not there or opens nothing, a slot is not as it must be, or no key would be left and that is not `forced`.
    pub async fn make(
        &self,
        file: &dyn Storage,
        area: Area,
        opened_with: Option<&str>,
        forced: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let secrets = Secrets::default();
        match self {
            Self::Add { secret, slot, iter_time } => {
                let (old, new) = (secrets.password(file.name(), opened_with)?, secrets.get(secret)?);
                let old = old.ok_or("the password that opens the image is not known")?;
                match slot.filter(|_| forced) {
                    Some(slot) => replace_key(file, area, &old, &new, slot, *iter_time, &OnLoop).await?,
                    None => {
                        add_key(file, area, &old, &new, *slot, *iter_time, &OnLoop).await?;
                    }
                }
            }
            Self::RemoveSlot(slot) => {
                remove_key(file, area, Removal::Slot(*slot), forced, &OnLoop).await?;
            }
            Self::RemovePassword(secret) => {
                let password = secrets.get(secret)?;
                remove_key(file, area, Removal::Password(&password), forced, &OnLoop).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_mean_no_one_change_are_refused() {
        let (id, slot) = (Some("s".to_owned()), Some(3));
        let changes = |wanted: &KeyOptions| wanted.change(ENCRYPT).map(|change| change.is_some());
        let add = KeyOptions { active: Some(true), new_secret: id.clone(), slot, ..KeyOptions::default() };
        let remove = KeyOptions { active: Some(false), slot, ..KeyOptions::default() };
        assert_eq!(
            (changes(&KeyOptions::default()), changes(&add), changes(&remove)),
            (Ok(false), Ok(true), Ok(true))
        );
        let wrong = [
            KeyOptions { slot, ..KeyOptions::default() },
            KeyOptions { active: Some(true), slot, ..KeyOptions::default() },
            KeyOptions { old_secret: id.clone(), ..add },
            KeyOptions { old_secret: id.clone(), ..remove.clone() },
            KeyOptions { new_secret: id, ..remove.clone() },
            KeyOptions { iter_time_ms: Some(10), ..remove },
            KeyOptions { active: Some(false), ..KeyOptions::default() },
        ];
        for wanted in wrong {
            assert!(wanted.change(ENCRYPT).is_err(), "{wanted:?}");
        }
    }
}
