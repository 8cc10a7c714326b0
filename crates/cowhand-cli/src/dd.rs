//! `cowhand dd`: a part of a disk copied into an image, in dd's words.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use block::Block;
use graph::probe::Format;
use job::{Content, Copy, CopyOptions, Counters, Order, Scope, Zeroes};
use tool::create::options::NewImage;
use tool::failure::{Failure, warn};

use crate::copying::made::Made;
use crate::copying::pipe::{self, PipeTarget};
use crate::copying::watch::Watch;
use crate::copying::{self, Memory};
use crate::drive::{OpenArgs, formats, made_formats, parse_bytes};

/// The largest block, as qemu-img's.
const BLOCK_BYTES_MAX: u64 = i32::MAX as u64;
/// The block unless said otherwise.
const BLOCK_BYTES_DEFAULT: u64 = 512;

/// Arguments of `cowhand dd`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy a part of a disk into a new image, in dd's words. The part begins behind SKIP blocks and ends with \
        block COUNT of the disk, as with qemu-img dd.\n\n\
        Operands: if=DRIVE of=FILE [bs=BYTES] [count=BLOCKS] [skip=BLOCKS]",
    after_help = "\
Examples:
  cowhand dd if=disk.qcow2 of=disk.raw
  cowhand dd -O qcow2 bs=1M count=100 if=disk.raw of=start.qcow2
  cowhand dd bs=1M count=1 if=disk.qcow2 of=- | xxd
cowhand info --help says what a DRIVE is."
)]
pub struct Args {
    /// if=DRIVE of=FILE [bs=BYTES] [count=BLOCKS] [skip=BLOCKS]
    #[arg(value_name = "OPERAND", required = true)]
    operands: Vec<String>,

    /// Format of the disk: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Format>,

    /// Format of the new image: qcow2 or raw (luks is refused: dd takes no password for it)
    #[arg(short = 'O', value_name = "FORMAT", value_parser = made_formats(), hide_possible_values = true, default_value = "raw")]
    target_format: Format,

    #[command(flatten)]
    opening: OpenArgs,
}

/// What the operands say.
#[derive(Debug, PartialEq, Eq)]
struct Operands {
    input: String,
    output: String,
    block_bytes: u64,
    count: Option<u64>,
    skip: u64,
}

/// Copies.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let operands = Operands::parse(&args.operands)?;
    if args.target_format == Format::Luks {
        let what = "dd makes no LUKS file: a new one needs a password (-o key-secret=ID), and dd has no -o";
        return Err(
            Failure::new(what).with_hint("cowhand convert -O luks copies a disk into a new LUKS file")
        );
    }
    let memory = Memory::default();
    let rules = memory.rules(args.opening.policy()?);
    let input = pipe::source(operands.input.as_ref(), &rules.fd_sets)?;
    let mut options = args.opening.options(&input, "-f", args.format)?;
    options.layer.read_only = true;
    let watch = Watch::begin(false)?;
    let reactor = copying::reactor()?;
    let source = reactor.run(copying::open(&options, &rules, "copy"))?;
    let from = operands.range(source.size());
    if operands.skip > 0 && from.is_empty() {
        warn(&format!("skip={} leaves nothing of {}", operands.skip, operands.input));
    }
    let copy_options = CopyOptions { memory_bytes: memory.copy_bytes, ..CopyOptions::default() };
    let failed = |error: &dyn std::error::Error| copying::because("copy", &options, error);
    let size = from.end - from.start;
    if let Some(pipe) = PipeTarget::open(operands.output.as_ref(), size) {
        let pipe = pipe?;
        pipe.check_format(args.target_format)?;
        let options = CopyOptions { order: Order::InOrder, zeroes: Zeroes::Write, ..copy_options };
        let copy = part(&*source, from, &pipe, Content::Unknown, options);
        reactor.run(watch.run(&copy, &Counters::default())).map_err(|error| failed(&error))?;
        watch.check()?;
        return Ok(ExitCode::SUCCESS);
    }
    let image = NewImage::parse(&[], args.target_format)
        .map_err(|error| Failure::because("cannot create the image", &error))?;
    let made = Made::make(Path::new(&operands.output), &image, size)?;
    let target = made.options();
    let copied = reactor.run(async {
        let disk = copying::open(&target, &rules, "write").await?;
        let options = CopyOptions { zeroes: Zeroes::ByMap, ..copy_options };
        let copy = part(&*source, from, &*disk, made.content(), options);
        let counters = Counters::default();
        let copied = made
            .while_filled(&counters, async {
                watch.run(&copy, &counters).await.map_err(|error| failed(&error))
            })
            .await;
        copying::finish(&disk, copied, failed).await?;
        made.filled().await
    });
    copied.map_err(|failure| made.explain(failure))?;
    watch.check()?;
    made.keep()?;
    Ok(ExitCode::SUCCESS)
}

/// The copy of a part to the start of `target`.
fn part<'a>(
    source: &'a dyn Block,
    from: Range<u64>,
    target: &'a dyn Block,
    content: Content<'a>,
    options: CopyOptions,
) -> Copy<'a> {
    Copy { source, from, target, to: 0, scope: Scope::Everything, content, options }
}

impl Operands {
    fn parse(words: &[String]) -> Result<Self, Failure> {
        let (mut input, mut output, mut block_bytes, mut count, mut skip) =
            (None, None, BLOCK_BYTES_DEFAULT, None, 0);
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number =
                || parse_bytes(value).map_err(|error| Failure::explained(format!("{name}={value}"), error));
            match name {
                "if" => input = Some(value.to_owned()),
                "of" => output = Some(value.to_owned()),
                "bs" => block_bytes = number()?,
                "count" => count = Some(number()?),
                "skip" => skip = number()?,
                _ => {
                    let what = format!("unknown operand {word}; allowed: if, of, bs, count, skip");
                    return Err(Failure::new(what));
                }
            }
        }
        if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(Failure::new(format!("bs is {block_bytes}; allowed: 1 to {BLOCK_BYTES_MAX}")));
        }
        match (input, output) {
            (Some(input), Some(output)) => Ok(Self { input, output, block_bytes, count, skip }),
            _ => Err(Failure::new("dd needs if=DRIVE and of=FILE")),
        }
    }

    /// The part of a disk of `size` bytes: COUNT counts from its first block, as in qemu-img.
    fn range(&self, size: u64) -> Range<u64> {
        let blocks = |count: u64| count.saturating_mul(self.block_bytes);
        let end = self.count.map_or(size, |count| blocks(count).min(size));
        blocks(self.skip).min(end)..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Operands, String> {
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        Operands::parse(&words).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_part_ends_with_block_count_of_the_disk() {
        let range = |text: &str| parse(&format!("if=a of=b {text}")).unwrap().range(10_000);
        assert_eq!(range("bs=1k"), 0..10_000);
        assert_eq!(range("count=2 skip=1"), 512..1024);
        assert_eq!(range("bs=1k count=100 skip=2"), 2048..10_000);
        assert_eq!(range("skip=100"), 10_000..10_000);
        assert_eq!(range("count=1 skip=3"), 512..512);
        assert!(range("bs=1G skip=9E").is_empty());
    }

    #[test]
    fn wrong_operands_are_named() {
        assert_eq!(parse("if=a"), Err("dd needs if=DRIVE and of=FILE".to_owned()));
        assert_eq!(parse("if=a of=b bs=0"), Err("bs is 0; allowed: 1 to 2147483647".to_owned()));
        let unknown = "unknown operand conv=sparse; allowed: if, of, bs, count, skip";
        assert_eq!(parse("if=a of=b conv=sparse"), Err(unknown.to_owned()));
    }
}
