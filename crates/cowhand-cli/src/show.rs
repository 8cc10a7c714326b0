//! `cowhand show`: a picture of an image: its layers, what they hold, and where it is.

mod cells;
mod facts;
mod html;
mod kind;
mod look;
mod new_picture;
mod picture;
mod runs;
mod shapes;
mod svg;
mod tally;
mod terminal;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use self::terminal::Canvas;
use crate::cli::DRIVE_HELP;
use crate::drive::DriveArgs;
use crate::failure::Failure;
use crate::info::keys::{BITMAPS_JSON, SNAPSHOTS_JSON};
use crate::output::{OutputFormat, with_json, write_json};

/// Width of a line where the terminal's is unknown.
const COLUMNS_DEFAULT: u16 = 80;
/// Lines shorter than this cannot hold the words beside the bars.
const COLUMNS_MIN: u16 = 50;

const EXAMPLES: &str = "\
Examples:
  cowhand show disk.qcow2
  cowhand show --html disk.html --svg disk.svg disk.qcow2
  cowhand show --output json disk.qcow2";

/// Arguments of `cowhand show`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Draw what an image holds and where: the disk as the guest sees it, the images of its chain and what each \
        holds of it, clusters by state, the file with what is leaked or free in it, how scattered the data is, snapshots and bitmaps.\n\n\
        Only metadata is read, and nothing is written but FILE. The map has 1024 cells at most, whatever the size. On a terminal it is \
        drawn in colours, unless NO_COLOR is set. The whole chain is opened, as map does.",
    after_help = after_help(),
    after_long_help = with_json(&after_help(), &[picture::JSON, SNAPSHOTS_JSON, BITMAPS_JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

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
    let mut options = args.drive.options()?;
    options.layer.read_only = true;
    let picture = look::look(&options, &args.drive.policy()?)?;
    if let Some(file) = &args.svg {
        new_picture::write(file, &svg::drawing(&picture))?;
    }
    if let Some(file) = &args.html {
        new_picture::write(file, &html::page(&picture))?;
    }
    match args.output {
        OutputFormat::Json => write_json(out, &picture)?,
        OutputFormat::Human if args.svg.is_some() || args.html.is_some() => {}
        OutputFormat::Human => terminal::draw(out, &canvas(args), &picture)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn canvas(args: &Args) -> Canvas {
    let stdout = std::io::stdout();
    let asked =
        || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col).filter(|columns| *columns > 0);
    let columns = args.width.or_else(asked).unwrap_or(COLUMNS_DEFAULT).max(COLUMNS_MIN);
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Canvas { columns: usize::from(columns), ascii: args.ascii, colours: stdout.is_terminal() && !no_color }
}
