//! Cache sizes that change, and memory that images share, while requests go on.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::sync::Arc;

use block::Block as _;
use on_reactor::reactor_run;
use qcow2::cache_sizes::CacheRequest;
use qcow2::{Budget, CreateOptions, Files, Form, Host, Options, Qcow2, Work, create};
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage, Storage};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CLUSTER: u64 = 4 * KIB;
const DISK: u64 = 64 * MIB;
const DEFAULT: CacheRequest =
    CacheRequest { total_bytes: None, l2_bytes: None, l2_entry_bytes: None, refcount_bytes: None };

#[derive(Debug)]
struct Loop(Arc<Budget>);

impl Host for Loop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }

    fn map_budget(&self) -> Arc<Budget> {
        Arc::clone(&self.0)
    }
}

async fn new_image(cache: CacheRequest, budget: &Arc<Budget>) -> (Qcow2, Arc<dyn Storage>) {
    let file: Arc<dyn Storage> = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions { size: DISK, cluster_size: CLUSTER, ..CreateOptions::default() };
    create(&*file, None, &options).await.unwrap();
    let options = Options { writable: true, cache, ..Options::default() };
    (open(&file, options, budget).await, file)
}

async fn open(file: &Arc<dyn Storage>, options: Options, budget: &Arc<Budget>) -> Qcow2 {
    let files = Files { file: Arc::clone(file), data: None, backing: None };
    Qcow2::open(files, options, Arc::new(Loop(Arc::clone(budget)))).await.unwrap()
}

async fn write(image: &Qcow2, (at, value): (u64, u8)) {
    image.write(at, IoVec::from(IoBytes::copy_from(&[value; 512])), Hints::NONE).await.unwrap();
}

async fn assert_holds(image: &Qcow2, places: impl IntoIterator<Item = (u64, u8)>) {
    for (at, value) in places {
        let (result, buf) = image.read(at, IoBuf::uninit(512), Hints::NONE).await;
        result.unwrap();
        assert_eq!(buf[..], [value; 512], "at {at:#x}");
    }
}

/// A place in each 64 KiB of disk, in an order that makes no runs.
fn places() -> impl Iterator<Item = (u64, u8)> {
    let places = DISK / (64 * KIB);
    (0..places).map(move |at| (at * 389 % places * 64 * KIB, (at % 251) as u8 + 1))
}

#[test]
fn sizes_change_under_dirty_slices_and_every_write_is_read_back() {
    reactor_run(async {
        let (image, file) = new_image(DEFAULT, &Budget::unlimited()).await;
        let sizes = [
            (Some(64 * KIB), Some(512)),
            (None, None),
            (Some(16 * KIB), Some(4 * KIB)),
            (Some(0), Some(KIB)),
        ];
        for (count, place) in places().enumerate() {
            if count % 100 == 50 {
                let (l2_bytes, l2_entry_bytes) = sizes[count / 100 % sizes.len()];
                let request = CacheRequest { l2_bytes, l2_entry_bytes, ..DEFAULT };
                let used = image.set_caches(request).await.unwrap();
                assert_eq!(image.cache_sizes(), used);
                assert_eq!(used.l2_entry_bytes, l2_entry_bytes.unwrap_or(CLUSTER));
                assert_eq!(image.status().map.dirty_slices, 0, "what is dirty is written first");
            }
            write(&image, place).await;
            assert_holds(&image, places().nth(count / 2)).await;
        }
        assert_holds(&image, places()).await;
        image.close().await.unwrap();
        let again = open(&file, Options::default(), &Budget::unlimited()).await;
        assert_holds(&again, places()).await;
        again.set_caches(CacheRequest { l2_entry_bytes: Some(512), ..DEFAULT }).await.unwrap();
        assert_holds(&again, places()).await;
    });
}

#[test]
fn sizes_that_are_refused_change_nothing() {
    reactor_run(async {
        let (image, _file) = new_image(DEFAULT, &Budget::unlimited()).await;
        let before = image.cache_sizes();
        let request = CacheRequest { l2_entry_bytes: Some(2 * CLUSTER), ..DEFAULT };
        let error = image.set_caches(request).await.unwrap_err().to_string();
        let rule = "must be a power of two from 512 to the cluster size (4096 bytes)";
        assert!(error.contains(rule), "{error}");
        assert_eq!(image.cache_sizes(), before);
    });
}

#[test]
fn images_keep_to_the_memory_they_share_refcounts_included() {
    reactor_run(async {
        let budget = Budget::new(256 * KIB);
        let cache = CacheRequest { l2_entry_bytes: Some(512), ..DEFAULT };
        let mut images = Vec::new();
        for _ in 0..4 {
            let (image, _file) = new_image(cache, &budget).await;
            for place in places() {
                write(&image, place).await;
            }
            image.flush().await.unwrap();
            assert_holds(&image, places()).await;
            assert!(budget.used_bytes() <= budget.bytes_max(), "{} bytes", budget.used_bytes());
            images.push(image);
        }
        let held = |image: &Qcow2| {
            let status = image.status();
            assert!(status.tables_bytes > 0, "{status:?}");
            status.map.resident_bytes + status.refcount_bytes + status.tables_bytes
        };
        let sum: u64 = images.iter().map(held).sum();
        assert_eq!(images[0].status().budget_used_bytes, sum);
    });
}

#[test]
fn an_idle_image_gives_its_plain_slices_and_then_everything_back() {
    reactor_run(async {
        let budget = Budget::unlimited();
        let (image, _file) = new_image(DEFAULT, &budget).await;
        for place in places() {
            write(&image, place).await;
        }
        let plain = |image: &Qcow2| image.status().map.bytes_by_form[Form::Plain as usize];
        assert!(plain(&image) > 0);
        let before = budget.used_bytes();
        for _ in 0..3 {
            image.write_back().await.unwrap();
        }
        assert_eq!(plain(&image), 0, "what is clean and was left alone is packed");
        assert!(budget.used_bytes() < before);
        assert_eq!(image.clean_cache(), 0);
        assert!(image.clean_cache() > 0, "what was not used for an interval goes");
        let status = image.status();
        assert_eq!((status.map.resident_slices, status.refcount_bytes), (0, 0));
        assert_holds(&image, places()).await;
    });
}
