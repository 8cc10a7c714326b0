//! `cowhand prune`: chunks and packs in an object store that no image leads to any more.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use catalog::object_store;
use graph::size::human_size;
use remote::chunked::{Error, Folder, Removal, Survey, Unused, without_prefix};
use serde::Serialize;
use tool::failure::{Failure, warn};
use tool::output::write_json;

use crate::copying;
use crate::copying::watch::Watch;
use crate::output::{OutputFormat, with_json};

/// Less of it is refused without `--force`: a push that runs would count as killed.
const UNUSED_FOR_MIN_S: u64 = 3600;
/// Default of `--unused-for`: longer than any push takes.
const UNUSED_FOR: &str = "7d";

const EXAMPLES: &str = "\
Examples:
  cowhand prune s3://images/base
  cowhand prune --remove s3://images/base
  cowhand prune --remove --unused-for 30d s3://images/base
docs/reference/object-stores.md has what is at the store.";

/// Arguments of `cowhand prune`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "List the chunks in a folder of an object store that no chunked image of the folder leads to any more, or that a push \
        left when it was interrupted; --remove removes them. So it does with delta objects (parts of chunks), with start lists of images that are gone, and with packs that no start list names \
        (cowhand pack). FOLDER is s3://BUCKET/FOLDER (or gs, or az), where images are FOLDER/NAME.json.\n\n\
        No chunk is removed that an image leads to, nor one that was made less than --unused-for ago: the next push finds it. While \
        chunks are removed no push to the folder runs: a push that continues has the removal refused, and a push that begins is refused. \
        A push that began longer than --unused-for ago counts as killed, so less than 1h takes --force. An image that cannot be read whole ends the command: what it \
        leads to is unknown.\n\n\
        Disks that are open on what an image was before its last push read errors where chunks of that are removed. Caches of chunks \
        on other machines are not looked for.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    /// The folder in the store: s3://BUCKET/FOLDER, or s3://BUCKET
    #[arg(value_name = "FOLDER")]
    folder: String,

    /// Remove them
    #[arg(long)]
    remove: bool,

    /// What was made later stays, and pushes that began later count as alive: a number with s, m, h or d behind it
    #[arg(long, value_name = "TIME", default_value = UNUSED_FOR, value_parser = parse_seconds)]
    unused_for: Seconds,

    /// Remove although --unused-for is less than 1h: no push and no publish to the folder runs, anywhere
    #[arg(long, requires = "remove")]
    force: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seconds(u64);

fn parse_seconds(text: &str) -> Result<Seconds, String> {
    let allowed = || "must be a whole number with s, m, h or d behind it, as 7d".to_owned();
    let unit = match text.chars().next_back() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(allowed()),
    };
    let number: u64 =
        text.get(..text.len() - 1).and_then(|number| number.parse().ok()).ok_or_else(allowed)?;
    number.checked_mul(unit).map(Seconds).ok_or_else(allowed)
}

/// What [`Report`] prints.
const JSON: &str = "  folder                  text: the folder, as it was named
  images                  number of images in it
  chunks                  number of chunks, and tables of them
  packs                   number of packs
  deltas                  number of delta objects
  unused                  list of objects that no image leads to, for long enough: chunks, delta
                          objects, start lists and packs
  unused-bytes            bytes of these
  young                   number of objects that no image leads to, and that stay
  pushes                  number of pushes in progress
  removed                 bool: the unused ones were removed
Of each unused object:
  name                    text: its key in the store
  bytes                   size of the object";

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    folder: String,
    images: u64,
    /// Chunks, and tables of them.
    chunks: u64,
    packs: u64,
    /// Objects with what has changed of chunks.
    deltas: u64,
    /// What no image leads to, for long enough.
    unused: Vec<Object>,
    unused_bytes: u64,
    /// What no image leads to, and stays.
    young: u64,
    /// Pushes in progress.
    pushes: u64,
    removed: bool,
}

#[derive(Debug, Serialize)]
struct Object {
    name: String,
    bytes: u64,
}

/// Looks, and removes.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.remove && !args.force && args.unused_for.0 < UNUSED_FOR_MIN_S {
        let found = args.unused_for.0;
        let what = format!(
            "--unused-for is {found} s: pushes that began longer ago would count as killed, and lose chunks; at least 1h"
        );
        return Err(Failure::new(what).with_hint("--force, where no push and no publish to the folder runs"));
    }
    let watch = Watch::begin(false)?;
    let mut unused = Vec::new();
    let is_listed = args.output == OutputFormat::Human && !args.quiet;
    let found = copying::reactor()?.run(async {
        let folder = watch.within_grace(folder(args)).await??;
        let give = |Unused { object, bytes }| {
            match args.output {
                OutputFormat::Json => unused.push(Object { name: object, bytes }),
                OutputFormat::Human if is_listed => writeln!(out, "{object}  {}", human_size(bytes))?,
                OutputFormat::Human => {}
            }
            Ok(())
        };
        look(args, &watch, &folder, give).await
    })?;
    if found.images + found.chunks + found.packs + found.deltas == 0 {
        let what = format!("there is no chunked image in {}, and no chunk", args.folder);
        return Err(
            Failure::new(what).with_hint("FOLDER is what stands before the last slash of an image's name")
        );
    }
    let removed = args.remove;
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => {
            let Survey { images, chunks, packs, deltas, unused_bytes, young, pushes, unused: _ } = found;
            let folder = args.folder.clone();
            let report = Report {
                folder,
                images,
                chunks,
                packs,
                deltas,
                unused,
                unused_bytes,
                young,
                pushes,
                removed,
            };
            write_json(out, &report)?;
        }
        OutputFormat::Human => tell(&found, removed, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(found: &Survey, removed: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let Survey { images, chunks, packs, deltas, unused, unused_bytes, young, pushes } = found;
    let bytes = human_size(*unused_bytes);
    let what = if removed { "removed" } else { "unused" };
    writeln!(
        out,
        "{chunks} chunks, {packs} packs, {deltas} delta objects, {images} images; {what}: {unused} objects, {bytes}; unused and kept: {young}"
    )?;
    if *pushes > 0 {
        writeln!(
            out,
            "images are being pushed ({pushes}), or a push was killed: what is unused may be theirs"
        )?;
    }
    Ok(())
}

async fn look(
    args: &Args,
    watch: &Watch,
    folder: &Folder,
    give: impl FnMut(Unused) -> std::io::Result<()>,
) -> Result<Survey, Failure> {
    let removal = if args.remove { Removal::Unused } else { Removal::Nothing };
    if args.remove {
        let begun = watch.within_grace(folder.begin_removal()).await;
        // One that was interrupted, or whose answer was lost, may have begun.
        if !matches!(begun, Ok(Err(Error::Removing { .. }))) && !matches!(begun, Ok(Ok(()))) {
            end_removal(folder).await;
        }
        begun?.map_err(|error| args.failed(&error))?;
    }
    let found = watch.within_grace(folder.unused(args.unused_for.0, removal, give)).await;
    if args.remove {
        end_removal(folder).await;
    }
    found?.map_err(|error| args.failed(&error))
}

async fn end_removal(folder: &Folder) {
    if let Err(error) = folder.end_removal().await {
        warn(&format!(
            "pushes to the folder are refused for a day, or until its object \"removing\" is removed: {error}"
        ));
    }
}

impl Args {
    fn failed(&self, error: &Error) -> Failure {
        let failure = Failure::because(format!("cannot prune {}", self.folder), error);
        match error {
            Error::Pushing { .. } => failure.with_hint(
                "if that push was killed: a shorter --unused-for than it is old (less than 1h with --force), or remove the object",
            ),
            Error::Removing { .. } => {
                failure.with_hint("if that was killed: the object counts for a day, or until it is removed")
            }
            _ => failure,
        }
    }
}

/// The folder, which is that of any image in it.
async fn folder(args: &Args) -> Result<Folder, Failure> {
    const IMAGE: &str = "x";
    let name = without_prefix(&args.folder);
    let image = format!("{}/{IMAGE}", name.trim_end_matches('/'));
    let refused = |why: &str| {
        let shown = graph::drive::shown(args.folder.as_ref());
        Failure::new(format!("cannot prune {shown}; {why}"))
    };
    let bucket = name.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    if bucket.is_some_and(str::is_empty) {
        return Err(refused("it names no bucket"));
    }
    match object_store(&image).await {
        Some(Ok((store, key))) => Ok(Folder::new(Arc::new(store), key.strip_suffix(IMAGE).unwrap_or(&key))),
        // Said of the folder, not of the name that was put behind it.
        Some(Err(error)) => {
            let why = error.to_string();
            Err(refused(why.strip_prefix(&format!("{image}: ")).unwrap_or(&why)))
        }
        None => Err(refused("allowed: s3://BUCKET/FOLDER, or s3://BUCKET, or the same with gs or az")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_whole_number_of_a_unit() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("5m", 300), ("36h", 129_600), ("7d", 604_800)] {
            assert_eq!(parse_seconds(text), Ok(Seconds(seconds)));
        }
        for text in
            ["", "d", "7", "-1d", "1.5h", "7w", "7 d", "99999999999999999999d", "999999999999999999d", "7µ"]
        {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
