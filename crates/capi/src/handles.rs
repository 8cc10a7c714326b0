//! Handles for C: numbers in the form of pointers. They are looked up and never followed, so that one that is null, of the other type
//! or destroyed is an error and no fault.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::failure::Failure;

/// Bits of the place in the table, plus one.
const PLACE_BITS: u32 = 24;
/// Bits of the number of values that the place had before.
const GENERATION_BITS: u32 = 32;
/// Values at a time.
const PLACES_MAX: usize = (1 << PLACE_BITS) - 1;

const _: () = assert!(usize::BITS >= PLACE_BITS + GENERATION_BITS + 8, "a handle needs 64 bits");

/// The type of a handle, in its upper bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Disk = 1,
    Queue = 2,
    Job = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Disk => "cowhand_disk",
            Self::Queue => "cowhand_queue",
            Self::Job => "cowhand_job",
        }
    }
}

/// The number of a value that C holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) fn of<T>(pointer: *mut T) -> Self {
        Self(pointer.addr())
    }

    /// What C gets: it leads nowhere.
    pub(crate) fn pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// Values of one type that C holds handles of.
pub(crate) struct Table<T> {
    kind: Kind,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    list: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, slots: RwLock::new(Slots { list: Vec::new(), free: Vec::new() }) }
    }

    /// Adds a value.
    pub(crate) fn insert(&self, value: T) -> Result<Handle, Failure> {
        let mut slots = self.slots.write();
        let place = match slots.free.pop() {
            Some(place) => place,
            None if slots.list.len() == PLACES_MAX => {
                let text = format!("there are {PLACES_MAX} handles of type {}, the most", self.kind.name());
                return Err(Failure::new(libc::EMFILE, text));
            }
            None => {
                slots.list.push(Slot { generation: 0, value: None });
                slots.list.len() - 1
            }
        };
        let slot = &mut slots.list[place];
        slot.value = Some(Arc::new(value));
        Ok(self.handle(place, slot.generation))
    }

    /// The value of a handle.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        let value = self.place(handle).and_then(|(place, generation)| {
            let slots = self.slots.read();
            let slot = slots.list.get(place).filter(|slot| slot.generation == generation)?;
            slot.value.clone()
        });
        value.ok_or_else(|| self.wrong(handle))
    }

    /// Ends a handle; gives its value.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        let value = self.place(handle).and_then(|(place, generation)| {
            let mut slots = self.slots.write();
            let slot = slots.list.get_mut(place).filter(|slot| slot.generation == generation)?;
            let value = slot.value.take()?;
            // A place whose generations are used up stays empty: a handle never comes twice.
            if let Some(next) = slot.generation.checked_add(1) {
                slot.generation = next;
                slots.free.push(place);
            }
            Some(value)
        });
        value.ok_or_else(|| self.wrong(handle))
    }

    fn handle(&self, place: usize, generation: u32) -> Handle {
        let kind = (self.kind as usize) << (PLACE_BITS + GENERATION_BITS);
        Handle(kind | (generation as usize) << PLACE_BITS | (place + 1))
    }

    /// Place and generation of a handle of this type.
    fn place(&self, Handle(number): Handle) -> Option<(usize, u32)> {
        let is_ours = number >> (PLACE_BITS + GENERATION_BITS) == self.kind as usize;
        let place = (number & PLACES_MAX).checked_sub(1)?;
        let generation = u32::try_from(number >> PLACE_BITS & u32::MAX as usize).ok()?;
        is_ours.then_some((place, generation))
    }

    fn wrong(&self, handle: Handle) -> Failure {
        let name = self.kind.name();
        Failure::new(
            libc::EBADF,
            match handle {
                Handle(0) => format!("the handle of type {name} is null"),
                Handle(number) => format!("{number:#x} is no handle of type {name}, or it was destroyed"),
            },
        )
    }
}
