//! What a tool warns of when it opens images and reads its options; `serve` has its log for that, once it is there.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};

use graph::GUESSED;
use tool::failure::warn;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Where images are opened, and where options are read. What other parts log is news of a server's life, and costs a tool nothing.
const SAID: [&str; 3] = ["graph::chain", "graph::drive", "tool::create::options"];

/// From now on each warning of images that are opened, and of what is asked of them, is on standard error, once.
pub fn show() {
    // In tests another subscriber may be set already.
    let _ = shown_of(&SAID).try_init();
}

/// Likewise of backing files alone whose format their content decides: the programs that call QEMU's tools look for no others.
pub fn show_guesses() {
    let _ = shown_of(&[GUESSED]).try_init();
}

/// Likewise as long as `read` runs: a server has its log from then on.
pub fn while_reading<T>(read: impl FnOnce() -> T) -> T {
    let _shown = shown_of(&SAID).set_default();
    read()
}

fn shown_of(targets: &[&'static str]) -> impl Subscriber + Send + Sync + 'static {
    let filter = Targets::new().with_targets(targets.iter().map(|target| (*target, LevelFilter::WARN)));
    tracing_subscriber::registry().with(Shown::default().with_filter(filter))
}

/// A tool may open an image more than once: what was shown.
#[derive(Default)]
struct Shown(Mutex<BTreeSet<String>>);

impl<S: Subscriber> Layer<S> for Shown {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Message::default();
        event.record(&mut said);
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(said.0.clone()) {
            warn(&said.0);
        }
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
