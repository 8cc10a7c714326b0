//! Layers go into the one below them.
//!
//! A commit of layers that end before the image above them left alone what a longer base had behind their end: the disk read zeroes there, and then
//! old data of the base.

use std::sync::Arc;

use block::Block;
use futures_executor::block_on;
use job::{Life, Merge, Terms};

use crate::made_up::{MadeUp, SECTOR, Sector};

/// The base after a commit of `sectors` of data below an image of `over` sectors.
fn committed(sectors: usize, over: usize, base: usize) -> Vec<u8> {
    let base = Arc::new(MadeUp::used("base", base));
    let merge = Merge {
        top: Arc::new(MadeUp::new("top", &vec![Sector::Data; sectors], 1)),
        layers: 1,
        base: Arc::clone(&base) as Arc<dyn Block>,
        over: Arc::new(MadeUp::blank("over", over)),
        size_above: (over * SECTOR) as u64,
        backing: None,
    };
    let life = Life::new(Terms::default(), 0, |_| ());
    life.begin();
    block_on(merge.run(&life)).unwrap();
    base.bytes()
}

#[test]
fn a_base_shows_nothing_of_its_own_behind_the_end_of_the_layers() {
    let found = committed(10, 30, 20);
    assert_eq!(found[..10 * SECTOR], MadeUp::new("top", &[Sector::Data; 10], 1).bytes());
    assert!(found[10 * SECTOR..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_a_base_has_behind_the_end_of_the_image_above_stays() {
    let before = MadeUp::used("base", 40).bytes();
    let found = committed(10, 30, 40);
    assert!(found[10 * SECTOR..30 * SECTOR].iter().all(|byte| *byte == 0));
    assert_eq!(found[30 * SECTOR..], before[30 * SECTOR..]);
}
