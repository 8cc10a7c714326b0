//! What a limit lets through over time.

use crate::{Flow, Rate, wording};

/// The rate that a client which always asks for more gets over one stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Beginning of the stretch, in seconds from an idle start.
    pub from: f64,
    /// End of the stretch.
    pub until: f64,
    /// Units per second over the stretch.
    pub per_second: f64,
}

/// A limit over time, from an idle start: data for a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What is limited.
    pub flow: Flow,
    /// Top of the plot, in units per second: the burst rate, or the average if there is none. The
    /// first stretch may exceed it by what goes at once.
    pub top: f64,
    /// Stretches of equal length without a gap.
    pub points: Vec<Point>,
}

/// Units that one limit lets through in the first `seconds` after an idle start, if the client
/// always asks for more: each bucket's capacity and what has leaked, whichever is less.
pub(crate) fn passed(rate: Rate, seconds: f64) -> f64 {
    let main = capacity(rate) + rate.avg as f64 * seconds;
    if rate.length > 1 { main.min(rate.max as f64 * (0.1 + seconds)) } else { main }
}

/// Units that the main bucket holds.
pub(crate) fn capacity(rate: Rate) -> f64 {
    match rate.max {
        0 => rate.avg as f64 / 10.0,
        max => max as f64 * f64::from(rate.length),
    }
}

/// Seconds that a full burst lasts from an idle start, what leaks meanwhile included; infinite if
/// the burst rate is the average.
pub(crate) fn burst_seconds(rate: Rate) -> f64 {
    if rate.length > 1 {
        (capacity(rate) - rate.max as f64 / 10.0) / (rate.max - rate.avg) as f64
    } else {
        0.0
    }
}

impl Curve {
    /// The curve of one limit in `stretches` points, long enough to show a burst and what follows: a
    /// second each, unless the burst has a length.
    pub fn new(flow: Flow, rate: Rate, stretches: usize) -> Self {
        let burst = burst_seconds(rate);
        let lasting = burst > 0.0 && burst.is_finite();
        let horizon = if lasting { (2.0 * burst).max(2.0) } else { stretches as f64 };
        let stretch = horizon / stretches.max(1) as f64;
        let points = |index| {
            let (from, until) = (index as f64 * stretch, (index + 1) as f64 * stretch);
            // What the buckets hold at the start goes at once, before the first stretch has a length.
            let before = if index == 0 { 0.0 } else { passed(rate, from) };
            Point { from, until, per_second: (passed(rate, until) - before) / stretch }
        };
        let points: Vec<Point> = (0..stretches).map(points).collect();
        Self { flow, top: rate.max.max(rate.avg).max(1) as f64, points }
    }

    /// The curve as `height` lines of text and an axis below, one column per point.
    pub fn draw(&self, height: usize) -> String {
        let label = wording::rate(self.flow, self.top.round() as u64);
        let margin = label.chars().count();
        let mut text = String::new();
        for line in (0..height).rev() {
            let left = if line + 1 == height { label.as_str() } else { "" };
            let columns: String = self
                .points
                .iter()
                .map(|point| block(point.per_second / self.top * height as f64 - line as f64))
                .collect();
            text.push_str(&format!("{left:>margin$} |{}\n", columns.trim_end()));
        }
        let end = wording::seconds(self.points.last().map_or(0.0, |point| point.until));
        let width = self.points.len();
        text.push_str(&format!("{:>margin$} +{}\n", "0", "-".repeat(width)));
        text.push_str(&format!("{:>margin$}  0{end:>rest$}\n", "", rest = width.saturating_sub(1)));
        text
    }
}

/// A column's character in a line: how much of the line's height it fills.
fn block(filled: f64) -> char {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    EIGHTHS[(filled.clamp(0.0, 1.0) * 8.0).round() as usize]
}
