//! In a running server.

use std::path::Path;

use graph::size::human_size;
use qcow2::Preallocation;
use serde_json::json;
use tool::failure::Failure;

use super::{Args, check_shrink, new_size};
use crate::remote::{Remote, figures};

/// Makes the server at `socket` change the size of a disk; returns what to print.
pub(super) fn resize(socket: &Path, args: &Args) -> Result<String, Failure> {
    if args.preallocation != Preallocation::Off {
        return Err(Failure::new(
            "a disk that is served cannot be preallocated; --preallocation must be off",
        ));
    }
    let mut remote = Remote::connect(socket)?;
    let disk = remote.disk(args.disk.as_deref())?;
    let disks = figures::read(&mut remote)?;
    let old = disks.iter().find(|figures| figures.name == disk).map_or(0, |figures| figures.size);
    let size = new_size(&args.size, old)?;
    check_shrink(args, size, old)?;
    let mut arguments = json!({ "node-name": disk, "size": size });
    if args.shrink {
        arguments["x-shrink"] = json!(true);
    }
    remote.ask("block_resize", arguments)?;
    Ok(format!("{disk}: {} ({size} bytes)", human_size(size)))
}
