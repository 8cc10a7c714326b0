//! Which servers of remote disks answer: reported by the clients of them, for those who look after this process.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

static ALL: Mutex<Vec<Weak<Reach>>> = Mutex::new(Vec::new());

/// What a client knows of its server. It is on the list of [`servers`] as long as this is there.
#[derive(Debug)]
pub struct Reach {
    name: String,
    is_lost: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    lost: Option<Loss>,
    losses: u64,
    failures: u64,
}

/// A server that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Since when.
    pub since: Instant,
    /// What became of the last attempt.
    pub error: String,
}

/// A server of remote disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// What messages call the disk or the export there: without credentials.
    pub name: String,
    /// It does not answer.
    pub lost: Option<Loss>,
    /// How often it was lost.
    pub losses: u64,
    /// Attempts that failed.
    pub failures: u64,
}

impl Reach {
    /// A server that answers, as far as is known.
    pub fn new(name: impl Into<String>) -> Arc<Self> {
        let reach =
            Arc::new(Self { name: name.into(), is_lost: AtomicBool::default(), seen: Mutex::default() });
        let mut all = ALL.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&reach));
        reach
    }

    /// It has answered; whether that is news. Costs one look where it is none.
    pub fn answers(&self) -> bool {
        if !self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let mut seen = self.seen.lock();
        self.is_lost.store(false, Ordering::Relaxed);
        seen.lost.take().is_some()
    }

    /// An attempt failed, or its connection is lost; whether that is news.
    pub fn fails(&self, error: &dyn Display) -> bool {
        let mut seen = self.seen.lock();
        seen.failures += 1;
        let since = seen.lost.as_ref().map(|lost| lost.since);
        seen.losses += u64::from(since.is_none());
        seen.lost = Some(Loss { since: since.unwrap_or_else(Instant::now), error: error.to_string() });
        self.is_lost.store(true, Ordering::Relaxed);
        since.is_none()
    }

    fn view(&self) -> Server {
        let seen = self.seen.lock();
        let (name, lost) = (self.name.clone(), seen.lost.clone());
        Server { name, lost, losses: seen.losses, failures: seen.failures }
    }
}

/// All servers of remote disks of this process, by name. What several clients know of one is put together: it is lost as long as one of them
/// does not reach it.
pub fn servers() -> Vec<Server> {
    // Under the lock: a client that is closed meanwhile is not on the list of a later call.
    let known: Vec<Server> = ALL.lock().iter().filter_map(Weak::upgrade).map(|reach| reach.view()).collect();
    let mut all: Vec<Server> = Vec::new();
    for server in known {
        match all.iter_mut().find(|other| other.name == server.name) {
            None => all.push(server),
            Some(other) => {
                let losses = [other.lost.take(), server.lost];
                other.lost = losses.into_iter().flatten().min_by_key(|lost| lost.since);
                other.losses += server.losses;
                other.failures += server.failures;
            }
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Option<Server> {
        servers().into_iter().find(|server| server.name == name)
    }

    #[test]
    fn a_loss_is_news_once_and_so_is_its_end() {
        let reach = Reach::new("nbd://one/export");
        assert!(!reach.answers());
        assert!(reach.fails(&"refused") && !reach.fails(&"silent"));
        let lost = server("nbd://one/export").unwrap();
        assert_eq!((lost.losses, lost.failures), (1, 2));
        assert_eq!(lost.lost.unwrap().error, "silent");
        assert!(reach.answers() && !reach.answers());
        assert_eq!(server("nbd://one/export").unwrap().lost, None);
        drop(reach);
        assert_eq!(server("nbd://one/export"), None);
    }

    #[test]
    fn a_server_is_lost_as_long_as_one_client_does_not_reach_it() {
        let (first, second) = (Reach::new("http://two/disk"), Reach::new("http://two/disk"));
        first.fails(&"first");
        second.fails(&"second");
        let found = server("http://two/disk").unwrap();
        assert_eq!((found.losses, found.lost.unwrap().error.as_str()), (2, "first"));
        first.answers();
        assert_eq!(server("http://two/disk").unwrap().lost.unwrap().error, "second");
        second.answers();
        assert_eq!(server("http://two/disk").unwrap().lost, None);
    }
}
