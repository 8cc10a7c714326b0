//! What went wrong, and how to see it again.

use std::fmt;
use std::process::Command;

use crate::executor::Stuck;
use crate::model::Mismatch;
use crate::request::IoKind;
use crate::workload::Workload;
use crate::world::{Fault, Shortage};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Bytes were read that no client may see there.
    Data(Mismatch),
    /// The disk has a size that it cannot have.
    Size {
        /// In bytes.
        found: u64,
    },
    /// A request failed although nothing below did.
    UnexpectedError {
        /// What the client did.
        op: String,
        /// What it received.
        error: String,
    },
    /// A request below failed, and no client was notified.
    Swallowed(IoKind),
    /// The images are worse than they may be.
    Check(String),
    /// What makes acknowledged changes durable failed for want of room.
    Unflushable {
        /// What the client did.
        op: String,
        /// What it received.
        error: String,
    },
    /// Units are lost although nothing crashed and no error was reported.
    Leaked(u64),
    /// The disk does not open.
    Open(String),
    /// The images could not be made: nothing was tested.
    Build(String),
    /// The contract below was breached.
    Breach(String),
    /// Nothing goes on.
    Stuck(Stuck),
    /// A panic, with its message.
    Panic(String),
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Data(mismatch) => write!(f, "wrong data {mismatch}"),
            FailureKind::Size { found } => write!(f, "the disk is {found} bytes long, which it cannot be"),
            FailureKind::UnexpectedError { op, error } => {
                write!(f, "`{op}` failed without a cause below: {error}")
            }
            FailureKind::Swallowed(kind) => write!(f, "a {kind:?} failed below and no client got an error"),
            FailureKind::Unflushable { op, error } => {
                write!(f, "`{op}` of what was acknowledged failed because the device is full: {error}")
            }
            FailureKind::Leaked(leaks) => {
                write!(f, "{leaks} leaked although nothing crashed and no error was reported")
            }
            FailureKind::Check(found) => write!(f, "the check found: {found}"),
            FailureKind::Open(error) => write!(f, "the disk does not open: {error}"),
            FailureKind::Build(error) => write!(f, "the images could not be made: {error}"),
            FailureKind::Breach(what) => write!(f, "the storage contract was breached: {what}"),
            FailureKind::Stuck(stuck) => write!(f, "{stuck}"),
            FailureKind::Panic(message) => write!(f, "panic: {message}"),
        }
    }
}

/// A failure with everything that leads to it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// The configuration.
    pub target: String,
    /// The seed of schedule and sampling.
    pub seed: u64,
    /// What the clients did.
    pub workload: Workload,
    /// What failed below.
    pub faults: Vec<Fault>,
    /// When there was no room below.
    pub shortages: Vec<Shortage>,
    /// The crash that was looked at.
    pub crash: Option<String>,
    /// The command that shows it again.
    pub replay: Option<String>,
}

impl Failure {
    /// A failure without faults and crash.
    pub fn new(kind: FailureKind, target: String, seed: u64, workload: &Workload) -> Self {
        Self {
            kind,
            target,
            seed,
            workload: workload.clone(),
            faults: Vec::new(),
            shortages: Vec::new(),
            crash: None,
            replay: None,
        }
    }

    /// Adds the command that shows it again.
    pub fn replayed_by(mut self, command: String) -> Self {
        self.replay = Some(command);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.target, self.kind)?;
        writeln!(f, "seed {} at commit {}", self.seed, commit())?;
        if let Some(command) = &self.replay {
            writeln!(f, "replay: {command}")?;
        }
        for fault in &self.faults {
            writeln!(f, "fault: {fault:?}")?;
        }
        for shortage in &self.shortages {
            writeln!(f, "no room: {shortage:?}")?;
        }
        if let Some(crash) = &self.crash {
            writeln!(f, "{crash}")?;
        }
        write!(f, "workload, {} steps:\n{}", self.workload.steps.len(), self.workload)
    }
}

impl std::error::Error for Failure {}

/// The commit that is checked out, as git says.
fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "unknown".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}
