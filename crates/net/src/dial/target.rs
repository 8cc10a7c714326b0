//! What a connection leads to.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::dial::abstract_name::AbstractName;
use crate::dial::address::{Address, AddressError};

/// Shown and read before the path of a unix socket.
const UNIX: &str = "unix:";

/// A server: at a port of a host, or at a unix socket of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// `HOST:PORT`.
    Tcp(Address),
    /// `unix:PATH`; the path is absolute, since a broker has another working directory.
    Unix(PathBuf),
    /// `abstract:NAME` or `abstract-padded:NAME`: a unix socket without a path.
    Abstract(AbstractName),
}

/// No target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "HOST:PORT, with a port from 1 to 65535 (IPv6 as [ADDRESS]:PORT), unix:PATH, or abstract:NAME (abstract-padded:NAME)"
)]
pub struct TargetError;

impl Target {
    /// The socket at `path`, from the working directory.
    pub fn unix(path: &Path) -> Self {
        // Only an empty path has no absolute one, and no socket.
        Self::Unix(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }

    /// The address, unless it is a unix socket.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Abstract(name) => name.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(TargetError),
            Some(path) => Ok(Self::unix(Path::new(path))),
            // A host may be called so; then its port is no name's beginning.
            None => match (text.parse(), text.parse()) {
                (Ok(name), _) => Ok(Self::Abstract(name)),
                (Err(_), Ok(address)) => Ok(Self::Tcp(address)),
                (Err(_), Err(AddressError)) => Err(TargetError),
            },
        }
    }
}

/// Where connections may lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Just these.
    pub targets: std::collections::BTreeSet<Target>,
    /// Unix sockets in these directories and below.
    pub directories: Vec<PathBuf>,
}

impl Allowed {
    /// Whether a connection may be made to `target`: what is to be connected to then, all symbolic links followed.
    pub fn resolve(&self, target: &Target) -> Option<Target> {
        if self.targets.contains(target) {
            return Some(target.clone());
        }
        let Target::Unix(path) = target else { return None };
        let socket = path.canonicalize().ok()?;
        let is_below = |directory: &PathBuf| directory.canonicalize().is_ok_and(|it| socket.starts_with(it));
        self.directories.iter().any(is_below).then(|| Target::Unix(socket.clone()))
    }

    /// Whether nothing may be connected to.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.directories.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_shown() {
        for text in ["h:1", "[::1]:80", "unix:/run/s", "unix:/run/a:b", "abstract:a", "abstract-padded:b"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "h", "unix:", "unix", ":1"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError), "{text}");
        }
    }

    /// A directory given with --allow-path opened every socket of the machine: through a link in it.
    #[test]
    fn a_socket_is_allowed_by_its_directory_only_if_it_lies_there() {
        let scratch = std::env::temp_dir().join(format!("cowhand-dial-{}", std::process::id()));
        let (inside, outside) = (scratch.join("in"), scratch.join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        for file in [inside.join("s"), outside.join("s")] {
            std::fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(outside.join("s"), inside.join("link")).unwrap();
        let allowed = Allowed { directories: vec![inside.clone()], ..Allowed::default() };
        let allows = |path: PathBuf| allowed.resolve(&Target::Unix(path)).is_some();
        assert!(allows(inside.join("s")));
        for path in [inside.join("link"), inside.join("../out/s"), outside.join("s"), inside.join("none")] {
            assert!(!allows(path.clone()), "{}", path.display());
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
