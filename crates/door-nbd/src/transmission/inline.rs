//! Reads that are answered at once, because nothing has to be waited for.

use export::{Hints, ReadKind};
use wire::nbd::{RequestHeader, hole_reply, read_head};

use super::Transmission;
use crate::client::Client;

/// Reads that were answered inline since the last look at the counters.
#[derive(Debug, Default)]
pub(super) struct Inline {
    pub(super) reads: u64,
    pub(super) bytes: u64,
}

impl Transmission {
    /// Answers a read if that needs no waiting, and says whether it did.
    pub(super) fn read_now(&self, head: &RequestHeader, offset: u64, len: u32, hints: Hints) -> bool {
        let entry = &self.client.entry;
        if entry.has_left_behind() {
            return false;
        }
        let disk = entry.disk();
        let fill = |buf: &mut [u8]| {
            if buf.is_empty() { Some(ReadKind::Data) } else { disk.try_read(offset, buf, hints) }
        };
        match self.answer_filled(head, offset, len, fill) {
            None => false,
            Some(ReadKind::Data) => true,
            Some(ReadKind::Zeroes) => self.answer_zeroes(head, offset, len),
        }
    }

    /// Answers a read of nothing but zeroes, and says whether it did.
    fn answer_zeroes(&self, head: &RequestHeader, offset: u64, len: u32) -> bool {
        let Client { outbox, dialect, .. } = &*self.client;
        if let Some(hole) = hole_reply(*dialect, head.cookie, offset, len) {
            outbox.push_small(&hole, None);
            return true;
        }
        let zeroes = |buf: &mut [u8]| {
            buf.fill(0);
            Some(ReadKind::Data)
        };
        self.answer_filled(head, offset, len, zeroes).is_some()
    }

    /// Answers a read with the bytes that `fill` puts into the reply; gives what `fill` says. Nothing is answered unless that is
    /// [`ReadKind::Data`]; `None` also where the account of the client has no room for the reply.
    fn answer_filled(
        &self,
        head: &RequestHeader,
        offset: u64,
        len: u32,
        fill: impl FnOnce(&mut [u8]) -> Option<ReadKind>,
    ) -> Option<ReadKind> {
        let Client { outbox, dialect, in_flight, .. } = &*self.client;
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let permit = match outbox.needs_permit(size) {
            false => None,
            true => Some(in_flight.try_admit(u64::from(len))?),
        };
        let reply = read_head(*dialect, head.cookie, offset, len);
        outbox.push_filled(&reply, size, permit, fill)
    }

    pub(super) fn count_inline(&mut self) {
        let Inline { reads, bytes } = std::mem::take(&mut self.inline);
        if reads > 0 {
            self.client.entry.counters().read_inline(reads, bytes);
        }
    }
}
