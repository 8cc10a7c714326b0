//! Which requests of a ring are taken, and in which order the driver sees them done: one ledger for each form of a ring.

mod packed;
mod split;

use std::sync::Arc;

use crate::device::{Device, Run};
use crate::memory::{DirtyLog, Memory};
use crate::ring::packed::Descriptors;
use crate::ring::{Chain, RingFault};

/// A request that is next. It has not been taken yet.
#[derive(Debug)]
pub(crate) struct Offer {
    /// What it is.
    pub(crate) chain: Chain,
    /// Its descriptors, where records keep them: of packed rings.
    pub(crate) descriptors: Descriptors,
}

/// A request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// What names it when it is done.
    head: u16,
    /// Of a split ring: its number among all that were taken.
    number: u64,
    /// Of a packed ring: its record, and its entries in the ring.
    record: u16,
    entries: u16,
}

/// The state of one ring.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// A split ring.
    Split(split::Ledger),
    /// A packed ring.
    Packed(packed::Ledger),
}

impl Ledger {
    /// Finds the ring, and where it goes on.
    ///
    /// # Errors
    /// When it is not in memory, or its records make no sense.
    pub(crate) fn new(device: &Device, run: &Run) -> Result<Self, RingFault> {
        match device.ring_features().packed {
            true => packed::Ledger::new(device, run).map(Self::Packed),
            false => split::Ledger::new(device, run).map(Self::Split),
        }
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        match self {
            Self::Split(own) => &own.memory,
            Self::Packed(own) => &own.memory,
        }
    }

    /// Finds the ring again where memory or its address were changed.
    ///
    /// # Errors
    /// When it is not in memory any more.
    pub(crate) fn refresh(&mut self, device: &Device, run: &Run) -> Result<(), RingFault> {
        match self {
            Self::Split(own) => own.refresh(device, run),
            Self::Packed(own) => own.refresh(device, run),
        }
    }

    /// The request that is next, if there is one. It is not taken yet.
    ///
    /// # Errors
    /// When the driver broke the ring.
    pub(crate) fn next(&self) -> Result<Option<Offer>, RingFault> {
        match self {
            Self::Split(own) => own.next(),
            Self::Packed(own) => own.next(),
        }
    }

    /// Whether there is a request that is next.
    ///
    /// # Errors
    /// When the driver broke the ring.
    pub(crate) fn is_more(&self) -> Result<bool, RingFault> {
        match self {
            Self::Split(own) => own.is_more(),
            Self::Packed(own) => own.is_more(),
        }
    }

    /// Takes the request that [`Ledger::next`] gave: its name when it is done, and its descriptors.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub(crate) fn take(&mut self, head: u16, descriptors: &Descriptors) -> Result<Ticket, RingFault> {
        match self {
            Self::Split(own) => own.take(head),
            Self::Packed(own) => own.take(head, descriptors),
        }
    }

    /// The request of `ticket` is done, and `written` bytes were written for it.
    ///
    /// # Errors
    /// When the ring is not what it was.
    pub(crate) fn done(
        &mut self,
        ticket: Ticket,
        written: u32,
        log: Option<&DirtyLog>,
    ) -> Result<(), RingFault> {
        match self {
            Self::Split(own) => own.done(ticket, written, log),
            Self::Packed(own) => own.done(ticket, written, log),
        }
    }

    /// Whether the driver is to be woken for what was completed since the last time.
    ///
    /// # Errors
    /// When the ring is not what it was.
    pub(crate) fn take_call(&mut self) -> Result<bool, RingFault> {
        match self {
            Self::Split(own) => own.take_call(),
            Self::Packed(own) => own.take_call(),
        }
    }

    /// Asks the driver to wake us for what comes next. Whether something has come already.
    ///
    /// # Errors
    /// When the driver broke the ring.
    pub(crate) fn ask_for_kick(&self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        match self {
            Self::Split(own) => own.ask_for_kick(log),
            Self::Packed(own) => own.ask_for_kick(log),
        }
    }

    /// Where the ring goes on, as messages say it. What a back-end before us began, and we did not, is still recorded.
    pub(crate) fn base(&self) -> u32 {
        match self {
            Self::Split(own) => own.base(),
            Self::Packed(own) => own.base(),
        }
    }
}
