//! Limits, and figures of what has passed.

use std::ffi::{c_char, c_int};

use cowhand::{Kind, Statistics};
use serde_json::{Value, json};

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::call;
use crate::pointers::{self, Out};

/// A limit.
#[repr(C)]
pub struct CowhandLimit {
    /// QEMU's name of it, such as "iops-total", "bps-read" or "iops-total-max".
    pub name: *const c_char,
    /// Requests, bytes or seconds.
    pub value: u64,
}

/// Puts limits in force at once, instead of all that were; a count of 0 lifts them. After a failure nothing has
/// changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_set_limits(
    disk: *mut CowhandDisk,
    limits: *const CowhandLimit,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let limits = unsafe { pointers::elements(limits, count, "limits") }?;
        let mut named = Vec::new();
        for limit in limits {
            // SAFETY: the header requires it of the caller.
            named.push((unsafe { pointers::text(limit.name, "name of a limit") }?, limit.value));
        }
        open_disk(disk)?.set_limits(&named)?;
        Ok(0)
    })
}

/// Gets the limits in force as an object in JSON, names with values; those that are not set are left out. The caller
/// releases the text with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_get_limits(disk: *mut CowhandDisk, json: *mut *mut c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let json = unsafe { Out::new(json, "json") }?;
        let limits = open_disk(disk)?.limits()?;
        let limits = limits.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
        json.set_text(Value::Object(limits.collect()).to_string());
        Ok(0)
    })
}

/// Gets what has passed since the disk was opened, as an object in JSON: for "read", "write", "write-zeroes", "discard",
/// "flush" and "status" an object of "requests", "failed", "bytes", "total-ns" and "in-flight"; and "idle-ns", the time
/// since the last request ended, or null. The caller releases the text with cowhand_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_statistics(disk: *mut CowhandDisk, json: *mut *mut c_char) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let json = unsafe { Out::new(json, "json") }?;
        json.set_text(figures(&open_disk(disk)?.statistics()?).to_string());
        Ok(0)
    })
}

fn figures(statistics: &Statistics) -> Value {
    let name = |kind| match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Zero => "write-zeroes",
        Kind::Discard => "discard",
        Kind::Flush => "flush",
        Kind::Status => "status",
    };
    let kinds = Kind::ALL.iter().map(|&kind| {
        let of = statistics.of(kind);
        let figures = json!({
            "requests": of.requests,
            "failed": of.failed,
            "bytes": of.bytes,
            "total-ns": of.total_ns,
            "in-flight": of.in_flight,
        });
        (name(kind).to_owned(), figures)
    });
    let idle = statistics.idle.map(|idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
    Value::Object(kinds.chain([("idle-ns".to_owned(), Value::from(idle))]).collect())
}
