//! Options that replace others: the value that a user names last counts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{DriveError, Entry, OptionTree, is_short_for_filename, key_and_value, split_commas};
use crate::RuntimeOptions;
use crate::options::table::{has_no_word, is_flat, other_name};
use crate::options::{DetectZeroes, Discard};

impl OptionTree {
    /// Sets the option with the dotted name `key`, whatever it was before, also under its other name.
    ///
    /// # Errors
    /// When its name is malformed.
    pub fn replace(&mut self, key: &str, value: impl Into<OsString>) -> Result<(), DriveError> {
        self.forget(key);
        self.insert(key, Entry::Value(value.into()))
    }

    /// Sets all options of `key=value,key=value`, whatever they were before. A value for a whole group (`cache=none`)
    /// replaces what was said of its members, but for those in the same text.
    ///
    /// # Errors
    /// When the text is not of that form.
    pub fn replace_all(&mut self, text: &OsStr) -> Result<(), DriveError> {
        let parts: Vec<Vec<u8>> = split_commas(text.as_bytes()).collect();
        for part in &parts {
            self.forget(key_and_value(part)?.0);
        }
        for part in &parts {
            let (key, value) = key_and_value(part)?;
            self.insert_last(key, value)?;
        }
        let given: Vec<&str> =
            parts.iter().flat_map(|part| key_and_value(part)).map(|(key, _)| key).collect();
        self.settle_cache_sizes(&given);
        Ok(())
    }

    /// Leaves at most two of the three cache sizes set. Sizes that were set before and contradict those
    /// `given` now are dropped, as in QEMU: a new total replaces both parts, and an old total is dropped
    /// where both parts are set.
    fn settle_cache_sizes(&mut self, given: &[&str]) {
        const TOTAL: &str = "cache-size";
        const PARTS: [&str; 2] = ["l2-cache-size", "refcount-cache-size"];
        let is_given = |name: &str| given.contains(&name);
        if is_given(TOTAL) {
            PARTS.into_iter().filter(|part| !is_given(part)).for_each(|part| self.forget(part));
        } else if PARTS.iter().all(|part| self.entries.contains_key(*part)) {
            self.forget(TOTAL);
        }
    }

    /// Sets all options of `more`, whatever they were before.
    pub(crate) fn replace_entries(&mut self, more: Self) {
        self.entries.extend(more.entries);
    }

    /// Takes away what was said of an option, under each of its names.
    fn forget(&mut self, key: &str) {
        let mut parts: Vec<&str> = key.split('.').collect();
        if is_short_for_filename(&parts) {
            parts.push("filename");
        }
        let Some((last, group)) = parts.split_last() else { return };
        let other = other_name(last);
        self.remove_at(&parts);
        if let Some(other) = other {
            self.remove_at(&[group, &[other]].concat());
        }
    }

    /// Says of the options that change while a disk is open what is so, whatever was said before.
    pub(crate) fn say(&mut self, options: &RuntimeOptions) {
        let switch = |on: bool| if on { "on" } else { "off" };
        let discard = match options.discard {
            Discard::Ignore => "ignore",
            Discard::Unmap => "unmap",
        };
        let detect_zeroes = match options.detect_zeroes {
            DetectZeroes::Off => "off",
            DetectZeroes::On => "on",
            DetectZeroes::Unmap => "unmap",
        };
        let said = [
            ("read-only", switch(options.read_only)),
            ("cache.writeback", switch(!options.writethrough)),
            ("discard", discard),
            ("detect-zeroes", detect_zeroes),
        ];
        for (name, value) in said {
            // None of the names is malformed.
            let _ = self.replace(name, value);
        }
    }

    /// Copies from `old` what `blockdev-reopen` leaves out: the backing image, which stays, and options that
    /// QMP has no name for (limits, `aio` of the whole).
    pub fn fill_for_reopen(&mut self, old: &Self) {
        let stays = |name: &&String| name.as_str() == "backing" || has_no_word(name);
        for name in old.entries.keys().filter(stays) {
            if let Some(entry) = old.entries.get(name) {
                self.entries.entry(name.clone()).or_insert_with(|| entry.clone());
            }
        }
    }

    /// Takes over what `old` says of an option as a whole.
    pub(crate) fn keep(&mut self, name: &str, old: &Self) {
        if let Some(entry) = old.entries.get(name) {
            self.entries.insert(name.to_owned(), entry.clone());
        }
    }

    fn remove_at(&mut self, parts: &[&str]) {
        let Some((first, rest)) = parts.split_first() else { return };
        if is_flat(first) {
            let of_group = rest.is_empty() || rest == ["template"];
            let members = format!("{first}.");
            let name = parts.join(".");
            self.entries.retain(|entry, _| {
                *entry != name && !(of_group && (entry.starts_with(&members) || entry == first))
            });
        } else if rest.is_empty() {
            self.entries.remove(*first);
        } else if let Some(Entry::Tree(inner)) = self.entries.get_mut(*first) {
            inner.remove_at(rest);
        }
    }
}
