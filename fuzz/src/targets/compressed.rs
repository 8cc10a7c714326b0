//! Compressed clusters: any bytes of any length, read and overwritten.

use std::sync::Arc;

use qcow2::Options;
use storage::{Hints, IoBytes, IoVec};

use super::disk;
use super::snapshot_table::replace;
use crate::base::{Base, COMPRESSED_AT, pack};
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (which, how, entry) = (input.byte(), input.byte(), input.number(8));
    let bases = crate::base::all();
    let compressed: Vec<&Base> = bases.iter().filter(|base| base.compressed.is_some()).collect();
    let base = compressed[usize::from(which) % compressed.len()];
    let Some((entry_at, host)) = base.compressed else { return };
    let mut bytes = base.bytes.clone();
    let content = input.rest();
    if how & 1 == 1 {
        replace(&mut bytes, Some(host), content);
    } else {
        // A valid stream of the wrong length, or with an end that is something else.
        let len = usize::try_from(base.geometry.cluster_size())
            .unwrap_or(0)
            .saturating_add_signed(isize::from(how as i8));
        let plain: Vec<u8> =
            content.iter().copied().cycle().take(if content.is_empty() { 0 } else { len }).collect();
        replace(&mut bytes, Some(host), &pack(base.header.compression, &plain));
    }
    if how & 2 == 2 {
        let at = usize::try_from(entry_at).unwrap_or(0);
        bytes[at..at + 8].copy_from_slice(&(entry | 1 << 62).to_be_bytes());
    }
    block_on(read_and_overwrite(Arc::new(Medium::new(&bytes)), base));
}

async fn read_and_overwrite(medium: Arc<Medium>, base: &Base) {
    let _ = disk::check(&medium).await;
    let options = Options { writable: true, discard: true, ..Options::default() };
    let Ok(image) = disk::open(&medium, options).await else { return };
    let cluster = base.geometry.cluster_size();
    let _ = disk::read(&image, COMPRESSED_AT, cluster).await;
    let _ = disk::read(&image, COMPRESSED_AT + 5, 100).await;
    let part = || IoVec::from(IoBytes::copy_from(&[9; 100]));
    if image.write(COMPRESSED_AT + 100, part(), Hints::NONE).await.is_ok() {
        let found = disk::read(&image, COMPRESSED_AT + 100, 100).await.expect("it was written");
        assert!(found == [9; 100], "a write into a compressed cluster is not read back");
    }
    let _ = image.discard(COMPRESSED_AT, cluster).await;
    let _ = image.close().await;
    let _ = disk::check(&medium).await;
}
