//! The figures of a map cache, listed once: for QMP, Prometheus and the terminal.

use qcow2::{Counters, Form};
use serde_json::{Map, Value, json};

/// What a figure counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountsIn {
    /// Look-ups, slices.
    Things,
    /// Bytes.
    Bytes,
}

/// One counter of a map cache.
#[derive(Debug)]
pub struct MapFigure {
    /// Its name in JSON.
    pub name: &'static str,
    /// Its name for Prometheus, without unit.
    pub metric: &'static str,
    /// What stands before the number, for people.
    pub label: &'static str,
    /// What it is.
    pub help: &'static str,
    /// What it counts in.
    pub counts_in: CountsIn,
    /// It only grows.
    pub grows: bool,
    /// Its value.
    pub of: fn(&Counters) -> u64,
}

/// Every counter of a map cache but [`FORMS`] and [`ADVICE`].
pub const MAP_FIGURES: [MapFigure; 12] = [
    MapFigure {
        name: "hits",
        metric: "cowhand_map_cache_hits",
        label: "hits",
        help: "Map lookups that memory answered",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.hits,
    },
    MapFigure {
        name: "misses",
        metric: "cowhand_map_cache_misses",
        label: "misses",
        help: "Map lookups that had to read the image",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.misses,
    },
    MapFigure {
        name: "loads",
        metric: "cowhand_map_cache_loads",
        label: "loads",
        help: "Slices of the map read from the image",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.loads,
    },
    MapFigure {
        name: "loaded-bytes",
        metric: "cowhand_map_cache_loaded",
        label: "loaded",
        help: "Bytes of slices read from the image",
        counts_in: CountsIn::Bytes,
        grows: true,
        of: |map| map.loaded_bytes,
    },
    MapFigure {
        name: "coalesced-loads",
        metric: "cowhand_map_cache_coalesced_loads",
        label: "shared loads",
        help: "Misses that waited for a load that another request had begun",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.coalesced_loads,
    },
    MapFigure {
        name: "evictions",
        metric: "cowhand_map_cache_evictions",
        label: "evictions",
        help: "Slices of the map dropped for want of room or of use",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.evictions,
    },
    MapFigure {
        name: "write-backs",
        metric: "cowhand_map_cache_write_backs",
        label: "write-backs",
        help: "Slices of the map written to the image",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.write_backs,
    },
    MapFigure {
        name: "packed-slices",
        metric: "cowhand_map_cache_packed_slices",
        label: "packed again",
        help: "Slices packed again after they were written",
        counts_in: CountsIn::Things,
        grows: true,
        of: |map| map.packed_slices,
    },
    MapFigure {
        name: "resident-slices",
        metric: "cowhand_map_cache_resident_slices",
        label: "slices",
        help: "Slices of the map in memory",
        counts_in: CountsIn::Things,
        grows: false,
        of: |map| map.resident_slices,
    },
    MapFigure {
        name: "dirty-slices",
        metric: "cowhand_map_cache_dirty_slices",
        label: "dirty",
        help: "Slices of the map that the image does not have yet",
        counts_in: CountsIn::Things,
        grows: false,
        of: |map| map.dirty_slices,
    },
    MapFigure {
        name: "used-bytes",
        metric: "cowhand_map_cache_used",
        label: "used",
        help: "Memory that the map takes",
        counts_in: CountsIn::Bytes,
        grows: false,
        of: |map| map.resident_bytes,
    },
    MapFigure {
        name: "limit-bytes",
        metric: "cowhand_map_cache_limit",
        label: "allowed",
        help: "Most memory that the map may take",
        counts_in: CountsIn::Bytes,
        grows: false,
        of: |map| map.bytes_max,
    },
];

/// Memory by the form in which slices lie there.
pub const FORMS: &str = "bytes-by-form";

/// What more memory would have done; null where it would have done nothing.
pub const ADVICE: &str = "advice";

/// What [`map_value`] gives, for the help of what prints it.
pub fn json_help() -> String {
    let keys = MAP_FIGURES.iter().map(|figure| format!("  {:22}  {}\n", figure.name, figure.help));
    let forms = Form::ALL.map(Form::name).join(", ");
    format!(
        "Of map-cache and chain-map:\n{}{REST_JSON}\nOf bytes-by-form:\n  {forms}  bytes",
        keys.collect::<String>()
    )
}

/// What [`map_value`] gives beside [`MAP_FIGURES`].
const REST_JSON: &str = "  covered-bytes           bytes of the disk that the map in memory covers
  bytes-by-form           object: memory by how slices lie there
  advice                  object: what more memory would have done, or null
  more-bytes, avoided-misses  of advice, bytes of memory and number of misses";

/// Memory of each form.
pub fn forms(map: &Counters) -> impl Iterator<Item = (&'static str, u64)> {
    Form::ALL.into_iter().map(Form::name).zip(map.bytes_by_form)
}

/// All of it as an object.
pub fn map_value(map: &Counters) -> Map<String, Value> {
    let mut value: Map<String, Value> =
        MAP_FIGURES.iter().map(|figure| (figure.name.to_owned(), json!((figure.of)(map)))).collect();
    value.insert(FORMS.to_owned(), forms(map).map(|(form, bytes)| (form.to_owned(), json!(bytes))).collect());
    let advice = map.ghost_hits.advice();
    let advice = advice
        .map(|advice| json!({ "more-bytes": advice.more_bytes, "avoided-misses": advice.avoided_misses }));
    value.insert(ADVICE.to_owned(), advice.unwrap_or(Value::Null));
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_names_of_its_own() {
        for (at, figure) in MAP_FIGURES.iter().enumerate() {
            let (before, _) = MAP_FIGURES.split_at(at);
            let same = |other: &MapFigure| {
                other.name == figure.name || other.metric == figure.metric || other.label == figure.label
            };
            assert!(!before.iter().any(same), "{figure:?}");
            let bytes = figure.counts_in == CountsIn::Bytes;
            assert_eq!(figure.name.ends_with("-bytes"), bytes, "{figure:?}");
        }
    }

    #[test]
    fn programs_get_every_figure_every_form_and_the_advice() {
        let mut map = Counters { hits: 5, loaded_bytes: 7, ..Counters::default() };
        map.bytes_by_form[2] = 9;
        let value = map_value(&map);
        assert_eq!(value.len(), MAP_FIGURES.len() + 2);
        assert_eq!((&value["hits"], &value["loaded-bytes"]), (&json!(5), &json!(7)));
        let expected = json!({ "run": 0, "runs": 0, "frame": 9, "explicit": 0, "plain": 0 });
        assert_eq!((&value[FORMS], &value[ADVICE]), (&expected, &Value::Null));
    }
}
