//! `cowhand log`: the checkpoints and disks of a lineage, as a tree.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use graph::size::human_size;
use lineage::{Backing, Layer, Policy, Survey};
use tool::failure::Failure;
use tool::lineages::tree::{JSON, Node, Row, Tree};
use tool::output::{printable, write_json};

use crate::info::date::utc;
use crate::lineages::args::{look, with_disk};
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand log disk.qcow2
  cowhand log --output json disk.qmp";

/// Arguments of `cowhand log`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the checkpoints of a lineage and the disks over them, as a tree: what is backed by what, as the headers of the images say, \
        with names, times and labels from the manifest. \"own\" is what an image's file takes, \"shared\" what the layers below it take. \
        Takes no lock: it shows a lineage while it is in use.",
    after_help = with_disk(EXAMPLES),
    after_long_help = with_json(&with_disk(EXAMPLES), &[JSON])
)]
pub struct Args {
    /// A disk of the lineage, or its directory
    #[arg(value_name = "DISK")]
    disk: OsString,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// Shows the tree.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let seen = look(&args.disk)?;
    let tree = Tree::of(&seen);
    match args.output {
        OutputFormat::Json => write_json(out, &tree.json(None, usize::MAX)?)?,
        OutputFormat::Human => show(&tree, &seen.survey, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(tree: &Tree<'_>, survey: &Survey, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{}", printable(&survey.place.directory().to_string_lossy()))?;
    let rows = tree.rows();
    for Row { branch, node } in &rows {
        writeln!(out, "{branch}{}", row(tree, *node))?;
    }
    for missing in tree.missing() {
        writeln!(out, "{missing}")?;
    }
    if rows.is_empty() {
        writeln!(out, "no checkpoints")?;
    }
    if let Some(policy) = &survey.policy {
        writeln!(out, "policy: {}", in_words(policy))?;
    }
    Ok(())
}

fn row(tree: &Tree<'_>, node: Node<'_>) -> String {
    let image = node.image();
    let (own, shared) = (human_size(image.allocated_bytes), human_size(tree.shared_by(image)));
    let mut row = match node {
        Node::Disk(disk) => {
            format!("{} {}", if tree.is_named(disk) { "*" } else { "-" }, printable(&disk.name))
        }
        Node::Layer(id, layer) => {
            let entry = layer.entry.as_ref();
            let time = entry.map_or_else(String::new, |entry| format!("  {}", utc(entry.time_sec)));
            format!("o {id}{time}  {}", name_of(layer))
        }
    };
    row += &format!("  own {own}, shared {shared}");
    if let Backing::Outside(base) = &image.backing {
        row += &format!(", over {}", printable(base));
    }
    if let Node::Layer(_, layer) = node {
        for (key, value) in layer.entry.iter().flat_map(|entry| entry.labels.iter()) {
            row += &format!("  {key}={}", printable(value));
        }
        if let Some(changed) = &layer.changed {
            row += &format!("  CHANGED SINCE IT WAS SEALED: {changed}");
        }
    }
    row
}

/// What a layer is called.
pub fn name_of(layer: &Layer) -> String {
    let entry = layer.entry.as_ref();
    let name = entry.and_then(|entry| Some(format!("{}@{}", printable(&entry.disk), entry.name.as_ref()?)));
    name.unwrap_or_else(|| match entry {
        Some(entry) if entry.deleted => "(deleted)".to_owned(),
        _ => "(no name)".to_owned(),
    })
}

/// A policy as the options of `cowhand forget` that say it.
fn in_words(policy: &Policy) -> String {
    let keep = policy.keep.as_ref().map(|keep| format!("--keep {keep}"));
    let depth = policy.depth_max.map(|max| format!("--max-depth {max}"));
    let waste = policy.waste_max.map(|max| format!("--max-waste {max}"));
    [keep, depth, waste].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
