//! What follows `create -o`: values, pairs of options, and the image that is then made.

use std::sync::Arc;

use graph::probe::Format;
use qcow2::{CreateOptions, Options};
use storage::Storage;
use tool::create::options::{NewImage, asks_for_help, help};

use super::disk;
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

/// Options of a case that are made up of names that exist.
const OPTIONS_MAX: u8 = 16;

/// Largest disk that is made: a plan of any size is checked, but writing its tables takes memory here.
const DISK_BYTES_MAX: u64 = 64 << 20;

/// Names as users know them, and some that are unknown.
const NAMES: [&str; 16] = [
    "size",
    "preallocation",
    "compat",
    "cluster_size",
    "backing_file",
    "backing_fmt",
    "lazy_refcounts",
    "refcount_bits",
    "extended_l2",
    "compression_type",
    "data_file",
    "data_file_raw",
    "encrypt.format",
    "nocow",
    "help",
    "cluster-size",
];

/// Values of which at least one option takes each.
const VALUES: [&str; 32] = [
    "0", "1", "2", "4", "8", "16", "32", "64", "512", "1k", "4k", "16k", "64k", "2M", "3M", "1.5M", "20M",
    "16E", "0x200", "on", "off", "yes", "1.1", "0.10", "v2", "raw", "qcow2", "zlib", "zstd", "metadata",
    "falloc", "full",
];

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let format = if how & 1 == 1 { Format::Raw } else { Format::Qcow2 };
    let texts = texts(&mut input, how);
    assert!(!help(format, true).is_empty());
    let _ = asks_for_help(&texts);
    match NewImage::parse(&texts, format) {
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
        Ok(image) if format == Format::Qcow2 => make(&image),
        Ok(_) => {}
    }
}

/// Arguments as they were typed: names and values that there are, then whatever the input says.
fn texts(input: &mut Input<'_>, how: u8) -> Vec<String> {
    let mut text = String::new();
    for _ in 0..input.byte() % OPTIONS_MAX {
        text += &format!("{}={},", input.pick(&NAMES), input.pick(&VALUES));
    }
    let rest = String::from_utf8_lossy(input.clone().rest()).into_owned();
    let separate = how & 2 == 2 && !text.is_empty();
    text.truncate(text.len().saturating_sub(1));
    match (separate, rest.is_empty()) {
        (true, _) => vec![text, rest],
        (false, true) => vec![text],
        (false, false) if text.is_empty() => vec![rest],
        (false, false) => vec![text + "," + &rest],
    }
}

/// The image is refused in words, or made: sound, of the size that was asked for, and writable.
fn make(image: &NewImage) {
    let size = image.size.unwrap_or(1 << 20);
    let options = CreateOptions { size: size.min(DISK_BYTES_MAX), ..image.options.clone() };
    let medium = Arc::new(Medium::new(&[]));
    let data: Arc<dyn Storage> = Arc::new(Medium::new(&[]));
    let beside = options.data_file.is_some().then_some(&*data);
    block_on(async {
        if let Err(error) = qcow2::create(&*medium, beside, &options).await {
            assert!(!error.to_string().is_empty(), "an error says what is wrong");
            return;
        }
        let report = disk::check(&medium).await.expect("what was made can be checked");
        assert_eq!(
            (report.corruptions, report.leaks, report.check_errors),
            (0, 0, 0),
            "{options:?}: {report:?}"
        );
        let open = Options { writable: true, ..Options::default() };
        let disk = disk::open_with(&medium, &data, open).await.expect("what was made opens");
        assert_eq!(disk.size(), options.size.next_multiple_of(512), "{options:?}");
        disk::look_at(&disk, &medium).await;
        let _ = disk.close().await;
    });
}
