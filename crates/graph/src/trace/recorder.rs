//! Where requests leave their traces: in memory, within a bound, without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use event_listener::{Event, EventListener};
use parking_lot::Mutex;
use throttle::Time;

use super::{DISKS_MAX, TraceDisk, TraceRequest};
use crate::front::{Kind, STRIPES, stripe};

/// Requests that each of eight stripes holds at most: half a megabyte. What comes while all of it waits to be
/// written is lost, and counted.
pub const STRIPE_RECORDS: usize = 16 << 10;

/// Takes requests in, from any thread.
///
/// A thread has a stripe of its own as long as there are no more than eight; its lock is otherwise taken by the writer alone,
/// for as long as it takes to exchange two vectors.
#[derive(Debug)]
pub struct Recorder {
    stripes: [Stripe; STRIPES],
    disks: Mutex<Vec<TraceDisk>>,
    on: AtomicBool,
    filling: Event,
}

#[derive(Debug)]
#[repr(align(128))]
struct Stripe(Mutex<Pending>);

#[derive(Debug)]
struct Pending {
    requests: Vec<TraceRequest>,
    lost: u64,
}

/// A disk's way into a recorder.
#[derive(Debug)]
pub(crate) struct Tap {
    recorder: Arc<Recorder>,
    disk: u16,
}

/// An empty vector for the requests of a stripe.
pub(super) fn empty() -> Vec<TraceRequest> {
    Vec::with_capacity(STRIPE_RECORDS)
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            stripes: std::array::from_fn(|_| Stripe(Mutex::new(Pending { requests: empty(), lost: 0 }))),
            disks: Mutex::default(),
            on: AtomicBool::new(true),
            filling: Event::new(),
        }
    }
}

impl Recorder {
    /// Begins to record a disk; `None` for one too many.
    pub(crate) fn join(self: &Arc<Self>, disk: TraceDisk) -> Option<Tap> {
        let mut disks = self.disks.lock();
        let number = u16::try_from(disks.len()).ok().filter(|&number| usize::from(number) < DISKS_MAX);
        let Some(number) = number else {
            tracing::warn!("{}: not traced: the trace has {DISKS_MAX} disks already", disk.name);
            return None;
        };
        disks.push(disk);
        Some(Tap { recorder: Arc::clone(self), disk: number })
    }

    fn record(&self, request: TraceRequest) {
        if !self.on.load(Relaxed) {
            return;
        }
        let mut held = self.stripes[stripe()].0.lock();
        if held.requests.len() == STRIPE_RECORDS {
            held.lost += 1;
            return;
        }
        held.requests.push(request);
        if held.requests.len() == STRIPE_RECORDS / 2 {
            drop(held);
            self.filling.notify(1);
        }
    }

    /// Ends when a stripe is half full. To be had before the stripes are looked at.
    pub(super) fn filling(&self) -> EventListener {
        self.filling.listen()
    }

    /// Moves what is held to the end of `requests`, by way of `spare`, and says how many were lost.
    pub(super) fn take(&self, requests: &mut Vec<TraceRequest>, spare: &mut Vec<TraceRequest>) -> u64 {
        let mut lost = 0;
        for stripe in &self.stripes {
            let mut held = stripe.0.lock();
            std::mem::swap(&mut held.requests, spare);
            lost += std::mem::take(&mut held.lost);
            drop(held);
            requests.append(spare);
        }
        lost
    }

    /// Disks that joined behind the first `known`.
    pub(super) fn disks_behind(&self, known: usize) -> Vec<TraceDisk> {
        self.disks.lock().get(known..).unwrap_or_default().to_vec()
    }

    /// Takes nothing in any more.
    pub(super) fn stop(&self) {
        self.on.store(false, Relaxed);
    }
}

impl Tap {
    pub(crate) fn record(&self, kind: Kind, offset: u64, len: u64, at: Time) {
        let at_us = at.as_nanos() / 1000;
        self.recorder.record(TraceRequest { at_us, offset, len, disk: self.disk, kind });
    }
}
