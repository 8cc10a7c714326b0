//! What the targets do with an open image.

use std::sync::Arc;

use qcow2::{CheckReport, Error, Options, Qcow2, Repair};
use storage::{Hints, IoBuf, Storage};

use crate::base::files;
use crate::executor::host;
use crate::medium::Medium;

/// Largest part of a disk that is read as a whole: bigger ones only an edited size field makes.
pub(super) const READ_BYTES_MAX: u64 = 1 << 20;

/// Opens the image in `medium`, with some layer below it and some data file beside it if it wants them.
pub(super) async fn open(medium: &Arc<Medium>, options: Options) -> Result<Qcow2, Error> {
    open_with(medium, &empty(), options).await
}

/// The same with this data file.
pub(super) async fn open_with(
    medium: &Arc<Medium>,
    data: &Arc<dyn Storage>,
    options: Options,
) -> Result<Qcow2, Error> {
    let header = qcow2::read_header(&**medium).await?;
    let file = Arc::clone(medium) as Arc<dyn Storage>;
    Qcow2::open(files(file, Arc::clone(data), &header), options, host()).await
}

/// A file without content.
pub(super) fn empty() -> Arc<dyn Storage> {
    Arc::new(Medium::new(&[]))
}

/// Everything that `info` asks for, and everything that can be read.
pub(super) async fn look_at(image: &Qcow2, medium: &Medium) {
    let header = image.header().await;
    let _ = qcow2::snapshot::list(medium, &header).await;
    let end = image.size().min(READ_BYTES_MAX);
    for bitmap in image.bitmaps() {
        let mut at = 0;
        while at < end {
            let Ok(status) = bitmap.status(at, end - at).await else { break };
            assert!(status.len > 0 && at + status.len <= end, "bitmap status at {at}: {status:?}");
            at += status.len;
        }
    }
    let mut at = 0;
    while at < end {
        let Ok(status) = image.block_status(at, end - at).await else { break };
        assert!(status.len > 0 && at + status.len <= end, "block status at {at}: {status:?}");
        at += status.len;
    }
    let _ = read(image, 0, end).await;
    let tail = image.size().saturating_sub(4096);
    let _ = read(image, tail, image.size() - tail).await;
    let _ = image.status();
}

/// Reads a range that fits memory.
pub(super) async fn read(image: &Qcow2, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
    let buf = IoBuf::zeroed(usize::try_from(len).unwrap_or(usize::MAX));
    let (result, buf) = image.read(offset, buf, Hints::NONE).await;
    result.map(|_| buf.to_vec())
}

/// What a check without repair says; an error is an image that cannot be checked. Insists that nothing was
/// written.
pub(super) async fn check(medium: &Medium) -> Option<CheckReport> {
    let changes = medium.changes();
    let report = qcow2::check(medium, Repair::None, &mut |_| {}).await.ok();
    assert_eq!(medium.changes(), changes, "a check without repair wrote to the image");
    report
}
