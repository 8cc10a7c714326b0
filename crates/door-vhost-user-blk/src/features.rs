//! Bits that front-end and back-end agree on.

/// Features of the device, as the guest's driver sees them (virtio 1.2, 5.2.3 and 6), and of vhost.
pub mod device {
    /// The configuration says how many segments a request may have.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// The configuration has the size of a logical block.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// There is a write cache, and it can be flushed.
    pub const FLUSH: u64 = 1 << 9;
    /// The configuration has the physical block and the best sizes.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may turn the write cache on and off.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// Several queues.
    pub const MQ: u64 = 1 << 12;
    /// Discards.
    pub const DISCARD: u64 = 1 << 13;
    /// Writes of zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// vhost: pages that are written are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Tables of descriptors outside the ring.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side says from which index on it wants to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user: there are protocol features.
    pub const PROTOCOL: u64 = 1 << 30;
    /// Virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;

    /// Those that do not depend on the disk.
    pub const ALWAYS: u64 = SEG_MAX
        | BLK_SIZE
        | FLUSH
        | TOPOLOGY
        | CONFIG_WCE
        | MQ
        | LOG_ALL
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1
        | RING_PACKED;
}

/// Features of the protocol (vhost-user specification, "Protocol features").
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// The log of dirty pages is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Messages without an answer of their own can ask for one.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back-end may send messages, too.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The device's configuration is the back-end's.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in flight are recorded in shared memory, which outlives the back-end.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// Regions of memory are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The device's own state goes to another back-end through a pipe.
    pub const DEVICE_STATE: u64 = 1 << 19;

    /// All that is offered.
    pub const OFFERED: u64 = MQ
        | LOG_SHMFD
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | CONFIGURE_MEM_SLOTS
        | DEVICE_STATE;
}
