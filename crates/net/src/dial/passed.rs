//! Connections that others made and handed over (QMP's getfd): each by its name, for one disk.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;

static PASSED: Mutex<BTreeMap<String, OwnedFd>> = Mutex::new(BTreeMap::new());

/// Connections that wait at most.
pub const PASSED_MAX: usize = 1000;

/// Keeps a connection until [`take_passed`] or [`forget_passed`]. Another one of that name is closed.
///
/// # Errors
/// When [`PASSED_MAX`] wait.
pub fn pass(name: &str, connection: OwnedFd) -> io::Result<()> {
    let mut passed = PASSED.lock();
    if passed.len() >= PASSED_MAX && !passed.contains_key(name) {
        let what = format!("{PASSED_MAX} descriptors wait to be used, which is the most; closefd closes one");
        return Err(io::Error::other(what));
    }
    passed.insert(name.to_owned(), connection);
    Ok(())
}

/// Closes the connection called `name`; whether there was one.
pub fn forget_passed(name: &str) -> bool {
    PASSED.lock().remove(name).is_some()
}

/// The connection called `name`, which is gone from the list afterwards: it serves one disk.
///
/// # Errors
/// When there is none of that name, or it has been taken.
pub fn take_passed(name: &str) -> io::Result<OwnedFd> {
    PASSED.lock().remove(name).ok_or_else(|| {
        let what = format!(
            "no descriptor {name:?} waits to be used: getfd hands one over, for one connection, which is not made again when it is lost"
        );
        io::Error::new(io::ErrorKind::NotConnected, what)
    })
}
