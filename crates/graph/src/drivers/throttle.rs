//! `throttle`: the disk below is in a throttle group. It is no layer of its own: limits are charged at the disk's front.

/// What options call it.
pub(crate) const NAME: &str = "throttle";

/// The option that names the group.
pub(crate) const GROUP: &str = "throttle-group";
