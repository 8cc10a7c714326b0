//! What has changed, and since when.

use std::process::{Command, Stdio};

use crate::workspace::root;

/// Says which commit a change begins after, where that is not to be found out of the history: the base of a merge request, say.
pub const BASE_VARIABLE: &str = "COWHAND_CI_BASE";

/// A change that has landed is looked at together with everything that landed within this time before it: other runs may have been left
/// out in between.
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// The files of a change.
#[derive(Debug)]
pub struct Change {
    /// Where it begins, in words.
    pub since: String,
    /// Paths from the root, also of files that are gone.
    pub files: Vec<String>,
}

impl Change {
    /// What changed after `base`; without one after [`BASE_VARIABLE`], after the branch left `origin`'s, or within the last day before the
    /// newest commit. What is not committed yet is a part of it.
    ///
    /// # Errors
    /// When the history does not say.
    pub fn since(base: Option<&str>) -> Result<Self, String> {
        let set = std::env::var(BASE_VARIABLE).ok().filter(|base| !base.is_empty());
        let (commit, why) = match base.map(str::to_owned).or(set) {
            Some(base) => (git(&["merge-base", &base, "HEAD"])?, format!("where it left {base}")),
            None => found()?,
        };
        let changed = git(&["diff", "--name-only", "--no-renames", &commit])?;
        let new = git(&["ls-files", "--others", "--exclude-standard"])?;
        let files = changed.lines().chain(new.lines()).map(str::to_owned).collect();
        let short = commit.get(..12).unwrap_or(&commit);
        Ok(Self { since: format!("{short} ({why})"), files })
    }
}

/// The commit before the change, and why that one.
fn found() -> Result<(String, String), String> {
    let head = git(&["rev-parse", "HEAD"])?;
    for upstream in ["origin/HEAD", "origin/main"] {
        if let Ok(base) = git(&["merge-base", upstream, "HEAD"])
            && base != head
        {
            return Ok((base, format!("where the branch left {upstream}")));
        }
    }
    let committed = git(&["log", "-1", "--format=%ct", "HEAD"])?;
    let committed: i64 = committed.parse().map_err(|_| format!("git: `{committed}` is no time"))?;
    let before = format!("--before={}", committed - DAY_SECONDS);
    match git(&["rev-list", "--first-parent", "--max-count=1", &before, "HEAD"])? {
        none if none.is_empty() => Err("the history here does not go back a day".to_owned()),
        base => Ok((base, "the last one more than a day older than HEAD".to_owned())),
    }
}

/// What git answers.
fn git(words: &[&str]) -> Result<String, String> {
    let mut git = Command::new("git");
    let answer = git.args(words).current_dir(root()).stdin(Stdio::null()).output();
    let answer = answer.map_err(|error| format!("git does not run: {error}"))?;
    if !answer.status.success() {
        let said = String::from_utf8_lossy(&answer.stderr);
        return Err(format!("git {}: {}", words.join(" "), said.trim()));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}
