//! The device under a disk's file, in lines: what it supports, and what it demands.

use std::io::{self, Write};

use serde_json::Value;
use tool::medium::ANSWERS;

/// Writes it, if the server reports it.
pub fn write(out: &mut dyn Write, driver_specific: &Value) -> io::Result<()> {
    let medium = &driver_specific["medium"];
    if !medium.is_object() {
        return Ok(());
    }
    let named = |answer: &str| {
        let names: Vec<&str> =
            ANSWERS.iter().map(|(name, _)| *name).filter(|name| medium[name] == answer).collect();
        names.join(", ")
    };
    let mut parts = vec![place(medium)];
    for (words, answer) in [("can ", "yes"), ("cannot ", "no"), ("not tried: ", tool::medium::NOT_TRIED)] {
        let names = named(answer);
        if !names.is_empty() {
            parts.push(format!("{words}{names}"));
        }
    }
    writeln!(out, "  medium    {}", parts.join("; "))?;
    writeln!(out, "            {}; {}", direct(medium), overwriting(medium))
}

fn place(medium: &Value) -> String {
    let number = |name: &str| medium[name].as_u64();
    match (medium["file-system"].as_str(), number("logical-block-size")) {
        (Some(file_system), _) => super::printable(file_system),
        (None, Some(sector)) => format!("device with sectors of {sector} bytes{}", discards(medium)),
        (None, None) => "no file".to_owned(),
    }
}

fn discards(medium: &Value) -> String {
    match medium["discard-granularity"].as_u64() {
        Some(0) => ", takes no discards".to_owned(),
        Some(unit) => format!(", discards in units of {unit}"),
        None => String::new(),
    }
}

fn direct(medium: &Value) -> String {
    match (medium["direct-io"].as_str(), medium["direct-offset-alignment"].as_u64()) {
        (_, Some(unit)) => format!("direct I/O in units of {unit}"),
        (Some("no"), None) => "no direct I/O".to_owned(),
        _ => "direct I/O not tried".to_owned(),
    }
}

fn overwriting(medium: &Value) -> &'static str {
    match medium["overwrite-takes-room"].as_str() {
        Some("never") => "overwriting takes no room",
        Some("shared") => "overwriting takes room where files share bytes",
        Some("always") => "overwriting takes room",
        _ => "whether overwriting takes room is not known",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(medium: Value) -> String {
        let mut out = Vec::new();
        write(&mut out, &json!({ "medium": medium })).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_medium_is_reported_in_two_lines() {
        let file = json!({
            "file-system": "xfs", "holes": "yes", "punch-hole": "not-tried", "zero-range": "no",
            "read-nowait": "yes", "reflink": "yes", "direct-io": "yes", "direct-offset-alignment": 4096,
            "overwrite-takes-room": "shared",
        });
        let expected =
            "  medium    xfs; can holes, read-nowait, reflink; cannot zero-range; not tried: punch-hole
            direct I/O in units of 4096; overwriting takes room where files share bytes\n";
        assert_eq!(lines(file), expected);
        let device = json!({
            "logical-block-size": 512, "discard-granularity": 0, "holes": "no", "direct-io": "no",
            "overwrite-takes-room": "unknown",
        });
        let expected = "  medium    device with sectors of 512 bytes, takes no discards; cannot holes
            no direct I/O; whether overwriting takes room is not known\n";
        assert_eq!(lines(device), expected);
    }

    #[test]
    fn a_server_that_tells_no_medium_is_shown_without_one() {
        let mut out = Vec::new();
        write(&mut out, &json!({ "driver": "raw" })).unwrap();
        assert!(out.is_empty());
    }
}
