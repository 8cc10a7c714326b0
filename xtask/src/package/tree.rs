//! What is where in a package.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{commit_time, debian, failed, licences, output, pages};
use crate::workspace::root;

/// A package's files, laid out as they will be.
#[derive(Debug)]
pub struct Tree {
    /// The package's name.
    pub name: &'static str,
    /// Where the files are.
    pub root: PathBuf,
    /// What kind of files they are.
    pub holds: Holds,
}

/// What a package is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The program with its units.
    Program,
    /// Links of QEMU's names.
    Names,
    /// Examples for what stands around the program: monitoring, Kubernetes, libvirt.
    Extras,
    /// Symbols and lines of the program.
    Symbols,
    /// The shared library.
    Library,
    /// What programs that use the library are built with.
    Development,
}

impl Holds {
    /// Whether it is for one kind of processor.
    pub fn is_binary(self) -> bool {
        !matches!(self, Self::Names | Self::Extras)
    }
}

/// Lays out all packages below `directory`.
pub fn lay_out(directory: &Path, binary: &Path) -> Result<[Tree; 4], String> {
    let tree = |name, holds| Tree { name, root: directory.join(name), holds };
    let main = tree("cowhand", Holds::Program);
    let compat = tree("cowhand-compat", Holds::Names);
    let extra = tree("cowhand-extras", Holds::Extras);
    let symbols = tree("cowhand-dbgsym", Holds::Symbols);
    program(&main, &symbols, binary)?;
    manual(&main)?;
    completions(&main)?;
    services(&main)?;
    main.write("usr/share/doc/cowhand/third-party-licences.txt", licences::text()?.as_bytes())?;
    main.compress("usr/share/doc/cowhand/third-party-licences.txt")?;
    main.copy(&root().join("CHANGELOG.md"), "usr/share/doc/cowhand/NEWS.md", 0o644)?;
    main.compress("usr/share/doc/cowhand/NEWS.md")?;
    pages::install(&main)?;
    for name in output(main.program().args(["compat", "list"]))?.lines().filter_map(first_word) {
        compat.link(&format!("usr/lib/cowhand/compat/{name}"), "../../../bin/cowhand")?;
    }
    extras(&extra)?;
    for tree in [&main, &compat, &extra, &symbols] {
        documents(tree)?;
    }
    Ok([main, compat, extra, symbols])
}

/// The program without symbols, and these in a package of their own, where debuggers look for them.
fn program(tree: &Tree, symbols: &Tree, binary: &Path) -> Result<(), String> {
    tree.copy(binary, "usr/bin/cowhand", 0o755)?;
    let id = build_id(binary)?;
    let (begin, rest) = id.split_at(2);
    let place = symbols.place(&format!("usr/lib/debug/.build-id/{begin}/{rest}.debug"))?;
    let mut keep = Command::new("objcopy");
    keep.args(["--only-keep-debug", "--compress-debug-sections"]).arg(binary).arg(&place);
    output(&mut keep)?;
    set_mode(&place, 0o644)?;
    let mut strip = Command::new("strip");
    strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]);
    output(strip.arg(tree.root.join("usr/bin/cowhand"))).map(drop)
}

/// What tells one build of a program from another.
fn build_id(binary: &Path) -> Result<String, String> {
    let notes = output(Command::new("readelf").arg("--notes").arg(binary))?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    let id = id.filter(|id| id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    id.map(str::to_owned).ok_or_else(|| format!("{}: the program has no build id", binary.display()))
}

/// What is put around the program: figures, pods, domains.
fn extras(tree: &Tree) -> Result<(), String> {
    for (from, to, mode) in [
        ("monitoring/cowhand-dashboard.json", "usr/share/cowhand/grafana/cowhand-dashboard.json", 0o644),
        ("monitoring/cowhand.rules.yml", "usr/share/cowhand/prometheus/cowhand.rules.yml", 0o644),
        ("examples/kubernetes.yaml", "usr/share/doc/cowhand-extras/examples/kubernetes.yaml", 0o644),
        ("examples/libvirt-hook", "usr/share/doc/cowhand-extras/examples/libvirt-hook", 0o755),
    ] {
        tree.copy(&packaging(from), to, mode)?;
    }
    Ok(())
}

fn first_word(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

/// The pages, as the packed program writes them.
fn manual(tree: &Tree) -> Result<(), String> {
    let pages = tree.root.join("usr/share/man/man1");
    output(tree.program().arg("manual").arg(&pages))?;
    for page in fs::read_dir(&pages).map_err(|error| failed(&pages, &error))? {
        let page = page.map_err(|error| failed(&pages, &error))?.path();
        gzip(&page)?;
    }
    Ok(())
}

fn completions(tree: &Tree) -> Result<(), String> {
    for (shell, file) in [
        ("bash", "usr/share/bash-completion/completions/cowhand"),
        ("zsh", "usr/share/zsh/vendor-completions/_cowhand"),
        ("fish", "usr/share/fish/vendor_completions.d/cowhand.fish"),
    ] {
        let script = output(tree.program().args(["completion", shell]))?;
        tree.write(file, script.as_bytes())?;
    }
    Ok(())
}

fn services(tree: &Tree) -> Result<(), String> {
    for (from, to) in [
        ("cowhand@.service", "usr/lib/systemd/system/cowhand@.service"),
        ("cowhand@.socket", "usr/lib/systemd/system/cowhand@.socket"),
        ("cowhand.sysusers", "usr/lib/sysusers.d/cowhand.conf"),
        ("vm1.toml", "usr/share/doc/cowhand/examples/vm1.toml"),
    ] {
        tree.copy(&packaging(from), to, 0o644)?;
    }
    let configuration = tree.root.join("etc/cowhand");
    fs::create_dir_all(&configuration).map_err(|error| failed(&configuration, &error))
}

/// What Debian asks of every package.
pub fn documents(tree: &Tree) -> Result<(), String> {
    let doc = format!("usr/share/doc/{}", tree.name);
    tree.write(&format!("{doc}/copyright"), copyright()?.as_bytes())?;
    let changelog = format!("{doc}/changelog");
    tree.write(&changelog, debian::changelog(&commit_time()?)?.as_bytes())?;
    tree.compress(&changelog)
}

/// With the text of the licence, as Debian writes it: indented, a point for an empty line.
fn copyright() -> Result<String, String> {
    let form = read(&packaging("debian/copyright"))?;
    let licence = read(&root().join("LICENSE-MIT"))?;
    let lines =
        licence.lines().map(|line| if line.is_empty() { " .".to_owned() } else { format!(" {line}") });
    Ok(form.replace("@MIT@", &lines.collect::<Vec<_>>().join("\n")))
}

/// A file of the directory `packaging`.
pub fn packaging(name: &str) -> PathBuf {
    root().join("packaging").join(name)
}

pub fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| failed(file, &error))
}

fn gzip(file: &Path) -> Result<(), String> {
    output(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(file)).map(drop)
}

impl Tree {
    /// The packed program.
    pub fn program(&self) -> Command {
        Command::new(self.root.join("usr/bin/cowhand"))
    }

    fn place(&self, file: &str) -> Result<PathBuf, String> {
        let place = self.root.join(file);
        let directory = place.parent().unwrap_or(&self.root);
        fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
        Ok(place)
    }

    /// Puts `bytes` into a file that all may read.
    pub fn write(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let place = self.place(file)?;
        fs::write(&place, bytes).map_err(|error| failed(&place, &error))?;
        set_mode(&place, 0o644)
    }

    /// Copies a file.
    pub fn copy(&self, from: &Path, file: &str, mode: u32) -> Result<(), String> {
        let place = self.place(file)?;
        fs::copy(from, &place).map_err(|error| failed(from, &error))?;
        set_mode(&place, mode)
    }

    fn link(&self, file: &str, target: &str) -> Result<(), String> {
        let place = self.place(file)?;
        symlink(target, &place).map_err(|error| failed(&place, &error))
    }

    fn compress(&self, file: &str) -> Result<(), String> {
        gzip(&self.root.join(file))
    }
}

fn set_mode(file: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).map_err(|error| failed(file, &error))
}
