//! The life of a disk: created, connected, started, destroyed.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use cowhand::Disk;
use parking_lot::RwLock;

use crate::failure::{Failure, call};
use crate::handles::{Handle, Kind, Table};
use crate::pointers::{self, Out};
use crate::queue::{CowhandQueue, QUEUES, QueueOfC};
use crate::settings::Settings;

/// A disk.
pub struct CowhandDisk {
    _private: (),
}

/// All disks that C holds.
pub(crate) static DISKS: Table<DiskOfC> = Table::new(Kind::Disk);

/// A disk as C sees it.
pub(crate) struct DiskOfC {
    pub(crate) state: RwLock<State>,
}

/// How far it is.
pub(crate) enum State {
    Created(Settings),
    /// Another thread is opening it.
    Connecting,
    Connected(Connected),
    Destroyed,
}

pub(crate) struct Connected {
    pub(crate) disk: Arc<Disk>,
    pub(crate) settings: Settings,
    /// `None` before they are made.
    pub(crate) queues: Option<Vec<Handle>>,
}

impl State {
    pub(crate) fn connected(&self) -> Result<&Connected, Failure> {
        match self {
            Self::Connected(connected) => Ok(connected),
            _ => Err(self.not_connected()),
        }
    }

    /// Why there is no open disk.
    fn not_connected(&self) -> Failure {
        match self {
            Self::Created(_) | Self::Connecting | Self::Connected(_) => {
                Failure::new(libc::ENOTCONN, "the disk is not connected: call cowhand_connect first")
            }
            Self::Destroyed => Failure::new(libc::EBADF, "the disk is being destroyed"),
        }
    }
}

impl DiskOfC {
    pub(crate) fn of(handle: *mut CowhandDisk) -> Result<Arc<Self>, Failure> {
        DISKS.get(Handle::of(handle))
    }
}

/// The open disk of a handle.
pub(crate) fn open_disk(handle: *mut CowhandDisk) -> Result<Arc<Disk>, Failure> {
    Ok(Arc::clone(&DiskOfC::of(handle)?.state.read().connected()?.disk))
}

/// Makes a disk, which opens nothing yet. driver is the image's format: "qcow2", "raw", "luks", or one that is only read
/// ("vdi", "vpc", "vmdk", "qcow", "vhdx"); or "auto", with which the content decides. *disk becomes its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_create(driver: *const c_char, disk: *mut *mut CowhandDisk) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let driver = unsafe { pointers::text(driver, "driver") }?;
        // SAFETY: the header requires it of the caller.
        let disk = unsafe { Out::new(disk, "disk") }?;
        let state = RwLock::new(State::Created(Settings::new(driver)?));
        disk.set(DISKS.insert(DiskOfC { state })?.pointer());
        Ok(0)
    })
}

/// Opens the image with its backing chain, under QEMU's file locks. Blocks; an image that another process has locked is
/// waited for, up to two seconds. After a failure properties may be changed and the call be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_connect(disk: *mut CowhandDisk) -> c_int {
    call(|| {
        let disk = DiskOfC::of(disk)?;
        let settings = begin_to_connect(&disk)?;
        let opened = settings.open_options().and_then(|options| Ok(options.open().wait()?));
        let mut state = disk.state.write();
        if matches!(*state, State::Destroyed) {
            return Err(state.not_connected());
        }
        match opened {
            Ok(disk) => {
                *state = State::Connected(Connected { disk: Arc::new(disk), settings, queues: None });
                Ok(0)
            }
            Err(failure) => {
                *state = State::Created(settings);
                Err(failure)
            }
        }
    })
}

fn begin_to_connect(disk: &DiskOfC) -> Result<Settings, Failure> {
    let mut state = disk.state.write();
    match std::mem::replace(&mut *state, State::Connecting) {
        State::Created(settings) => Ok(settings),
        State::Connecting => Err(Failure::new(libc::EALREADY, "another thread is connecting the disk")),
        other => {
            *state = other;
            match &*state {
                State::Connected(_) => Err(Failure::new(libc::EISCONN, "the disk is connected already")),
                state => Err(state.not_connected()),
            }
        }
    }
}

/// Makes the queues, as many as the property num-queues says. Only requests through queues need it.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_start(disk: *mut CowhandDisk) -> c_int {
    call(|| {
        let disk = DiskOfC::of(disk)?;
        let mut state = disk.state.write();
        let State::Connected(connected) = &mut *state else { return Err(state.not_connected()) };
        if connected.queues.is_some() {
            return Err(Failure::new(libc::EALREADY, "the disk is started already"));
        }
        let mut queues = Vec::new();
        for _ in 0..connected.settings.num_queues {
            let made = connected.disk.queue(connected.settings.queue_size);
            let made = made.map_err(Failure::from).and_then(|queue| QUEUES.insert(QueueOfC::new(queue)));
            match made {
                Ok(queue) => queues.push(queue),
                Err(failure) => {
                    end_queues(&queues);
                    return Err(failure);
                }
            }
        }
        connected.queues = Some(queues);
        Ok(0)
    })
}

/// No call finds them from now on.
fn end_queues(queues: &[Handle]) {
    for queue in queues {
        // It is in the table: only this removes it.
        let _ = QUEUES.remove(*queue);
    }
}

/// The queue with this number, of a disk that was started. Numbers begin with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_get_queue(
    disk: *mut CowhandDisk,
    index: u32,
    queue: *mut *mut CowhandQueue,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let queue = unsafe { Out::new(queue, "queue") }?;
        let disk = DiskOfC::of(disk)?;
        let state = disk.state.read();
        let Some(queues) = &state.connected()?.queues else {
            return Err(Failure::new(libc::ENOTCONN, "the disk is not started: call cowhand_start first"));
        };
        let Some(found) = queues.get(index as usize) else {
            let text = format!("there is no queue {index}; allowed: 0 to {}", queues.len() - 1);
            return Err(Failure::new(libc::ENOENT, text));
        };
        queue.set(found.pointer());
        Ok(0)
    })
}

/// Ends a disk: waits for all its requests (limits hold none of them back any more), closes the image, gives its
/// locks back, and ends the handles of the disk and of its queues. *disk becomes null. Returns how closing went: with
/// an error something that was not flushed may be lost, and the disk is ended all the same. A disk that is null
/// already is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_destroy(disk: *mut *mut CowhandDisk) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let place = unsafe { pointers::elements(disk.cast_const(), 1, "disk") }?;
        let Some(&handle) = place.first().filter(|handle| !handle.is_null()) else { return Ok(0) };
        let removed = DISKS.remove(Handle::of(handle))?;
        // SAFETY: as above; what was read is a copy.
        unsafe { Out::new(disk, "disk") }?.set(std::ptr::null_mut());
        let ended = std::mem::replace(&mut *removed.state.write(), State::Destroyed);
        if let State::Connected(Connected { disk, queues, .. }) = ended {
            end_queues(&queues.unwrap_or_default());
            disk.close().wait()?;
        }
        Ok(0)
    })
}
