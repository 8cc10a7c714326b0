//! The container: what packaging/Containerfile says, done in a directory, and the program run there as an unprivileged container runs it: another
//! user, no capability, a root that nothing can write to. No container engine is needed.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use super::chroot::{apart, inside, release};
use super::tree::{packaging, read};
use super::{failed, output};

/// What a user does with a container, whose volume is the current directory. `@` is its entry point. Each line must succeed.
const SESSION: [&str; 7] = [
    "@ --version",
    "@ create disk.qcow2 1G",
    "@ check disk.qcow2",
    "@ serve --quiet --socket nbd --qmp qmp disk.qcow2 > log 2>&1 & \
     i=0; while [ ! -S qmp ]; do i=$((i + 1)); [ $i -lt 100 ]; sleep 0.1; done; \
     @ status qmp; kill $!; wait $!",
    // No server is there; that the machine has no authorities would be said first.
    "@ info https://127.0.0.1:9/x > log 2>&1 || ! grep 'no certificates of authorities' log",
    "for file in /x /tmp/x /usr/bin/x; do ! touch $file || exit 1; done",
    "[ $(grep -c '^Cap.*:[[:space:]]0000000000000000$' /proc/self/status) = 5 ]",
];

/// What the file leads to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Container {
    user: u32,
    entry: String,
}

/// Builds it in `root`, a Debian that has nothing else, and runs it.
pub fn test(root: &Path, packages: &[PathBuf]) -> Result<(), String> {
    let container = build(root, packages)?;
    let disks = root.with_file_name("disks");
    std::fs::create_dir_all(&disks).map_err(|error| failed(&disks, &error))?;
    chown(&disks, Some(container.user), Some(container.user)).map_err(|error| failed(&disks, &error))?;
    for line in SESSION {
        let line = line.replace('@', &container.entry);
        println!("# {line}");
        print!("{}", run(root, &disks, container.user, &line)?);
    }
    super::remove(&disks)
}

/// Does what the file says, line by line.
fn build(root: &Path, packages: &[PathBuf]) -> Result<Container, String> {
    let mut container = Container::default();
    for (instruction, rest) in instructions(&read(&packaging("Containerfile"))?) {
        let wrong = || format!("Containerfile: {instruction} {rest}");
        match instruction.as_str() {
            "FROM" if rest.contains(&format!("/debian:{}", release()?)) => {}
            "COPY" => {
                let (pattern, to) = rest.split_once(' ').ok_or_else(wrong)?;
                copy(pattern, packages, &root.join(to.trim_start_matches('/')))?;
            }
            "RUN" => drop(inside(root, &rest)?),
            "USER" => {
                let user = rest.split(':').next().and_then(|user| user.parse().ok());
                container.user = user.filter(|user| *user > 0).ok_or_else(wrong)?;
            }
            "ENTRYPOINT" => {
                let words: Vec<String> = serde_json::from_str(&rest).map_err(|_| wrong())?;
                container.entry = words.join(" ");
            }
            "STOPSIGNAL" | "CMD" => {}
            _ => return Err(wrong()),
        }
    }
    match container.user > 0 && !container.entry.is_empty() {
        true => Ok(container),
        false => Err("Containerfile: USER or ENTRYPOINT is missing".to_owned()),
    }
}

/// The instructions of a file, each with what follows it on its line and those that continue it.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let whole = lines.replace("\\\n", " ");
    let parts = whole.lines().filter_map(|line| line.split_once(' '));
    parts.map(|(instruction, rest)| (instruction.to_owned(), rest.trim().to_owned())).collect()
}

/// Copies the packages that `pattern`, a name with one `*`, stands for.
fn copy(pattern: &str, packages: &[PathBuf], to: &Path) -> Result<(), String> {
    let (begin, end) = pattern.split_once('*').unwrap_or((pattern, ""));
    let name = |package: &PathBuf| package.file_name().map(|name| name.to_string_lossy().into_owned());
    let fits = |name: &String| name.starts_with(begin) && name.ends_with(end);
    std::fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    let mut count = 0;
    for package in packages {
        let Some(name) = name(package).filter(fits) else { continue };
        std::fs::copy(package, to.join(name)).map_err(|error| failed(package, &error))?;
        count += 1;
    }
    if count == 0 { Err(format!("Containerfile: no package is called {pattern}")) } else { Ok(()) }
}

/// Runs a line as the container's user, with `disks` as its volume and nothing else that can be written.
fn run(root: &Path, disks: &Path, user: u32, line: &str) -> Result<String, String> {
    let enter = "mount --bind \"$0\" \"$0\" && mount -t proc proc \"$0/proc\" && mount --bind \"$1\" \"$0/mnt\" && \
        mount -o remount,bind,ro \"$0\" && exec chroot \"$0\" setpriv --reuid \"$2\" --regid \"$2\" --clear-groups \
        --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs \
        env -i --chdir=/mnt PATH=/usr/bin:/bin sh -ec \"$3\"";
    let mut command = apart("sh");
    output(command.args(["-ec", enter]).arg(root).arg(disks).arg(user.to_string()).arg(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_ends_with_a_backslash_continues() {
        let text = "# text\nFROM a/debian:x\nRUN b \\\n    && c\nCMD [\"d\"]\n";
        let expected = [("FROM", "a/debian:x"), ("RUN", "b      && c"), ("CMD", "[\"d\"]")];
        assert_eq!(instructions(text), expected.map(|(name, rest)| (name.to_owned(), rest.to_owned())));
    }
}
