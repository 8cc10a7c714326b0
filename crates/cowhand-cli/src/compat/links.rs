//! `cowhand compat`: links that make cowhand run under the names of QEMU's programs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use tool::failure::Failure;

use super::names::NAMES;

/// Commands of `cowhand compat`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  cowhand compat install /usr/local/bin
  cowhand compat install /opt/cowhand/bin && PATH=/opt/cowhand/bin:$PATH")]
pub enum Command {
    /// List the names, and what each does
    List,
    /// Make a link of each name in a directory, which is made if it is missing
    Install {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Replace what has such a name now
        #[arg(long)]
        force: bool,
    },
    /// Remove the links that lead to cowhand from a directory
    Remove {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Does it.
///
/// # Errors
/// When a link cannot be made or removed, or a name is in use. Links that were made before stay.
pub fn run(command: &Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match command {
        Command::List => {
            for program in &NAMES {
                writeln!(out, "{:<20} {}", program.name, program.about)?;
            }
        }
        Command::Install { directory, force } => install(directory, *force, out)?,
        Command::Remove { directory } => remove(directory, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All names are looked at before the first link is made.
fn install(directory: &Path, force: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let target = ourselves()?;
    let mut wanted = Vec::new();
    for program in &NAMES {
        let link = directory.join(program.name);
        if leads_to(&link, &target) {
            continue;
        }
        if !force && link.symlink_metadata().is_ok() {
            let what = format!("{} is there already, and does not lead to cowhand", link.display());
            return Err(Failure::new(what).with_hint("--force replaces it"));
        }
        wanted.push(link);
    }
    fs::create_dir_all(directory)
        .map_err(|error| Failure::because(format!("cannot make {}", directory.display()), &error))?;
    for link in wanted {
        replace(&link, &target)
            .map_err(|error| Failure::because(format!("cannot make {}", link.display()), &error))?;
        writeln!(out, "{} -> {}", link.display(), target.display())?;
    }
    Ok(())
}

/// Puts the link in the place of what is there in one step: the name always means one of both.
fn replace(link: &Path, target: &Path) -> io::Result<()> {
    let mut beside = link.as_os_str().to_owned();
    beside.push(format!(".new-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    symlink(target, &beside)?;
    fs::rename(&beside, link).inspect_err(|_| drop(fs::remove_file(&beside)))
}

fn remove(directory: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let target = ourselves()?;
    for program in &NAMES {
        let link = directory.join(program.name);
        if leads_to(&link, &target) {
            fs::remove_file(&link)
                .map_err(|error| Failure::because(format!("cannot remove {}", link.display()), &error))?;
            writeln!(out, "removed {}", link.display())?;
        }
    }
    Ok(())
}

/// The file of this program.
fn ourselves() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::because("cannot find the file of this program", &error))
}

/// Whether `link` is a symbolic link to the file `target`.
fn leads_to(link: &Path, target: &Path) -> bool {
    let is_link = link.symlink_metadata().is_ok_and(|found| found.is_symlink());
    is_link && link.canonicalize().is_ok_and(|found| found == target)
}
