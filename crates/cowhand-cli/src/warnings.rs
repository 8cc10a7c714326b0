//! What a tool warns of when it opens images; `serve` has its log for that.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::warn;

/// Where images are opened. What other parts log is news of a server's life, and costs a tool nothing.
const OPENING: &str = "graph::chain";

/// From now on each warning of images that are opened is on standard error, once.
pub fn show() {
    // In tests another subscriber may be set already.
    let opening = Targets::new().with_target(OPENING, LevelFilter::WARN);
    let _ = tracing_subscriber::registry().with(opening).with(Shown::default()).try_init();
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
