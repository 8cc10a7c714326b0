//! What commands changed at run time, as the commands that lead there: the successor repeats them. A command
//! that cannot be repeated is recorded by name, and makes a take-over impossible.

use std::cell::RefCell;

use control::Command;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A command that changed what is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// As it was given.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

impl Entry {
    /// The command.
    pub fn command(&self) -> Command {
        Command { name: self.name.clone(), arguments: self.arguments.clone(), id: None }
    }

    /// The commands that a transaction is made of.
    fn actions(&self) -> impl Iterator<Item = &str> {
        let actions = self.arguments.get("actions").and_then(Value::as_array);
        actions.into_iter().flatten().filter_map(|action| action["type"].as_str())
    }

    fn text(&self, argument: &str) -> Option<&str> {
        self.arguments.get(argument).and_then(Value::as_str)
    }
}

/// What a command means for the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// It changed nothing, or what it changed is in the image.
    Nothing,
    /// It is repeated.
    Repeated,
    /// It is repeated, and the last one about the same counts.
    Replaces,
    /// It undoes the one of this name about the same argument (its own, and the other's).
    Undoes(&'static str, &'static str, &'static str),
    /// The NBD server's start is undone, with all that NBD clients were shown.
    StopsNbd,
    /// It cannot be repeated.
    Lost,
}

/// Each command that changes something. One that is not here is [`Meaning::Nothing`]: queries, and jobs, which are asked for by themselves.
fn meaning(entry: &Entry) -> Meaning {
    match entry.name.as_str() {
        // Its certificates may be out of reach in the sandbox.
        "nbd-server-start" if entry.arguments.contains_key("tls-creds") => Meaning::Lost,
        "blockdev-add" | "object-add" | "block-export-add" | "nbd-server-add" | "nbd-server-start"
        | "blockdev-reopen" | "qom-set" => Meaning::Repeated,
        "block_set_io_throttle" | "block-latency-histogram-set" => Meaning::Replaces,
        "blockdev-del" => Meaning::Undoes("blockdev-add", "node-name", "node-name"),
        "object-del" => Meaning::Undoes("object-add", "id", "id"),
        "block-export-del" => Meaning::Undoes("block-export-add", "id", "id"),
        "nbd-server-remove" => Meaning::Undoes("nbd-server-add", "name", "name"),
        "nbd-server-stop" => Meaning::StopsNbd,
        "transaction" if !entry.actions().any(changes_layers) => Meaning::Nothing,
        "transaction"
        | "x-blockdev-set"
        | "x-blockdev-change"
        | "change-backing-file"
        | "add-fd"
        | "remove-fd"
        | "getfd" => Meaning::Lost,
        name if changes_layers(name) => Meaning::Lost,
        _ => Meaning::Nothing,
    }
}

/// Commands after which a disk has other layers than its options describe.
fn changes_layers(name: &str) -> bool {
    let known = [
        "blockdev-snapshot",
        "blockdev-snapshot-sync",
        "block-stream",
        "block-commit",
        "blockdev-mirror",
        "drive-mirror",
        "cowhand-restore",
    ];
    known.contains(&name)
}

/// Whether the command starts the NBD server or adds an NBD export.
fn is_of_nbd(entry: &Entry) -> bool {
    match entry.name.as_str() {
        "nbd-server-start" | "nbd-server-add" => true,
        "block-export-add" => entry.text("type") == Some("nbd"),
        _ => false,
    }
}

/// The journal of one process.
#[derive(Debug, Default)]
pub struct Journal {
    entries: RefCell<Vec<Entry>>,
    /// Names of commands that cannot be repeated.
    lost: RefCell<Vec<String>>,
}

impl Journal {
    /// Notes a command that was done.
    pub fn note(&self, command: &Command) {
        let entry = Entry { name: command.name.clone(), arguments: command.arguments.clone() };
        let mut entries = self.entries.borrow_mut();
        match meaning(&entry) {
            Meaning::Nothing => {}
            Meaning::Repeated => {
                reopened(&entry).for_each(|options| open_at_once(&mut entries, options));
                entries.push(entry);
            }
            Meaning::Replaces => {
                let same = |other: &Entry| {
                    other.name == entry.name
                        && ["id", "device"].iter().all(|name| other.text(name) == entry.text(name))
                };
                entries.retain(|other| !same(other));
                entries.push(entry);
            }
            Meaning::Undoes(name, own, others) => {
                let id = entry.text(own);
                let done = entries.iter().rposition(|other| other.name == name && other.text(others) == id);
                match done {
                    Some(at) => undo(&mut entries, at),
                    None => entries.push(entry),
                }
            }
            Meaning::StopsNbd if entries.iter().any(|other| other.name == "nbd-server-start") => {
                entries.retain(|other| !is_of_nbd(other));
            }
            Meaning::StopsNbd | Meaning::Lost => self.lost.borrow_mut().push(entry.name),
        }
    }

    /// The commands that lead here.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().clone()
    }

    /// The first command that cannot be repeated.
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().first().cloned()
    }
}

/// What a blockdev-reopen says, node by node; nothing for another command.
fn reopened(entry: &Entry) -> impl Iterator<Item = &Value> {
    let options = match entry.name.as_str() {
        "blockdev-reopen" => entry.arguments.get("options").and_then(Value::as_array),
        _ => None,
    };
    options.into_iter().flatten()
}

/// A node that switched to another file is opened on that one at once: its old file is an old copy by now, or
/// gone. A file that is given by its node name may not exist yet where the disk is added; it is left to the
/// repetition of the command.
fn open_at_once(entries: &mut [Entry], options: &Value) {
    let (name, file) = (&options["node-name"], &options["file"]);
    if !file.is_object() {
        return;
    }
    for entry in entries {
        match entry.name.as_str() {
            "blockdev-add" => set_file(&mut entry.arguments, name, file),
            "blockdev-reopen" => {
                let options = entry.arguments.get_mut("options").and_then(Value::as_array_mut);
                let all = options.into_iter().flatten().filter_map(Value::as_object_mut);
                all.for_each(|one| set_file(one, name, file));
            }
            _ => {}
        }
    }
}

/// Says that the image called `name` is made of `file`: `options` are those of it, or of a disk over it.
fn set_file(options: &mut Map<String, Value>, name: &Value, file: &Value) {
    if options.get("node-name") == Some(name) {
        options.insert("file".to_owned(), file.clone());
    } else if let Some(below) = options.get_mut("backing").and_then(Value::as_object_mut) {
        set_file(below, name, file);
    }
}

/// The names of a node and of the images that were described below it.
fn names_of(options: &Map<String, Value>) -> Vec<&Value> {
    let below = options.get("backing").and_then(Value::as_object).map(names_of).unwrap_or_default();
    options.get("node-name").into_iter().chain(below).collect()
}

/// Removes the entry that made a removed thing, and later entries that changed it.
fn undo(entries: &mut Vec<Entry>, at: usize) {
    let gone = entries.remove(at);
    let id = gone.text("node-name").or_else(|| gone.text("id")).map(str::to_owned);
    let (Some(id), names) = (id, names_of(&gone.arguments)) else { return };
    let is_about = |entry: &Entry| match entry.name.as_str() {
        "block_set_io_throttle" => entry.text("id") == Some(&id) || entry.text("device") == Some(&id),
        "qom-set" => entry.text("path").is_some_and(|path| path.trim_start_matches("/objects/") == id),
        "blockdev-reopen" => reopened(entry).all(|one| names.contains(&&one["node-name"])),
        _ => false,
    };
    let mut number = 0;
    entries.retain(|entry| {
        number += 1;
        number <= at || !is_about(entry)
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn journal(commands: &[(&str, Value)]) -> Journal {
        let journal = Journal::default();
        for (name, arguments) in commands {
            let arguments = arguments.as_object().cloned().unwrap_or_default();
            journal.note(&Command { name: (*name).to_owned(), arguments, id: None });
        }
        journal
    }

    fn names(journal: &Journal) -> Vec<String> {
        journal.entries().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn what_was_taken_away_again_is_not_repeated() {
        let done = journal(&[
            ("blockdev-add", json!({ "node-name": "a" })),
            ("blockdev-add", json!({ "node-name": "b" })),
            ("block_set_io_throttle", json!({ "id": "a", "iops": 5 })),
            ("block_set_io_throttle", json!({ "id": "b", "iops": 5 })),
            ("block_set_io_throttle", json!({ "id": "b", "iops": 6 })),
            ("query-block", json!({})),
            ("blockdev-del", json!({ "node-name": "a" })),
        ]);
        assert_eq!(names(&done), ["blockdev-add", "block_set_io_throttle"]);
        assert_eq!(done.entries()[1].arguments["iops"], 6);
        assert_eq!(done.lost(), None);
    }

    #[test]
    fn what_was_taken_away_of_the_command_line_is_taken_away_again() {
        assert_eq!(names(&journal(&[("blockdev-del", json!({ "node-name": "disk" }))])), ["blockdev-del"]);
    }

    #[test]
    fn a_disk_that_went_on_with_another_file_is_opened_on_that_one() {
        let reopen = |name: &str, file: &str| json!({ "options": [{ "node-name": name, "file": { "driver": "file", "filename": file } }] });
        let done = journal(&[
            ("blockdev-add", json!({ "node-name": "a", "file": { "driver": "file", "filename": "1" } })),
            ("blockdev-add", json!({ "node-name": "b", "file": { "driver": "file", "filename": "9" } })),
            ("blockdev-reopen", reopen("a", "2")),
            ("blockdev-reopen", reopen("a", "3")),
        ]);
        assert_eq!(names(&done), ["blockdev-add", "blockdev-add", "blockdev-reopen", "blockdev-reopen"]);
        let entries = done.entries();
        assert_eq!(entries[0].arguments["file"]["filename"], "3");
        assert_eq!(entries[1].arguments["file"]["filename"], "9");
        assert_eq!(entries[2].arguments["options"][0]["file"]["filename"], "3");
    }

    /// A layer below a disk was opened on its old file, which may be gone, and its reopening was repeated
    /// when its disk was not there any more.
    #[test]
    fn an_image_below_that_moved_is_opened_where_it_is_and_forgotten_with_its_disk() {
        let disk = json!({ "node-name": "d", "backing": { "node-name": "mid", "backing": { "node-name": "base", "file": { "filename": "1" } } } });
        let moved = json!({ "options": [{ "node-name": "base", "file": { "filename": "2" } }] });
        let mut done = vec![("blockdev-add", disk), ("blockdev-reopen", moved)];
        let entries = journal(&done).entries();
        assert_eq!(entries[0].arguments["backing"]["backing"]["file"]["filename"], "2");
        assert_eq!(entries.len(), 2);
        done.push(("blockdev-del", json!({ "node-name": "d" })));
        assert_eq!(journal(&done).entries(), []);
    }

    #[test]
    fn what_cannot_be_repeated_is_named() {
        let done = journal(&[("blockdev-snapshot-sync", json!({ "device": "disk" }))]);
        assert_eq!(done.lost().as_deref(), Some("blockdev-snapshot-sync"));
        let tls = journal(&[("nbd-server-start", json!({ "tls-creds": "t" }))]);
        assert_eq!(tls.lost().as_deref(), Some("nbd-server-start"));
    }
}
