//! `cowhand restore`: a disk that begins as a published checkpoint is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cowhand::{Existing, NewImage};
use graph::drivers::chunked_place;
use graph::probe::Format;
use graph::size::human_size;
use qcow2::CreateOptions;
use serde_json::json;
use storage_chunked::{Place, Published};

use crate::copying;
use crate::copying::watch::Watch;
use crate::failure::Failure;
use crate::output::{OutputFormat, printable, write_json};
use crate::pull;

/// What stands before the name in a DRIVE.
const PREFIX: &str = "chunked:";
/// A disk ends with a sector.
const SECTOR_BYTES: u64 = 512;
/// Names that a message lists at most.
const NAMES_SHOWN_MAX: usize = 20;

/// Arguments of `cowhand restore`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make a disk that begins as a checkpoint that cowhand publish uploaded: a qcow2 overlay whose backing file is the image in the \
        store. It is ready at once, and what is read is fetched, each chunk checked against its name. It is opened with --allow-name and the name of its \
        backing file, which the command prints; cowhand stream has its server fetch the rest. With --full the disk is copied whole, and needs the \
        store no more.\n\n\
        The backing file is NAME@ID, which stays the same checkpoint whatever is published to NAME later. Keep it while a disk is backed by it.",
    after_help = "\
Examples:
  cowhand restore s3://images/vm disk.qcow2
  cowhand restore --at monday s3://images/vm disk.qcow2
  cowhand restore -p --full s3://images/vm disk.qcow2
docs/guide/object-stores.md is a walk through all of it."
)]
pub struct Args {
    /// The published checkpoint: s3://BUCKET/FOLDER/NAME, http://HOST/FOLDER/NAME or https://HOST/FOLDER/NAME
    #[arg(value_name = "NAME")]
    name: String,

    /// The path of the new disk
    #[arg(value_name = "NEW")]
    new: PathBuf,

    /// One of the checkpoints below NAME that were published to NAME, by its name or id
    #[arg(long, value_name = "CHECKPOINT")]
    at: Option<String>,

    /// Copy the disk whole
    #[arg(long)]
    full: bool,

    /// Show how far the copy is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p', requires = "full")]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What is restored.
struct Source {
    /// The image in the store, which stays what it is.
    name: String,
    /// Bytes of the disk.
    size: u64,
}

/// Restores.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let new = &args.new;
    if new.symlink_metadata().is_ok() {
        return Err(Failure::new(format!("cannot create {}: there is a file already", new.display())));
    }
    let source = {
        let watch = Watch::begin(false)?;
        copying::reactor()?.run(async { watch.within_grace(source(args)).await.flatten() })?
    };
    match args.full {
        true => {
            let pull = pull::Args::whole(source.name.clone(), new.clone().into(), args.progress);
            pull::run(&pull, out)?;
        }
        false => copying::reactor()?.run(create(new, &source))?,
    }
    let backing = (!args.full).then(|| format!("{PREFIX}{}", source.name));
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(
            out,
            &json!({ "filename": new, "virtual-size": source.size, "image": source.name, "backing": backing }),
        )?,
        OutputFormat::Human => {
            let (shown, image) = (new.display().to_string(), printable(&source.name));
            writeln!(out, "{}: {} of {image}", printable(&shown), human_size(source.size))?;
            if let Some(backing) = backing {
                writeln!(
                    out,
                    "serve it with: cowhand serve --allow-name {} {}",
                    printable(&backing),
                    printable(&shown)
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn failed(&self, error: &dyn std::error::Error) -> Failure {
        let name = format!("{PREFIX}{}", self.name());
        Failure::because(format!("cannot restore {}", graph::drive::shown(name.as_ref())), error)
    }

    fn name(&self) -> &str {
        self.name.strip_prefix(PREFIX).unwrap_or(&self.name)
    }
}

/// The image at the store.
async fn source(args: &Args) -> Result<Source, Failure> {
    let place = chunked_place(args.name()).await.map_err(|error| args.failed(&error))?;
    let found = place.read().await.map_err(|error| args.failed(&error))?;
    let place = match lasting(args, &place, &found)? {
        Some(lasting) => {
            let there = lasting.read().await.map_err(|error| args.failed(&error))?;
            return Ok(Source { name: lasting.image(), size: disk_bytes(&there) });
        }
        None => place,
    };
    Ok(Source { name: place.image(), size: disk_bytes(&found) })
}

/// Where the image is that stays what it is; `None` if it is that already, or is copied at once.
fn lasting(args: &Args, place: &Place, found: &Published) -> Result<Option<Place>, Failure> {
    let checkpoints = found.manifest.checkpoints();
    let Some(first) = checkpoints.first() else {
        return match (args.full, &args.at) {
            (true, None) => Ok(None),
            (_, at) => {
                let what = if at.is_some() {
                    "has no checkpoints"
                } else {
                    "may be replaced by the next push, and the disk would change"
                };
                let failure = Failure::new(format!("{} was pushed, not published: it {what}", place.image()));
                Err(failure.with_hint(
                    "--full copies it as it is now; cowhand publish uploads a checkpoint that stays",
                ))
            }
        };
    };
    let id = match &args.at {
        None => &first.id,
        Some(at) => match checkpoints.iter().find(|one| one.id == *at || one.name.as_ref() == Some(at)) {
            Some(one) => &one.id,
            None => {
                let known = checkpoints.iter().filter_map(|one| one.name.as_deref());
                let known: Vec<&str> = known.take(NAMES_SHOWN_MAX).collect();
                let known = if known.is_empty() { "none has a name".to_owned() } else { known.join(", ") };
                let at = printable(at);
                return Err(Failure::new(format!(
                    "--at: {} has no checkpoint {at}; it has: {known}",
                    place.image()
                )));
            }
        },
    };
    Ok(Some(place.of_checkpoint(id)))
}

fn disk_bytes(found: &Published) -> u64 {
    found.manifest.size().next_multiple_of(SECTOR_BYTES)
}

/// Makes an overlay that is backed by the image in the store. Asks no store.
async fn create(new: &Path, source: &Source) -> Result<(), Failure> {
    let options = CreateOptions {
        size: source.size,
        backing_file: Some(format!("{PREFIX}{}", source.name)),
        backing_format: Some(Format::Raw.name().to_owned()),
        ..CreateOptions::default()
    };
    let image = NewImage { format: Format::Qcow2, options, existing: Existing::Refuse, encryption: None };
    cowhand::create(new, image)
        .await
        .map_err(|error| Failure::because(format!("cannot create {}", new.display()), &error))
}
