//! What `-o help` prints under qemu-img's name, in its form: programs look there whether an option exists. Only options that are taken are listed.

use graph::probe::Format;

/// An option: its name, what it takes in our lists, and what it does.
pub type Listed<'a> = (&'a str, &'a str, &'a str);

/// What the file takes, whatever the format: listed with a file's name alone.
const OF_FILES: [&str; 2] = ["extent_size_hint", "nocow"];

/// Options whose values are numbers.
const NUMBERS: [&str; 3] = ["refcount_bits", "iter-time", "keyslot"];

/// The list of options that new images of `format` take; of those of its file, too, where `names_file`.
pub fn of_creation<'a>(
    format: Format,
    options: impl Iterator<Item = Listed<'a>>,
    names_file: bool,
) -> String {
    let is_of_file = |name: &str| {
        // A raw file is allocated by the file's driver.
        OF_FILES.contains(&name) || (name == "preallocation" && format != Format::Qcow2)
    };
    let list = lines(options.filter(|(name, ..)| names_file || !is_of_file(name)));
    match names_file {
        true => format!("Supported options:\n{list}"),
        false => format!(
            "Supported {format} options:\n{list}\nWith a file's name those of its driver are listed, too.\n"
        ),
    }
}

/// The list of options that images of `format` can be amended by.
pub fn of_amendment<'a>(format: Format, options: impl Iterator<Item = Listed<'a>>) -> String {
    format!("Amend options for '{format}':\n{}", lines(options))
}

fn lines<'a>(options: impl Iterator<Item = Listed<'a>>) -> String {
    let mut options: Vec<_> = options.collect();
    options.sort_unstable();
    let line = |(name, takes, help): Listed<'_>| {
        let takes = match takes {
            "SIZE" => "size",
            "on|off" => "bool (on/off)",
            // Only off is taken.
            _ if name == "encryption" => "bool (on/off)",
            _ if NUMBERS.contains(&name.strip_prefix("encrypt.").unwrap_or(name)) => "num",
            _ => "str",
        };
        format!("  {:<22} - {help}\n", format!("{name}=<{takes}>"))
    };
    options.into_iter().map(line).collect()
}
