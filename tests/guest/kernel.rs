//! The guest's kernel, and what it boots into.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use black_box::{Run, Scratch};

/// A guest that takes longer hangs: it needs about 10 s on an idle machine.
pub const GUEST_MAX: Duration = Duration::from_secs(240);

/// What the guest prints when all went well.
pub const DONE: &str = "GUEST-IS-DONE";

/// Modules that the disk needs, in any order: their dependencies are looked up.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// Where the guest's kernel is installed: `COWHAND_GUEST_ROOT` names another place than `/`, for instance one in which packages were
/// only unpacked.
fn under_root(path: &str) -> PathBuf {
    std::env::var_os("COWHAND_GUEST_ROOT").map_or(PathBuf::from("/"), PathBuf::from).join(path)
}

/// Where QEMU finds its firmware, if not where it was installed.
pub fn firmware() -> Vec<String> {
    let Some(root) = std::env::var_os("COWHAND_GUEST_ROOT").map(PathBuf::from) else { return Vec::new() };
    let places = ["usr/share/qemu", "usr/share/seabios"].map(|path| root.join(path));
    places.iter().flat_map(|place| ["-L".to_owned(), place.display().to_string()]).collect()
}

/// Boots a machine of 1 GiB whose disk is `drive`, which must do all that its script says.
pub fn boot(kernel: &Kernel, initrd: &Path, drive: &str) {
    let outcome = Run::new("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-machine", "pc", "-m", "1024", "-smp", "2"])
        // QEMU 7.2 gets CMPXCHG16B wrong, which Linux uses from 6.6 on where there is one.
        .args(["-cpu", "qemu64,-cx16"])
        .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
        .args(firmware())
        .args(["-append", "console=ttyS0 oops=panic panic=-1 quiet", "-drive", drive])
        .args(["-device", "virtio-blk-pci,drive=d,discard=on,write-zeroes=on"])
        .args([Path::new("-kernel"), &kernel.image, Path::new("-initrd"), initrd])
        .limit(GUEST_MAX)
        .outcome();
    assert!(outcome.status.success() && outcome.stdout.contains(DONE), "the guest fails: {outcome}");
}

/// Where the build keeps what is not in the repository.
fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// What a guest has beside a shell and the tools of ext4.
#[derive(Default)]
pub struct Content<'a> {
    pub modules: &'a [&'a str],
    pub programs: &'a [&'a Path],
}

/// Debian's cloud kernel, as its package installs it.
pub struct Kernel {
    /// What is booted.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The newest that is installed.
    pub fn newest() -> Self {
        let newest = Self::all(&under_root("")).max_by(|one, other| one.image.cmp(&other.image));
        newest.expect("linux-image-cloud-amd64 is missing: run cargo xtask test as root")
    }

    /// One that has `module`: installed, or unpacked by xtask into the build's directory, as Debian 12's own has fewer modules than later ones.
    pub fn with_module(module: &str) -> Self {
        let unpacked = target_directory().join("guest-kernel");
        let all = Self::all(&under_root("")).chain(Self::all(&unpacked));
        let mut with = all.filter(|kernel| kernel.module_file(module).is_some());
        with.next().unwrap_or_else(|| panic!("no kernel has {module}: run cargo xtask test as root"))
    }

    /// The kernels below `root` whose modules are there.
    fn all(root: &Path) -> impl Iterator<Item = Self> + use<> {
        let (boot, all) = (root.join("boot"), root.join("lib/modules"));
        let names = fs::read_dir(&boot).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let releases = names.filter_map(|name| Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned()));
        let cloud = releases.filter(|release| release.ends_with("-cloud-amd64"));
        let found = cloud.map(move |release| Self {
            image: boot.join(format!("vmlinuz-{release}")),
            modules: all.join(release),
        });
        found.filter(|kernel| kernel.modules.is_dir())
    }

    /// A line of `modules.dep`: the module's file, and those that it needs.
    fn module_file(&self, module: &str) -> Option<(String, Vec<String>)> {
        let text = fs::read_to_string(self.modules.join("modules.dep")).expect("modules.dep");
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (file, needs) = lines.find(|(file, _)| module_name(Path::new(file)) == module)?;
        Some((file.to_owned(), needs.split_whitespace().map(str::to_owned).collect()))
    }

    /// Files of the modules and of all that they need, in an order in which they can be loaded.
    fn module_files(&self, modules: &[&str]) -> Vec<PathBuf> {
        let mut ordered: Vec<PathBuf> = Vec::new();
        for module in modules {
            // One that is not there is built into the kernel.
            let Some((file, needs)) = self.module_file(module) else { continue };
            // What is needed stands in the order in which to unload it.
            for file in needs.into_iter().rev().chain([file]) {
                let file = self.modules.join(file);
                if !ordered.contains(&file) {
                    ordered.push(file);
                }
            }
        }
        ordered
    }

    /// An initial RAM disk that loads the modules, runs the script and switches the machine off.
    pub fn initrd(&self, scratch: &Scratch, script: &str) -> PathBuf {
        self.initrd_with(scratch, script, &Content::default())
    }

    /// The same with more in it.
    pub fn initrd_with(&self, scratch: &Scratch, script: &str, content: &Content<'_>) -> PathBuf {
        let root = Scratch::new();
        for directory in ["bin", "sbin", "dev", "proc", "sys", "modules"] {
            fs::create_dir(root.file(directory)).expect("a directory");
        }
        copy(&find("busybox"), &root.file("bin/busybox"));
        for program in ["mke2fs", "e2fsck"] {
            copy_with_libraries(&find(program), root.path());
        }
        content.programs.iter().for_each(|program| copy_with_libraries(program, root.path()));
        let modules = [&MODULES[..], content.modules].concat();
        let modules: String =
            self.module_files(&modules).iter().map(|file| put_module(file, root.path())).collect();
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox mount -t devtmpfs none /dev\n\
             /bin/busybox mount -t proc none /proc\n\
             /bin/busybox mount -t sysfs none /sys\n\
             export PATH=/sbin MKE2FS_SKIP_PROGRESS=1\n\
             off() {{ /bin/busybox poweroff -f; }}\n\
             fail() {{ echo \"failed: $1\"; off; /bin/busybox sleep 60; }}\n\
             {modules}{script}\necho {DONE}\noff\n"
        );
        fs::write(root.file("init"), init).expect("an init");
        fs::set_permissions(root.file("init"), fs::Permissions::from_mode(0o755)).expect("a mode");
        let archive = scratch.file("initrd");
        let pack = format!("find . | cpio --quiet -o -H newc > {}", archive.display());
        Run::new("sh").args(["-c", &pack]).current_dir(root.path()).ok();
        archive
    }
}

/// `kernel/drivers/block/virtio_blk.ko.xz` is `virtio_blk`.
fn module_name(file: &Path) -> String {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Puts a module into the root, decompressed; gives the line that loads it.
fn put_module(file: &Path, root: &Path) -> String {
    let name = module_name(file);
    let into = root.join("modules").join(format!("{name}.ko"));
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => decompress("xz", file, &into),
        Some("zst") => decompress("zstd", file, &into),
        _ => copy(file, &into),
    }
    format!("/bin/busybox insmod /modules/{name}.ko || fail 'module {name}'\n")
}

fn decompress(program: &str, file: &Path, into: &Path) {
    let line = format!("{program} -dc {} > {}", file.display(), into.display());
    Run::new("sh").args(["-c", &line]).ok();
}

pub fn find(program: &str) -> PathBuf {
    let places = ["usr/local/sbin", "usr/sbin", "sbin", "usr/bin", "bin"];
    let here = places.iter().map(|place| Path::new("/").join(place).join(program));
    let unpacked = places.iter().map(|place| under_root(place).join(program));
    let found = here.chain(unpacked).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{program} is missing: run cargo xtask test as root"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
    fs::copy(from, to).unwrap_or_else(|error| panic!("cannot copy {}: {error}", from.display()));
}

/// Puts a program into the root with every library that it is linked with, each in its place.
fn copy_with_libraries(program: &Path, root: &Path) {
    let name = program.file_name().expect("a program");
    copy(program, &root.join("sbin").join(name));
    let linked = Run::new("ldd").arg(program).ok();
    for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}
