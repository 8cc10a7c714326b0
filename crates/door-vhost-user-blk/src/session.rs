//! What each message does; those about one ring: [`rings`].

mod handed;
mod rings;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use export::BlockSizes;
use export::repeats::{self, Level};
use reactor::net::Stream;

use self::rings::Vring;
use crate::aside::Passed;
use crate::channel::Channel;
use crate::config::{self, CACHE_AT, Described};
use crate::device::Device;
use crate::features::{device, protocol};
use crate::inflight::{Form, Inflight, InflightError};
use crate::limits::{MEMORY_SLOTS_MAX, MESSAGE_PATIENCE};
use crate::mapping::is_unix_socket;
use crate::memory::{DirtyLog, MemoryError};
use crate::message::{self, Area, ConfigRange, InflightInfo, Message, RegionInfo};
use crate::server::Server;
use crate::shown_disk::VhostExport;
use crate::state::{State, StateError, Transfer};

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
    #[error("the device's state: {0}")]
    State(#[from] StateError),
    #[error("the descriptor is no eventfd")]
    NoEventfd,
    #[error("the descriptor is no unix socket")]
    NoSocket,
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

/// One connection's state.
#[derive(Debug)]
pub(crate) struct Session {
    server: Arc<Server>,
    device: Arc<Device>,
    channel: Rc<Channel>,
    rings: Vec<Vring>,
    protocol: u64,
    first_loop: usize,
    /// Of the device's state, begun and not yet asked for.
    transfer: Option<Transfer>,
    /// Records of requests in flight and the log of dirty pages as the front-end gave them, for another process.
    given: Given,
}

/// Files that are mapped, and what was said of them.
#[derive(Debug, Default)]
struct Given {
    inflight: Option<(OwnedFd, InflightInfo)>,
    log: Option<(OwnedFd, Area)>,
}

impl Session {
    pub(crate) fn new(server: &Arc<Server>, export: &Arc<VhostExport>, channel: Rc<Channel>) -> Self {
        Self {
            server: Arc::clone(server),
            device: Arc::new(Device::new(export, server.allowance())),
            channel,
            rings: (0..export.options.queues).map(|_| Vring::default()).collect(),
            protocol: 0,
            first_loop: server.first_loop(),
            transfer: None,
            given: Given::default(),
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
        fds: Vec<Passed>,
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
            Message::SetBackendChannel => {
                let socket = only(fds)?;
                if !is_unix_socket(&socket) {
                    return Err(Refused::NoSocket);
                }
                self.channel.set(Stream::from_fd(socket.known()));
            }
            Message::GetConfig(range) => return Ok(Answer::Payload(self.configuration(&range))),
            Message::SetConfig(range) => self.set_configuration(&range).await?,
            Message::GetInflight(info) => {
                let (fd, info) = Inflight::create(info, self.form())?;
                return Ok(Answer::WithFd(message::inflight_answer(info, bytes), fd));
            }
            Message::SetInflight(info) => {
                self.none_runs()?;
                let fd = only(fds)?;
                self.device.take_over(Inflight::open_within(&self.device.allowance, &fd, info)?);
                self.given.inflight = Some((fd.known(), info));
            }
            Message::SetMemoryTable(regions) => self.set_memory(regions, fds)?,
            Message::GetMemorySlots => return Ok(Answer::number(MEMORY_SLOTS_MAX as u64)),
            Message::AddRegion(region) => {
                let memory = self.device.memory.load().with(region, only(fds)?)?;
                self.device.memory.store(Arc::new(memory));
            }
            Message::RemoveRegion(region) => {
                // Some front-ends send the file along.
                let memory = self.device.memory.load().without(region)?;
                self.device.memory.store(Arc::new(memory));
            }
            Message::SetLogBase(area) => {
                let fd = only(fds)?;
                self.device.log.store(Some(Arc::new(DirtyLog::new(&fd, area, &self.device.allowance)?)));
                self.given.log = Some((fd.known(), area));
                // This one has an answer always.
                return Ok(Answer::number(0));
            }
            // The reader of the log looks at all of it: nothing is notified of new entries.
            Message::SetLogFd => {}
            Message::SetDeviceState(direction, phase) => {
                let begun = self.begin_transfer(direction, phase, fds).await;
                return Ok(self.answer_about_state(begun.map(|()| message::STATE_NO_FD)));
            }
            Message::CheckDeviceState => {
                let ended = self.end_transfer().await;
                return Ok(self.answer_about_state(ended.map(|()| 0)));
            }
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

    /// Which rings the driver uses.
    fn form(&self) -> Form {
        if self.device.ring_features().packed { Form::Packed } else { Form::Split }
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
            blocks: BlockSizes { discard: self.device.export.discard_bytes(), ..disk.block_sizes() },
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

    async fn begin_transfer(&mut self, direction: u32, phase: u32, fds: Vec<Passed>) -> Result<(), Refused> {
        self.none_runs()?;
        self.transfer = None;
        let export = &self.device.export;
        let size = export.entry.disk().size();
        let state = State { cache: self.device.cache(), discard_bytes: export.discard_bytes(), size };
        let fd = only(fds)?;
        let begun = self.aside(move || Transfer::begin(direction, phase, fd, state)).await?;
        self.transfer = Some(begun);
        Ok(())
    }

    async fn end_transfer(&mut self) -> Result<(), Refused> {
        self.none_runs()?;
        let transfer = self.transfer.take().ok_or(StateError::None)?;
        let size = self.device.export.entry.disk().size();
        if let Some(state) = self.aside(move || transfer.end(size)).await? {
            self.device.set_cache(state.cache);
            self.device.export.keep_discard_bytes(state.discard_bytes);
        }
        Ok(())
    }

    /// Does what depends on a descriptor that may never answer.
    async fn aside<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, StateError> {
        let done = self.device.export.aside.call(MESSAGE_PATIENCE, call).await;
        done.unwrap_or(Err(StateError::NoAnswer))
    }

    /// These two messages have answers that say whether they failed: the connection goes on.
    fn answer_about_state(&self, done: Result<u64, Refused>) -> Answer {
        Answer::number(done.unwrap_or_else(|why| {
            let entry = &self.device.export.entry;
            let text = format!("export {:?}: the state of a device is not transferred: {why}", entry.name());
            repeats::tell(Level::Warn, "vhost-user-blk", entry.name(), &text);
            message::STATE_FAILED
        }))
    }

    fn set_memory(&mut self, regions: Vec<RegionInfo>, fds: Vec<Passed>) -> Result<(), Refused> {
        if regions.len() != fds.len() {
            return Err(Refused::Descriptors { found: fds.len(), needed: regions.len() });
        }
        let described: Vec<_> = regions.into_iter().zip(fds).collect();
        let memory = self.device.memory.load().replaced_by(&described)?;
        self.device.memory.store(Arc::new(memory));
        Ok(())
    }
}

fn offered(asked: u64, there: u64) -> Result<(), Refused> {
    if asked & !there == 0 { Ok(()) } else { Err(Refused::Features(asked & !there)) }
}

/// The one descriptor that must have come along.
fn only(mut fds: Vec<Passed>) -> Result<Passed, Refused> {
    match (fds.pop(), fds.len()) {
        (Some(fd), 0) => Ok(fd),
        (fd, rest) => Err(Refused::Descriptors { found: rest + usize::from(fd.is_some()), needed: 1 }),
    }
}
