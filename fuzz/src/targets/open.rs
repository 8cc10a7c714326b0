//! Open read-only, `info`, read everything: an error or bytes. Also a header of raw bytes.

use std::sync::Arc;

use qcow2::Options;
use qcow2_layout::Header;

use super::disk;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;
use crate::mutate;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let medium = if input.flag() {
        let bytes = input.rest();
        let _ = Header::cluster_bits_of(bytes);
        let _ = Header::decode_for_check(bytes);
        Medium::new(bytes)
    } else {
        mutate::image(&mut input).medium
    };
    block_on(async {
        let medium = Arc::new(medium);
        let changes = medium.changes();
        let Ok(image) = disk::open(&medium, Options::default()).await else { return };
        disk::look_at(&image, &medium).await;
        let _ = image.close().await;
        assert_eq!(medium.changes(), changes, "a read-only image was written");
    });
}
