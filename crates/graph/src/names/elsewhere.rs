//! Names in images that lead away from this machine's files: followed only where the user has allowed it.

use std::sync::Arc;

use thiserror::Error;

use super::{Reason, Role};
use crate::drivers::{NamedTarget, StorageDriver, Target, target_of};

/// Storage that names in images may lead to.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    driver: &'static StorageDriver,
    target: Arc<dyn Target>,
}

/// A name that cannot be allowed.
#[derive(Debug, Error)]
#[error("{name:?}: {problem}")]
pub struct NotAllowable {
    /// As the user gave it.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Allowed {
    /// What `name` means.
    pub(super) fn of(name: &str) -> Result<Self, NotAllowable> {
        let wrong = |problem: String| NotAllowable { name: name.to_owned(), problem };
        match target_of(name) {
            Some(Ok((driver, target))) => Ok(Self { driver, target }),
            Some(Err(allowed)) => Err(wrong(format!("allowed: {allowed}"))),
            None => {
                let what = "it means no storage elsewhere (nbd://HOST does); files are allowed by their directory, with --allow-path";
                Err(wrong(what.to_owned()))
            }
        }
    }

    fn covers(&self, driver: &'static StorageDriver, target: &dyn Target) -> bool {
        self.driver == driver && self.target.covers(target)
    }
}

/// The storage that `name` in an image leads to, if it is one of `allowed`, or nothing outside this process and names of backing files are followed;
/// `None` if its protocol is no driver's.
pub(super) fn follow(
    allowed: &[Allowed],
    name: &[u8],
    (role, follows): (Role, bool),
) -> Option<Result<NamedTarget, Reason>> {
    let name = std::str::from_utf8(name).ok()?;
    let (driver, target) = match target_of(name)? {
        Ok(found) => found,
        Err(allowed) => return Some(Err(Reason::Malformed { allowed })),
    };
    let is_allowed = allowed.iter().any(|allowed| allowed.covers(driver, &*target));
    Some(match is_allowed || (follows && driver.is_within_process()) {
        true => Ok((driver, target)),
        false => {
            Err(Reason::NotAllowed { driver: driver.name, name: target.name().into(), hint: role.hint() })
        }
    })
}
