//! Options of `qemu-img convert` that are understood and refused.

use crate::failure::Failure;

/// They are refused rather than ignored: who gives one relies on it.
#[derive(Debug, clap::Args)]
pub struct RefusedArgs {
    /// Let the file system copy (refused: data is read and written here)
    #[arg(short = 'C', hide = true)]
    offload: bool,

    /// A snapshot of DRIVE (refused: content of snapshots is not read)
    #[arg(short = 'l', value_name = "SNAPSHOT", hide = true)]
    snapshot: Option<String>,

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
        let what = if self.offload {
            "-C: data is read and written here, not copied by the file system; leave it out"
        } else if self.snapshot.is_some() {
            "-l: the content of a snapshot is not read here; only the disk is, without -l"
        } else if self.bitmaps || self.skip_broken_bitmaps {
            "--bitmaps: bitmaps are not copied here; the disk is, without it"
        } else {
            return Ok(());
        };
        Err(Failure::new(what).with_hint("qemu-img convert works on the same images"))
    }
}
