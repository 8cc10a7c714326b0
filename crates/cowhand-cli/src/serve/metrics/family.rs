//! Figures on their way to Prometheus: a name, a unit, and a line for each disk.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use throttle::Histogram;

/// What a family counts in.
#[derive(Clone, Copy, Debug)]
pub enum In {
    /// Requests, slices, clients.
    Things,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A figure of all disks: a line for each, or for each of a disk's parts.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    unit: In,
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
}

impl Collection {
    /// Adds a line to a family; the first one brings the family along.
    pub fn add(&mut self, family: Family, labels: &[(&'static str, &str)], value: impl Into<Figure>) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let line = Line { labels, value: value.into() };
        match self.families.iter_mut().find(|known| known.name == family.name) {
            Some(known) => known.lines.push(line),
            None => self.families.push(Family { lines: vec![line], ..family }),
        }
    }
}

impl Collector for Collection {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.families {
            let unit = match family.unit {
                In::Things => None,
                In::Bytes => Some(Unit::Bytes),
                In::Seconds => Some(Unit::Seconds),
            };
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), family.kind)?;
            for line in &family.lines {
                let labelled = metric.encode_family(&line.labels)?;
                line.value.encode(family.kind, labelled)?;
            }
        }
        Ok(())
    }
}

impl Figure {
    fn encode(&self, kind: MetricType, mut line: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if kind.as_str() == MetricType::Counter.as_str() => {
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

/// What only grows.
pub fn counter(name: &'static str, unit: In, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::Counter, unit, lines: Vec::new() }
}

/// What goes up and down.
pub fn gauge(name: &'static str, unit: In, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::Gauge, unit, lines: Vec::new() }
}

/// How long things took.
pub fn times(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::Histogram, unit: In::Seconds, lines: Vec::new() }
}
