//! librbd's functions, looked up by name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use thiserror::Error;

const NAME: &CStr = c"librbd.so.1";

/// Pointers that the library gives, and takes again.
pub type Handle = *mut c_void;
/// Called by a thread of the library when a request has ended.
pub type OnCompletion = extern "C" fn(Handle, *mut c_void);
/// Called with an offset, a length, whether something is there, and what was given with it; a negative result ends the calls.
pub type OnDifference = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// The library cannot be used.
#[derive(Debug, Error)]
pub enum NotLoaded {
    /// There is none.
    #[error("librbd.so.1 is not installed: apt install librbd1")]
    Missing,
    /// There is one, and it is of no use.
    #[error("librbd.so.1 cannot be loaded (apt install librbd1 brings it): {0}")]
    Broken(String),
    /// It lacks a function.
    #[error("librbd.so.1 has no {0}; allowed: that of Ceph 15 (Octopus) or newer")]
    TooOld(&'static str),
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that are used, as Ceph's headers declare them.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(library: Handle) -> Result<Self, NotLoaded> {
                Ok(Self {
                    $($name: {
                        let found = symbol(library, stringify!($name), concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol is this function of Ceph's API, whose signature rados/librados.h or rbd/librbd.h declares so.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> $result>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    rados_create: fn(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file: fn(Handle, *const c_char) -> c_int;
    rados_conf_set: fn(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect: fn(Handle) -> c_int;
    rados_ioctx_create: fn(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace: fn(Handle, *const c_char) -> ();
    rbd_create: fn(Handle, *const c_char, u64, *mut c_int) -> c_int;
    rbd_open: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close: fn(Handle) -> c_int;
    rbd_stat: fn(Handle, *mut u64, usize) -> c_int;
    rbd_get_size: fn(Handle, *mut u64) -> c_int;
    rbd_get_stripe_count: fn(Handle, *mut u64) -> c_int;
    rbd_resize: fn(Handle, u64) -> c_int;
    rbd_flush: fn(Handle) -> c_int;
    rbd_aio_create_completion: fn(*mut c_void, OnCompletion, *mut Handle) -> c_int;
    rbd_aio_get_return_value: fn(Handle) -> isize;
    rbd_aio_release: fn(Handle) -> ();
    rbd_aio_read: fn(Handle, u64, usize, *mut u8, Handle) -> c_int;
    rbd_aio_write: fn(Handle, u64, usize, *const u8, Handle) -> c_int;
    rbd_aio_discard: fn(Handle, u64, u64, Handle) -> c_int;
    rbd_aio_write_zeroes: fn(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    rbd_aio_flush: fn(Handle, Handle) -> c_int;
    rbd_diff_iterate2: fn(Handle, *const c_char, u64, u64, u8, u8, OnDifference, *mut c_void) -> c_int;
}

/// How a passphrase is given: of one version of LUKS `(algorithm, passphrase, its bytes)`, of any `(passphrase, its bytes)`.
pub type Options = *const c_void;

/// A level of encryption (`rbd_encryption_spec_t`).
#[repr(C)]
#[derive(Debug)]
pub struct Spec {
    pub format: c_int,
    pub options: Options,
    pub options_bytes: usize,
}

/// Functions of encrypted images, which older libraries lack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encrypting {
    /// `rbd_encryption_load`, since Ceph 16.
    pub load: Option<unsafe extern "C" fn(Handle, c_int, Options, usize) -> c_int>,
    /// `rbd_encryption_load2`, since Ceph 18: parents that are encrypted otherwise.
    pub load_levels: Option<unsafe extern "C" fn(Handle, *const Spec, usize) -> c_int>,
}

impl Encrypting {
    fn find(library: Handle) -> Self {
        let load = symbol(library, "rbd_encryption_load", "rbd_encryption_load\0").ok();
        let load_levels = symbol(library, "rbd_encryption_load2", "rbd_encryption_load2\0").ok();
        Self {
            // SAFETY: the symbol is this function of Ceph's API, as rbd/librbd.h declares it.
            load: load.map(|found| unsafe {
                std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _, _) -> _>(found)
            }),
            // SAFETY: likewise.
            load_levels: load_levels.map(|found| unsafe {
                std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _) -> _>(found)
            }),
        }
    }
}

/// The library. It stays loaded: its threads may run until the process ends.
#[derive(Clone, Debug)]
pub struct Library(pub(super) Arc<Functions>, pub(super) Encrypting);

impl Library {
    /// Loads it.
    ///
    /// # Errors
    /// When it is not installed, or lacks what is needed.
    pub fn load() -> Result<Self, NotLoaded> {
        // SAFETY: the name is a C string; the library's constructors are those of an installed package.
        let library = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(not_loaded());
        }
        Ok(Self(Arc::new(Functions::find(library)?), Encrypting::find(library)))
    }
}

fn not_loaded() -> NotLoaded {
    // SAFETY: takes nothing.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return NotLoaded::Missing;
    }
    // SAFETY: a C string of this thread, which its next call of the loader ends.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned();
    let is_missing = words.starts_with("librbd.so.1:") && words.contains("No such file");
    if is_missing { NotLoaded::Missing } else { NotLoaded::Broken(words) }
}

/// `ended` is `name` with the zero that C strings end with. Also finds what libraries bring that this one needs: librados.
fn symbol(library: Handle, name: &'static str, ended: &'static str) -> Result<Handle, NotLoaded> {
    // SAFETY: a handle of dlopen that is never closed, and a C string.
    let found = unsafe { libc::dlsym(library, ended.as_ptr().cast()) };
    if found.is_null() { Err(NotLoaded::TooOld(name)) } else { Ok(found) }
}
