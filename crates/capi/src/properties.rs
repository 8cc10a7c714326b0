//! Properties: what is set before a disk is opened or started, and what an open disk is.

use std::ffi::{OsStr, c_char, c_int};

use cowhand::Info;

use crate::disk::{Connected, CowhandDisk, DiskOfC, State};
use crate::failure::{Failure, call};
use crate::pointers::{self, Out};
use crate::settings::{Settings, name};

/// A name, and what it is of a disk.
type Figure = (&'static str, fn(&Info) -> u64);

/// Figures of an open disk.
const FIGURES: [Figure; 4] = [
    ("capacity", |info| info.size_bytes),
    ("request-alignment", |info| info.alignment_bytes.into()),
    ("optimal-io-alignment", |info| info.preferred_bytes.into()),
    ("discard-alignment", |info| info.cluster_bytes.unwrap_or(info.alignment_bytes.into())),
];

/// Whether a property decides about queues, which are made later than the disk is opened.
fn is_of_queues(name: &str) -> bool {
    [name::NUM_QUEUES, name::QUEUE_SIZE].contains(&name)
}

fn set(disk: *mut CowhandDisk, name: &str, value: &OsStr) -> Result<c_int, Failure> {
    let disk = DiskOfC::of(disk)?;
    let late = |name: &str, step: &str| {
        Err(Failure::new(libc::EBUSY, format!("the property {name} is fixed: the disk is {step}")))
    };
    match &mut *disk.state.write() {
        State::Created(settings) if is_of_queues(name) => settings.set_queues(name, value)?,
        State::Created(settings) => settings.set(name, value)?,
        State::Connected(Connected { settings, queues: None, .. }) if is_of_queues(name) => {
            settings.set_queues(name, value)?;
        }
        State::Connected(_) if is_of_queues(name) => return late(name, "started"),
        State::Connected(_) | State::Connecting | State::Destroyed => return late(name, "connected"),
    }
    Ok(0)
}

/// Sets a property to a text.
///
/// Before cowhand_connect: "path" (the image; what begins as a driver's name, such as "nbd://HOST/EXPORT", is that, unless
/// "./" stands before it), or instead of it "drive" (a drive as cowhand serve takes it, such as "json:{...}"); "allow-path"
/// and "allow-name" (directories, and NBD servers or images in stores, to which names inside images may lead; each call
/// adds one); and every option of a drive by its name, such as "cache", "read-only", "discard", "l2-cache-size" or
/// "throttling.iops-total". Wrong names and values of options are found by cowhand_connect.
///
/// Before cowhand_start: "num-queues" (1 to 1024, 1 unless set) and "queue-size" (requests in flight in a queue, 1 to
/// 32768, 256 unless set).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_set_str(
    disk: *mut CowhandDisk,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        // SAFETY: the header requires it of the caller.
        let value = unsafe { pointers::bytes(value, "value") }?;
        set(disk, name, value)
    })
}

/// Sets a property that is yes or no: "on" or "off", of "discard" "unmap" or "ignore".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_set_bool(disk: *mut CowhandDisk, name: *const c_char, value: bool) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        let words = if name == name::DISCARD { ["ignore", "unmap"] } else { ["off", "on"] };
        set(disk, name, OsStr::new(words[usize::from(value)]))
    })
}

/// Sets a property to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_set_u64(disk: *mut CowhandDisk, name: *const c_char, value: u64) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        set(disk, name, OsStr::new(&value.to_string()))
    })
}

fn unknown(name: &str, kind: &str, known: &[&str]) -> Failure {
    let text = format!("there is no {kind} property {name:?}; known: {}", known.join(", "));
    Failure::new(libc::ENOENT, text)
}

/// Does `work` with what was set, and with the open disk if there is one.
fn with<T>(
    disk: *mut CowhandDisk,
    work: impl FnOnce(&Settings, Option<&Connected>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let disk = DiskOfC::of(disk)?;
    let state = disk.state.read();
    match &*state {
        State::Created(settings) => work(settings, None),
        State::Connected(connected) => work(&connected.settings, Some(connected)),
        other => other.connected().and_then(|connected| work(&connected.settings, Some(connected))),
    }
}

/// Gets a property that is a text; the caller releases it with cowhand_free. "driver" and "path" always; what was set
/// of "drive" and of an option; of an open disk "chain", the paths of its images as a list in JSON, the disk's own
/// first. "driver" of an open disk is what its content has decided.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_get_str(
    disk: *mut CowhandDisk,
    name: *const c_char,
    value: *mut *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        // SAFETY: the header requires it of the caller.
        let value = unsafe { Out::new(value, "value") }?;
        let text = with(disk, |settings, connected| {
            let info = || connected.map(|connected| connected.disk.info()).transpose();
            match name {
                name::DRIVER => Ok(info()?.map_or(settings.driver(), |info| info.driver).into()),
                "chain" => match info()? {
                    Some(info) => Ok(serde_json::Value::from(info.chain).to_string().into_bytes()),
                    None => {
                        Err(Failure::new(libc::ENOTCONN, "the chain is known once the disk is connected"))
                    }
                },
                _ => {
                    let known = || unknown(name, "text", &[name::DRIVER, name::PATH, name::DRIVE, "chain"]);
                    settings.get(name).map(<[u8]>::to_vec).ok_or_else(known)
                }
            }
        })?;
        value.set_text(text);
        Ok(0)
    })
}

/// Gets a property that is yes or no: "connected", "started"; of an open disk "read-only" and "discard" (whether
/// discards give space back).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_get_bool(
    disk: *mut CowhandDisk,
    name: *const c_char,
    value: *mut bool,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        // SAFETY: the header requires it of the caller.
        let value = unsafe { Out::new(value, "value") }?;
        let found = with(disk, |_, connected| {
            let open = || match connected {
                Some(connected) => Ok(connected.disk.info()?),
                None => {
                    Err(Failure::new(libc::ENOTCONN, format!("{name} is known once the disk is connected")))
                }
            };
            match name {
                "connected" => Ok(connected.is_some()),
                "started" => Ok(connected.is_some_and(|connected| connected.queues.is_some())),
                name::READ_ONLY => Ok(open()?.read_only),
                name::DISCARD => Ok(open()?.discards),
                _ => Err(unknown(name, "bool", &["connected", "started", name::READ_ONLY, name::DISCARD])),
            }
        })?;
        value.set(found);
        Ok(0)
    })
}

/// Gets a property that is a number: "num-queues", "queue-size"; of an open disk "capacity" (bytes, now),
/// "request-alignment" (requests that are multiples of it reach the device as they are; others work too, and cost
/// more), "optimal-io-alignment" and "discard-alignment" (what is given back together).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_get_u64(
    disk: *mut CowhandDisk,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        // SAFETY: the header requires it of the caller.
        let value = unsafe { Out::new(value, "value") }?;
        let found = with(disk, |settings, connected| {
            let figure = FIGURES.iter().find(|(figure, _)| *figure == name);
            match (name, figure, connected) {
                (name::NUM_QUEUES, ..) => Ok(settings.num_queues as u64),
                (name::QUEUE_SIZE, ..) => Ok(settings.queue_size as u64),
                (_, Some((_, of)), Some(connected)) => Ok(of(&connected.disk.info()?)),
                (_, Some(_), None) => {
                    Err(Failure::new(libc::ENOTCONN, format!("{name} is known once the disk is connected")))
                }
                (_, None, _) => {
                    let figures = FIGURES.iter().map(|(figure, _)| *figure);
                    let known: Vec<_> =
                        [name::NUM_QUEUES, name::QUEUE_SIZE].into_iter().chain(figures).collect();
                    Err(unknown(name, "number", &known))
                }
            }
        })?;
        value.set(found);
        Ok(0)
    })
}
