//! The map caches of a disk in lines: its own, and that of the layers below.

use std::io::{self, Write};

use graph::size::human_size;
use monitor::map_figures::{ADVICE, CountsIn, FORMS, MAP_FIGURES};
use serde_json::Value;

use super::percent;
use crate::output::counted;
use crate::remote::figures::{DiskFigures, MapFigures};

/// Writes both, where there are some.
pub fn write(out: &mut dyn Write, value: &Value, disk: &DiskFigures) -> io::Result<()> {
    let driver = &value["driver-specific"];
    if let Some(map) = &disk.map {
        writeln!(out, "  map       {}", summary(map, disk.size))?;
        details(out, &driver["map-cache"])?;
    }
    if let Some(map) = &disk.chain {
        let reported = &driver["chain-map"];
        let layers = counted(reported["layers"].as_u64().unwrap_or(0), "layer");
        writeln!(out, "  below     {}, {layers}", summary(map, disk.size))?;
        details(out, reported)?;
    }
    Ok(())
}

fn summary(map: &MapFigures, size: u64) -> String {
    format!(
        "hits {}, covers {} of {}, memory {} of {}",
        percent(map.hits, map.hits + map.misses),
        human_size(map.covered_bytes),
        human_size(size),
        human_size(map.used_bytes),
        human_size(map.limit_bytes),
    )
}

fn details(out: &mut dyn Write, reported: &Value) -> io::Result<()> {
    let figures = MAP_FIGURES.iter().filter_map(|figure| {
        let value = reported[figure.name].as_u64()?;
        let shown = match figure.counts_in {
            CountsIn::Things => value.to_string(),
            CountsIn::Bytes => human_size(value),
        };
        Some(format!("{} {shown}", figure.label))
    });
    line(out, "", figures)?;
    let forms = reported[FORMS].as_object().into_iter().flatten();
    let forms = forms.filter_map(|(form, bytes)| Some((form, bytes.as_u64().filter(|bytes| *bytes > 0)?)));
    line(out, "packed: ", forms.map(|(form, bytes)| format!("{form} {}", human_size(bytes))))?;
    let advice = &reported[ADVICE];
    if let (Some(more), Some(avoided)) = (advice["more-bytes"].as_u64(), advice["avoided-misses"].as_u64()) {
        let part = percent(avoided, reported["misses"].as_u64().unwrap_or(0).max(avoided));
        writeln!(out, "            {} more would have avoided {part} of the misses", human_size(more))?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, head: &str, parts: impl Iterator<Item = String>) -> io::Result<()> {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { Ok(()) } else { writeln!(out, "            {head}{}", parts.join(", ")) }
}
