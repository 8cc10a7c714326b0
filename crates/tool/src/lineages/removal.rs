//! What goes of a lineage, and what stays for others, as `--output json` shows it and QMP answers.

use lineage::{Forgetting, Forgotten, Merge, Outcome};
use serde_json::{Value, json};

/// What [`outcome_json`] gives.
pub const OUTCOME_JSON: &str = "  deleted                 bool: false if this is only what would go
  layers                  list of text: ids of the layers whose files go
  bytes                   number: what these files take on disk
  needed                  list of objects: layers that stay because something needs them
  more?                   bool: true if more could go
Of each layer that stays:
  id                      text
  users                   list of text: images that are backed by it; empty if a process has it
                          open";

/// What comes of a removal, as `--output json` shows it.
pub fn outcome_json(outcome: &Outcome, is_dry: bool) -> Value {
    let Outcome { going, going_bytes, staying, has_more } = outcome;
    let staying: Vec<Value> =
        staying.iter().map(|(id, users)| json!({ "id": id.to_string(), "users": users })).collect();
    let going: Vec<String> = going.iter().map(ToString::to_string).collect();
    let mut value = json!({ "deleted": !is_dry, "layers": going, "bytes": going_bytes, "needed": staying });
    if *has_more {
        value["more"] = json!(true);
    }
    value
}

/// What becomes of what a policy does not keep, as it was asked.
pub fn forgetting(is_dry: bool, is_saved: bool) -> Forgetting {
    match (is_dry, is_saved) {
        (true, _) => Forgetting::Listed,
        (false, false) => Forgetting::Done,
        (false, true) => Forgetting::Saved,
    }
}

/// What [`json_of`] gives beside what [`outcome_json`] does.
pub const FORGOTTEN_JSON: &str = "Also, of the whole command:
  forgotten               list of text: ids of the checkpoints that are forgotten
  merged                  list of objects: merges
  too-deep                list of objects: disks that stay above --max-depth
  policy                  object: what was followed
Of the policy:
  keep?                   text
  max-depth?              number of layers
  max-waste?              percent
Of each merge:
  into                    text: id of the layer that stays
  layers                  list of text: ids of those that are merged into it
  bytes                   number: data in all of them
Of each disk that is too deep:
  disk                    text: path
  layers                  number of layers that it is backed by";

/// As `--output json` shows it, and as cowhand-forget answers.
pub fn json_of(forgotten: &Forgotten, is_dry: bool) -> Value {
    let ids = |ids: &[lineage::LayerId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut value = outcome_json(&forgotten.removal, is_dry);
    let merge = |merge: &Merge| json!({ "into": merge.into.to_string(), "layers": ids(&merge.going), "bytes": merge.bytes });
    let too_deep = |(disk, layers): &(String, usize)| json!({ "disk": disk, "layers": layers });
    value["policy"] = json!(forgotten.policy);
    value["forgotten"] = json!(ids(&forgotten.checkpoints));
    value["merged"] = forgotten.merges.iter().map(merge).collect();
    value["too-deep"] = forgotten.too_deep.iter().map(too_deep).collect();
    value
}
