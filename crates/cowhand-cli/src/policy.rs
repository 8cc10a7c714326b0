//! Where names inside images may lead: by the command line, by the name under which the program runs, and by the machine's administrator.
//!
//! Files `/etc/cowhand/policy.d/*.toml`, which belong to root and which no other user can write, hold for
//! every name of the program. A caller cannot extend them: the file that COWHAND_POLICY names can only be
//! stricter.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use graph::names::{ADMINISTRATORS, Policy};
use serde::Deserialize;
use tool::failure::Failure;

/// Names a file that makes the rules stricter.
const VARIABLE: &str = "COWHAND_POLICY";
/// Bytes of one file at most.
const BYTES_MAX: u64 = 1 << 20;

/// The program runs under a name of QEMU's.
static AS_QEMU: AtomicBool = AtomicBool::new(false);

/// What a file says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Said {
    /// Directories in which names may lead to files.
    #[serde(default)]
    allow_path: Vec<PathBuf>,
    /// Storage elsewhere that names may lead to.
    #[serde(default)]
    allow_name: Vec<String>,
    /// Names lead no further under QEMU's names than under our own, and no content decides the format of a backing file.
    #[serde(default)]
    strict: bool,
}

/// From now on names of backing files are followed as QEMU follows them, unless the administrator does not want that.
pub fn run_as_qemu() {
    AS_QEMU.store(true, Ordering::Relaxed);
}

/// Whether the program runs under a name of QEMU's.
pub fn is_as_qemu() -> bool {
    AS_QEMU.load(Ordering::Relaxed)
}

/// The rules: what the administrator says, with `directories` (`--allow-path`) and `names` (`--allow-name`).
///
/// # Errors
/// When a file cannot be read, is not the administrator's, or says something else; when a directory is none, or a name means nothing.
pub fn policy(directories: &[PathBuf], names: &[String]) -> Result<Policy, Failure> {
    let said = of_administrator(Path::new(ADMINISTRATORS), 0)?;
    let strict = said.strict || restricted(std::env::var_os(VARIABLE))?;
    let directories = [&said.allow_path, directories].concat();
    let policy = Policy::new(&directories);
    let policy = policy.map_err(|error| Failure::because("cannot allow a directory", &error))?;
    let policy = policy.allowing(&[&said.allow_name, names].concat());
    let policy = policy.map_err(|error| Failure::because("cannot allow a name", &error))?;
    Ok(match (strict, is_as_qemu()) {
        (true, _) => policy.wanting_format(),
        (false, true) => policy.following_backing(),
        (false, false) => policy,
    })
}

/// The policy of all files in `directory`, which must belong to `owner`.
fn of_administrator(directory: &Path, owner: u32) -> Result<Said, Failure> {
    let mut all = Said::default();
    let failed = |error| Failure::because(format!("cannot read {}", directory.display()), &error);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(failed)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(all),
        Err(error) => return Err(failed(error)),
    };
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    for path in paths {
        let said = read(&path, Some(owner))?;
        all.allow_path.extend(said.allow_path);
        all.allow_name.extend(said.allow_name);
        all.strict |= said.strict;
    }
    Ok(all)
}

/// Whether the file that the environment names asks for the strict rules.
fn restricted(path: Option<OsString>) -> Result<bool, Failure> {
    let Some(path) = path.filter(|path| !path.is_empty()).map(PathBuf::from) else { return Ok(false) };
    let said = read(&path, None)?;
    if !said.allow_path.is_empty() || !said.allow_name.is_empty() {
        return Err(Failure::new(format!(
            "{} ({VARIABLE}) allows something; only files in {ADMINISTRATORS} may: it can say strict = true",
            path.display()
        )));
    }
    Ok(said.strict)
}

fn read(path: &Path, owner: Option<u32>) -> Result<Said, Failure> {
    let failed = |error| Failure::because(format!("cannot read {}", path.display()), &error);
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if let Some(owner) = owner
        && (found.uid() != owner || found.mode() & 0o022 != 0)
    {
        return Err(Failure::new(format!(
            "{} is of user {} and has mode {:o}; the rules of a machine belong to root, and no other user may write them",
            path.display(),
            found.uid(),
            found.mode() & 0o777
        )));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    // The error names line and column.
    toml::from_str(&text)
        .map_err(|error| Failure::because(format!("{} is no policy", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    #[test]
    fn what_the_administrator_says_is_added_up_and_nobody_else_is_heard() {
        let directory = tempfile::tempdir().unwrap();
        let me = std::fs::metadata(directory.path()).unwrap().uid();
        assert!(of_administrator(&directory.path().join("none"), me).is_ok_and(|said| !said.strict));
        file(directory.path(), "10-a.toml", "allow-path = ['/srv']\n");
        file(directory.path(), "20-b.toml", "strict = true\nallow-name = ['nbd://host']\n");
        file(directory.path(), "README", "not TOML");
        let said = of_administrator(directory.path(), me).unwrap();
        assert_eq!((said.allow_path, said.strict), (vec![PathBuf::from("/srv")], true));
        assert_eq!(said.allow_name, ["nbd://host"]);
        let other = of_administrator(directory.path(), me + 1).unwrap_err().to_string();
        assert!(other.contains("10-a.toml") && other.contains("belong to root"), "{other}");
        let wrong = file(directory.path(), "30-c.toml", "\nstrickt = true\n");
        let error = of_administrator(directory.path(), me).unwrap_err().to_string();
        assert!(error.contains("30-c.toml") && error.contains("line 2"), "{error}");
        std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(of_administrator(directory.path(), me).unwrap_err().to_string().contains("666"));
    }

    #[test]
    fn the_environment_can_only_be_stricter() {
        let directory = tempfile::tempdir().unwrap();
        let strict = file(directory.path(), "strict", "strict = true");
        let open = file(directory.path(), "open", "allow-path = ['/']");
        assert!(!restricted(None).unwrap() && restricted(Some(strict.into())).unwrap());
        assert!(restricted(Some(open.into())).unwrap_err().to_string().contains("allows something"));
        assert!(restricted(Some("/nowhere".into())).is_err());
    }
}
