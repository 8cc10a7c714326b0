//! The bitmap directory: alone, and in an image that is then written.

use std::sync::Arc;

use qcow2::Options;
use qcow2_layout::{decode_bitmap_directory, encode_bitmap_directory};
use storage::{Hints, IoBytes, IoVec};

use super::disk;
use super::snapshot_table::replace;
use crate::base::Base;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (which, count, resized) = (input.byte(), input.number(2), input.flag());
    let directory = input.rest();
    let bases = crate::base::all();
    let with_bitmaps: Vec<&Base> = bases.iter().filter(|base| base.bitmaps_at.is_some()).collect();
    let base = with_bitmaps[usize::from(which) % with_bitmaps.len()];
    alone(base, directory, u32::try_from(count).unwrap_or(0));
    let mut bytes = base.bytes.clone();
    replace(&mut bytes, base.bitmaps_at, directory);
    let mut header = base.header.clone();
    if let Some(bitmaps) = &mut header.extensions.bitmaps {
        bitmaps.count = u32::try_from(count).unwrap_or(0).max(1);
        if resized {
            bitmaps.directory_size = directory.len() as u64;
        }
    }
    // A directory that the header cannot describe was looked at alone.
    let Ok(first) = header.encode() else { return };
    bytes[..first.len()].copy_from_slice(&first);
    block_on(in_image(Arc::new(Medium::new(&bytes))));
}

fn alone(base: &Base, directory: &[u8], count: u32) {
    let Ok(entries) = decode_bitmap_directory(directory, count, &base.geometry) else { return };
    let encoded = encode_bitmap_directory(&entries, &base.geometry).expect("it was decoded");
    let again = decode_bitmap_directory(&encoded, count, &base.geometry);
    assert_eq!(again.as_ref(), Ok(&entries), "decode(encode(x)) is not x");
}

async fn in_image(medium: Arc<Medium>) {
    let _ = disk::check(&medium).await;
    let Ok(image) = disk::open(&medium, Options { writable: true, ..Options::default() }).await else {
        return;
    };
    disk::look_at(&image, &medium).await;
    let _ = image.write(0, IoVec::from(IoBytes::copy_from(&[7; 512])), Hints::NONE).await;
    let _ = image.close().await;
    let _ = disk::check(&medium).await;
}
