//! Options of `qemu-img convert` that are understood and refused.

use crate::failure::Failure;

/// They are refused rather than ignored: a caller that gives one relies on it.
#[derive(Debug, clap::Args)]
pub struct RefusedArgs {
    /// Copy bitmaps (refused)
    #[arg(long, hide = true)]
    bitmaps: bool,

    /// Leave out bitmaps that are out of date (refused)
    #[arg(long, hide = true)]
    skip_broken_bitmaps: bool,
}

impl RefusedArgs {
    /// Refuses what was given.
    ///
    /// # Errors
    /// For the first of them.
    pub fn check(&self) -> Result<(), Failure> {
        let what = if self.bitmaps || self.skip_broken_bitmaps {
            "--bitmaps: bitmaps are not copied here; the disk is, without it"
        } else {
            return Ok(());
        };
        Err(Failure::new(what).with_hint("qemu-img convert works on the same images"))
    }
}
