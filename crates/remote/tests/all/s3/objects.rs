//! Objects of each service: put, read, replaced, listed, removed.

use std::sync::Arc;

use black_box::{Cloud, FakeCloud};
use memory::IoBytes;
use remote::s3::{Depth, Listed, Present, StoreError, Upload, UploadSize};

use crate::s3::{run, store};

const CLOUDS: [Cloud; 3] = [Cloud::Amazon, Cloud::Google, Cloud::Azure];

fn bytes(text: &str) -> IoBytes {
    IoBytes::copy_from(text.as_bytes())
}

/// A manifest that another process replaced meanwhile is never overwritten, whichever service keeps it.
#[test]
fn an_object_stays_what_it_is_unless_the_version_that_was_read_is_replaced() {
    for cloud in CLOUDS {
        let fake = FakeCloud::start(cloud, 3600);
        let store = store(cloud, &fake, fake.variables());
        run(async {
            let put = async |text: &str, present: &Present| store.put("d/x.json", bytes(text), present).await;
            assert!(store.get("d/x.json", 100).await.unwrap().is_none());
            put("one", &Present::Keep).await.unwrap();
            let kept = put("two", &Present::Keep).await;
            assert!(matches!(kept, Err(StoreError::Exists { .. })), "{cloud:?}: {kept:?}");
            let first = store.get("d/x.json", 100).await.unwrap().unwrap();
            assert_eq!(first.body, b"one");
            let version = Present::ReplaceVersion(first.etag.unwrap());
            put("two", &version).await.unwrap();
            let late = put("three", &version).await;
            assert!(matches!(late, Err(StoreError::Changed { .. })), "{cloud:?}: {late:?}");
            assert_eq!(store.get("d/x.json", 100).await.unwrap().unwrap().body, b"two");
            assert_eq!(store.look("d/x.json").await.unwrap().unwrap().bytes, Some(3));
            put("four", &Present::Replace).await.unwrap();
            store.remove("d/x.json").await.unwrap();
            store.remove("d/x.json").await.unwrap();
            assert!(store.look("d/x.json").await.unwrap().is_none());
        });
    }
}

#[test]
fn a_list_has_every_object_of_its_prefix_in_each_of_its_parts() {
    for cloud in CLOUDS {
        let fake = FakeCloud::start(cloud, 3600);
        let store = store(cloud, &fake, fake.variables());
        run(async {
            let keys = ["d/a", "d/b c", "d/sub/e", "d/x1", "d/x2", "d/x3", "d/x4", "d/x5", "e"];
            for key in keys {
                store.put(key, bytes("7"), &Present::Replace).await.unwrap();
            }
            for (depth, expected) in [(Depth::All, 8), (Depth::Here, 7)] {
                let mut found = Vec::new();
                let give = |page: Vec<Listed>| {
                    found.extend(page);
                    Ok::<(), StoreError>(())
                };
                store.list("d/", depth, give).await.unwrap();
                let names: Vec<&str> = found.iter().map(|one| one.key.as_str()).collect();
                assert_eq!(names.len(), expected, "{cloud:?} {depth:?}: {names:?}");
                assert!(names.is_sorted() && names.iter().all(|name| keys.contains(name)), "{names:?}");
                assert!(found.iter().all(|one| (one.bytes, one.age_s) == (1, Some(0))), "{found:?}");
            }
        });
    }
}

/// An upload in parts: the first one is sent last, another upload of the same name is refused, and a given up one leaves nothing.
#[test]
fn an_upload_in_parts_is_seen_when_it_is_whole() {
    const MIB: usize = 1 << 20;
    let size = UploadSize { part_bytes: 8 * MIB, parts_in_flight: 2 };
    for cloud in CLOUDS {
        let fake = FakeCloud::start(cloud, 3600);
        let store = store(cloud, &fake, fake.variables());
        run(async {
            let begin = async |present| Upload::begin(Arc::clone(&store), "disk", present, size).await;
            let whole: Vec<u8> = (0..20 * MIB).map(|at| (at >> 12) as u8).collect();
            let mut upload = begin(Present::Keep).await.unwrap();
            let mut other = begin(Present::Keep).await.unwrap();
            for upload in [&mut upload, &mut other] {
                upload.append(&whole).await.unwrap();
            }
            assert!(store.look("disk").await.unwrap().is_none());
            upload.finish(b"start").await.unwrap();
            let late = other.finish(b"other").await;
            assert!(matches!(late, Err(StoreError::Exists { .. })), "{cloud:?}: {late:?}");
            other.abort().await.unwrap();
            let expected = [b"start", &whole[5..]].concat();
            assert!(fake.object("images/disk").unwrap() == expected, "{cloud:?}");
            let mut third = begin(Present::Replace).await.unwrap();
            third.append(&whole).await.unwrap();
            third.finish(b"third").await.unwrap();
            assert!(fake.object("images/disk").unwrap().starts_with(b"third"));
        });
    }
}
