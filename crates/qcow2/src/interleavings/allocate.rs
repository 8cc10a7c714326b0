//! Allocation: refcounts decide who owns a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use storage::Storage;
use sync::Mutex;
use sync::explore::{block_on, explore, thread};

use super::World;
use crate::allocator::Run;

/// A thread's work: what to ask for, and whether to keep it.
type Wishes = &'static [(u64, bool)];

struct Owned {
    world: Arc<World>,
    clusters: Mutex<BTreeSet<u64>>,
}

impl Owned {
    fn allocate(&self, wanted: u64) -> Run {
        let inner = &self.world.image.inner;
        let run = block_on(async {
            match wanted {
                3 => inner.space.allocate_exactly(&inner.medium, wanted).await,
                _ => inner.space.allocate(&inner.medium, wanted).await,
            }
        })
        .unwrap();
        assert!((1..=wanted).contains(&run.len));
        let mut clusters = self.clusters.lock();
        for cluster in run.start..run.end() {
            assert!(clusters.insert(cluster), "cluster {cluster} has two owners");
        }
        run
    }

    fn give_back(&self, run: Run) {
        {
            let mut clusters = self.clusters.lock();
            (run.start..run.end()).for_each(|cluster| assert!(clusters.remove(&cluster)));
        }
        block_on(self.world.image.inner.space.give_back(&self.world.image.inner.medium, run));
    }
}

/// Runs `threads` at once; refcounts must then say who owns what.
fn check(threads: &'static [Wishes]) {
    explore(move || {
        let owned = Arc::new(Owned { world: World::new(), clusters: Mutex::default() });
        let inner = &owned.world.image.inner;
        let used = inner.medium.geometry.clusters_for(owned.world.medium.length());
        let start = |wishes: Wishes| {
            let owned = Arc::clone(&owned);
            thread::spawn(move || {
                for &(wanted, keep) in wishes {
                    let run = owned.allocate(wanted);
                    if !keep {
                        owned.give_back(run);
                    }
                }
            })
        };
        let threads: Vec<_> = threads.iter().copied().map(start).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let clusters = owned.clusters.lock();
        let asked = clusters.last().copied().unwrap_or(used).max(used) + 8;
        for cluster in used..asked {
            let refcount = block_on(inner.space.refcounts.get(cluster)).unwrap();
            let is_block = inner.medium.overlap.touched(cluster * super::CLUSTER, 1, None).is_some();
            let expected = u64::from(clusters.contains(&cluster) || is_block);
            assert_eq!(refcount, expected, "refcount of cluster {cluster}");
        }
        drop(clusters);
        give_all_back_and_find_it_again(&owned);
    });
}

/// What is given back is known to be free: it is handed out before the file grows.
fn give_all_back_and_find_it_again(owned: &Owned) {
    let clusters: Vec<u64> = owned.clusters.lock().iter().copied().collect();
    for &start in &clusters {
        owned.give_back(Run::used(start, 1));
    }
    let mut found = BTreeSet::new();
    while clusters.iter().any(|cluster| !found.contains(cluster)) {
        let run = owned.allocate(1);
        assert!(!run.fresh, "the file grows although clusters are free");
        found.insert(run.start);
    }
}

#[test]
fn a_cluster_has_one_owner_and_its_refcount_says_so() {
    check(&[&[(2, true), (1, false), (3, true)], &[(1, false), (4, true)], &[(3, false), (1, true)]]);
}

#[test]
fn clusters_that_are_given_back_are_not_handed_out_twice() {
    check(&[&[(1, false), (1, false), (1, true)], &[(1, false), (1, true)], &[(1, false), (2, true)]]);
}

#[test]
fn two_who_need_a_new_refcount_block_make_one() {
    // A block has 64 entries: both runs may begin in the first and end in the next.
    check(&[&[(50, true), (2, false)], &[(50, true), (3, true)]]);
}

#[test]
fn a_cluster_that_is_freed_while_it_is_scanned_is_known_twice_and_handed_out_once() {
    explore(|| {
        let before = World::new();
        let old: Vec<Run> = (0..3)
            .map(|_| block_on(before.image.inner.space.allocate(&before.image.inner.medium, 1)).unwrap())
            .collect();
        before.write(0, 1);
        before.close();
        let world = World::on(&before.medium.durable());
        let clusters = Mutex::new(old.iter().map(|run| run.start).collect());
        let owned = Arc::new(Owned { world, clusters });
        let free = {
            let owned = Arc::clone(&owned);
            thread::spawn(move || old.into_iter().for_each(|run| owned.give_back(run)))
        };
        let allocate = || {
            let owned = Arc::clone(&owned);
            thread::spawn(move || {
                let first = owned.allocate(1);
                owned.allocate(1);
                owned.give_back(first);
                owned.allocate(2);
            })
        };
        let threads = [free, allocate(), allocate()];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for &cluster in &*owned.clusters.lock() {
            assert_eq!(block_on(owned.world.image.inner.space.refcounts.get(cluster)).unwrap(), 1);
        }
    });
}
