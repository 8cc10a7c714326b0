//! What a medium does, listed once: `info --medium`, `status` and QMP tell it from here.

use serde_json::{Map, Value, json};
use storage::{Answer, DirectRequests, Medium, OverwriteRoom};

/// A question that is answered with yes or no: its name in JSON, and where its answer is.
type Question = (&'static str, fn(&Medium) -> Answer);

/// All of them.
pub const ANSWERS: [Question; 5] = [
    ("holes", |medium| medium.tells_holes),
    ("punch-hole", |medium| medium.punches_holes),
    ("zero-range", |medium| medium.zeroes_ranges),
    ("read-nowait", |medium| medium.reads_without_waiting),
    ("reflink", |medium| medium.shares_extents),
];

/// The word for an answer that only trying would give.
pub const NOT_TRIED: &str = "not-tried";

/// What [`medium_value`] gives.
pub const MEDIUM_JSON: &str = "\
Of medium:
  file-system?            text: name of the file system, or its number
  holes, punch-hole, zero-range, read-nowait, reflink  text: yes, no or not-tried
  direct-io               text: likewise
  direct-offset-alignment?, direct-memory-alignment?  bytes by which direct requests are aligned
  logical-block-size?, discard-granularity?  bytes, of a device
  overwrite-takes-room    text: never, shared, always or unknown";

/// All of it as an object. What a medium does not have is left out.
pub fn medium_value(medium: &Medium) -> Value {
    let mut value = Map::new();
    let mut put = |name: &str, of: Value| value.insert(name.to_owned(), of);
    if let Some(number) = medium.file_system {
        let name = medium.file_system_name().map_or_else(|| format!("{number:#x}"), str::to_owned);
        put("file-system", json!(name));
    }
    for (name, of) in ANSWERS {
        put(name, json!(answer(of(medium))));
    }
    match medium.direct {
        DirectRequests::Aligned { offset_bytes, memory_bytes } => {
            put("direct-io", json!(answer(Answer::Yes)));
            put("direct-offset-alignment", json!(offset_bytes));
            put("direct-memory-alignment", json!(memory_bytes));
        }
        DirectRequests::Refused => drop(put("direct-io", json!(answer(Answer::No)))),
        DirectRequests::NotTried => drop(put("direct-io", json!(NOT_TRIED))),
    }
    if let Some(bytes) = medium.logical_block_bytes {
        put("logical-block-size", json!(bytes));
    }
    if let Some(bytes) = medium.discard_granularity_bytes {
        put("discard-granularity", json!(bytes));
    }
    put("overwrite-takes-room", json!(overwrite_room(medium.overwrite_room)));
    Value::Object(value)
}

fn answer(answer: Answer) -> &'static str {
    match answer {
        Answer::Yes => "yes",
        Answer::No => "no",
        Answer::NotTried => NOT_TRIED,
    }
}

fn overwrite_room(room: OverwriteRoom) -> &'static str {
    match room {
        OverwriteRoom::Never => "never",
        OverwriteRoom::Shared => "shared",
        OverwriteRoom::Always => "always",
        OverwriteRoom::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_reported_and_what_a_medium_does_not_have_is_left_out() {
        let file = Medium {
            file_system: Some(0x9123_683e),
            tells_holes: Answer::Yes,
            zeroes_ranges: Answer::No,
            direct: DirectRequests::Aligned { offset_bytes: 4096, memory_bytes: 512 },
            overwrite_room: OverwriteRoom::Always,
            ..Medium::default()
        };
        let expected = json!({
            "file-system": "btrfs", "holes": "yes", "punch-hole": "not-tried", "zero-range": "no",
            "read-nowait": "not-tried", "reflink": "not-tried", "direct-io": "yes",
            "direct-offset-alignment": 4096, "direct-memory-alignment": 512, "overwrite-takes-room": "always",
        });
        assert_eq!(medium_value(&file), expected);
        let device = Medium {
            direct: DirectRequests::Refused,
            logical_block_bytes: Some(512),
            discard_granularity_bytes: Some(0),
            ..Medium::default()
        };
        let reported = medium_value(&device);
        assert_eq!((&reported["direct-io"], &reported["logical-block-size"]), (&json!("no"), &json!(512)));
        assert_eq!((&reported["discard-granularity"], reported.get("file-system")), (&json!(0), None));
        let unknown = Medium { file_system: Some(0x1234), ..Medium::default() };
        assert_eq!(medium_value(&unknown)["file-system"], "0x1234");
    }
}
