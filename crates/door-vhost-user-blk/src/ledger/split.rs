//! The ledger of a split ring.
//!
//! With records that the front-end keeps ([`crate::inflight`]) a request is completed as soon as it is done. Without them the front-end has
//! only the index of the used ring: a back-end that comes after a crash goes on from there. So requests are completed in the order in which
//! they were taken: what is behind the index is exactly what was not done.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Offer, Ticket};
use crate::device::{Device, Run};
use crate::inflight::split::Records;
use crate::mapping::OutsideMapping;
use crate::memory::{DirtyLog, Memory};
use crate::message::RingAddress;
use crate::ring::RingFault;
use crate::ring::packed::Descriptors;
use crate::ring::split::SplitRing;

/// A request that is completed when those before it are.
#[derive(Debug)]
struct Waiting {
    head: u16,
    /// Bytes that were written for it, once it is done.
    written: Option<u32>,
}

#[derive(Debug)]
enum Order {
    /// As they are done.
    Recorded(Records),
    /// As they were taken; the number of the first that waits.
    Taken(VecDeque<Waiting>, u64),
}

/// The state of one ring.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) memory: Arc<Memory>,
    address: Arc<RingAddress>,
    ring: SplitRing,
    order: Order,
    /// Begun by a back-end before us, and not done: they are taken first.
    again: VecDeque<u16>,
    next_available: u16,
    /// The driver's index when it was last looked at: each look takes the line from the processor that fills the ring.
    seen_available: Cell<u16>,
    next_used: u16,
    /// The driver was notified of the entries before it.
    called_at: u16,
    taken: u64,
}

impl Ledger {
    /// Finds the ring, and where it goes on.
    ///
    /// # Errors
    /// When it is not in memory.
    pub(super) fn new(device: &Device, run: &Run) -> Result<Self, RingFault> {
        let (memory, address) = (device.memory.load_full(), run.address.load_full());
        let ring = SplitRing::new(&memory, &address, run.entries, device.ring_features())?;
        let base = u16::try_from(run.base).map_err(|_| RingFault::Base(run.base))?;
        let used = ring.used_index()?;
        device.ring_begins(used != 0);
        if used != 0 {
            run.resumes();
        }
        let inflight = device.inflight.load_full();
        let records = inflight.and_then(|inflight| inflight.split(run.ring, ring.entries()));
        let mut ledger = Self {
            memory,
            address,
            ring,
            order: Order::Taken(VecDeque::new(), 0),
            again: VecDeque::new(),
            next_available: base,
            seen_available: Cell::new(base),
            next_used: used,
            called_at: used,
            taken: 0,
        };
        if let Some(mut records) = records {
            if let Some(found) = records.begin(used).map_err(unmapped)? {
                // At most as many as the ring has entries.
                ledger.next_available = used.wrapping_add(found.heads.len() as u16);
                ledger.seen_available.set(ledger.next_available);
                ledger.again = found.heads.into();
            }
            ledger.order = Order::Recorded(records);
        }
        Ok(ledger)
    }

    /// Finds the ring again where memory or its address were changed.
    ///
    /// # Errors
    /// When it is not in memory any more.
    pub(super) fn refresh(&mut self, device: &Device, run: &Run) -> Result<(), RingFault> {
        let (memory, address) = (device.memory.load(), run.address.load());
        if !Arc::ptr_eq(&memory, &self.memory) || !Arc::ptr_eq(&address, &self.address) {
            self.ring = SplitRing::new(&memory, &address, run.entries, device.ring_features())?;
            (self.memory, self.address) = (Arc::clone(&memory), Arc::clone(&address));
            self.seen_available.set(self.next_available);
        }
        Ok(())
    }

    /// The request that is next.
    pub(super) fn next(&self) -> Result<Option<Offer>, RingFault> {
        let Some(head) = self.next_head()? else { return Ok(None) };
        let chain = self.ring.chain(&self.memory, head)?;
        Ok(Some(Offer { chain, descriptors: Descriptors::new() }))
    }

    fn next_head(&self) -> Result<Option<u16>, RingFault> {
        if let Some(head) = self.again.front() {
            return Ok(Some(*head));
        }
        if self.is_more()? { self.ring.head(self.next_available).map(Some) } else { Ok(None) }
    }

    /// Whether there is a request that is next.
    pub(super) fn is_more(&self) -> Result<bool, RingFault> {
        if !self.again.is_empty() {
            return Ok(true);
        }
        if self.seen_available.get() == self.next_available {
            let more = self.ring.available_from(self.next_available)?;
            self.seen_available.set(self.next_available.wrapping_add(more));
        }
        Ok(self.seen_available.get() != self.next_available)
    }

    /// Takes the request `head`, which `next` gave.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub(super) fn take(&mut self, head: u16) -> Result<Ticket, RingFault> {
        let again = self.again.pop_front().is_some();
        match &mut self.order {
            Order::Recorded(records) if !again => records.started(head).map_err(unmapped)?,
            Order::Recorded(_) => {}
            Order::Taken(waiting, _) => waiting.push_back(Waiting { head, written: None }),
        }
        if !again {
            self.next_available = self.next_available.wrapping_add(1);
        }
        let ticket = Ticket { head, number: self.taken, record: 0, entries: 1 };
        self.taken += 1;
        Ok(ticket)
    }

    /// The request of `ticket` is done, and `written` bytes were written for it.
    ///
    /// # Errors
    /// When the ring is not what it was.
    pub(super) fn done(
        &mut self,
        ticket: Ticket,
        written: u32,
        log: Option<&DirtyLog>,
    ) -> Result<(), RingFault> {
        let Order::Taken(waiting, first) = &mut self.order else {
            return self.tell(ticket.head, written, log);
        };
        let at = usize::try_from(ticket.number.wrapping_sub(*first)).ok();
        if let Some(own) = at.and_then(|at| waiting.get_mut(at)) {
            own.written = Some(written);
        }
        while let Order::Taken(waiting, first) = &mut self.order
            && let Some((head, written)) = waiting.front().and_then(|one| Some((one.head, one.written?)))
        {
            waiting.pop_front();
            *first += 1;
            self.tell(head, written, log)?;
        }
        Ok(())
    }

    /// Lets the driver see that `head` is done. The order of the steps is that of the records: docs/internals/write-order.md, "Requests in flight".
    fn tell(&mut self, head: u16, written: u32, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        let after = self.next_used.wrapping_add(1);
        if let Order::Recorded(records) = &self.order {
            records.about_to_publish(head).map_err(unmapped)?;
        }
        self.ring.put_used(self.next_used, head, written, log)?;
        self.ring.publish_used(after, log)?;
        self.next_used = after;
        if let Order::Recorded(records) = &self.order {
            records.published(head, after).map_err(unmapped)?;
        }
        Ok(())
    }

    /// Whether the driver is to be woken for what was completed since the last time.
    ///
    /// # Errors
    /// When the ring is not what it was.
    pub(super) fn take_call(&mut self) -> Result<bool, RingFault> {
        let before = std::mem::replace(&mut self.called_at, self.next_used);
        if before == self.next_used {
            return Ok(false);
        }
        self.ring.wants_call(before, self.next_used)
    }

    /// Asks the driver to wake us for what comes next. Whether something has come already.
    ///
    /// # Errors
    /// When the driver broke the ring.
    pub(super) fn ask_for_kick(&self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        self.ring.ask_for_kick(self.next_available, log)?;
        self.is_more()
    }

    /// The entry of the available ring that comes next.
    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_available)
    }
}

fn unmapped(outside: OutsideMapping) -> RingFault {
    RingFault::Place(outside.offset as u64)
}
