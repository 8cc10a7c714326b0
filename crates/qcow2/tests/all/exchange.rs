//! Another backing layer is put below an open image.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use block::{Block, ErrorKind, Raw};
use futures_util::FutureExt;
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage};

use crate::on_reactor::{Loop, reactor_run};

const SIZE: u64 = 4 << 20;
const CLUSTER: u64 = 64 << 10;

/// A raw disk that holds `value` everywhere.
fn raw(value: u8) -> Arc<dyn Block> {
    Arc::new(Raw::new(Arc::new(MemoryStorage::from_bytes(&vec![value; SIZE as usize]))))
}

/// An image that holds nothing of its own, over `backing`.
async fn overlay(backing: Option<Arc<dyn Block>>, writable: bool) -> Qcow2 {
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &CreateOptions { size: SIZE, ..CreateOptions::default() }).await.unwrap();
    let files = Files { file, data: None, backing };
    Qcow2::open(files, Options { writable, ..Options::default() }, Arc::new(Loop)).await.unwrap()
}

/// Two images that hold nothing of their own, over `bottom`.
async fn images_over(bottom: Arc<dyn Block>) -> Arc<dyn Block> {
    let middle = overlay(Some(bottom), false).await;
    Arc::new(overlay(Some(Arc::new(middle)), false).await)
}

async fn read(image: &Qcow2, offset: u64, len: u64) -> Vec<u8> {
    let (result, buf) = image.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.unwrap();
    let mut inline = vec![0; len as usize];
    if image.try_read(offset, &mut inline, Hints::NONE).is_some() {
        assert_eq!(inline, buf[..], "what is read inline");
    }
    buf[..].to_vec()
}

async fn put_below(image: &Qcow2, backing: Option<Arc<dyn Block>>) {
    image.hold_still().await.unwrap().set_backing(backing).unwrap();
}

#[test]
fn what_an_image_does_not_have_comes_from_the_layer_that_is_below_it_now() {
    reactor_run(async {
        let image = overlay(None, true).await;
        image.write(CLUSTER, IoVec::from(IoBytes::copy_from(&[9; 100])), Hints::NONE).await.unwrap();
        let expected = |below: u8| {
            let mut bytes = vec![below; SIZE as usize];
            bytes[CLUSTER as usize..][..100].fill(9);
            bytes
        };
        // What was copied around the data is the image's own.
        let own = |below: u8| {
            let mut bytes = expected(below);
            bytes[CLUSTER as usize + 100..2 * CLUSTER as usize].fill(0);
            bytes
        };
        for (backing, found) in
            [(None, own(0)), (Some(raw(1)), own(1)), (Some(raw(2)), own(2)), (None, own(0))]
        {
            put_below(&image, backing.clone()).await;
            assert_eq!(image.below().is_some(), backing.is_some());
            assert!(read(&image, 0, SIZE).await == found);
        }
        // A cluster that is made now is filled from the layer of now.
        put_below(&image, Some(raw(3))).await;
        image.write(CLUSTER * 8, IoVec::from(IoBytes::copy_from(&[9; 1])), Hints::NONE).await.unwrap();
        put_below(&image, None).await;
        assert_eq!(read(&image, CLUSTER * 8, 3).await, [9, 3, 3]);
        image.close().await.unwrap();
    });
}

/// The layers below are resolved once into one map: what it says of the old layers must not be asked of the new ones.
#[test]
fn the_map_of_the_old_layers_answers_for_none_of_the_new_ones() {
    reactor_run(async {
        let top = overlay(Some(images_over(raw(1)).await), true).await;
        assert_eq!(read(&top, 0, SIZE).await, vec![1; SIZE as usize]);
        assert_eq!(
            top.status().chain.map(|chain| chain.layers),
            Some(3),
            "the layers have a map of their own"
        );
        put_below(&top, Some(images_over(raw(2)).await)).await;
        assert_eq!(read(&top, 0, SIZE).await, vec![2; SIZE as usize]);
        // In the middle: the image over it is given it again.
        let middle = top.below().unwrap();
        let still = (
            top.hold_still().await.unwrap(),
            middle.downcast_ref::<Qcow2>().unwrap().hold_still().await.unwrap(),
        );
        still.1.set_backing(Some(raw(3))).unwrap();
        still.0.set_backing(Some(Arc::clone(&middle))).unwrap();
        drop(still);
        assert_eq!(read(&top, 0, SIZE).await, vec![3; SIZE as usize]);
        assert_eq!(top.block_status(0, SIZE).await.unwrap().depth, 2);
        top.close().await.unwrap();
    });
}

#[test]
fn a_request_sees_the_old_layer_or_the_new_one_and_never_both() {
    reactor_run(async {
        let top = overlay(Some(raw(1)), true).await;
        let done = Rc::new(Cell::new(false));
        let reader = |seed: u64| {
            let (top, done) = (top.clone(), Rc::clone(&done));
            reactor::spawn(async move {
                let (mut seen, mut reads) = ([false; 3], 0_u64);
                while !done.get() {
                    let offset = (seed * 7919 + reads * 4099) % (SIZE - 3 * CLUSTER);
                    let bytes = read_as_one(&top, offset, 3 * CLUSTER).await;
                    seen[bytes as usize] = true;
                    reads += 1;
                    reactor::yield_now().await;
                }
                seen
            })
        };
        let readers: Vec<_> = (0..4).map(reader).collect();
        for value in [2, 1, 2, 1, 2, 1, 2] {
            put_below(&top, Some(raw(value))).await;
            // From here on the other one is not seen.
            assert_eq!(read_as_one(&top, 0, SIZE).await, value);
            for _ in 0..20 {
                reactor::yield_now().await;
            }
        }
        done.set(true);
        for reader in readers {
            assert_eq!(reader.await[1..], [true, true], "requests ran over both layers");
        }
        top.close().await.unwrap();
    });
}

/// The one value of the range.
async fn read_as_one(image: &Qcow2, offset: u64, len: u64) -> u8 {
    let (result, buf) = image.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a mixture");
    buf[0]
}

#[test]
fn an_image_goes_on_when_nobody_waits_any_more_to_hold_it_still() {
    reactor_run(async {
        let top = overlay(Some(raw(1)), true).await;
        let still = top.hold_still().await.unwrap();
        let mut second = Box::pin(top.hold_still());
        assert!(second.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(read(&top, 0, 10));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((second, still));
        assert_eq!(waiting.await, [1; 10]);
        drop(top.hold_still().await.unwrap());
        top.close().await.unwrap();
        assert_eq!(top.hold_still().await.map(drop).unwrap_err().kind(), ErrorKind::Refused);
    });
}
