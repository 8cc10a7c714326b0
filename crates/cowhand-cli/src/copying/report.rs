//! What a tool that copies shows: how far it is, and its result.

use tool::failure::Failure;

use super::watch::Watch;
use crate::output::OutputFormat;

/// The options for that.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ReportArgs {
    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    pub quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: OutputFormat,
}

impl ReportArgs {
    /// Begins to catch signals.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn watch(&self) -> Result<Watch, Failure> {
        Watch::begin(self.progress && !self.quiet)
    }
}
