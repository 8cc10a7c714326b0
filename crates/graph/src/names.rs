//! Names inside an image are hostile: what a backing or data file's name may open.
//!
//! The author of an image chose its names; the user who opens it did not. So a name found in an image is
//! followed only to a regular file that lies, all links resolved, in the directory of that image or
//! under a directory that the user allowed; to storage that is no file of this machine (an NBD server) only where the user
//! allowed just that. Names that the user wrote are not checked here.
//!
//! # No gap between check and use
//! The name is opened once with `O_PATH`, which touches nothing (no FIFO blocks, no device wakes, no
//! permission beyond search is used). Type, place and identity are then asked of that descriptor, and
//! the file is opened through it (`/proc/self/fd/N`), so what was checked is what is opened, whatever
//! links are moved in between. `openat2(RESOLVE_BENEATH)` would not do: it refuses absolute names and
//! links that leave a directory and come back, both of which ordinary chains use.

mod place;
mod refused;
mod role;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use thiserror::Error;

pub use self::place::{Identity, Place};
pub use self::refused::{ADMINISTRATORS, Reason, Refused};
pub use self::role::Role;
pub use crate::drive::directory_of;
use crate::drive::{DriveError, OptionTree, PATH_PROTOCOLS, names_device, parse_drive, split_protocol};
use crate::drivers::{NamedTarget, StorageDriver, Target, target_of};
use crate::fd_sets::FdSets;

/// File systems whose "regular files" are questions to the kernel: proc, sysfs, debugfs, tracefs,
/// cgroup2, securityfs.
const KERNEL_FILE_SYSTEMS: [i64; 6] =
    [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x6367_7270, 0x7363_6673];

/// Where names inside images may lead, beside each image's own directory.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    allowed: Vec<PathBuf>,
    elsewhere: Vec<Allowed>,
    /// Options that backing files may be, each as a whole.
    options: Vec<OptionTree>,
    /// Backing files are followed to any regular file and block device of this machine.
    follows_backing: bool,
    /// A backing file whose format neither the header nor the user says is not opened.
    wants_format: bool,
}

/// What a name leads to that the policy lets through.
#[derive(Debug)]
pub enum Followed {
    /// A file of this machine.
    File(Located),
    /// Storage that this driver finds.
    Elsewhere(&'static StorageDriver, Arc<dyn Target>),
}

/// A file that a name leads to and the policy lets through.
#[derive(Clone, Debug)]
pub struct Located {
    descriptor: Arc<OwnedFd>,
    place: Place,
    identity: Identity,
    /// Another process opened the file, and the descriptor came from these sets.
    from: Option<FdSets>,
}

impl Policy {
    /// Allows each image's own directory, and everything under `directories`.
    ///
    /// # Errors
    /// When one of them does not exist or is no directory.
    pub fn new(directories: &[PathBuf]) -> io::Result<Self> {
        let resolve = |directory: &PathBuf| {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("--allow-path {}: {error}", directory.display()))
            };
            let resolved = directory.canonicalize().map_err(named)?;
            match resolved.is_dir() {
                true => Ok(resolved),
                false => Err(named(io::Error::from(io::ErrorKind::NotADirectory))),
            }
        };
        let allowed = directories.iter().map(resolve).collect::<io::Result<_>>()?;
        Ok(Self { allowed, ..Self::default() })
    }

    /// Allows names in images to lead to these, too: `nbd://HOST` is any export of that server, `nbd://HOST/EXPORT` that one, `json:{...}` these
    /// options of a backing file and no others.
    ///
    /// # Errors
    /// When one of them means no storage elsewhere, and is no options.
    pub fn allowing(mut self, names: &[String]) -> Result<Self, NotAllowable> {
        let (options, names): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with("json:"));
        let options_of = |name: &String| {
            let wrong = |error: DriveError| NotAllowable { name: name.clone(), problem: error.to_string() };
            parse_drive(OsStr::new(name), |_| false).map_err(wrong)
        };
        self.options = options.into_iter().map(options_of).collect::<Result<_, _>>()?;
        self.elsewhere = names.into_iter().map(|name| Allowed::of(name)).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// The options that `name` in an image is, if it is options and they are allowed, in whatever order and form.
    pub(crate) fn allowed_options(&self, name: &str) -> Option<OptionTree> {
        let named = Some(name).filter(|name| !self.options.is_empty() && name.starts_with("json:"))?;
        let named = parse_drive(OsStr::new(named), |_| false).ok()?;
        self.options.contains(&named).then_some(named)
    }

    /// Follows names of backing files wherever they lead on this machine, as QEMU does: to regular files and block devices that the user may open,
    /// never to what the kernel or another process answers for (/proc, /sys, FIFOs, sockets). Data files stay in the image's own directory.
    #[must_use]
    pub fn following_backing(self) -> Self {
        Self { follows_backing: true, ..self }
    }

    /// Opens no backing file whose format its content would decide: neither the overlay's header nor the user says it.
    #[must_use]
    pub fn wanting_format(self) -> Self {
        Self { wants_format: true, ..self }
    }

    /// Whether a backing file needs a format that was said.
    pub(crate) fn wants_format(&self) -> bool {
        self.wants_format
    }

    /// Whether names of backing files are followed wherever they lead on this machine.
    pub(crate) fn follows_backing(&self) -> bool {
        self.follows_backing
    }

    /// Follows the name that stands in `image`.
    ///
    /// A relative name starts at the directory in that path, as in QEMU. The image's own directory
    /// is that one, and the one that the image really lies in if the path is a link.
    ///
    /// # Errors
    /// When the name leads nowhere, to something other than a regular file, outside, or to storage elsewhere that is not allowed.
    pub fn resolve(&self, image: &Place, name: &[u8], role: Role) -> Result<Followed, Refused> {
        self.follow(image, name, role).map_err(|reason| Refused {
            image: image.given.clone(),
            role: role.words(),
            name: OsStr::from_bytes(name).to_owned(),
            reason,
        })
    }

    fn follow(&self, image: &Place, name: &[u8], role: Role) -> Result<Followed, Reason> {
        let follows = self.follows_backing && role == Role::Backing;
        if let Some(found) = follow(&self.elsewhere, name, (role, follows)) {
            return found.map(|(driver, target)| Followed::Elsewhere(driver, target));
        }
        self.follow_path(image, name, role).map(Followed::File)
    }

    fn follow_path(&self, image: &Place, name: &[u8], role: Role) -> Result<Located, Reason> {
        let path = target(&image.given, name, role)?;
        // Such an image's own name is absolute: what starts with it was relative.
        if image.is_descriptor && path.starts_with(image.given.parent().unwrap_or(Path::new("/"))) {
            return Err(Reason::NoDirectory { hint: role.hint() });
        }
        let located = open_path(&path).map_err(|reason| match reason {
            Reason::Io(source) => Reason::NotFound { path: absolute(path), source },
            other => other,
        })?;
        let Located { descriptor, place: Place { real: path, .. }, .. } = &located;
        let found = FileType::from_raw_mode(rustix::fs::fstat(descriptor).map_err(io::Error::from)?.st_mode);
        let follows = self.follows_backing && role == Role::Backing;
        if found == FileType::RegularFile && names_device(OsStr::from_bytes(name)) {
            return Err(Reason::NoDevice { path: path.clone() });
        }
        if found != FileType::RegularFile && !(follows && found == FileType::BlockDevice) {
            let (path, found) = (path.clone(), kind_words(found));
            return Err(Reason::NotRegular { path, found, hint: role.hint() });
        }
        if is_kernel_file(descriptor)? {
            return Err(Reason::KernelFile { path: path.clone() });
        }
        if follows {
            return Ok(located);
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        let own = image.own_directories()?;
        let is_own = own
            .iter()
            .any(|own| own == directory || role == Role::Backing && are_one_lineage(own, directory));
        if is_own || self.allowed.iter().any(|top| path.starts_with(top)) {
            return Ok(located);
        }
        Err(Reason::Outside { path: path.clone(), directory: directory.to_owned() })
    }
}

impl Located {
    /// Opens a path that the user named, for a uniform way onwards; the policy does not apply.
    ///
    /// # Errors
    /// When nothing is there, or the kernel's view of it (/proc) is not available.
    pub fn by_user(path: &Path) -> io::Result<Self> {
        match open_path(path) {
            Ok(located) => Ok(located),
            Err(Reason::Io(error)) => Err(error),
            Err(other) => Err(io::Error::new(io::ErrorKind::NotFound, other)),
        }
    }

    /// A file that another process opened: a descriptor from a set, named by `path`.
    ///
    /// # Errors
    /// When the system does not say which file it is.
    pub(crate) fn descriptor(path: &Path, descriptor: OwnedFd, from: &FdSets) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&descriptor)?;
        let identity = Identity::of(&stat);
        let place = Place { given: path.to_owned(), real: path.to_owned(), is_descriptor: true };
        Ok(Self { descriptor: Arc::new(descriptor), place, identity, from: Some(from.clone()) })
    }

    /// The same file, held by `descriptor`, by which it was opened: one descriptor less.
    pub(crate) fn held_by(self, descriptor: &Arc<OwnedFd>) -> Self {
        Self { descriptor: Arc::clone(descriptor), ..self }
    }

    /// The open file itself, if it came from a set of descriptors, and the sets.
    pub(crate) fn opened(&self) -> Option<(io::Result<OwnedFd>, &FdSets)> {
        self.from.as_ref().map(|sets| (self.descriptor.try_clone(), sets))
    }

    /// Where it was found.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The file's path with all links resolved.
    pub fn path(&self) -> &Path {
        &self.place.real
    }

    /// A path that opens exactly this file while `self` lives, wherever its name now leads.
    pub fn open_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()))
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity.clone()
    }

    /// Whether the path by which the file was found still leads to it. Ask it under the file's lock: until then the process that
    /// held it may have put another file there, and what is written to this one would be in a file without a name.
    ///
    /// # Errors
    /// When the path leads nowhere or to another file. A file that was handed over as a descriptor has no path.
    pub fn check_still_named(&self) -> io::Result<()> {
        if self.place.is_descriptor {
            return Ok(());
        }
        let gone = |what: &str| {
            let message = format!("{what} while its lock was awaited; open it again");
            io::Error::new(io::ErrorKind::NotFound, message)
        };
        match rustix::fs::stat(&self.place.given) {
            Ok(stat) if Identity::of(&stat) == self.identity => Ok(()),
            Ok(_) => Err(gone("another file took its place")),
            Err(rustix::io::Errno::NOENT) => Err(gone("it was deleted")),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The path that a name means, before links are followed.
fn target(image: &Path, name: &[u8], role: Role) -> Result<PathBuf, Reason> {
    if name.is_empty() {
        return Err(Reason::Empty);
    }
    if name.contains(&0) {
        return Err(Reason::ZeroByte);
    }
    if without_protocol(name).is_none() {
        refuse_protocol(name, role)?;
    }
    Ok(beside(image, OsStr::from_bytes(name)))
}

/// The path that `name` means as the name of a local file in the header of the image at `image`.
pub fn beside(image: &Path, name: impl AsRef<OsStr>) -> PathBuf {
    let name = name.as_ref().as_bytes();
    let plain = without_protocol(name).unwrap_or(name);
    image.parent().unwrap_or(Path::new("")).join(OsStr::from_bytes(plain))
}

/// QEMU writes `file:` for "a local file, even if its name has a colon"; devices have protocols of their own.
fn without_protocol(name: &[u8]) -> Option<&[u8]> {
    let (_, plain) = split_protocol(name)
        .filter(|(protocol, _)| PATH_PROTOCOLS.iter().any(|known| known.as_bytes() == *protocol))?;
    Some(plain).filter(|plain| !plain.is_empty() && !plain.starts_with(b"//"))
}

/// Where the path starts from: what the user needs to see where it was looked for.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// A name that does not lead to a file of this machine.
fn refuse_protocol(name: &[u8], role: Role) -> Result<(), Reason> {
    match split_protocol(name) {
        None => Ok(()),
        Some((b"json", _)) => Err(Reason::Json { hint: role.hint() }),
        Some((protocol, _)) => {
            Err(Reason::Protocol { protocol: String::from_utf8_lossy(protocol).into_owned() })
        }
    }
}

fn open_path(path: &Path) -> Result<Located, Reason> {
    let descriptor =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from)?;
    let stat = rustix::fs::fstat(&descriptor).map_err(io::Error::from)?;
    let resolved = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if stat.st_nlink == 0 {
        return Err(Reason::Deleted);
    }
    let identity = Identity::of(&stat);
    let place = Place { given: path.to_owned(), real: resolved, is_descriptor: false };
    Ok(Located { descriptor: Arc::new(descriptor), place, identity, from: None })
}

fn is_kernel_file(descriptor: &OwnedFd) -> Result<bool, Reason> {
    let found = rustix::fs::fstatfs(descriptor).map_err(io::Error::from)?.f_type;
    Ok(KERNEL_FILE_SYSTEMS.contains(&found))
}

/// Whether one of the directories is that of a lineage (crate `lineage`), and the other its layers'.
fn are_one_lineage(one: &Path, other: &Path) -> bool {
    let layers = if other.parent() == Some(one) { other } else { one };
    let is_below = layers.parent() == Some(one) || layers.parent() == Some(other);
    is_below && storage::is_layers_directory(layers)
}

fn kind_words(found: FileType) -> &'static str {
    match found {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "of an unknown kind",
    }
}

/// Storage that names in images may lead to.
#[derive(Clone, Debug)]
struct Allowed {
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
    fn of(name: &str) -> Result<Self, NotAllowable> {
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
fn follow(
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory tree with an image, its neighbours and things that must not be opened.
    struct Scene {
        root: tempfile::TempDir,
    }

    fn file(found: Followed) -> Located {
        match found {
            Followed::File(located) => located,
            Followed::Elsewhere(driver, _) => panic!("it leads to {}", driver.name),
        }
    }

    impl Scene {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let at = |name: &str| root.path().join(name);
            fs::create_dir_all(at("images/below")).unwrap();
            fs::create_dir_all(at("elsewhere/deep")).unwrap();
            for file in
                ["images/top", "images/base", "images/below/base", "elsewhere/secret", "elsewhere/deep/x"]
            {
                fs::write(at(file), b"data").unwrap();
            }
            symlink(at("elsewhere/secret"), at("images/link-out")).unwrap();
            symlink("base", at("images/link-in")).unwrap();
            symlink("loop", at("images/loop")).unwrap();
            symlink(at("images/top"), at("elsewhere/top-link")).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, at("images/fifo"), Mode::from_raw_mode(0o600)).unwrap();
            Self { root }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().canonicalize().unwrap().join(name)
        }

        fn place(&self, image: &str) -> Place {
            Located::by_user(&self.path(image)).unwrap().place().clone()
        }

        fn resolve(&self, image: &str, name: &[u8], allowed: &[&str]) -> Result<PathBuf, Reason> {
            let allowed: Vec<PathBuf> = allowed.iter().map(|name| self.path(name)).collect();
            let policy = Policy::new(&allowed).unwrap();
            let found = policy.resolve(&self.place(image), name, Role::Backing);
            found.map(|found| file(found).path().to_owned()).map_err(|refused| refused.reason)
        }
    }

    #[test]
    fn a_neighbour_is_followed_under_any_of_its_names() {
        let scene = Scene::new();
        let base = scene.path("images/base");
        let absolute = base.as_os_str().as_bytes();
        for name in [&b"base"[..], b"./base", b"../images/base", b"link-in", b"file:base", absolute] {
            assert_eq!(scene.resolve("images/top", name, &[]).unwrap(), base, "{name:?}");
        }
    }

    #[test]
    fn backing_files_are_followed_as_by_qemu_and_nothing_else_is() {
        let scene = Scene::new();
        let policy = Policy::default().following_backing();
        let follow = |name: &[u8], role| {
            let found = policy.resolve(&scene.place("images/top"), name, role);
            found.map(|found| file(found).path().to_owned()).map_err(|refused| refused.reason)
        };
        let secret = scene.path("elsewhere/secret");
        for name in [&b"link-out"[..], b"../elsewhere/secret", secret.as_os_str().as_bytes()] {
            assert_eq!(follow(name, Role::Backing).unwrap(), secret);
            assert!(matches!(follow(name, Role::Data), Err(Reason::Outside { .. })), "{name:?}");
        }
        assert!(matches!(follow(b"/proc/self/maps", Role::Backing), Err(Reason::KernelFile { .. })));
        assert!(matches!(follow(b"host_device:base", Role::Backing), Err(Reason::NoDevice { .. })));
        for name in [&b"fifo"[..], b"/dev/null", b"host_device:/dev/null", b"../images"] {
            assert!(matches!(follow(name, Role::Backing), Err(Reason::NotRegular { .. })), "{name:?}");
        }
        assert!(matches!(follow(b"json:{}", Role::Backing), Err(Reason::Json { .. })));
        assert!(matches!(follow(b"nbd://host", Role::Backing), Err(Reason::NotAllowed { .. })));
        let nothing = policy.resolve(&scene.place("images/top"), b"null-co://", Role::Backing).unwrap();
        assert!(matches!(nothing, Followed::Elsewhere(driver, _) if driver.name == "null-co"));
        assert!(policy.resolve(&scene.place("images/top"), b"null-co://", Role::Data).is_err());
        assert!(matches!(scene.resolve("images/top", b"null-co://", &[]), Err(Reason::NotAllowed { .. })));
    }

    #[test]
    fn what_lies_elsewhere_is_followed_only_with_leave() {
        let scene = Scene::new();
        let secret = scene.path("elsewhere/secret");
        for name in [&b"link-out"[..], b"../elsewhere/secret", secret.as_os_str().as_bytes()] {
            let refused = scene.resolve("images/top", name, &[]).unwrap_err();
            assert!(
                matches!(&refused, Reason::Outside { path, directory }
                    if *path == secret && *directory == scene.path("elsewhere")),
                "{name:?}: {refused}"
            );
            assert_eq!(scene.resolve("images/top", name, &["elsewhere"]).unwrap(), secret);
        }
        assert!(scene.resolve("images/top", b"../elsewhere/deep/x", &["elsewhere"]).is_ok());
        assert!(scene.resolve("images/top", b"../elsewhere/secret", &["elsewhere/deep"]).is_err());
    }

    #[test]
    fn the_images_own_directory_does_not_include_those_below_it() {
        let scene = Scene::new();
        assert!(matches!(scene.resolve("images/top", b"below/base", &[]), Err(Reason::Outside { .. })));
        assert!(scene.resolve("images/top", b"below/base", &["images"]).is_ok());
    }

    /// Layers are in a directory of their own, and a checkpoint of a disk did not open without `--allow-path`.
    #[test]
    fn disks_and_layers_of_a_lineage_are_one_directory_for_backing_files() {
        let scene = Scene::new();
        fs::create_dir(scene.path("images/layers")).unwrap();
        fs::write(scene.path("images/layers/x"), b"data").unwrap();
        let refused =
            |image: &str, name: &[u8]| matches!(scene.resolve(image, name, &[]), Err(Reason::Outside { .. }));
        // Any directory of that name is not enough.
        assert!(refused("images/top", b"layers/x") && refused("images/layers/x", b"../base"));
        symlink(".", scene.path("images/layers/layers")).unwrap();
        assert_eq!(scene.resolve("images/top", b"layers/x", &[]).unwrap(), scene.path("images/layers/x"));
        assert_eq!(scene.resolve("images/layers/x", b"../base", &[]).unwrap(), scene.path("images/base"));
        assert!(refused("images/below/base", b"../layers/x") && refused("images/layers/x", b"../below/base"));
        let data = Policy::default().resolve(&scene.place("images/top"), b"layers/x", Role::Data);
        assert!(matches!(data, Err(Refused { reason: Reason::Outside { .. }, .. })));
        fs::remove_file(scene.path("images/layers/layers")).unwrap();
        symlink(scene.path("images/layers"), scene.path("images/layers/layers")).unwrap();
        assert!(refused("images/top", b"layers/x"));
    }

    #[test]
    fn an_image_opened_by_a_link_has_both_directories() {
        let scene = Scene::new();
        let found = scene.resolve("elsewhere/top-link", b"secret", &[]).unwrap();
        assert_eq!(found, scene.path("elsewhere/secret"));
        let found = scene.resolve("elsewhere/top-link", b"../images/base", &[]).unwrap();
        assert_eq!(found, scene.path("images/base"));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
        let scene = Scene::new();
        let table: [(&[u8], &str); 5] = [
            (b"fifo", "a FIFO"),
            (b".", "a directory"),
            (b"/dev/null", "a character device"),
            (b"/dev/tty", "a character device"),
            (b"/", "a directory"),
        ];
        for (name, kind) in table {
            match scene.resolve("images/top", name, &["/"]) {
                Err(Reason::NotRegular { found, .. }) => assert_eq!(found, kind),
                other => panic!("{name:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn files_of_the_kernel_are_refused_even_with_leave() {
        let scene = Scene::new();
        for name in [&b"/proc/self/environ"[..], b"/proc/cpuinfo", b"/proc/self/mem"] {
            let refused = scene.resolve("images/top", name, &["/"]);
            assert!(matches!(refused, Err(Reason::KernelFile { .. })), "{name:?}: {refused:?}");
        }
    }

    #[test]
    fn names_that_are_no_paths_are_refused_by_what_they_are() {
        let scene = Scene::new();
        let table: [(&[u8], &str); 7] = [
            (b"", "the name is empty"),
            (b"ba\0se", "the name contains a zero byte"),
            (
                b"json:{\"file.filename\":\"/etc/passwd\"}",
                "json: inside an image is not followed unless it is allowed; if it is right, give --allow-name with all of it \
                 (for all programs: allow-name in /etc/cowhand/policy.d), or name the file on the command line (backing.file=PATH)",
            ),
            (
                b"nbd://host/x",
                "nbd: inside an image is not followed unless it is allowed; if it is right, give --allow-name \
                 nbd://host:10809/x (for all programs: allow-name in /etc/cowhand/policy.d; or name it on the command line: \
                 backing.file=PATH)",
            ),
            (
                b"gluster://host/x",
                "gluster: inside an image is not followed; only local files are (a file of that name: ./gluster:...)",
            ),
            (
                b"fat:/etc",
                "fat: inside an image is not followed; only local files are (a file of that name: ./fat:...)",
            ),
            (
                b"file:///etc/passwd",
                "file: inside an image is not followed; only local files are (a file of that name: ./file:...)",
            ),
        ];
        for (name, words) in table {
            assert_eq!(scene.resolve("images/top", name, &["/"]).unwrap_err().to_string(), words);
        }
        for (name, reason) in [
            ("missing", "No such file or directory (os error 2)"),
            ("loop", "Too many levels of symbolic links (os error 40)"),
        ] {
            let words =
                format!("it leads to {}: {reason}", scene.root.path().join("images").join(name).display());
            let refused = scene.resolve("images/top", name.as_bytes(), &["/"]);
            assert_eq!(refused.unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_name_leads_to_a_server_only_if_that_server_or_export_is_allowed() {
        let scene = Scene::new();
        let follows = |allowed: &str, name: &str| {
            let policy = Policy::default().allowing(&[allowed.to_owned()]).unwrap();
            match policy.resolve(&scene.place("images/top"), name.as_bytes(), Role::Backing) {
                Ok(Followed::Elsewhere(driver, _)) => driver.name == "nbd",
                Ok(Followed::File(found)) => panic!("{found:?}"),
                Err(Refused { reason: Reason::NotAllowed { .. }, .. }) => false,
                Err(other) => panic!("{other}"),
            }
        };
        for (allowed, name, expected) in [
            ("nbd://host", "nbd://host/x", true),
            ("nbd://host", "nbd://host:10809/y", true),
            ("nbd://host", "nbd:host:10809:exportname=x", true),
            ("nbd://host", "nbd://host:10810/x", false),
            ("nbd://host", "nbd://host.elsewhere/x", false),
            ("nbd://host/x", "nbd://host/x", true),
            ("nbd://host/x", "nbd://host/xy", false),
            ("nbd://host/x", "nbd://host", false),
            ("nbd+unix:///?socket=/run/s", "nbd:unix:/run/s:exportname=x", true),
            ("nbd+unix:///?socket=/run/s", "nbd:unix:/run/s2:exportname=x", false),
            ("nbds://host?tls-certificates=/ours", "nbds://host/x?tls-certificates=/ours", true),
            ("nbds://host?tls-certificates=/ours", "nbds://host/x?tls-certificates=/theirs", false),
            ("nbds://host?tls-certificates=/ours", "nbd://host/x", false),
            ("nbd://host", "nbds://host/x?tls-certificates=/theirs", false),
        ] {
            assert_eq!(follows(allowed, name), expected, "{allowed}: {name}");
        }
        let refused = |name: &str| Policy::default().allowing(&[name.to_owned()]).unwrap_err().to_string();
        assert!(refused("/images").contains("with --allow-path"), "{}", refused("/images"));
        assert!(refused("nbd://host:0").contains("allowed: a port"), "{}", refused("nbd://host:0"));
        let malformed = scene.resolve("images/top", b"nbd://host:x/", &[]).unwrap_err();
        assert!(matches!(malformed, Reason::Malformed { .. }), "{malformed}");
    }

    #[test]
    fn the_file_that_was_checked_is_the_file_that_is_opened() {
        let scene = Scene::new();
        let policy = Policy::default();
        let located = file(policy.resolve(&scene.place("images/top"), b"link-in", Role::Backing).unwrap());
        fs::write(scene.path("elsewhere/secret"), b"secret").unwrap();
        fs::remove_file(scene.path("images/link-in")).unwrap();
        symlink(scene.path("elsewhere/secret"), scene.path("images/link-in")).unwrap();
        assert_eq!(fs::read(located.open_path()).unwrap(), b"data");
    }

    #[test]
    fn one_file_under_two_names_has_one_identity() {
        let scene = Scene::new();
        let by_link = Located::by_user(&scene.path("images/link-in")).unwrap();
        let by_name = Located::by_user(&scene.path("images/base")).unwrap();
        let other = Located::by_user(&scene.path("images/top")).unwrap();
        assert_eq!(by_link.identity(), by_name.identity());
        assert_ne!(by_link.identity(), other.identity());
    }

    #[test]
    fn a_refusal_says_which_image_which_name_and_what_to_do() {
        let scene = Scene::new();
        let policy = Policy::default();
        let refused = policy.resolve(&scene.place("images/top"), b"link-out", Role::Data).unwrap_err();
        let expected = format!(
            "{} names data file \"link-out\": it leads to {}, outside the image's own directory; if that is right, \
             give --allow-path {} (for all programs: allow-path in /etc/cowhand/policy.d)",
            scene.path("images/top").display(),
            scene.path("elsewhere/secret").display(),
            scene.path("elsewhere").display(),
        );
        assert_eq!(refused.to_string(), expected);
    }
}
