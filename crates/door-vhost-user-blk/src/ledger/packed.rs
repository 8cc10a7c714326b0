//! The ledger of a packed ring.
//!
//! A request is completed as soon as it is done, at the device's own place in the ring, which may be that of another's descriptors: only
//! records ([`crate::inflight::packed`]) know those of what is in flight. Without records a back-end that comes after a crash knows
//! what its front-end knows, which is nothing: a guest with packed rings goes on after a crash where its front-end keeps records.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Offer, Ticket};
use crate::device::{Device, Run};
use crate::inflight::packed::{Records, Started};
use crate::memory::{DirtyLog, Memory};
use crate::message::RingAddress;
use crate::ring::RingFault;
use crate::ring::packed::{Descriptors, PackedRing, Position};

/// The state of one ring.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) memory: Arc<Memory>,
    address: Arc<RingAddress>,
    ring: PackedRing,
    records: Option<Records>,
    /// Begun by a back-end before us, and not done: they are taken first.
    again: VecDeque<Started>,
    available: Position,
    used: Position,
    /// Entries that were used since the driver was last notified, at most all of the ring.
    unreported: u16,
}

impl Ledger {
    pub(super) fn new(device: &Device, run: &Run) -> Result<Self, RingFault> {
        let (memory, address) = (device.memory.load_full(), run.address.load_full());
        let ring = PackedRing::new(&memory, &address, run.entries, device.ring_features())?;
        let (available, used) = positions(run.base, &ring)?;
        let mut ledger = Self {
            memory,
            address,
            ring,
            records: None,
            again: VecDeque::new(),
            available,
            used,
            unreported: 0,
        };
        if let Some(inflight) = device.inflight.load_full() {
            let records = inflight.packed(run.ring, ledger.ring.entries());
            let mut records = records.ok_or(RingFault::Records("they are too few for the ring"))?;
            if let Some(found) = records.begin(&ledger.ring, used)? {
                (ledger.available, ledger.used) = (found.available, found.used);
                ledger.again = found.begun.into();
            }
            ledger.records = Some(records);
        }
        let in_use = ledger.used != Position::START || !ledger.again.is_empty();
        device.ring_begins(in_use);
        if in_use {
            run.resumes();
        }
        Ok(ledger)
    }

    pub(super) fn refresh(&mut self, device: &Device, run: &Run) -> Result<(), RingFault> {
        let (memory, address) = (device.memory.load(), run.address.load());
        if !Arc::ptr_eq(&memory, &self.memory) || !Arc::ptr_eq(&address, &self.address) {
            self.ring = PackedRing::new(&memory, &address, run.entries, device.ring_features())?;
            (self.memory, self.address) = (Arc::clone(&memory), Arc::clone(&address));
        }
        Ok(())
    }

    pub(super) fn next(&self) -> Result<Option<Offer>, RingFault> {
        let descriptors = match self.again.front() {
            Some(begun) => Some(begun.descriptors.clone()),
            None => self.ring.next(self.available)?,
        };
        let offer = |descriptors: Descriptors| {
            let chain = self.ring.chain(&self.memory, &descriptors)?;
            Ok(Offer { chain, descriptors })
        };
        descriptors.map(offer).transpose()
    }

    pub(super) fn take(&mut self, head: u16, descriptors: &Descriptors) -> Result<Ticket, RingFault> {
        // At most as many as the ring has entries.
        let entries = descriptors.len() as u16;
        let record = match (self.again.pop_front(), &mut self.records) {
            (Some(begun), _) => begun.record,
            (None, records) => {
                let record = records.as_mut().map_or(Ok(0), |records| records.started(descriptors))?;
                self.available = self.available.after(entries, self.ring.entries());
                record
            }
        };
        Ok(Ticket { head, number: 0, record, entries })
    }

    /// The order of the steps is that of the records: docs/internals/write-order.md, "Requests in flight".
    pub(super) fn done(
        &mut self,
        ticket: Ticket,
        written: u32,
        log: Option<&DirtyLog>,
    ) -> Result<(), RingFault> {
        let Ticket { head, record, entries, .. } = ticket;
        let after = self.used.after(entries, self.ring.entries());
        if let Some(records) = &self.records {
            records.about_to_publish(record, after)?;
        }
        self.ring.put_used(self.used, head, written, log)?;
        self.used = after;
        if let Some(records) = &self.records {
            records.published(record)?;
        }
        self.unreported = self.unreported.saturating_add(entries).min(self.ring.entries());
        Ok(())
    }

    pub(super) fn take_call(&mut self) -> Result<bool, RingFault> {
        match std::mem::take(&mut self.unreported) {
            0 => Ok(false),
            unreported => self.ring.wants_call(self.used, unreported),
        }
    }

    pub(super) fn ask_for_kick(&self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        self.ring.ask_for_kick(self.available, log)?;
        self.is_more()
    }

    pub(super) fn is_more(&self) -> Result<bool, RingFault> {
        Ok(!self.again.is_empty() || self.ring.is_available(self.available)?)
    }

    /// Both positions: that of what is available in the lower half.
    pub(super) fn base(&self) -> u32 {
        u32::from(self.available.encode()) | u32::from(self.used.encode()) << 16
    }
}

/// Where a front-end says that the ring goes on: what is available, what is used (vhost-user specification, "Vring state description").
fn positions(base: u32, ring: &PackedRing) -> Result<(Position, Position), RingFault> {
    // Some front-ends say zero for the beginning, and some leave the upper half out: with nothing in flight it is the same as the lower.
    if base == 0 && ring.is_fresh()? {
        return Ok((Position::START, Position::START));
    }
    let available = Position::decode((base & 0xffff) as u16);
    let used = if base >> 16 == 0 { available } else { Position::decode((base >> 16) as u16) };
    for position in [available, used] {
        if position.index >= ring.entries() {
            return Err(RingFault::Position { found: position.index, entries: ring.entries() });
        }
    }
    Ok((available, used))
}
