//! The snapshot table: alone, and in an image.

use std::sync::Arc;

use qcow2::Options;
use qcow2_layout::{Version, decode_snapshots, decode_snapshots_dropping_extra, encode_snapshots};

use super::disk;
use crate::base::Base;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (which, count, writable) = (input.byte(), input.number(2), input.flag());
    let count = u32::try_from(count).unwrap_or(0);
    let table = input.rest();
    alone(table, count);
    let bases = crate::base::all();
    let with_table: Vec<&Base> = bases.iter().filter(|base| base.snapshots_at.is_some()).collect();
    let base = with_table[usize::from(which) % with_table.len()];
    let mut bytes = base.bytes.clone();
    replace(&mut bytes, base.snapshots_at, table);
    bytes[60..64].copy_from_slice(&count.to_be_bytes());
    block_on(in_image(Arc::new(Medium::new(&bytes)), writable));
}

fn alone(table: &[u8], count: u32) {
    let _ = decode_snapshots_dropping_extra(table, count);
    let Ok(decoded) = decode_snapshots(table, count) else { return };
    let entries: Vec<_> = decoded.into_iter().map(|snapshot| snapshot.entry).collect();
    let Ok(encoded) = encode_snapshots(&entries, Version::V3) else { return };
    let again = decode_snapshots(&encoded, count).expect("what was encoded can be decoded");
    let again: Vec<_> = again.into_iter().map(|snapshot| snapshot.entry).collect();
    let known = |entries: &[qcow2_layout::SnapshotEntry]| -> Vec<_> {
        entries.iter().map(|entry| (entry.l1_table_offset, entry.name.clone(), entry.vm_state_size)).collect()
    };
    assert_eq!(known(&again), known(&entries));
}

async fn in_image(medium: Arc<Medium>, writable: bool) {
    let _ = disk::check(&medium).await;
    if let Ok(image) = disk::open(&medium, Options { writable, ..Options::default() }).await {
        disk::look_at(&image, &medium).await;
        let _ = image.close().await;
    }
    let _ = qcow2::check(&*medium, qcow2::Repair::All, &mut |_| {}).await;
    let _ = disk::check(&medium).await;
}

/// Puts `table` at `at`, as far as the image goes on there.
pub(super) fn replace(bytes: &mut Vec<u8>, at: Option<u64>, table: &[u8]) {
    let at = at.and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
    let end = at + table.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(table);
}
