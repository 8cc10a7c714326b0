//! A copy while it runs: the line that shows how far it is, signals that ask or end it.

use std::convert::Infallible;
use std::io;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use job::{Copy, Counters, Report};
use monitor::signals::ignored_now;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use tool::failure::{Failure, warn};

use crate::io::report::reason;
use crate::progress::Progress;

/// Often enough for a person who pressed Ctrl-C.
const LOOKS_AT_SIGNALS: Duration = Duration::from_millis(100);

/// How long requests that are under way may take when a signal has asked for the end: a machine that does not answer is not waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Signals of this process from [`Watch::begin`] on: SIGUSR1 shows how far a copy is; SIGINT, SIGTERM and SIGHUP end it in order, and
/// the second of them at once.
#[derive(Debug)]
pub struct Watch {
    end: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
    /// The user wants to see how far it is.
    shown: bool,
    /// Each place that a copy cannot read is named, as qemu-img does.
    names_unreadable: bool,
}

/// For a tool without a copy: SIGUSR1, with which scripts ask every tool how far it is, does not end it.
///
/// # Errors
/// When the system does not let us.
pub fn survive_questions() -> Result<(), Failure> {
    let caught = flag::register(SIGUSR1, Arc::default());
    caught.map(drop).map_err(|error| Failure::because("cannot watch for signals", &error))
}

impl Watch {
    /// Begins to catch signals. `shown`: how far a copy is, is shown on a terminal.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn begin(shown: bool) -> Result<Self, Failure> {
        let watch = Self { end: Arc::default(), asked: Arc::default(), shown, names_unreadable: false };
        // What the parent process ignores stays ignored (nohup, `&` in a script).
        let is_ignored = ignored_now();
        let registered = || -> io::Result<()> {
            for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)) {
                flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&watch.end))?;
                flag::register(signal, Arc::clone(&watch.end))?;
            }
            flag::register(SIGUSR1, Arc::clone(&watch.asked))?;
            // A write beyond RLIMIT_FSIZE is an error of that request. Unhandled, this signal would kill the process.
            flag::register(SIGXFSZ, Arc::default())?;
            Ok(())
        };
        match registered() {
            Ok(()) => Ok(watch),
            Err(error) => Err(Failure::because("cannot watch for signals", &error)),
        }
    }

    /// Has the copy name each place that it cannot read, as qemu-img does.
    pub fn naming_unreadable(self, names_unreadable: bool) -> Self {
        Self { names_unreadable, ..self }
    }

    /// For work that signals may end where it is: only SIGUSR1 is caught.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn of_questions(shown: bool) -> Result<Self, Failure> {
        let watch = Self { end: Arc::default(), asked: Arc::default(), shown, names_unreadable: false };
        match flag::register(SIGUSR1, Arc::clone(&watch.asked)) {
            Ok(_) => Ok(watch),
            Err(error) => Err(Failure::because("cannot watch for signals", &error)),
        }
    }

    /// Runs the copy, which counts in `counters`, and gives its figures. When a signal asks for the end, pieces that are under way are
    /// waited for, but for [`GRACE`] at most.
    ///
    /// # Errors
    /// Of the copy; also when a signal ended it.
    pub async fn run(&self, copy: &Copy<'_>, counters: &Counters) -> Result<job::Progress, job::Error> {
        let progress = Progress::begin(self.shown, copy.from.end - copy.from.start, Instant::now());
        let shown = progress.is_shown();
        let progress = Arc::new(Mutex::new(progress));
        self.receive_reports(counters, shown.then(|| Arc::clone(&progress)));
        let result = {
            let copied = pin!(self.within_grace(async {
                // qemu-img asks the map twice as well, and warns each time.
                if shown || self.names_unreadable {
                    let data_bytes = copy.data_bytes(counters).await?;
                    if shown {
                        progress.lock().set_total(data_bytes);
                    }
                }
                copy.run(counters).await
            }));
            let reported = pin!(self.tell(counters, shown, &progress));
            match select(copied, reported).await {
                Either::Left((Ok(result), _)) => result,
                Either::Left((Err(_), _)) => Err(job::Error::Cancelled),
            }
        };
        let mut progress = progress.lock();
        if result.is_ok() {
            progress.whole(Instant::now());
            self.answer_at_end(&mut progress);
        }
        progress.end();
        result.map(|()| counters.progress())
    }

    /// Each piece of data moves `progress`, and each place that cannot be read is named if that is wanted.
    fn receive_reports(&self, counters: &Counters, progress: Option<Arc<Mutex<Progress>>>) {
        let names_unreadable = self.names_unreadable;
        let name = |what: &str, at: u64, error: &block::Error| {
            warn(&format!("error while reading {what} {at}: {}", reason(error)));
        };
        counters.report_to(move |report| match report {
            Report::Data(bytes) => {
                if let Some(progress) = &progress {
                    progress.lock().at(bytes, Instant::now());
                }
            }
            Report::NoStatus(at, error) if names_unreadable => name("block status at offset", at, error),
            Report::Unreadable(at, error) if names_unreadable => name("offset", at, error),
            Report::NoStatus(..) | Report::Unreadable(..) => {}
        });
    }

    /// Shows how far the copy is, and cancels it when a signal asks for that. `by_data`: what is shown is data alone.
    async fn tell(&self, counters: &Counters, by_data: bool, progress: &Mutex<Progress>) -> Infallible {
        loop {
            reactor::sleep(LOOKS_AT_SIGNALS).await;
            if self.end.load(Ordering::Relaxed) {
                counters.cancel();
            }
            let done = counters.progress();
            let done = if by_data { done.data } else { done.done };
            let mut progress = progress.lock();
            if self.asked.swap(false, Ordering::Relaxed) {
                progress.tell(done, Instant::now());
            }
            progress.at(done, Instant::now());
        }
    }

    /// Runs `work`, which may wait for another machine, to its end, or until [`GRACE`] after a signal asked for the end: then it is dropped.
    ///
    /// # Errors
    /// When it was dropped.
    pub async fn within_grace<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let reported = pin!(async {
            while !self.end.load(Ordering::Relaxed) {
                reactor::sleep(LOOKS_AT_SIGNALS).await;
            }
            reactor::sleep(GRACE).await;
        });
        match select(pin!(work), reported).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(((), _)) => Err(interrupted()),
        }
    }

    /// Shows how far work that is no copy is; whether a signal asked for its end.
    pub fn look(&self, progress: &mut Progress, done_bytes: u64) -> ControlFlow<()> {
        if self.asked.swap(false, Ordering::Relaxed) {
            progress.tell(done_bytes, Instant::now());
        }
        progress.at(done_bytes, Instant::now());
        match self.end.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Work that is done answers a question that came since the last look: a short one has no other.
    pub fn answer_at_end(&self, progress: &mut Progress) {
        if self.asked.swap(false, Ordering::Relaxed) {
            progress.tell_whole(Instant::now());
        }
    }

    /// The line for such work, of which `total_bytes` are known so far.
    pub fn progress(&self, total_bytes: u64) -> Progress {
        Progress::begin(self.shown, total_bytes, Instant::now())
    }

    /// Fails if a signal asked for the end.
    pub fn check(&self) -> Result<(), Failure> {
        match self.end.load(Ordering::Relaxed) {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }
}

fn interrupted() -> Failure {
    Failure::new("interrupted")
}
