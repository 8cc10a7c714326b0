//! What each message does.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reactor::Doorbell;
use reactor::net::Stream;

use crate::channel::Channel;
use crate::config::{self, CACHE_AT, Described};
use crate::device::{Device, Run, Start};
use crate::features::{device, protocol};
use crate::inflight::{Inflight, InflightError};
use crate::limits::MEMORY_SLOTS_MAX;
use crate::memory::{DirtyLog, Memory, MemoryError};
use crate::message::{self, ConfigRange, Message, RegionInfo, RingAddress, RingFd, RingState};
use crate::queue::{self, EndOnDrop};
use crate::server::{Server, VhostExport};

/// Why a message was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it was not offered")]
    NotOffered,
    #[error("bits {0:#x} were not offered")]
    Features(u64),
    #[error("ring {found} of {queues}")]
    NoRing { found: u32, queues: u16 },
    #[error("ring {0} runs; stop it first")]
    Runs(usize),
    #[error("{found} descriptors came along; {needed} are needed")]
    Descriptors { found: usize, needed: usize },
    #[error("polled rings are not supported; a descriptor is needed")]
    Polled,
    #[error("{0} is no number of entries")]
    Number(u32),
    #[error("byte {0} of the configuration is not the driver's to write")]
    Config(usize),
    #[error("a write cache that is turned off is flushed first: {0}")]
    Flush(export::Error),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Inflight(#[from] InflightError),
    #[error("a descriptor cannot be used: {0}")]
    Io(#[from] std::io::Error),
}

/// What a message is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Nothing, unless an acknowledgement is asked for.
    None,
    /// This.
    Payload(Vec<u8>),
    /// This, and a descriptor.
    WithFd(Vec<u8>, OwnedFd),
}

impl Answer {
    fn number(value: u64) -> Self {
        Self::Payload(message::number(value).to_vec())
    }
}

/// A ring as the front-end described it so far.
#[derive(Debug, Default)]
struct Vring {
    entries: u32,
    base: u16,
    address: Option<RingAddress>,
    kick: Option<Doorbell>,
    call: Option<Arc<Doorbell>>,
    err: Option<Arc<Doorbell>>,
    enabled: bool,
    run: Option<Arc<Run>>,
}

/// One connection's state.
#[derive(Debug)]
pub(crate) struct Session {
    server: Arc<Server>,
    device: Arc<Device>,
    channel: Rc<Channel>,
    rings: Vec<Vring>,
    protocol: u64,
    first_loop: usize,
}

impl Session {
    pub(crate) fn new(server: &Arc<Server>, export: &Arc<VhostExport>, channel: Rc<Channel>) -> Self {
        Self {
            server: Arc::clone(server),
            device: Arc::new(Device::new(export)),
            channel,
            rings: (0..export.options.queues).map(|_| Vring::default()).collect(),
            protocol: 0,
            first_loop: server.first_loop(),
        }
    }

    pub(crate) fn export(&self) -> &Arc<VhostExport> {
        &self.device.export
    }

    /// Whether messages that ask for it are acknowledged.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol & protocol::REPLY_ACK != 0
    }

    /// Stops every ring: what was taken is finished.
    pub(crate) async fn stop_all(&mut self) {
        let runs: Vec<_> = self.rings.iter_mut().filter_map(|ring| ring.run.take()).collect();
        runs.iter().for_each(|run| run.stop.trigger());
        for run in runs {
            run.stopped().await;
        }
    }

    /// Does what `asked` asks for; its payload had `bytes`.
    pub(crate) async fn handle(
        &mut self,
        asked: Message,
        bytes: usize,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refused> {
        match asked {
            Message::GetFeatures => return Ok(Answer::number(self.features())),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetOwner => {}
            Message::ResetOwner => self.stop_all().await,
            Message::GetProtocolFeatures => return Ok(Answer::number(protocol::OFFERED)),
            Message::SetProtocolFeatures(features) => {
                offered(features, protocol::OFFERED)?;
                self.protocol = features;
            }
            Message::GetQueueNumber => {
                return Ok(Answer::number(u64::from(self.device.export.options.queues)));
            }
            Message::SetBackendChannel => self.channel.set(Stream::from_fd(only(fds)?)),
            Message::GetConfig(range) => return Ok(Answer::Payload(self.configuration(&range))),
            Message::SetConfig(range) => self.set_configuration(&range).await?,
            Message::GetInflight(info) => {
                let (fd, info) = Inflight::create(info)?;
                return Ok(Answer::WithFd(message::inflight_answer(info, bytes), fd));
            }
            Message::SetInflight(info) => {
                self.none_runs()?;
                self.device.take_over(Inflight::open(only(fds)?, info)?);
            }
            Message::SetMemoryTable(regions) => self.set_memory(regions, fds)?,
            Message::GetMemorySlots => return Ok(Answer::number(MEMORY_SLOTS_MAX as u64)),
            Message::AddRegion(region) => {
                let memory = self.device.memory.load().with(region, &only(fds)?)?;
                self.device.memory.store(Arc::new(memory));
            }
            Message::RemoveRegion(region) => {
                // Some front-ends send the file along.
                let memory = self.device.memory.load().without(region)?;
                self.device.memory.store(Arc::new(memory));
            }
            Message::SetLogBase(area) => {
                let log = DirtyLog::new(&only(fds)?, area)?;
                self.device.log.store(Some(Arc::new(log)));
                // This one has an answer always.
                return Ok(Answer::number(0));
            }
            // Who reads the log looks at all of it: nobody is told of new entries.
            Message::SetLogFd => {}
            Message::Unknown(_) => return Err(Refused::NotOffered),
            about_ring @ (Message::SetRingEntries(_)
            | Message::SetRingAddress(_)
            | Message::SetRingBase(_)
            | Message::GetRingBase(_)
            | Message::SetRingKick(_)
            | Message::SetRingCall(_)
            | Message::SetRingErr(_)
            | Message::SetRingEnable(_)) => return self.handle_ring(about_ring, fds).await,
        }
        Ok(Answer::None)
    }

    async fn handle_ring(&mut self, asked: Message, fds: Vec<OwnedFd>) -> Result<Answer, Refused> {
        let number = match asked {
            Message::SetRingEntries(RingState { ring, value }) => {
                let number = self.stopped_ring(ring)?;
                self.ring(number).entries = value;
                number
            }
            Message::SetRingBase(RingState { ring, value }) => {
                let number = self.stopped_ring(ring)?;
                self.ring(number).base = u16::try_from(value).map_err(|_| Refused::Number(value))?;
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
        Ok(Answer::Payload(message::ring_state(ring, u32::from(own.base)).to_vec()))
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

    fn features(&self) -> u64 {
        let disk = self.device.export.entry.disk();
        config::features(disk.read_only(), disk.abilities())
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refused> {
        offered(features, self.features())?;
        let before = self.device.features.load(Ordering::Acquire);
        // While rings run, logging alone may begin and end.
        if (features ^ before) & !device::LOG_ALL != 0 {
            self.none_runs()?;
        }
        self.device.features.store(features, Ordering::Release);
        Ok(())
    }

    fn configuration(&self, range: &ConfigRange) -> Vec<u8> {
        let disk = self.device.export.entry.disk();
        let options = &self.device.export.options;
        let bytes = config::configuration(&Described {
            size: disk.size(),
            logical_block_size: options.logical_block_size,
            blocks: disk.block_sizes(),
            queues: options.queues,
            cache: self.device.cache(),
        });
        // Decoded ranges lie inside.
        let found = bytes.get(range.offset..range.offset + range.bytes.len()).unwrap_or_default();
        message::config_answer(range.offset, found)
    }

    /// The driver may write one byte: whether the write cache is on.
    async fn set_configuration(&mut self, range: &ConfigRange) -> Result<(), Refused> {
        let on = match (range.offset, &range.bytes[..]) {
            (CACHE_AT, &[byte]) => byte != 0,
            (offset, _) => return Err(Refused::Config(offset)),
        };
        // First: writes that are answered from here on are durable. Then those that were answered before.
        self.device.set_cache(on);
        if !on {
            self.device.export.entry.disk().flush().await.map_err(Refused::Flush)?;
        }
        Ok(())
    }

    fn set_memory(&mut self, regions: Vec<RegionInfo>, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        if regions.len() != fds.len() {
            return Err(Refused::Descriptors { found: fds.len(), needed: regions.len() });
        }
        let described: Vec<_> = regions.into_iter().zip(fds).collect();
        self.device.memory.store(Arc::new(Memory::of_table(&described)?));
        Ok(())
    }

    fn none_runs(&self) -> Result<(), Refused> {
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

fn offered(asked: u64, there: u64) -> Result<(), Refused> {
    if asked & !there == 0 { Ok(()) } else { Err(Refused::Features(asked & !there)) }
}

/// The one descriptor that must have come along.
fn only(mut fds: Vec<OwnedFd>) -> Result<OwnedFd, Refused> {
    match (fds.pop(), fds.len()) {
        (Some(fd), 0) => Ok(fd),
        (fd, rest) => Err(Refused::Descriptors { found: rest + usize::from(fd.is_some()), needed: 1 }),
    }
}

/// The eventfd that came along, unless none was to.
fn bell(fd: RingFd, fds: Vec<OwnedFd>) -> Result<Option<Doorbell>, Refused> {
    match fd.polled {
        true => Ok(None),
        false => Ok(Some(Doorbell::from_fd(only(fds)?)?)),
    }
}
