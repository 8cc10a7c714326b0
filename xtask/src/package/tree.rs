//! What is where in a package.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{commit_time, debian, failed, licences, output};
use crate::workspace::root;

/// A package's files, laid out as they will be.
#[derive(Debug)]
pub struct Tree {
    /// The package's name.
    pub name: &'static str,
    /// Where the files are.
    pub root: PathBuf,
    /// Whether it is for one kind of processor.
    pub binary: bool,
}

/// Lays out both packages below `directory`.
pub fn lay_out(directory: &Path, binary: &Path) -> Result<[Tree; 2], String> {
    let main = Tree { name: "cowhand", root: directory.join("cowhand"), binary: true };
    let compat = Tree { name: "cowhand-compat", root: directory.join("cowhand-compat"), binary: false };
    program(&main, binary)?;
    manual(&main)?;
    completions(&main)?;
    services(&main)?;
    main.write("usr/share/doc/cowhand/third-party-licences.txt", licences::text()?.as_bytes())?;
    main.compress("usr/share/doc/cowhand/third-party-licences.txt")?;
    main.copy(&root().join("CHANGELOG.md"), "usr/share/doc/cowhand/NEWS.md", 0o644)?;
    main.compress("usr/share/doc/cowhand/NEWS.md")?;
    main.copy(&root().join("README.md"), "usr/share/doc/cowhand/README.md", 0o644)?;
    for name in output(main.program().args(["compat", "list"]))?.lines().filter_map(first_word) {
        compat.link(&format!("usr/lib/cowhand/compat/{name}"), "../../../bin/cowhand")?;
    }
    for tree in [&main, &compat] {
        documents(tree)?;
    }
    Ok([main, compat])
}

fn program(tree: &Tree, binary: &Path) -> Result<(), String> {
    tree.copy(binary, "usr/bin/cowhand", 0o755)?;
    let mut strip = Command::new("strip");
    strip.args(["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"]);
    output(strip.arg(tree.root.join("usr/bin/cowhand"))).map(drop)
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
fn documents(tree: &Tree) -> Result<(), String> {
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
    fn program(&self) -> Command {
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
