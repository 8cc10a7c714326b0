//! What a start reads is fetched ahead of it, in packs.
//!
//! The first chunk that a guest needs of the store has the start list fetched. A chunk that is in a pack has that pack fetched, and those behind it: the list is in
//! the order of a start. Chunks go where those go that were used last, and wait there until the guest reads them; what waits takes half as much memory again at
//! most. Whatever fails costs time alone: the guest's read fetches its chunk by itself then.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_lock::OnceCell;
use event_listener::Event;
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, TryFutureExt, stream};
use parking_lot::Mutex;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::error::Error;
use crate::chunked::start_list::{Pack, PackedChunk, StartList, pack_chunks_max};
use crate::chunked::storage::{ChunkOrBase, Image};
use crate::chunked::writing::ObjectKind;

/// Packs that are fetched at a time: one arrives while another one is asked for.
const PACKS_AT_ONCE: usize = 2;
/// How long a start list or a pack may take: a guest may wait for a chunk of it, which drivers of guests do for 30 s.
const WITHIN: Duration = Duration::from_secs(20);
/// A pack is fetched if one of so many of its bytes is of use; else chunks are fetched one by one.
const OF_USE_MIN: u64 = 2;

/// How far it is.
#[derive(Debug, Default)]
pub(crate) struct Ahead(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// No guest is expected.
    #[default]
    Off,
    /// The first read asks for the start list.
    Expecting,
    /// It is being fetched.
    Asking,
    Known(Start),
    /// There is none, or it failed.
    Over,
}

/// A start list, and what of it was fetched.
#[derive(Debug)]
struct Start {
    packs: Vec<Pack>,
    /// By its chunks.
    pack_of: HashMap<u64, usize>,
    /// Packs that are fetched, were fetched, or are not worth it.
    is_done: Vec<bool>,
    /// The pack that is looked at next.
    next: usize,
    /// There is a task that fetches.
    is_running: bool,
}

/// Why nothing more is fetched ahead.
#[derive(Clone, Debug, thiserror::Error)]
enum AheadError {
    #[error(transparent)]
    Image(#[from] Arc<Error>),
    #[error("the store does not answer within {} s", WITHIN.as_secs())]
    Silent,
    #[error("{pack}: this pack is damaged: a chunk in it has another content than its name says")]
    Damaged { pack: String },
}

/// A pack that is to be fetched, and what of it is of use.
struct Batch {
    image: Arc<Image>,
    pack: Pack,
    parts: Vec<Part>,
}

/// A chunk in a pack.
struct Part {
    name: ChunkName,
    /// Bytes of the pack.
    place: Range<usize>,
    /// Bytes of the disk.
    needed: u64,
    cell: Arc<OnceCell<Arc<Vec<u8>>>>,
}

/// What is fetched next.
enum Next {
    Pack(Pack),
    /// Too much of what was fetched has not been read.
    Full,
    End,
}

impl Ahead {
    /// A guest is going to read.
    pub(crate) fn begin(&self) {
        let mut state = self.0.lock();
        if let State::Off = *state {
            *state = State::Expecting;
        }
    }
}

impl Start {
    fn new(StartList { packs, .. }: StartList) -> Self {
        let mut pack_of = HashMap::new();
        for (number, pack) in packs.iter().enumerate() {
            for chunk in &pack.chunks {
                pack_of.entry(chunk.chunk).or_insert(number);
            }
        }
        let is_done = vec![false; packs.len()];
        Self { packs, pack_of, is_done, next: 0, is_running: false }
    }

    /// Continues with the pack that has `chunk`, if that is still to be fetched. Says whether it takes a task.
    fn continue_from(&mut self, chunk: u64) -> bool {
        let pack = self.pack_of.get(&chunk).filter(|pack| self.is_done.get(**pack) == Some(&false));
        let Some(pack) = pack else { return false };
        self.next = *pack;
        !std::mem::replace(&mut self.is_running, true)
    }
}

impl Image {
    /// A guest waits for `chunk`, which is not in memory.
    pub(crate) fn read_on_from(self: &Arc<Self>, chunk: u64) {
        let mut state = self.ahead.0.lock();
        match &mut *state {
            State::Expecting => {
                *state = State::Asking;
                drop(state);
                reactor::spawn(ask(Arc::downgrade(self), chunk)).detach();
            }
            State::Known(start) => {
                let takes_a_task = start.continue_from(chunk);
                drop(state);
                if takes_a_task {
                    reactor::spawn(run(Arc::downgrade(self), Arc::clone(self.chunks.changed()))).detach();
                }
            }
            State::Off | State::Asking | State::Over => {}
        }
    }

    /// The start list, if it is of use here.
    async fn start(&self) -> Option<StartList> {
        let found = within(self.place.start_list()).await;
        let list = match found {
            Ok(list) => list.filter(|list| list.chunk_size == self.manifest.chunk_size())?,
            Err(AheadError::Image(error)) if matches!(*error, Error::StartList { .. }) => {
                tracing::warn!("{error}; nothing is fetched ahead");
                return None;
            }
            // A store that may not be listed refuses what is not there. If it is lost, the guest's read reports that.
            Err(error) => {
                tracing::info!("{}: no start list: {error}", self.place.image());
                return None;
            }
        };
        // A pack has room.
        (pack_chunks_max(list.chunk_size) <= self.chunks.ahead_max()).then_some(list)
    }

    fn next_pack(&self) -> Next {
        let mut state = self.ahead.0.lock();
        let State::Known(start) = &mut *state else { return Next::End };
        while start.is_done.get(start.next) == Some(&true) {
            start.next += 1;
        }
        let (Some(pack), Some(is_done)) = (start.packs.get(start.next), start.is_done.get_mut(start.next))
        else {
            start.is_running = false;
            return Next::End;
        };
        if self.chunks.unused() + pack.chunks.len() > self.chunks.ahead_max() {
            return Next::Full;
        }
        *is_done = true;
        Next::Pack(pack.clone())
    }

    /// What of a pack is of use: chunks that the image has at that place and that are not in memory. They are being fetched from here on. Empty: it is not worth it.
    async fn parts(&self, pack: &Pack) -> Result<Vec<Part>, Error> {
        let (mut at, mut of_use, mut wanted) = (0, 0, Vec::new());
        for chunk in &pack.chunks {
            let place = at..at + chunk.bytes;
            at = place.end;
            if let Some(kept) = self.of_use(chunk).await? {
                of_use += chunk.bytes;
                wanted.push((chunk, kept, place));
            }
        }
        if of_use * OF_USE_MIN < at {
            return Ok(Vec::new());
        }
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let part = |(chunk, kept, place): (&PackedChunk, ChunkOrBase, Range<u64>)| {
            let whole = self.manifest.range(chunk.chunk);
            Some(Part {
                name: chunk.name,
                place: in_memory(place.start)..in_memory(place.end),
                needed: whole.end - whole.start,
                cell: self.chunks.ahead(kept)?,
            })
        };
        Ok(wanted.into_iter().filter_map(part).collect())
    }

    /// What a chunk of a pack is here: one that the disk has at that place, or the base of that; `None` if it is neither, or what it is for is in memory.
    async fn of_use(&self, packed: &PackedChunk) -> Result<Option<ChunkOrBase>, Error> {
        let Some(name) = self.name_of(packed.chunk).await? else { return Ok(None) };
        if self.chunks.has(ChunkOrBase::Chunk(name)) {
            return Ok(None);
        }
        let kept = match self.delta(packed.chunk, name).await? {
            Some(delta) if delta.base == packed.name => ChunkOrBase::Base(packed.name),
            _ if name == packed.name => ChunkOrBase::Chunk(name),
            _ => return Ok(None),
        };
        Ok((!self.chunks.has(kept)).then_some(kept))
    }

    /// Nothing more is fetched ahead.
    fn give_up(&self, error: &AheadError) {
        let mut state = self.ahead.0.lock();
        if !matches!(std::mem::replace(&mut *state, State::Over), State::Over) {
            tracing::warn!("{}: nothing more is fetched ahead: {error}", self.place.image());
        }
    }
}

/// What waits for room ends with the image.
impl Drop for Image {
    fn drop(&mut self) {
        self.chunks.changed().notify(usize::MAX);
    }
}

impl Batch {
    /// Fetches the pack, and puts its chunks where reads find them. Those wait for it meanwhile.
    async fn fetch(self) {
        let Self { image, pack, parts } = self;
        tracing::debug!("{}: {} chunks are fetched ahead", Pack::object(pack.name), parts.len());
        let body = within(image.place.pack(&pack)).map_ok(Arc::new).shared();
        let name_of_pack = Pack::object(pack.name);
        let puts = parts.into_iter().map(|Part { name, place, needed, cell }| {
            let (body, image, pack) = (body.clone(), &image, &name_of_pack);
            let plain = async move || {
                let body = body.await?;
                let damaged = || AheadError::Damaged { pack: image.place.name_of(pack) };
                let stored = body.get(place).ok_or_else(damaged)?.to_vec();
                drop(body);
                let plain = image.place.plain(ObjectKind::Chunk, name, stored, needed).await;
                plain.map_err(|_| damaged())
            };
            async move { cell.get_or_try_init(plain).await.map(drop) }
        });
        if let Some(error) = join_all(puts).await.into_iter().find_map(Result::err) {
            image.give_up(&error);
        }
    }
}

/// Asks for the start list, and begins with the pack that has `chunk`.
async fn ask(image: Weak<Image>, chunk: u64) {
    let Some(image) = image.upgrade() else { return };
    let start = image.start().await;
    *image.ahead.0.lock() = start.map_or(State::Over, |list| State::Known(Start::new(list)));
    image.read_on_from(chunk);
}

/// Fetches one pack after the other, as far as there is room, until the image is gone.
async fn run(image: Weak<Image>, changed: Arc<Event>) {
    let batches = stream::unfold((image, changed), async |(image, changed)| {
        let batch = next(&image, &changed).await?;
        Some((batch, (image, changed)))
    });
    batches.for_each_concurrent(PACKS_AT_ONCE, Batch::fetch).await;
}

/// The next pack that is worth fetching, when there is room for it.
async fn next(image: &Weak<Image>, changed: &Event) -> Option<Batch> {
    loop {
        let freed = changed.listen();
        let image = image.upgrade()?;
        match image.next_pack() {
            Next::End => return None,
            Next::Pack(pack) => match image.parts(&pack).await {
                Ok(parts) if parts.is_empty() => continue,
                Ok(parts) => return Some(Batch { image, pack, parts }),
                Err(error) => {
                    image.give_up(&Arc::new(error).into());
                    return None;
                }
            },
            Next::Full => {}
        }
        // The task keeps no image that nothing else uses.
        drop(image);
        freed.await;
    }
}

async fn within<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, AheadError> {
    let done = reactor::within(WITHIN, work).await.ok_or(AheadError::Silent)?;
    Ok(done.map_err(Arc::new)?)
}
