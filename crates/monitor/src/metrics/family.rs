//! Figures on their way to Prometheus: for each a line for each disk.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use throttle::Histogram;

use super::table::{self, In, Kind, Metric};

/// A figure of all disks: a line for each, or for each of a disk's parts.
#[derive(Debug)]
pub struct Family {
    metric: &'static Metric,
    lines: Vec<Line>,
}

/// A value, under its labels.
#[derive(Debug)]
struct Line {
    labels: Vec<(&'static str, String)>,
    value: Figure,
}

/// What a line says.
#[derive(Clone, Debug)]
pub enum Figure {
    /// A number.
    Number(f64),
    /// Times: their sum in seconds, and how many there are in each bin.
    Times(f64, Box<Histogram>),
}

impl From<f64> for Figure {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

/// Families by name, as they are collected from the disks.
#[derive(Debug, Default)]
pub struct Collection {
    families: Vec<Family>,
    /// Places of the families, by their names: there may be some thousand lines of each.
    places: HashMap<&'static str, usize>,
}

impl Collection {
    /// Adds a line to the figure of this name in [`table`]; `labels` are the values of its labels. The first one brings the family along.
    pub fn add(&mut self, name: &'static str, labels: &[&str], value: impl Into<Figure>) {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                let metric = table::all().find(|metric| metric.name == name);
                debug_assert!(metric.is_some(), "{name} is not in the table");
                let Some(metric) = metric else { return };
                self.places.insert(metric.name, self.families.len());
                self.families.push(Family { metric, lines: Vec::new() });
                self.families.len() - 1
            }
        };
        let Some(family) = self.families.get_mut(place) else { return };
        debug_assert_eq!(family.metric.labels.len(), labels.len(), "{name}");
        let names = family.metric.labels.iter().copied();
        let labels = names.zip(labels.iter().map(|value| (*value).to_owned())).collect();
        family.lines.push(Line { labels, value: value.into() });
    }
}

impl Collector for Collection {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { metric, lines } in &self.families {
            let unit = match metric.unit {
                In::Things => None,
                In::Bytes => Some(Unit::Bytes),
                In::Seconds => Some(Unit::Seconds),
            };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for line in lines {
                let labelled = family.encode_family(&line.labels)?;
                line.value.encode(metric.kind, labelled)?;
            }
        }
        Ok(())
    }
}

impl Figure {
    fn encode(&self, kind: Kind, mut line: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if kind == Kind::Counter => {
                line.encode_counter::<NoLabelSet, _, f64>(number, None)
            }
            Self::Number(number) => line.encode_gauge(number),
            Self::Times(sum, histogram) => {
                // The last bin has no bound.
                let bound =
                    |bound: Option<Duration>| bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64());
                let bins: Vec<(f64, u64)> =
                    histogram.bins().map(|(end, count)| (bound(end), count)).collect();
                line.encode_histogram::<NoLabelSet>(*sum, histogram.count(), &bins, None)
            }
        }
    }
}
