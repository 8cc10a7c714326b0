//! `cargo xtask book`: the pages of docs/ as a book of HTML, with the generated ones.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::stage::{Stages, output, printed};
use crate::workspace::{binary, cargo, root, target_directory};

/// The version that builds it.
const MDBOOK: &str = "0.5.4";

/// Pages of which the tree has the beginning, and what prints the whole.
pub const WRITTEN: [(&str, &[&str]); 3] = [
    ("reference/tools.md", &["manual", "--markdown"]),
    ("reference/options.md", &["serve", "--drive-options=markdown"]),
    ("reference/qmp-schema.md", &["manual", "--markdown=qmp"]),
];

/// Arguments of `cargo xtask book`: none.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_: &Args) -> ExitCode {
    let mut stages = Stages::default();
    stages.stage("book", build);
    if stages.sum_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds it in `target/book/html`; what mdBook warns of fails.
pub fn build() -> Result<(), String> {
    let mdbook = mdbook()?;
    let (sources, html) = (target_directory().join("book/src"), target_directory().join("book/html"));
    for old in [&sources, &html] {
        match std::fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(old, &error)),
            _ => {}
        }
    }
    copy(&root().join("docs"), &sources)?;
    output(cargo().args(["build", "--quiet", "--package", "cowhand-cli"]))?;
    for (page, words) in WRITTEN {
        let whole = output(Command::new(binary()).args(words))?;
        let path = sources.join(page);
        std::fs::write(&path, whole).map_err(|error| failed(&path, &error))?;
    }
    let said = printed(Command::new(mdbook).arg("build").arg(&sources).arg("--dest-dir").arg(&html))?;
    if let Some(complaint) =
        said.out.lines().chain(said.err.lines()).find(|line| line.contains("WARN") || line.contains("ERROR"))
    {
        return Err(format!("mdbook: {complaint}"));
    }
    let pages = pages(&sources)?;
    for page in &pages {
        let made = html.join(page).with_extension("html");
        let index = made.file_name() == Some("README.html".as_ref());
        if !index && !made.exists() {
            return Err(format!("{}: mdbook made no such page", made.display()));
        }
    }
    println!("{}: {} pages", html.join("index.html").display(), pages.len());
    Ok(())
}

/// mdBook, built once.
fn mdbook() -> Result<PathBuf, String> {
    let place = target_directory().join("peers/mdbook");
    let program = place.join("bin/mdbook");
    if !program.exists() {
        let mut install = cargo();
        install.args([
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            "--no-default-features",
            "--quiet",
        ]);
        output(install.arg("--root").arg(&place))?;
    }
    Ok(program)
}

/// The pages that the summary lists.
fn pages(sources: &Path) -> Result<Vec<String>, String> {
    let path = sources.join("SUMMARY.md");
    let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
    let listed = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    Ok(listed.map(str::to_owned).collect())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    for entry in std::fs::read_dir(from).map_err(|error| failed(from, &error))? {
        let entry = entry.map_err(|error| failed(from, &error))?.path();
        let Some(name) = entry.file_name() else { continue };
        let target = to.join(name);
        if entry.is_dir() {
            copy(&entry, &target)?;
        } else {
            std::fs::copy(&entry, &target).map_err(|error| failed(&entry, &error))?;
        }
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
