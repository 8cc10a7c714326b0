//! What comes behind a request's header.

use std::io;

use memory::IoBuf;
use net::tls::Transport;
use wire::nbd::{BlockStatusFilter, Command, ContextId, ErrorCode, RequestHeader, Targeted, limits};

use super::{End, Transmission, asked};
use crate::block_status::Question;
use crate::client::What;
use crate::inbox::ReceiveError;
use crate::limits::{DIRECT_RECEIVE_BYTES_MIN, RECEIVE_BYTES};

impl Transmission {
    pub(super) async fn block_status(
        &mut self,
        head: &RequestHeader,
        target: Targeted,
        one: bool,
    ) -> Result<(), End> {
        let filter = match target {
            Targeted::Range { len } => Ok((len, None)),
            Targeted::Filter { payload_bytes } => self.filter(head, payload_bytes).await?,
        };
        let (len, only) = match filter {
            Ok(asked) => asked,
            Err(code) => {
                self.refuse(head, code);
                return Ok(());
            }
        };
        let (dialect, cookie, offset) = (self.client.dialect, head.cookie, head.offset);
        let contexts = self.client.contexts.clone();
        let question = Question { dialect, cookie, offset, len, one, contexts, only };
        self.line.put(asked(head, What::Status(question))).await;
        Ok(())
    }

    /// Takes the context filter of an extended BLOCK_STATUS off the stream.
    async fn filter(
        &mut self,
        head: &RequestHeader,
        payload_bytes: u32,
    ) -> Result<Result<(u64, Option<Vec<ContextId>>), ErrorCode>, End> {
        let size = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
        let Some(payload) = self.payload(size).await? else { return Ok(Err(ErrorCode::NoMem)) };
        let filter = BlockStatusFilter::decode(&payload[..size], &self.client.contexts);
        Ok(filter.and_then(|BlockStatusFilter { len, ids }| {
            Command::block_status_range(head.offset, len, &self.served)?;
            Ok((len, Some(ids)))
        }))
    }

    /// Takes a payload of `size` bytes off the stream: what is there by a copy, much that is missing
    /// straight from the socket. `None` if there is no memory for it: then it was thrown away.
    pub(super) async fn payload(&mut self, size: usize) -> Result<Option<IoBuf>, End> {
        self.client.before_memory(size as u64).await;
        let Some(mut payload) = IoBuf::try_uninit(size) else {
            return self.skip(size as u64).await.map(|()| None);
        };
        payload.truncate(size);
        let mut filled = self.inbox.take_into(&mut payload);
        if filled < size {
            // What is answered must not wait for a client that is slow to send.
            self.client.outbox.send().await;
        }
        let patience = self.stall_timeout;
        while filled < size {
            let missing = size - filled;
            if missing < DIRECT_RECEIVE_BYTES_MIN {
                let received = self.inbox.receive_unless(&self.transport, RECEIVE_BYTES, &self.departure);
                if !reactor::within(patience, received).await.ok_or(End::Unsent(patience))?? {
                    return Err(self.give_begun(&payload[..filled]));
                }
                filled += self.inbox.take_into(&mut payload[filled..]);
                continue;
            }
            let received = self.receive_into(payload.split_off(filled));
            let (received, room) = reactor::within(patience, received).await.ok_or(End::Unsent(patience))?;
            payload.rejoin(room);
            match received.map_err(ReceiveError::from)? {
                Some(0) => return Err(ReceiveError::Ended.into()),
                Some(count) => filled += count,
                None => return Err(self.give_begun(&payload[..filled])),
            }
        }
        Ok(Some(payload))
    }

    /// Receives into `room`; nothing when the client is to be given away.
    async fn receive_into(&self, room: IoBuf) -> (io::Result<Option<usize>>, IoBuf) {
        match &*self.transport {
            Transport::Plain(stream) => stream.recv_unless(room, self.departure.asked()).await,
            Transport::Tls(_) => {
                let (received, room) = self.transport.recv(room).await;
                (received.map(Some), room)
            }
        }
    }

    /// The request at hand goes to another process, as far as it came.
    fn give_begun(&mut self, payload: &[u8]) -> End {
        self.at_hand.give(payload);
        End::HandOver
    }

    /// Throws a payload away that comes with a request that is refused.
    pub(super) async fn skip(&mut self, size: u64) -> Result<(), End> {
        if size > limits::PAYLOAD_SKIP_BYTES_MAX {
            return Err(End::PayloadTooLong { found: size });
        }
        let mut left = usize::try_from(size).unwrap_or(usize::MAX);
        loop {
            let there = self.inbox.bytes().len().min(left);
            self.inbox.consume(there);
            left -= there;
            if left == 0 {
                return Ok(());
            }
            self.client.outbox.send().await;
            self.inbox.receive(&self.transport, RECEIVE_BYTES).await?;
        }
    }
}
