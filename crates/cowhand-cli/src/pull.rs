//! `cowhand pull`: an image made of a chunked image in an object store.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use graph::probe::Format;
use remote::chunked::{PREFIX, split_key, without_prefix};
use tool::failure::Failure;

use crate::convert;
use crate::drive::{made_formats, parse_bytes};

/// Arguments of `cowhand pull`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make an image of a disk that cowhand push uploaded. Each chunk is checked: its SHA-256 must be its name. Chunks of \
        zeroes, which are not stored, are holes of FILE.\n\n\
        FILE has its name when it is whole and on disk: whatever happens before, there is what was there before. This is \
        cowhand convert of chunked:NAME, which takes more options.",
    after_help = "\
Examples:
  cowhand pull -p s3://images/debian disk.raw
  cowhand pull -O qcow2 s3://images/debian disk.qcow2
  cowhand pull https://mirror.example/images/debian disk.raw"
)]
pub struct Args {
    /// The chunked image: s3://BUCKET/FOLDER/NAME, http://HOST/FOLDER/NAME or https://HOST/FOLDER/NAME
    #[arg(value_name = "NAME")]
    name: String,

    /// The image that is made
    #[arg(value_name = "FILE")]
    file: OsString,

    /// The secret (--object secret,id=ID,file=PATH) that holds the key of an encrypted image
    #[arg(long, value_name = "ID")]
    encrypt_key_secret: Option<String>,

    /// Format of FILE: qcow2, raw or luks
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "raw")]
    format: Format,

    /// Creation options of FILE: name=value,... (cowhand convert -o help lists them; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,

    /// Write compressed clusters
    #[arg(short = 'c')]
    compress: bool,

    /// Memory for the copy and the maps, 4M at least
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64M")]
    memory_limit: u64,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,
}

impl Args {
    /// A qcow2 image at `file` of the whole disk, and nothing said but errors and how far it is.
    pub fn whole(name: String, encrypt_key_secret: Option<String>, file: OsString, progress: bool) -> Self {
        let memory_limit = crate::copying::MEMORY_BYTES_DEFAULT;
        let (format, options) = (Format::Qcow2, Vec::new());
        let (compress, quiet) = (false, !progress);
        Self { name, file, encrypt_key_secret, format, options, compress, memory_limit, progress, quiet }
    }
}

/// The words of `cowhand convert` that say the same.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    convert: convert::Args,
}

/// Pulls.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let url = without_prefix(&args.name);
    let name = match &args.encrypt_key_secret {
        None => format!("{PREFIX}{url}"),
        Some(id) => {
            let (_, url) = split_key(url);
            // A comma in a value is two.
            let [url, id] = [url, id].map(|value| value.replace(',', ",,"));
            format!("driver=raw,file.driver=chunked,file.url={url},file.encrypt-key-secret={id}")
        }
    };
    // What the disk begins with says nothing of how it was pushed.
    let mut words: Vec<OsString> = ["-f", "raw", "-O", args.format.name()].map(OsString::from).to_vec();
    words.extend(["--memory-limit".into(), args.memory_limit.to_string().into()]);
    args.options.iter().for_each(|option| words.extend(["-o".into(), option.into()]));
    for (switch, is_on) in [("-c", args.compress), ("-p", args.progress), ("-q", args.quiet)] {
        words.extend(is_on.then(|| OsString::from(switch)));
    }
    words.extend(["--".into(), name.into(), args.file.clone()]);
    let words = Words::try_parse_from(words).map_err(|error| Failure::because("cannot pull", &error))?;
    convert::run(&words.convert, out)
}
