//! `-o encrypt.*`: who may open an encrypted image.

use std::time::Duration;

use graph::Secrets;
use graph::drivers::OnLoop;
use qcow2::Qcow2;
use storage_luks::{Area, ITER_TIME_DEFAULT, Removal, add_key, remove_key};

use crate::create::options::BadOption;

/// What is asked for, as qemu-img has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `encrypt.state`: a key is added (`active`) or removed.
    pub active: Option<bool>,
    /// `encrypt.new-secret`
    pub new_secret: Option<String>,
    /// `encrypt.old-secret`
    pub old_secret: Option<String>,
    /// `encrypt.keyslot`
    pub slot: Option<usize>,
    /// `encrypt.iter-time`
    pub iter_time_ms: Option<u32>,
}

/// A change of key slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The password opens the image too: in this slot, or in the first free one.
    Add { secret: String, slot: Option<usize>, iter_time: Duration },
    /// The key in this slot is removed.
    RemoveSlot(usize),
    /// Every key that this password opens is removed.
    RemovePassword(String),
}

impl Wanted {
    /// The one change that this means; `None` if nothing is asked for.
    ///
    /// # Errors
    /// When parts are missing, or contradict each other.
    pub fn change(&self) -> Result<Option<Change>, BadOption> {
        let contradiction = |what: &str| Err(BadOption(what.to_owned()));
        let Self { active, new_secret, old_secret, slot, iter_time_ms } = self.clone();
        Ok(Some(match (active, new_secret, old_secret, slot) {
            (None, None, None, None) if iter_time_ms.is_none() => return Ok(None),
            (None, ..) => {
                return contradiction(
                    "-o encrypt.*: encrypt.state=active adds a key, encrypt.state=inactive removes one",
                );
            }
            (Some(true), Some(secret), None, slot) => {
                let iter_time = iter_time_ms.map(|ms| Duration::from_millis(ms.into()));
                Change::Add { secret, slot, iter_time: iter_time.unwrap_or(ITER_TIME_DEFAULT) }
            }
            (Some(true), ..) => {
                return contradiction(
                    "-o encrypt.state=active: it takes encrypt.new-secret=ID, and no encrypt.old-secret",
                );
            }
            (Some(false), None, Some(secret), None) if iter_time_ms.is_none() => {
                Change::RemovePassword(secret)
            }
            (Some(false), None, None, Some(slot)) if iter_time_ms.is_none() => Change::RemoveSlot(slot),
            (Some(false), ..) => {
                return contradiction(
                    "-o encrypt.state=inactive: it takes encrypt.keyslot=NUMBER or encrypt.old-secret=ID, one of them",
                );
            }
        }))
    }
}

impl Change {
    /// Makes the change in the key slots at `area` of `image`, which is closed and still locked. `opened_with` is the password's id with
    /// which it was opened, if it had one.
    ///
    /// # Errors
    /// When a password is not there or opens nothing, a slot is not as it must be, or no key would be left and that is not `forced`.
    pub async fn make(
        &self,
        image: &Qcow2,
        area: Area,
        opened_with: Option<&str>,
        forced: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let (file, secrets) = (&**image.file(), Secrets::default());
        match self {
            Self::Add { secret, slot, iter_time } => {
                let (old, new) = (secrets.password(file.name(), opened_with)?, secrets.get(secret)?);
                let old = old.ok_or("the password that opens the image is not known")?;
                add_key(file, area, &old, &new, *slot, *iter_time, &OnLoop).await?;
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
        let changes = |wanted: &Wanted| wanted.change().map(|change| change.is_some());
        let add = Wanted { active: Some(true), new_secret: id.clone(), slot, ..Wanted::default() };
        let remove = Wanted { active: Some(false), slot, ..Wanted::default() };
        assert_eq!(
            (changes(&Wanted::default()), changes(&add), changes(&remove)),
            (Ok(false), Ok(true), Ok(true))
        );
        let wrong = [
            Wanted { slot, ..Wanted::default() },
            Wanted { active: Some(true), slot, ..Wanted::default() },
            Wanted { old_secret: id.clone(), ..add },
            Wanted { old_secret: id.clone(), ..remove.clone() },
            Wanted { new_secret: id, ..remove.clone() },
            Wanted { iter_time_ms: Some(10), ..remove },
            Wanted { active: Some(false), ..Wanted::default() },
        ];
        for wanted in wrong {
            assert!(wanted.change().is_err(), "{wanted:?}");
        }
    }
}
