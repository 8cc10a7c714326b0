//! Two published disks of a store, compared by the names of their chunks.

use std::ffi::OsStr;
use std::path::Path;

use catalog::chunked_place;
use checkpoints::{Part, Says};
use graph::drivers::elsewhere;
use remote::chunked::{Comparison, Content, Difference, Place, without_prefix};
use tool::failure::Failure;
use tool::output::printable;

use super::Printer;
use crate::copying;

/// The names of two published disks.
pub struct Pair<'a> {
    one: &'a str,
    other: &'a str,
}

impl<'a> Pair<'a> {
    /// `None` if neither is one.
    ///
    /// # Errors
    /// When only one of them is.
    pub fn of(one: &'a OsStr, other: &'a OsStr) -> Result<Option<Self>, Failure> {
        match (name_of(one), name_of(other)) {
            (None, None) => Ok(None),
            (Some(one), Some(other)) => Ok(Some(Self { one, other })),
            _ => Err(Failure::new("only one of the two is a published disk: maps of both are needed")
                .with_hint("cowhand compare reads the data")),
        }
    }

    /// Shows where they differ.
    ///
    /// # Errors
    /// When their chunks have other sizes or keys, or the store does not answer.
    pub fn show(&self, key: Option<&str>, mut printer: Printer<'_>) -> Result<(), Failure> {
        copying::reactor()?.run(async {
            let (first, second) = (place(self.one, key).await?, place(self.other, key).await?);
            let failed = |error| Failure::because("cannot compare", &error);
            let (one, other) = (first.read().await.map_err(failed)?, second.read().await.map_err(failed)?);
            let compared = Comparison::new([(&first, &one.manifest), (&second, &other.manifest)]);
            let mut compared = compared.map_err(failed)?;
            printer.begin()?;
            while let Some(Difference { range, content }) = compared.next().await.map_err(failed)? {
                let (start, length) = (range.start, range.end - range.start);
                printer.row(Part { start, length, says: content.map(says) })?;
            }
            Ok(printer.end()?)
        })
    }
}

fn says(content: Content) -> Says {
    match content {
        Content::Data => Says::Data,
        Content::Zero => Says::Zero,
        Content::Nothing => Says::Nothing,
    }
}

/// The name in a store, if it is one.
fn name_of(text: &OsStr) -> Option<&str> {
    let name = text.to_str()?;
    elsewhere(Path::new(name)).is_some_and(|driver| driver != "nbd" && driver != "rbd").then_some(name)
}

/// Where the image is; behind an `@` is the name or the id of a checkpoint that was published to the name before it.
async fn place(name: &str, key: Option<&str>) -> Result<Place, Failure> {
    let name = without_prefix(name);
    let cannot = || format!("cannot compare {}", printable(&graph::drive::shown(name.as_ref())));
    let (image, checkpoint) = match name.rsplit_once('@') {
        Some((image, checkpoint)) if !checkpoint.contains('/') => (image, Some(checkpoint)),
        _ => (name, None),
    };
    let place = chunked_place(image, key).await.map_err(|error| Failure::because(cannot(), &error))?;
    match checkpoint {
        None => Ok(place),
        Some(checkpoint) => {
            let found = place.of_checkpoint_named(checkpoint).await;
            found.map_err(|error| Failure::because(cannot(), &error))
        }
    }
}
