//! What drivers share whose servers may be lost.

/// What a request does whose server is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OnRemoteError {
    /// It fails, when its time is over.
    #[default]
    Report,
    /// It waits.
    Wait,
}

/// The choices of `on-remote-error`.
pub(super) const ON_REMOTE_ERROR: [(&str, OnRemoteError); 2] =
    [("report", OnRemoteError::Report), ("wait", OnRemoteError::Wait)];
