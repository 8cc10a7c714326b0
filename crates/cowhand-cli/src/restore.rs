//! `cowhand restore`: a disk that begins as a published checkpoint is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use checkpoints::Source;
use cowhand::NewImage;
use graph::probe::Format;
use graph::size::human_size;
use lineage::Place;
use monitor::qmp::exports::SERVE;
use serde_json::{Value, json};
use tool::failure::Failure;
use tool::output::{printable, write_json};

use crate::compat::{keyval, storage_daemon};
use crate::copying;
use crate::copying::watch::Watch;
use crate::drive::parse_bytes;
use crate::output::{OutputFormat, with_json};
use crate::pull;
use crate::remote::Remote;
use crate::remote::jobs::Until;

const EXAMPLES: &str = "\
Examples:
  cowhand restore s3://images/vm disk.qcow2
  cowhand restore --at monday s3://images/vm disk.qcow2
  cowhand restore -p --full s3://images/vm disk.qcow2
  cowhand restore --server host.qmp --serve s3://images/vm disk.qcow2
docs/guide/object-stores.md is a walk through all of it.";

/// Arguments of `cowhand restore`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make a disk that begins as a checkpoint that cowhand publish uploaded: a qcow2 overlay whose backing file is the image in the \
        store. It is ready at once, and what is read is fetched, each chunk checked against its name. It is opened with --allow-name and the name of its \
        backing file, which the command prints; cowhand stream has its server fetch the rest. With --full the disk is copied whole, and needs the \
        store no more.\n\n\
        With --server a running server makes the disk, exports it if --serve says so, and fetches the rest in the background: job restore-NODE, \
        where NODE, the node, its export and its NBD name are called as the file without its extension. Clients read and write meanwhile; \
        afterwards the disk is backed by nothing. When the job is cancelled or fails the disk stays, backed by the store.\n\n\
        The backing file is NAME@ID, which stays the same checkpoint whatever is published to NAME later. Keep it while a disk is backed by it.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
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

    /// The secret (--object secret,id=ID,file=PATH; with --server one of the server's) that holds the key of an encrypted image
    #[arg(long, value_name = "ID")]
    encrypt_key_secret: Option<String>,

    /// Copy the disk whole; with --server, return when the server has done that
    #[arg(long)]
    full: bool,

    /// Have the server with this control socket (cowhand serve --qmp) open the disk, and fetch the rest in the background
    #[arg(long, value_name = "SOCKET")]
    server: Option<PathBuf>,

    /// Have the server export the disk at once: EXPORT is TYPE[,KEY=VALUE...], as for cowhand fork [default: nbd]
    #[arg(
        long,
        value_name = "EXPORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "nbd",
        hide_default_value = true,
        requires = "server"
    )]
    serve: Option<String>,

    /// Bytes a second that the server fetches in the background at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes, requires = "server")]
    rate: Option<u64>,

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

/// What [`run`] prints.
const JSON: &str = "  filename                text: the new disk
  virtual-size            size of the disk
  image                   text: the name in the store that stays this checkpoint's
  backing                 text: the backing file of the new disk; null with --full
With --server:
  node-name               text: node of the disk, and its export
  job                     text: the job that fetches the rest; null with --full";

/// Restores.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let new = &args.new;
    if new.symlink_metadata().is_ok() {
        return Err(Failure::new(format!("cannot create {}: there is a file already", new.display())));
    }
    Place::check_new_disk(new)?;
    if let Some(server) = &args.server {
        return on_server(args, server, out);
    }
    let source = {
        let watch = Watch::begin(false)?;
        let (at, key) = (args.at.as_deref(), args.encrypt_key_secret.as_deref());
        copying::reactor()?.run(watch.within_grace(async {
            match args.full {
                true => Source::find_any(&args.name, at, key).await,
                false => Source::find(&args.name, at, key).await,
            }
        }))??
    };
    match args.full {
        true => {
            let (name, key) = (source.backing(), args.encrypt_key_secret.clone());
            let pull = pull::Args::whole(name, key, new.clone().into(), args.progress);
            pull::run(&pull, out)?;
        }
        false => copying::reactor()?.run(create(new, &source))?,
    }
    let backing = (!args.full).then(|| source.backing());
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
                let (backing, shown) = (printable(&backing), printable(&shown));
                let key = if source.key.is_some() { "--object secret,id=ID,file=PATH " } else { "" };
                writeln!(out, "serve it with: cowhand serve {key}--allow-name {backing} {shown}")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Has a server make the disk, serve it and fetch the rest.
fn on_server(args: &Args, server: &Path, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let watch = Watch::begin(args.progress && !args.quiet)?;
    // The server may be in another directory.
    let new = std::path::absolute(&args.new);
    let new = new.map_err(|error| Failure::because(format!("cannot find {}", args.new.display()), &error))?;
    let node = new.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut arguments =
        json!({ "source": args.name, "new": new, "node-name": node, "speed": args.rate.unwrap_or(0) });
    if let Some(at) = &args.at {
        arguments["at"] = json!(at);
    }
    if let Some(id) = &args.encrypt_key_secret {
        arguments["encrypt-key-secret"] = json!(id);
    }
    if let Some(serve) = &args.serve {
        let export = storage_daemon::export(keyval::parse("--serve", serve, "type")?)?;
        arguments["serve"] = keyval::typed(&SERVE, Value::Object(export));
    }
    let mut remote = Remote::connect(server)?;
    let job = format!("restore-{node}");
    (arguments["job-id"], arguments["auto-dismiss"]) = (json!(job), json!(!args.full));
    let mut made = remote.ask("cowhand-restore", arguments)?;
    if args.full {
        remote.watch_job(&job, &watch, Until::Ended)?;
        made["backing"] = Value::Null;
    }
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => {
            let job = (!args.full).then_some(job);
            write_json(
                out,
                &json!({
                    "filename": args.new, "virtual-size": made["size"], "image": made["image"],
                    "backing": made["backing"], "node-name": node, "job": job,
                }),
            )?;
        }
        OutputFormat::Human => {
            let image = printable(made["image"].as_str().unwrap_or(&args.name)).to_string();
            let size = made["size"].as_u64().map_or_else(String::new, human_size);
            let served = if args.serve.is_some() { ", served" } else { "" };
            writeln!(out, "{}: {size} of {image}{served}", printable(&args.new.display().to_string()))?;
            if !args.full {
                writeln!(out, "job {job} fetches the rest")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes an overlay that is backed by the image in the store. Asks no store.
async fn create(new: &Path, source: &Source) -> Result<(), Failure> {
    let overlay = NewImage::overlay(source.size, source.backing(), Format::Raw);
    let made = cowhand::create_whole(new, overlay).await;
    made.map_err(|error| Failure::because(format!("cannot create {}", new.display()), &error))
}
