//! Jobs on an open disk: commit, stream, mirror and backup.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use cowhand::{Backup, Commit, Copied, Job, JobStatus, Mirror, OpenOptions, Stream};

use crate::disk::{CowhandDisk, DiskOfC, State, open_disk};
use crate::failure::{Failure, call};
use crate::handles::{Handle, Kind, Table};
use crate::pointers::{self, Out};

/// A mirror or a backup copies all that the disk reads as.
pub const COWHAND_COPY_EVERYTHING: u32 = 0;
/// It copies what the disk's own image holds, for a target over the same backing file.
pub const COWHAND_COPY_TOP: u32 = 1;
/// It copies nothing but what is written from now on.
pub const COWHAND_COPY_NOTHING: u32 = 2;

/// A write completes when the disk and the mirror's target have it, from the beginning.
pub const COWHAND_MIRROR_SYNCHRONOUS: u32 = 1;
/// A write whose old content cannot be copied fails, rather than the backup.
pub const COWHAND_BACKUP_BREAK_WRITES: u32 = 1;

/// In place of an image's number: the lowest of the chain (commit), or none (stream).
pub const COWHAND_LOWEST: u32 = 0xffff_ffff;

/// A job on a disk.
pub struct CowhandJob {
    _private: (),
}

/// How far a job is.
#[repr(C)]
pub struct CowhandJobInfo {
    /// Where it is in its life, in QEMU's words: "running", "ready", "concluded" and others. Never changes.
    pub status: *const c_char,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that are to be done in all; they may become more while the disk is written.
    pub total: u64,
    /// Bytes a second at most; 0 is no limit.
    pub speed: u64,
}

/// All jobs that C holds.
static JOBS: Table<Job> = Table::new(Kind::Job);

fn job_of(handle: *mut CowhandJob) -> Result<Arc<Job>, Failure> {
    JOBS.get(Handle::of(handle))
}

/// Begins a job and gives its handle. An error leaves none.
///
/// # Safety
/// `job` is null or leads to a place for a handle.
pub(crate) unsafe fn begin(
    job: *mut *mut CowhandJob,
    work: impl FnOnce() -> Result<Job, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: the caller keeps it.
    let place = unsafe { Out::new(job, "job") }?;
    place.set(JOBS.insert(work()?)?.pointer());
    Ok(0)
}

/// How the target of a job is opened: the properties of a disk that is not connected.
fn target_of(target: *mut CowhandDisk) -> Result<OpenOptions, Failure> {
    match &*DiskOfC::of(target)?.state.read() {
        State::Created(settings) => settings.open_options(),
        _ => Err(Failure::new(libc::EISCONN, "the target is connected; a job opens its target by itself")),
    }
}

fn copied(number: u32) -> Result<Copied, Failure> {
    match number {
        COWHAND_COPY_EVERYTHING => Ok(Copied::Everything),
        COWHAND_COPY_TOP => Ok(Copied::Top),
        COWHAND_COPY_NOTHING => Ok(Copied::Nothing),
        _ => Err(Failure::invalid(format!("copied is {number}; allowed: COWHAND_COPY_..., 0 to 2"))),
    }
}

/// Whether the only flag of a job is set.
fn flag(flags: u32, allowed: u32, name: &str) -> Result<bool, Failure> {
    match flags & !allowed {
        0 => Ok(flags != 0),
        _ => Err(Failure::invalid(format!("the flags of the job are {flags:#x}; allowed: {name}"))),
    }
}

/// The number of an image in the chain, if it is one.
fn image(number: u32) -> Option<usize> {
    (number != COWHAND_LOWEST).then_some(number as usize)
}

/// Begins to copy what the images from top on hold into base, while the disk is in use; images are counted from the
/// disk's own, which is 0. base may be COWHAND_LOWEST. With a top of 0 the job becomes ready, and the disk switches to
/// the base when it is completed; otherwise it ends by itself. speed is in bytes a second, 0 is no limit. A disk has
/// one job at a time: -EBUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_commit(
    disk: *mut CowhandDisk,
    top: u32,
    base: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
) -> c_int {
    call(|| {
        let commit = Commit { top: top as usize, base: image(base), speed_bytes: speed };
        // SAFETY: the header requires it of the caller.
        unsafe { begin(job, || Ok(open_disk(disk)?.commit(commit).wait()?)) }
    })
}

/// Begins to copy what the backing files above base hold into the disk's own image, which then has base as its backing
/// file, or none with COWHAND_LOWEST. Ends by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_stream(
    disk: *mut CowhandDisk,
    base: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
) -> c_int {
    call(|| {
        let stream = Stream { base: image(base), speed_bytes: speed };
        // SAFETY: the header requires it of the caller.
        unsafe { begin(job, || Ok(open_disk(disk)?.stream(stream).wait()?)) }
    })
}

/// Begins to keep a copy of the disk in target, in step with what is written. target is a disk with properties that is
/// not connected, whose image exists and has the same size; it stays the caller's. The job becomes ready when the copy
/// has everything; completed, the disk switches to it; cancelled then, the copy is whole as of that moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_mirror(
    disk: *mut CowhandDisk,
    target: *mut CowhandDisk,
    copied: u32,
    flags: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
) -> c_int {
    call(|| {
        let synchronous = flag(flags, COWHAND_MIRROR_SYNCHRONOUS, "COWHAND_MIRROR_SYNCHRONOUS")?;
        let mirror = Mirror { copied: self::copied(copied)?, synchronous, speed_bytes: speed };
        // SAFETY: the header requires it of the caller.
        unsafe { begin(job, || Ok(open_disk(disk)?.mirror(target_of(target)?, mirror).wait()?)) }
    })
}

/// Begins a copy of the disk as it is when this call returns, in target, which is as for cowhand_mirror: what is
/// overwritten meanwhile is copied first. Ends by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_backup(
    disk: *mut CowhandDisk,
    target: *mut CowhandDisk,
    copied: u32,
    flags: u32,
    speed: u64,
    job: *mut *mut CowhandJob,
) -> c_int {
    call(|| {
        let break_writes = flag(flags, COWHAND_BACKUP_BREAK_WRITES, "COWHAND_BACKUP_BREAK_WRITES")?;
        let backup = Backup { copied: self::copied(copied)?, break_writes, speed_bytes: speed };
        // SAFETY: the header requires it of the caller.
        unsafe { begin(job, || Ok(open_disk(disk)?.backup(target_of(target)?, backup).wait()?)) }
    })
}

/// Gives how far a job is; of one that has ended, its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_job_get_info(job: *mut CowhandJob, info: *mut CowhandJobInfo) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let place = unsafe { Out::new(info, "info") }?;
        let info = job_of(job)?.info().wait()?;
        place.set(CowhandJobInfo {
            status: status(info.status),
            done: info.done_bytes,
            total: info.total_bytes,
            speed: info.speed_bytes,
        });
        Ok(0)
    })
}

/// The status's name, for C.
fn status(status: JobStatus) -> *const c_char {
    let name = match status {
        JobStatus::Undefined => c"undefined",
        JobStatus::Created => c"created",
        JobStatus::Running => c"running",
        JobStatus::Paused => c"paused",
        JobStatus::Ready => c"ready",
        JobStatus::Standby => c"standby",
        JobStatus::Waiting => c"waiting",
        JobStatus::Pending => c"pending",
        JobStatus::Aborting => c"aborting",
        // The disk knows it no more; its handle still has its end.
        JobStatus::Concluded | JobStatus::Null => c"concluded",
    };
    name.as_ptr()
}

/// Has a job rest after the steps that are under way.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_pause(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.pause().wait().map(|()| 0)?))
}

/// Has a job work again.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_resume(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.resume().wait().map(|()| 0)?))
}

/// Sets a job's limit in bytes a second; 0 is none.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_set_speed(job: *mut CowhandJob, speed: u64) -> c_int {
    call(|| Ok(job_of(job)?.set_speed(speed).wait().map(|()| 0)?))
}

/// Has a job end. A mirror that is ready leaves a whole copy; otherwise what was copied is worth nothing, and the disk
/// has the images that it had. cowhand_job_wait returns when it has ended: 0 for such a mirror, -ECANCELED otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_cancel(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.cancel().wait().map(|()| 0)?))
}

/// Has the disk switch to the copy, of a job that is ready. cowhand_job_wait returns when it has.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_complete(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.complete().wait().map(|()| 0)?))
}

/// Blocks until the copy is in step with the disk, of a mirror or of a commit from the disk's own image; of any other
/// job until its end.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_wait_ready(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.ready().wait().map(|()| 0)?))
}

/// Blocks until a job has ended and cleaned up; returns how it ended.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_job_wait(job: *mut CowhandJob) -> c_int {
    call(|| Ok(job_of(job)?.ended().wait().map(|()| 0)?))
}

/// Ends the handle of a job, which continues. *job becomes null. A job that is null already is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_job_destroy(job: *mut *mut CowhandJob) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let place = unsafe { pointers::elements(job.cast_const(), 1, "job") }?;
        let Some(&handle) = place.first().filter(|handle| !handle.is_null()) else { return Ok(0) };
        JOBS.remove(Handle::of(handle))?;
        // SAFETY: as above; what was read is a copy.
        unsafe { Out::new(job, "job") }?.set(std::ptr::null_mut());
        Ok(0)
    })
}
