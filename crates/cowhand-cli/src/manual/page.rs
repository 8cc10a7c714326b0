//! A command's manual page.

use std::io;

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::{examples, notes, page_name, takes_drive, words};
use crate::drive::DRIVE_HELP;

/// The page, as `man` reads it.
///
/// # Errors
/// None but those of memory that cannot be written.
pub fn page(tool: &clap::Command) -> io::Result<Vec<u8>> {
    let version = format!("cowhand {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(tool.clone()).title(page_name(tool).to_uppercase()).source(version).manual("cowhand");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if tool.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut more = Roff::new();
    if takes_drive(tool) {
        as_typed(&mut more, "DRIVES", DRIVE_HELP);
    }
    as_typed(&mut more, "NOTES", &notes(tool));
    as_typed(&mut more, "EXAMPLES", examples::of(words(tool)).unwrap_or(""));
    see_also(&mut more, tool);
    more.to_writer(&mut page)?;
    Ok(page)
}

/// Columns of a terminal on which lines stay as they are.
const COLUMNS_MAX: usize = 80;

/// Text whose lines stay as they are, but for prose.
fn as_typed(roff: &mut Roff, heading: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    roff.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        // A line of prose is a paragraph.
        let is_prose = line.len() > COLUMNS_MAX && !line.starts_with(' ');
        if is_prose {
            roff.control("fi", []);
        }
        roff.text([roman(line)]);
        if is_prose {
            roff.control("nf", []);
        }
    }
    roff.control("fi", []);
}

fn see_also(roff: &mut Roff, tool: &clap::Command) {
    let name = page_name(tool);
    let above = name.rsplit_once('-').map(|(above, _)| above);
    let below = tool.get_subcommands().filter(|command| !command.is_hide_set()).map(page_name);
    let pages: Vec<&str> = above.into_iter().chain(below).collect();
    let mut line: Vec<Inline> = Vec::new();
    for (index, page) in pages.iter().enumerate() {
        line.push(bold(*page));
        line.push(roman(if index + 1 < pages.len() { "(1), " } else { "(1)" }));
    }
    roff.control("SH", ["SEE ALSO"]).text(line);
}
