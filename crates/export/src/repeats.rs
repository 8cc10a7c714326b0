//! Messages that repeat: the first at once, then one a second with the count of those that were kept back.
//!
//! A disk that fails every request, or a client that comes again and again, must not fill a log. What is kept back is
//! counted by kind and subject (a disk, a door); the latest text stands for all, and the count is reported when the second
//! is over, also when nothing more comes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two messages of one kind about one subject.
const INTERVAL: Duration = Duration::from_secs(1);

/// Subjects that are known at a time; of more, one reports all others: the memory of the log has a bound.
const SUBJECTS_MAX: usize = 256;

/// How serious a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Something of the server's own does not work.
    Error,
    /// A client did not get what it requested.
    Warn,
}

/// What messages are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    level: Level,
    kind: &'static str,
    name: String,
}

#[derive(Debug)]
struct Row {
    /// Until then nothing is reported.
    until: Instant,
    /// Kept back since the last message.
    held: u64,
    latest: String,
}

/// What is to be done about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reported {
    /// It is reported now; the row is to be looked at then.
    Now { look_at: Instant },
    /// It was counted.
    Held,
}

/// Messages of the last second.
#[derive(Debug, Default)]
struct Repeats {
    rows: HashMap<Subject, Row>,
}

impl Repeats {
    fn note(&mut self, subject: &Subject, text: &str, now: Instant) -> Reported {
        if let Some(row) = self.rows.get_mut(subject) {
            row.held += 1;
            text.clone_into(&mut row.latest);
            return Reported::Held;
        }
        let until = now + INTERVAL;
        self.rows.insert(subject.clone(), Row { until, held: 0, latest: String::new() });
        Reported::Now { look_at: until }
    }

    /// The subject under which messages are counted: their own while there is room.
    fn subject(&self, level: Level, kind: &'static str, name: &str) -> Subject {
        let own = Subject { level, kind, name: name.to_owned() };
        if self.rows.len() < SUBJECTS_MAX || self.rows.contains_key(&own) {
            return own;
        }
        Subject { level, kind, name: String::new() }
    }

    /// What is to be reported at the end of a second, and when to look again; `None` when nothing was kept back: then the
    /// next message is a first one.
    fn look(&mut self, subject: &Subject, now: Instant) -> Option<(String, Instant)> {
        let row = self.rows.get_mut(subject)?;
        if row.held == 0 {
            self.rows.remove(subject);
            return None;
        }
        row.until = now + INTERVAL;
        Some((row.tell(), row.until))
    }

    /// Everything that is still kept back.
    fn end(&mut self) -> Vec<(Level, String)> {
        let held = self.rows.drain().filter(|(_, row)| row.held > 0);
        held.map(|(subject, mut row)| (subject.level, row.tell())).collect()
    }
}

impl Row {
    fn tell(&mut self) -> String {
        match std::mem::take(&mut self.held) {
            1 => std::mem::take(&mut self.latest),
            held => format!("{} ({held} times since the last message)", std::mem::take(&mut self.latest)),
        }
    }
}

static REPEATS: Mutex<Option<Repeats>> = Mutex::new(None);

fn with<T>(look: impl FnOnce(&mut Repeats) -> T) -> T {
    look(REPEATS.lock().get_or_insert_default())
}

/// Tells `text`, of this `kind` and about `name`, unless one like it was reported less than a second ago: then it is
/// counted, and reported with the others.
///
/// # Panics
/// Outside of an event loop.
pub fn tell(level: Level, kind: &'static str, name: &str, text: &str) {
    let (subject, reported) = with(|repeats| {
        let subject = repeats.subject(level, kind, name);
        let reported = repeats.note(&subject, text, Instant::now());
        (subject, reported)
    });
    let Reported::Now { look_at } = reported else { return };
    log(level, text);
    reactor::spawn(async move {
        let mut next = Some(look_at);
        while let Some(at) = next {
            reactor::sleep_until(at).await;
            let due = with(|repeats| repeats.look(&subject, Instant::now()));
            next = due.map(|(text, at)| {
                log(level, &text);
                at
            });
        }
    })
    .detach();
}

/// Tells what is still kept back: the loops that would have done it have ended.
pub(crate) fn end() {
    with(Repeats::end).iter().for_each(|(level, text)| log(*level, text));
}

fn log(level: Level, text: &str) {
    match level {
        Level::Error => tracing::error!("{text}"),
        Level::Warn => tracing::warn!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> Subject {
        Subject { level: Level::Error, kind: "disk", name: name.to_owned() }
    }

    /// A full device: 50,000 lines a second, all the same.
    #[test]
    fn the_first_is_reported_at_once_then_one_a_second_with_the_count_and_nothing_is_lost() {
        let start = Instant::now();
        let mut repeats = Repeats::default();
        let second = start + INTERVAL;
        assert_eq!(repeats.note(&disk("a"), "no space at 0", start), Reported::Now { look_at: second });
        for at in 1..=50_000 {
            assert_eq!(repeats.note(&disk("a"), &format!("no space at {at}"), start), Reported::Held);
        }
        let (text, again) = repeats.look(&disk("a"), second).expect("some were kept back");
        assert_eq!(text, "no space at 50000 (50000 times since the last message)");
        assert_eq!(again, second + INTERVAL);
        repeats.note(&disk("a"), "no space at 7", second);
        assert_eq!(repeats.look(&disk("a"), again).expect("one").0, "no space at 7");
        assert_eq!(repeats.look(&disk("a"), again + INTERVAL), None);
        let late = again + INTERVAL * 2;
        assert_eq!(repeats.note(&disk("a"), "again", late), Reported::Now { look_at: late + INTERVAL });
    }

    #[test]
    fn another_disk_and_another_kind_are_reported_at_once() {
        let now = Instant::now();
        let mut repeats = Repeats::default();
        for subject in [disk("a"), disk("b"), Subject { kind: "tls", ..disk("a") }] {
            assert!(matches!(repeats.note(&subject, "x", now), Reported::Now { .. }));
            assert_eq!(repeats.note(&subject, "x", now), Reported::Held);
        }
        assert_eq!(repeats.end().len(), 3, "what is kept back at the end is reported");
        assert!(repeats.end().is_empty());
    }

    #[test]
    fn names_that_never_repeat_take_no_memory() {
        let now = Instant::now();
        let mut repeats = Repeats::default();
        for number in 0..10_000 {
            let subject = repeats.subject(Level::Error, "disk", &number.to_string());
            repeats.note(&subject, "x", now);
        }
        assert!(repeats.rows.len() <= SUBJECTS_MAX + 1);
        let held: u64 = repeats.rows.values().map(|row| row.held).sum();
        assert_eq!(held + repeats.rows.len() as u64, 10_000);
    }
}
