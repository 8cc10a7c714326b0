//! apt with package lists and archives of its own: it fetches packages of any release, and installs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::output;

/// Where Debian's packages are.
const MIRROR: &str = "http://deb.debian.org/debian";

/// Who signs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A directory with the package lists of some releases. What is downloaded lies in it, too.
#[derive(Debug)]
pub struct OwnLists {
    work: PathBuf,
}

impl OwnLists {
    /// Fetches the lists of `suites` into `work`, which is made.
    ///
    /// # Errors
    /// With what failed.
    pub fn fetch(work: &Path, suites: &[&str]) -> Result<Self, String> {
        Self::fetch_of("deb", work, suites)
    }

    /// The same of sources.
    ///
    /// # Errors
    /// With what failed.
    pub fn fetch_of_sources(work: &Path, suites: &[&str]) -> Result<Self, String> {
        Self::fetch_of("deb-src", work, suites)
    }

    fn fetch_of(kind: &str, work: &Path, suites: &[&str]) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", work.display());
        fs::create_dir_all(work.join("lists/partial")).map_err(failed)?;
        fs::create_dir_all(work.join("cache/archives/partial")).map_err(failed)?;
        let line = |suite: &&str| format!("{kind} [signed-by={KEYRING}] {MIRROR} {suite} main\n");
        fs::write(work.join("sources.list"), suites.iter().map(line).collect::<String>()).map_err(failed)?;
        // No package is installed as far as these lists are concerned.
        fs::write(work.join("status"), "").map_err(failed)?;
        let lists = Self { work: work.to_owned() };
        lists.apt("apt-get", &["update"])?;
        Ok(lists)
    }

    /// The packages that `package` depends on directly.
    ///
    /// # Errors
    /// With what failed.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>, String> {
        let depends = self.apt("apt-cache", &["depends", package])?;
        let named = |line: &str| line.trim().strip_prefix("Depends: ").map(str::to_owned);
        Ok(depends.lines().filter_map(named).collect())
    }

    /// Downloads one package.
    ///
    /// # Errors
    /// With what failed.
    pub fn download(&self, package: &str) -> Result<(), String> {
        self.apt("apt-get", &["download", package]).map(drop)
    }

    /// Downloads the sources of one package, `NAME=VERSION`.
    ///
    /// # Errors
    /// With what failed.
    pub fn download_source(&self, package: &str) -> Result<(), String> {
        self.apt("apt-get", &["source", "--download-only", package]).map(drop)
    }

    /// Downloads packages of `suite` with all that they need, down to the C library. Gives the directory in which they lie.
    ///
    /// # Errors
    /// With what failed.
    pub fn download_with_needs(&self, suite: &str, packages: &[&str]) -> Result<PathBuf, String> {
        let status = format!("Dir::State::status={}", self.work.join("status").display());
        let mut words =
            vec!["-o", &status, "-o", "APT::Immediate-Configure=false", "-o", "Debug::NoLocking=true"];
        words.extend(["-t", suite, "install", "--download-only", "--yes", "--no-install-recommends"]);
        words.extend(packages);
        self.apt("apt-get", &words)?;
        Ok(self.work.join("cache/archives"))
    }

    /// Removes lists and downloads.
    ///
    /// # Errors
    /// With what failed.
    pub fn remove(self) -> Result<(), String> {
        fs::remove_dir_all(&self.work).map_err(|error| format!("{}: {error}", self.work.display()))
    }

    fn apt(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let own = [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ];
        let own = own.iter().flat_map(|(name, place)| {
            ["-o".to_owned(), format!("{name}={}", self.work.join(place).display())]
        });
        let quiet = ["-q", "-o", "Dir::Etc::SourceParts=-", "-o", "APT::Sandbox::User=root"];
        let mut command = Command::new(program);
        command.args(quiet).args(own).args(arguments);
        output(command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").current_dir(&self.work))
    }
}
