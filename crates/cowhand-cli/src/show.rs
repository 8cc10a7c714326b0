//! `cowhand show`: a picture of an image: its layers, what they hold, and where it is.

mod cells;
mod facts;
mod html;
mod kind;
mod lineage;
mod look;
mod new_picture;
mod picture;
mod runs;
mod shapes;
mod svg;
mod tally;
mod terminal;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tool::failure::Failure;
use tool::lineages::tree::{self, Tree};
use tool::output::write_json;

use self::lineage::LineagePicture;
use self::terminal::Canvas;
use crate::drive::DRIVE_HELP;
use crate::drive::DriveArgs;
use crate::info::keys::{BITMAPS_JSON, SNAPSHOTS_JSON};
use crate::lineages;
use crate::output::{OutputFormat, with_json};

/// Width of a line where the terminal's is unknown.
const COLUMNS_DEFAULT: u16 = 80;
/// Lines shorter than this cannot hold the words beside the bars.
const COLUMNS_MIN: u16 = 50;

const EXAMPLES: &str = "\
Examples:
  cowhand show disk.qcow2
  cowhand show --html disk.html --svg disk.svg disk.qcow2
  cowhand show --output json disk.qcow2
  cowhand show --lineage disk.qcow2
  cowhand show /vms";

/// Arguments of `cowhand show`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Draw what an image holds and where: the disk as the guest sees it, the images of its chain and what each \
        holds of it, clusters by state, the file with what is leaked or free in it, how scattered the data is, snapshots and bitmaps.\n\n\
        Only metadata is read, and nothing is written but FILE. The map has 1024 cells at most, whatever the size. On a terminal it is \
        drawn in colours, unless NO_COLOR is set. The whole chain is opened, as map does.\n\n\
        Of a directory with checkpoints, and with --lineage of the lineage of a disk, the tree of layers and disks is drawn that cowhand log shows: \
        what each file takes (own), what the layers below it take (shared), and how many are backed by it (users). DRIVE may be a server's control \
        socket then: SOCKET, or SOCKET:NODE. Takes no lock, and opens no disk.",
    after_help = after_help(),
    after_long_help = with_json(&after_help(), &[picture::JSON, SNAPSHOTS_JSON, BITMAPS_JSON, "Of a lineage:", tree::JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Draw the lineage of the disk: its layers, and the disks over them
    #[arg(long)]
    lineage: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,

    /// Write the picture as a page that needs nothing else, and print none; an older picture of that name is replaced
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the picture as a drawing, and print none; an older picture of that name is replaced
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Draw with ASCII alone
    #[arg(long)]
    ascii: bool,

    /// Characters of a line, 50 at least [default: those of the terminal, or 80]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(i64::from(COLUMNS_MIN)..=1000))]
    width: Option<u16>,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{DRIVE_HELP}")
}

/// Draws it.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.lineage || Path::new(&args.drive.drive).is_dir() {
        return show_lineage(args, out);
    }
    let mut options = args.drive.options()?;
    options.layer.read_only = true;
    let picture = look::look(&options, &args.drive.policy()?)?;
    write_files(args, || svg::drawing(&picture), || html::page(&picture))?;
    match args.output {
        OutputFormat::Json => write_json(out, &picture)?,
        OutputFormat::Human if args.svg.is_some() || args.html.is_some() => {}
        OutputFormat::Human => terminal::draw(out, &canvas(args), &picture)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show_lineage(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.drive.is_opened_in_some_way() {
        let what =
            "no disk of a lineage is opened: -f, -U, --image-opts, --allow-path and --allow-name have no use";
        return Err(Failure::new(what));
    }
    let seen = lineages::args::look(&args.drive.drive)?;
    let picture = LineagePicture::of(&seen);
    write_files(args, || svg::of_lineage(&picture), || html::of_lineage(&picture))?;
    match args.output {
        OutputFormat::Json => write_json(out, &Tree::of(&seen).json(None, usize::MAX)?)?,
        OutputFormat::Human if args.svg.is_some() || args.html.is_some() => {}
        OutputFormat::Human => lineage::draw(out, &canvas(args), &picture)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_files(args: &Args, svg: impl Fn() -> String, html: impl Fn() -> String) -> Result<(), Failure> {
    if let Some(file) = &args.svg {
        new_picture::write(file, &svg())?;
    }
    if let Some(file) = &args.html {
        new_picture::write(file, &html())?;
    }
    Ok(())
}

fn canvas(args: &Args) -> Canvas {
    let stdout = std::io::stdout();
    let asked =
        || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col).filter(|columns| *columns > 0);
    let columns = args.width.or_else(asked).unwrap_or(COLUMNS_DEFAULT).max(COLUMNS_MIN);
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Canvas { columns: usize::from(columns), ascii: args.ascii, colours: stdout.is_terminal() && !no_color }
}
