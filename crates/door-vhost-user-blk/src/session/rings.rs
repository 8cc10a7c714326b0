//! Messages about one ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reactor::Doorbell;

use super::{Answer, Refused, Session, only};
use crate::aside::Passed;
use crate::device::{Run, Start};
use crate::features::device;
use crate::inflight::Form;
use crate::mapping::is_eventfd;
use crate::message::{self, Message, RingAddress, RingFd, RingState};
use crate::queue::{self, EndOnDrop};

/// A ring as the front-end described it so far.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub(super) entries: u32,
    /// As messages say it: of packed rings both positions.
    pub(super) base: u32,
    pub(super) address: Option<RingAddress>,
    pub(super) kick: Option<Doorbell>,
    pub(super) call: Option<Arc<Doorbell>>,
    pub(super) err: Option<Arc<Doorbell>>,
    pub(super) enabled: bool,
    pub(super) run: Option<Arc<Run>>,
}

impl Session {
    pub(super) async fn handle_ring(&mut self, asked: Message, fds: Vec<Passed>) -> Result<Answer, Refused> {
        let number = match asked {
            Message::SetRingEntries(RingState { ring, value }) => {
                let number = self.stopped_ring(ring)?;
                self.ring(number).entries = value;
                number
            }
            Message::SetRingBase(RingState { ring, value }) => {
                let number = self.stopped_ring(ring)?;
                if self.form() == Form::Split && value > u32::from(u16::MAX) {
                    return Err(Refused::Number(value));
                }
                self.ring(number).base = value;
                number
            }
            Message::SetRingAddress(address) => {
                let number = self.number(address.ring)?;
                let ring = self.ring(number);
                ring.address = Some(address);
                if let Some(run) = &ring.run {
                    run.address.store(Arc::new(address));
                }
                number
            }
            Message::SetRingKick(fd) => {
                let number = self.stopped_ring(fd.ring)?;
                self.ring(number).kick = Some(bell(fd, fds)?.ok_or(Refused::Polled)?);
                number
            }
            Message::SetRingCall(fd) => {
                let number = self.number(fd.ring)?;
                let call = bell(fd, fds)?.map(Arc::new);
                self.ring(number).call.clone_from(&call);
                if let Some(run) = &self.ring(number).run {
                    run.set_call(call);
                }
                number
            }
            Message::SetRingErr(fd) => {
                let number = self.number(fd.ring)?;
                let err = bell(fd, fds)?.map(Arc::new);
                self.ring(number).err.clone_from(&err);
                if let Some(run) = &self.ring(number).run {
                    run.err.store(err);
                }
                number
            }
            Message::SetRingEnable(RingState { ring, value }) => {
                let number = self.number(ring)?;
                self.ring(number).enabled = value != 0;
                if let Some(run) = &self.ring(number).run {
                    run.enable(value != 0);
                }
                number
            }
            Message::GetRingBase(ring) => return self.stop(ring).await,
            _ => return Err(Refused::NotOffered),
        };
        self.start_if_complete(number);
        Ok(Answer::None)
    }

    /// Stops a ring; what it has in flight is finished before the answer.
    async fn stop(&mut self, ring: u32) -> Result<Answer, Refused> {
        let number = self.number(ring)?;
        let own = self.ring(number);
        own.kick = None;
        if let Some(run) = own.run.take() {
            own.base = run.stopped().await;
        }
        Ok(Answer::Payload(message::ring_state(ring, own.base).to_vec()))
    }

    /// A ring begins when all is known of it, and it is enabled.
    fn start_if_complete(&mut self, number: usize) {
        // Without protocol features there is no message that enables it.
        let always = self.device.features.load(Ordering::Acquire) & device::PROTOCOL == 0;
        let ring = self.ring(number);
        let (None, Some(kick), Some(address), true) =
            (&ring.run, &ring.kick, ring.address, ring.enabled || always)
        else {
            return;
        };
        let run = Run::new(Start {
            ring: number,
            entries: ring.entries,
            base: ring.base,
            kick: kick.clone(),
            address,
            call: ring.call.clone(),
            err: ring.err.clone(),
        });
        ring.run = Some(Arc::clone(&run));
        let (device, end) = (Arc::clone(&self.device), EndOnDrop(run));
        let budget = Arc::clone(self.server.door().loops().budget());
        let begin = move |seat: &export::Seat| queue::begin(device, end, seat, budget);
        self.server.give_queue(self.first_loop, number, begin);
    }

    pub(super) fn none_runs(&self) -> Result<(), Refused> {
        match self.rings.iter().position(|ring| ring.run.is_some()) {
            Some(ring) => Err(Refused::Runs(ring)),
            None => Ok(()),
        }
    }

    /// The number of a ring that there is.
    fn number(&self, ring: u32) -> Result<usize, Refused> {
        let found = usize::try_from(ring).ok().filter(|number| *number < self.rings.len());
        found.ok_or(Refused::NoRing { found: ring, queues: self.device.export.options.queues })
    }

    /// The same of one that does not run.
    fn stopped_ring(&self, ring: u32) -> Result<usize, Refused> {
        let number = self.number(ring)?;
        match self.rings.get(number).is_some_and(|ring| ring.run.is_some()) {
            true => Err(Refused::Runs(number)),
            false => Ok(number),
        }
    }

    /// A ring whose number was looked at.
    fn ring(&mut self, number: usize) -> &mut Vring {
        &mut self.rings[number]
    }
}

/// The eventfd that came along, unless none was to.
fn bell(fd: RingFd, fds: Vec<Passed>) -> Result<Option<Doorbell>, Refused> {
    if fd.polled {
        return Ok(None);
    }
    let fd = only(fds)?;
    // Anything else may wait when it is read, written or asked whether it can be.
    if !is_eventfd(&fd) {
        return Err(Refused::NoEventfd);
    }
    Ok(Some(Doorbell::from_fd(fd.known())?))
}
