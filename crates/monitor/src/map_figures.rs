//! The figures of a map cache, listed once: for QMP, Prometheus and the terminal.

use qcow2::{Counters, Form};
use serde_json::{Map, Value, json};

pub use crate::figure::CountsIn;
use crate::figure::CountsIn::{Bytes, Things};
use crate::figure::Figure;

type Of = Figure<Counters>;

/// Every counter of a map cache but [`FORMS`] and [`ADVICE`].
#[rustfmt::skip]
pub const MAP_FIGURES: [Of; 12] = [
    Of::counter(("hits", "cowhand_map_cache_hits"), Things, |map| map.hits,
        "Map lookups that memory answered"),
    Of::counter(("misses", "cowhand_map_cache_misses"), Things, |map| map.misses,
        "Map lookups that had to read the image"),
    Of::counter(("loads", "cowhand_map_cache_loads"), Things, |map| map.loads,
        "Slices of the map read from the image"),
    Of::counter(("loaded-bytes", "cowhand_map_cache_loaded"), Bytes, |map| map.loaded_bytes,
        "Bytes of slices read from the image").called("loaded"),
    Of::counter(("coalesced-loads", "cowhand_map_cache_coalesced_loads"), Things, |map| map.coalesced_loads,
        "Misses that waited for a load that another request had begun").called("shared loads"),
    Of::counter(("evictions", "cowhand_map_cache_evictions"), Things, |map| map.evictions,
        "Slices of the map dropped for want of room or of use"),
    Of::counter(("write-backs", "cowhand_map_cache_write_backs"), Things, |map| map.write_backs,
        "Slices of the map written to the image"),
    Of::counter(("packed-slices", "cowhand_map_cache_packed_slices"), Things, |map| map.packed_slices,
        "Slices packed again after they were written").called("packed again"),
    Of::gauge(("resident-slices", "cowhand_map_cache_resident_slices"), Things, |map| map.resident_slices,
        "Slices of the map in memory").called("slices"),
    Of::gauge(("dirty-slices", "cowhand_map_cache_dirty_slices"), Things, |map| map.dirty_slices,
        "Slices of the map that the image does not have yet").called("dirty"),
    Of::gauge(("used-bytes", "cowhand_map_cache_used"), Bytes, |map| map.resident_bytes,
        "Memory that the map takes").called("used"),
    Of::gauge(("limit-bytes", "cowhand_map_cache_limit"), Bytes, |map| map.bytes_max,
        "Most memory that the map may take").called("allowed"),
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
            let same = |other: &Of| {
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
