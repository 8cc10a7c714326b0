//! An open image.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::ops::ControlFlow;

use super::encryption;
use super::library::{Functions, Handle, Library};
use super::memory::SharedMemory;
use crate::rbd::opening::Opening;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK: c_int = 1;

/// Receives what became of a request, by a thread of the library: bytes that were read, or a negative number of the system.
pub type Completed = Box<dyn FnOnce(i64) + Send>;

/// An open image, and what the worker must know of it. Any thread may use it: the library locks by itself.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    functions: &'static Functions,
    image: Handle,
    memory: SharedMemory,
    period: u64,
    /// Its bytes are encrypted in the cluster.
    is_encrypted: bool,
}

// SAFETY: librbd's calls on one image may come from any thread (rbd/librbd.h); the handle is closed once, by `close`, when no other task uses it.
unsafe impl Send for Image {}
// SAFETY: likewise.
unsafe impl Sync for Image {}

/// What is found when an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the image.
    pub bytes: u64,
    /// Bytes of the image after which its objects begin anew, never 0.
    pub period: u64,
}

/// What was asked of the library, and its answer.
pub(super) fn check(result: c_int, what: &str) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        failed => {
            let error = io::Error::from_raw_os_error(failed.saturating_neg());
            Err(io::Error::new(error.kind(), format!("{what}: {error}")))
        }
    }
}

fn text(value: &str) -> io::Result<CString> {
    CString::new(value).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in a name"))
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

impl Image {
    /// Connects to a cluster and opens an image of it.
    ///
    /// # Errors
    /// When the cluster does not answer, does not let the user in, or has no such image.
    pub fn open(library: &Library, opening: &Opening, memory: SharedMemory) -> io::Result<(Self, Opened)> {
        // The library is never unloaded, nor is what it is called by.
        let functions: &'static Functions = Box::leak(Box::new(*library.0));
        let pool = pool(functions, opening)?;
        let snapshot = (!opening.snapshot.is_empty()).then(|| text(&opening.snapshot)).transpose()?;
        let open = if opening.writable { functions.rbd_open } else { functions.rbd_open_read_only };
        let (name, mut image) = (text(&opening.image)?, std::ptr::null_mut());
        // SAFETY: a pool that is open, C strings, a place for the result.
        let opened = unsafe { open(pool, name.as_ptr(), &raw mut image, pointer(snapshot.as_ref())) };
        check(opened, &format!("image {:?}{}", opening.image, of_snapshot(&opening.snapshot)))?;
        let is_encrypted = !opening.encryption.is_empty();
        let image = Self { functions, image, memory, period: 1, is_encrypted };
        if is_encrypted {
            encryption::load(&library.1, image.image, &opening.encryption)?;
        }
        let opened = image.ask()?;
        Ok((Self { period: opened.period, ..image }, opened))
    }

    /// Makes an image of so many bytes, which read as zeroes, in the way that the cluster makes images, and does not open it. Waits.
    ///
    /// # Errors
    /// When the cluster does not answer, does not let the user in, or has such an image.
    pub fn create(library: &Library, opening: &Opening, bytes: u64) -> io::Result<()> {
        let functions: &'static Functions = Box::leak(Box::new(*library.0));
        let pool = pool(functions, opening)?;
        // Objects of the usual size; the library puts that there.
        let (name, mut order) = (text(&opening.image)?, 0);
        // SAFETY: a pool that is open, a C string, a place for the result.
        let made = unsafe { (functions.rbd_create)(pool, name.as_ptr(), bytes, &raw mut order) };
        check(made, &format!("image {:?}", opening.image))
    }

    fn ask(self) -> io::Result<Opened> {
        // rbd_image_info_t: size, object size, and more that is not used; 256 bytes hold any version of it.
        let mut info = [0_u64; 32];
        let bytes = size_of_val(&info);
        // SAFETY: an open image, and room for as many bytes as are named.
        let code = unsafe { (self.functions.rbd_stat)(self.image, info.as_mut_ptr(), bytes) };
        check(code, "image")?;
        let [_, object, ..] = info;
        let mut stripes = 0;
        // SAFETY: an open image, a place for the result.
        let code = unsafe { (self.functions.rbd_get_stripe_count)(self.image, &raw mut stripes) };
        check(code, "image")?;
        let period = object.saturating_mul(stripes.max(1)).max(1);
        Ok(Opened { bytes: self.bytes()?, period })
    }

    /// Bytes of the image after which its objects begin anew.
    pub fn period(self) -> u64 {
        self.period
    }

    /// Whether librbd encrypts what is written. Which ranges hold data is not known then: before Ceph 17 the ranges that are reported begin where the
    /// header does.
    pub fn is_encrypted(self) -> bool {
        self.is_encrypted
    }

    /// Bytes of the image now.
    ///
    /// # Errors
    /// The library's.
    pub fn bytes(self) -> io::Result<u64> {
        let mut bytes = 0;
        // SAFETY: an open image, a place for the result.
        let code = unsafe { (self.functions.rbd_get_size)(self.image, &raw mut bytes) };
        check(code, "image").map(|()| bytes)
    }

    /// Sets the number of bytes; what is cut off is lost, what is added reads as zeroes. Waits.
    ///
    /// # Errors
    /// The library's.
    pub fn resize(self, bytes: u64) -> io::Result<()> {
        // SAFETY: an open image.
        check(unsafe { (self.functions.rbd_resize)(self.image, bytes) }, "resize")
    }

    /// Reads `len` bytes at `offset` to `at` of the shared memory.
    pub fn read(self, offset: u64, len: usize, at: usize, completed: Completed) {
        let Some(place) = self.memory.part(at, len) else { return completed(-i64::from(libc::EFAULT)) };
        self.start(completed, |completion| {
            // SAFETY: an open image; the bytes are in the shared memory, which stays mapped.
            unsafe { (self.functions.rbd_aio_read)(self.image, offset, len, place, completion) }
        });
    }

    /// Writes `len` bytes at `offset` of what the shared memory has at `at`.
    pub fn write(self, offset: u64, len: usize, at: usize, completed: Completed) {
        let Some(place) = self.memory.part(at, len) else { return completed(-i64::from(libc::EFAULT)) };
        self.start(completed, |completion| {
            // SAFETY: an open image; the bytes are in the shared memory, which stays mapped.
            unsafe { (self.functions.rbd_aio_write)(self.image, offset, len, place.cast_const(), completion) }
        });
    }

    /// Gives space back where whole objects are given up.
    pub fn discard(self, offset: u64, len: u64, completed: Completed) {
        self.start(completed, |completion| {
            // SAFETY: an open image.
            unsafe { (self.functions.rbd_aio_discard)(self.image, offset, len, completion) }
        });
    }

    /// Makes a range read as zeroes; with `is_kept`, its space is taken.
    pub fn zero(self, offset: u64, len: usize, is_kept: bool, completed: Completed) {
        let how = if is_kept { THICK } else { 0 };
        self.start(completed, |completion| {
            // SAFETY: an open image.
            unsafe { (self.functions.rbd_aio_write_zeroes)(self.image, offset, len, completion, how, 0) }
        });
    }

    /// Makes durable what was written before.
    pub fn flush(self, completed: Completed) {
        self.start(completed, |completion| {
            // SAFETY: an open image.
            unsafe { (self.functions.rbd_aio_flush)(self.image, completion) }
        });
    }

    fn start(self, completed: Completed, start: impl FnOnce(Handle) -> c_int) {
        let functions = self.functions;
        let waiting = Box::into_raw(Box::new(Waiting { completed, functions }));
        let mut completion = std::ptr::null_mut();
        // SAFETY: `on_completion` takes a `Waiting`; a place for the result.
        let made = unsafe {
            (functions.rbd_aio_create_completion)(waiting.cast(), on_completion, &raw mut completion)
        };
        let started = if made < 0 { made } else { start(completion) };
        if started >= 0 {
            return;
        }
        if made >= 0 {
            // SAFETY: made above, and of no request.
            unsafe { (functions.rbd_aio_release)(completion) };
        }
        // SAFETY: made above; no callback runs for a request that did not start.
        let waiting = unsafe { Box::from_raw(waiting) };
        (waiting.completed)(started.into());
    }

    /// Calls `found` with each range (offset, length, whether it holds data) that was ever written between `offset` and `offset + len`, in order, until
    /// that breaks. What is not reported of was never written. `offset` is to be a multiple of [`Image::period`]: before Ceph 17 the ranges of other
    /// places are reported at wrong offsets. Waits.
    ///
    /// # Errors
    /// The library's.
    pub fn differences(
        self,
        offset: u64,
        len: u64,
        mut found: impl FnMut(u64, u64, bool) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut search = Search { found: &mut found, is_over: false };
        let arguments = (&raw mut search).cast::<c_void>();
        let from = std::ptr::null();
        // SAFETY: an open image; `on_difference` takes a `Search`, which outlives the call: it waits for all of it.
        let ended = unsafe {
            (self.functions.rbd_diff_iterate2)(self.image, from, offset, len, 1, 1, on_difference, arguments)
        };
        if search.is_over { Ok(()) } else { check(ended, "block status") }
    }

    /// Writes what is in the library's cache and closes the image: its lock is given back. Waits.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn close(self) -> io::Result<()> {
        // SAFETY: an open image.
        let flushed = unsafe { (self.functions.rbd_flush)(self.image) };
        // SAFETY: an open image, which no task uses after this.
        let closed = unsafe { (self.functions.rbd_close)(self.image) };
        check(flushed, "flush").and_then(|()| check(closed, "close"))
    }
}

fn of_snapshot(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(", snapshot {name:?}") }
}

/// The pool of a cluster that is connected to.
fn pool(functions: &'static Functions, opening: &Opening) -> io::Result<Handle> {
    let cluster = connect(functions, opening)?;
    let mut pool = std::ptr::null_mut();
    let name = text(&opening.pool)?;
    // SAFETY: a connected cluster, a C string, a place for the result.
    let made = unsafe { (functions.rados_ioctx_create)(cluster, name.as_ptr(), &raw mut pool) };
    check(made, &format!("pool {:?}", opening.pool))?;
    if !opening.namespace.is_empty() {
        let namespace = text(&opening.namespace)?;
        // SAFETY: a pool that is open, a C string that is copied.
        unsafe { (functions.rados_ioctx_set_namespace)(pool, namespace.as_ptr()) };
    }
    Ok(pool)
}

fn connect(functions: &'static Functions, opening: &Opening) -> io::Result<Handle> {
    let user = (!opening.user.is_empty()).then(|| text(&opening.user)).transpose()?;
    let mut cluster = std::ptr::null_mut();
    // SAFETY: a place for the result, and a C string or null.
    let made = unsafe { (functions.rados_create)(&raw mut cluster, pointer(user.as_ref())) };
    check(made, "librados")?;
    let conf = (!opening.conf.is_empty()).then(|| text(&opening.conf)).transpose()?;
    // SAFETY: a cluster that is not connected, and a C string or null: the usual places.
    let read = unsafe { (functions.rados_conf_read_file)(cluster, pointer(conf.as_ref())) };
    // Without a file there may be all that is needed among the options.
    if conf.is_some() || read != -libc::ENOENT {
        check(read, &format!("configuration file {:?}", opening.conf))?;
    }
    for (name, value) in opening.settings() {
        let (key, value) = (text(name)?, zeroize::Zeroizing::new(text(&value)?.into_bytes_with_nul()));
        // SAFETY: a cluster that is not connected, and C strings that are copied.
        let set = unsafe { (functions.rados_conf_set)(cluster, key.as_ptr(), value.as_ptr().cast()) };
        check(set, &format!("setting {name}"))?;
    }
    // SAFETY: a cluster that is configured.
    let connected = unsafe { (functions.rados_connect)(cluster) };
    check(connected, "the cluster")?;
    Ok(cluster)
}

/// A request of the library's, for the time that it runs.
struct Waiting {
    completed: Completed,
    functions: &'static Functions,
}

extern "C" fn on_completion(completion: Handle, waiting: *mut c_void) {
    // SAFETY: made by `Image::start`; the library calls once.
    let Waiting { completed, functions } = *unsafe { Box::from_raw(waiting.cast::<Waiting>()) };
    // SAFETY: a completion that has ended.
    let result = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: likewise; no task uses it after this.
    unsafe { (functions.rbd_aio_release)(completion) };
    completed(i64::try_from(result).unwrap_or(-i64::from(libc::EOVERFLOW)));
}

struct Search<'a> {
    found: &'a mut dyn FnMut(u64, u64, bool) -> ControlFlow<()>,
    is_over: bool,
}

extern "C" fn on_difference(offset: u64, len: usize, exists: c_int, search: *mut c_void) -> c_int {
    // SAFETY: `Image::differences` gives a `Search` that lives until its call ends, and the library calls one at a time.
    let search = unsafe { &mut *search.cast::<Search<'_>>() };
    if search.is_over || (search.found)(offset, len as u64, exists != 0).is_break() {
        search.is_over = true;
        return -libc::EINTR;
    }
    0
}
