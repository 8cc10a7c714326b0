//! The pages of the project below `/usr/share/doc/cowhand`, under the names that they have in the tree: links and messages lead to them.

use std::collections::BTreeSet;
use std::path::Path;

use super::failed;
use super::tree::{Tree, read};
use crate::book::WRITTEN;
use crate::stage::output;
use crate::tidy::resolve;
use crate::workspace::root;

const PLACE: &str = "usr/share/doc/cowhand";

/// Pages beside those of docs/.
const FRONT: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "packaging/README.md",
    "clients/python/README.md",
];

/// Files that pages lead to under other names.
const ELSEWHERE: [(&str, &str); 3] =
    [("LICENSE-MIT", "copyright"), ("LICENSE-APACHE", "copyright"), ("CHANGELOG.md", "NEWS.md.gz")];

/// Lays them out, with what the program writes of them.
///
/// # Errors
/// When a page cannot be read, made or written.
pub fn install(tree: &Tree) -> Result<(), String> {
    let mut files: BTreeSet<String> = FRONT.map(str::to_owned).into();
    collect("docs", &mut files)?;
    for file in &files {
        let target = format!("{PLACE}/{file}");
        if !file.ends_with(".md") {
            tree.copy(&root().join(file), &target, 0o644)?;
            continue;
        }
        let made = WRITTEN.iter().find(|(page, _)| file.strip_prefix("docs/") == Some(page));
        let text = match made {
            Some((_, words)) => output(tree.program().args(*words))?,
            None => read(&root().join(file))?,
        };
        tree.write(&target, with_links(file, &text, &files).as_bytes())?;
    }
    Ok(())
}

/// Pages and pictures below a directory of the tree.
fn collect(directory: &str, files: &mut BTreeSet<String>) -> Result<(), String> {
    let path = root().join(directory);
    for entry in std::fs::read_dir(&path).map_err(|error| failed(&path, &error))? {
        let entry = entry.map_err(|error| failed(&path, &error))?;
        let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
        let is_shown =
            Path::new(&name).extension().is_some_and(|end| end == "md" || end == "svg" || end == "png");
        if entry.path().is_dir() {
            collect(&name, files)?;
        } else if is_shown {
            files.insert(name);
        }
    }
    Ok(())
}

/// The text of `page` with links to what is installed; the words of others stay.
fn with_links(page: &str, text: &str, files: &BTreeSet<String>) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("](") {
        let (before, after) = rest.split_at(at);
        let (target, behind) = after.trim_start_matches("](").split_once(')').unwrap_or((after, ""));
        let name = target.split('#').next().unwrap_or(target);
        let found = if name.is_empty() { page.to_owned() } else { resolve(page, name) };
        let up = "../".repeat(page.matches('/').count());
        let elsewhere = ELSEWHERE.iter().find(|(from, _)| *from == found);
        done += before;
        rest = behind;
        match elsewhere {
            _ if name.contains("://") || files.contains(&found) => done += &format!("]({target})"),
            Some((_, to)) => done += &format!("]({up}{to})"),
            None => {
                // No link: the brackets go, too.
                if let Some(open) = done.rfind('[') {
                    done.remove(open);
                }
            }
        }
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_installed() {
        let files: BTreeSet<String> =
            ["README.md", "docs/guide/backup.md", "docs/b.png"].map(str::to_owned).into();
        let text = "[a](../guide/backup.md#x), [here](#y), [crate](../../crates/x/README.md), ![p](../b.png), [MIT](../../LICENSE-MIT) \
                    and [web](https://a/b)";
        assert_eq!(
            with_links("docs/guide/backup.md", text, &files),
            "[a](../guide/backup.md#x), [here](#y), crate, ![p](../b.png), [MIT](../../copyright) and [web](https://a/b)"
        );
    }
}
