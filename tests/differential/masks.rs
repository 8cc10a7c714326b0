//! What is left out of a comparison, because versions of QEMU differ in it, or because it names a moment or a place.

use serde_json::Value;

/// A result without what may differ.
pub fn output(words: &[&str], is_newest: bool, text: &str) -> String {
    let is_json = words.iter().any(|word| word.ends_with("json"));
    match words.first().copied().unwrap_or_default() {
        "info" | "check" | "measure" if is_json && let Ok(value) = serde_json::from_str(text) => {
            format!("{:#}", printed(value))
        }
        // Since 8.2 rows say whether they are compressed.
        "map" => text.replace(", \"compressed\": false", "").replace(", \"compressed\": true", ""),
        "info" => human_info(text),
        "snapshot" => snapshots(text),
        "bench" => duration(text),
        _ if text.contains(" ops; ") => rates(text),
        "convert" | "commit" | "rebase" | "compare"
            if words.iter().any(|word| ["-p", "--progress"].contains(word)) =>
        {
            progress(text)
        }
        // Older versions have other lists.
        _ if words.iter().any(|word| word.contains("help")) => {
            if is_newest {
                option_list(text)
            } else {
                option_names(text)
            }
        }
        _ => text.to_owned(),
    }
}

/// JSON that one of the programs printed. Objects are compared whatever the order of their members.
fn printed(mut value: Value) -> Value {
    strip(&mut value, &["children"]);
    sorted(value)
}

/// The description of a file that both made: without its name, the space that it takes, and when its snapshots were taken.
pub fn of_file(mut value: Value) -> Value {
    let more = ["children", "filename", "actual-size", "full-backing-filename", "date-sec", "date-nsec"];
    strip(&mut value, &more);
    // Random, and what this machine did at that moment.
    strip(&mut value, &["uuid", "iters", "master-key-iters", "cid"]);
    // Since 9.0.
    strip(&mut value, &["detached-header"]);
    // Since 8.0 plain files have something of their own, which says nothing of the image.
    sorted(value)
}

fn strip(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(object) => {
            object.retain(|name, _| !names.contains(&name.as_str()));
            object.values_mut().for_each(|member| strip(member, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|member| strip(member, names)),
        _ => {}
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut members: Vec<_> = object.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// Without the child nodes that are listed since 8.0.
fn human_info(text: &str) -> String {
    let mut in_child = false;
    let lines = snapshots(text);
    let kept = lines.lines().filter(|line| {
        in_child = line.starts_with("Child node") || (in_child && line.starts_with(' '));
        !in_child
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Tables of snapshots have other widths since 9.1, hours of four digits, and `--` where no instructions were counted.
fn snapshots(text: &str) -> String {
    let in_table =
        |line: &&str| line.starts_with("ID ") || line.chars().next().is_some_and(|c| c.is_ascii_digit());
    let line = |line: &str| match in_table(&line) {
        false => line.to_owned(),
        true => {
            let words = line.replace("VM SIZE", "VM_SIZE").replace("VM CLOCK", "VM_CLOCK");
            let words: Vec<_> = words.split_whitespace().map(|word| word.trim_start_matches("00")).collect();
            let end = words.len() - usize::from(matches!(words.last(), Some(&("0" | "--"))));
            words[..end].join(" ")
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn duration(text: &str) -> String {
    let line = |line: &str| {
        if line.starts_with("Run completed in ") { "Run completed".to_owned() } else { line.to_owned() }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Without how long each request of qemu-io took.
fn rates(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(" ops; ").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The form of each part, and that it began with nothing and ended with all.
fn progress(text: &str) -> String {
    let parts: Vec<_> = text.split('\r').collect();
    let is_share = |part: &str| part.trim_start().starts_with('(') && part.ends_with("/100%)");
    let shares: Vec<_> = parts.iter().filter(|part| is_share(part)).collect();
    // `compare` of qemu-img ends the line behind its result; where disks differ, the last share is any.
    let rest: Vec<_> = parts.iter().filter(|part| !is_share(part)).map(|part| part.trim()).collect();
    if text.contains("mismatch") {
        return format!("{:?} {rest:?}", shares.first());
    }
    let (first, last) = (shares.first(), shares.last());
    format!("{first:?} {last:?} {rest:?}")
}

/// A list of options with what they take. Each program describes them in its own words.
fn option_list(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.is_empty());
    let lines = lines.map(|line| line.split(" - ").next().unwrap_or_default().trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first words of a list of options.
fn option_names(text: &str) -> String {
    let names = text.lines().filter(|line| line.starts_with("  "));
    let mut names: Vec<_> = names.filter_map(|line| line.trim().split('=').next()).collect();
    names.retain(|name| {
        !name.starts_with("encrypt") && !["nocow", "extent_size_hint", "encryption"].contains(name)
    });
    // Since 10.1.
    names.retain(|name| *name != "keep_data_file");
    // qemu-img lists it with the name of a file only.
    names.retain(|name| *name != "preallocation" || text.contains("qcow2"));
    names.sort_unstable();
    names.join("\n")
}
