//! `throttle`: a filter that puts the disk below it into a throttle group.

use super::FilterDriver;

pub(super) const THROTTLE: FilterDriver = FilterDriver {
    name: "throttle",
    add: |graph, name, options| Box::pin(graph.add_throttle(name, options)),
};
