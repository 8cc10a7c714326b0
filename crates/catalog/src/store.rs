//! What drivers of object stores, web servers and clusters share: how long they wait, and the secrets that they show.

use std::io;
use std::time::Duration;

use luks::Secret;

use super::remote::OnRemoteError;
use graph::Secrets;

/// How long a request may take, all attempts together: `remote-timeout`, or what follows from `on-remote-error`. `None`: for ever.
pub(super) fn remote_timeout(on_remote_error: OnRemoteError, given: Option<u32>) -> Option<Duration> {
    match (on_remote_error, given) {
        (OnRemoteError::Wait, None) => None,
        (OnRemoteError::Report | OnRemoteError::Wait, given) => seconds(given.unwrap_or(REMOTE_TIMEOUT_S)),
    }
}

/// A store that is restarted is back within this.
pub(super) const REMOTE_TIMEOUT_S: u32 = 60;

/// A time of which 0 means any.
pub(super) fn seconds(given: u32) -> Option<Duration> {
    (given > 0).then(|| Duration::from_secs(given.into()))
}

/// An option that makes no sense.
pub(super) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// The secret of this name.
pub(super) fn secret(id: &str) -> io::Result<Secret> {
    Secrets::default().get(id).map_err(|error| wrong(error.to_string()))
}
