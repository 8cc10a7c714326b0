//! What an image engine is about to do with a medium, for storage that is made to fail at a certain step.
//!
//! Names are those of QEMU's blkdebug. An engine says a step just before the request that does it, on the same thread.

use crate::Storage;

macro_rules! steps {
    ($($step:ident $name:literal $what:literal)*) => {
        /// A step of an engine's work.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $(#[doc = $what] $step,)*
        }

        impl Step {
            /// All of them, by name.
            pub const NAMED: [(&str, Step); [$($name),*].len()] = [$(($name, Step::$step)),*];

            /// Their names.
            pub const NAMES: &[&str] = &[$($name),*];
        }
    };
}

steps! {
    L1Update "l1_update" "Entries of the L1 table are written."
    L1GrowAllocTable "l1_grow_alloc_table" "Clusters are allocated for a longer L1 table."
    L1GrowWriteTable "l1_grow_write_table" "A longer L1 table is written."
    L1GrowActivateTable "l1_grow_activate_table" "The header is made to lead to it."
    L2Load "l2_load" "A part of an L2 table is read."
    L2Update "l2_update" "Entries of L2 tables are written."
    L2AllocCowRead "l2_alloc_cow_read" "A shared L2 table is read to be copied."
    L2AllocWrite "l2_alloc_write" "A new L2 table is written."
    ReadAio "read_aio" "Guest data is read."
    ReadBackingAio "read_backing_aio" "Guest data is read from a layer below."
    ReadCompressed "read_compressed" "A compressed cluster is read."
    WriteAio "write_aio" "Guest data is written, with what is copied around it."
    WriteCompressed "write_compressed" "Compressed clusters are written."
    CowRead "cow_read" "Data around a write is read to be copied."
    CorWrite "cor_write" "What was read from below is written to be kept."
    ReftableLoad "reftable_load" "The refcount table is read."
    RefblockLoad "refblock_load" "A refcount block is read."
    RefblockUpdatePart "refblock_update_part" "A part of a refcount block is written."
    RefblockAllocHookup "refblock_alloc_hookup" "Entries of the refcount table are written."
    RefblockAllocWriteTable "refblock_alloc_write_table" "A larger refcount table is written."
    RefblockAllocSwitchTable "refblock_alloc_switch_table" "The header is made to lead to it."
    ClusterAlloc "cluster_alloc" "Clusters are allocated."
    ClusterAllocBytes "cluster_alloc_bytes" "Room for a compressed cluster is allocated."
    ClusterFree "cluster_free" "Clusters become free."
    FlushToOs "flush_to_os" "What is in memory is about to be written for a flush."
    FlushToDisk "flush_to_disk" "What was written is about to be made durable."
    Pwritev "pwritev" "Bytes are written, whatever they are."
    PwritevRmwHead "pwritev_rmw_head" "What stands in the first block before a write of a part of it is read."
    PwritevRmwAfterHead "pwritev_rmw_after_head" "It was read."
    PwritevRmwTail "pwritev_rmw_tail" "What stands in the last block behind such a write is read."
    PwritevRmwAfterTail "pwritev_rmw_after_tail" "It was read."
    PwritevZero "pwritev_zero" "A range is zeroed."
    PwritevDone "pwritev_done" "Such a request has succeeded."
    None "none" "The file was opened."
}

/// A watcher of an engine's steps. Tools for tests steer it too: a breakpoint holds back the first request that comes
/// after its step.
pub trait StepWatcher: Send + Sync {
    /// The engine is about to do `step`.
    fn about_to(&self, step: Step);

    /// Sets a breakpoint; requests that it holds back are called `tag`. It holds back one.
    fn set_breakpoint(&self, step: Step, tag: &str);

    /// Takes breakpoints called `tag` away and lets such requests go on. Whether there was one.
    fn remove_breakpoint(&self, tag: &str) -> bool;

    /// Lets a request called `tag` go on. Whether there was one.
    fn resume(&self, tag: &str) -> bool;

    /// Tags of the requests that are held back, the first one first.
    fn held_back(&self) -> Vec<String>;

    /// Requests that have passed or are held back since it was opened, and those that the device has now.
    fn requests(&self) -> (u64, usize);
}

/// Tells the watcher of `storage` that its engine is about to do `step`. Costs one call where there is none.
#[inline]
pub fn about_to(storage: &dyn Storage, step: Step) {
    if let Some(watcher) = storage.watcher() {
        watcher.about_to(step);
    }
}
