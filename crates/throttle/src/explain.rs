//! What limits mean, in sentences.

use crate::{Direction, Flow, Limits, Measure, Options, Rate, Weight};

/// Columns of a curve: with its label it fits a terminal of 80.
const CURVE_POINTS: usize = 60;

/// Lines of a drawn curve.
const CURVE_LINES: usize = 8;

/// Limits explained.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// One fact each, complete sentences.
    pub sentences: Vec<String>,
    /// One for each limited flow, in the order of [`Flow::ALL`].
    pub curves: Vec<Curve>,
}

impl Explanation {
    /// Sentences and drawn curves, for a terminal.
    pub fn text(&self) -> String {
        let mut text = self.sentences.join("\n");
        text.push('\n');
        for curve in &self.curves {
            text.push_str(&format!("\n{}:\n{}", subject(curve.flow), curve.draw(CURVE_LINES)));
        }
        text
    }
}

/// Explains what `options` mean.
///
/// # Errors
/// As [`Options::check`].
pub fn explain(options: &Options) -> Result<Explanation, crate::LimitsError> {
    let limits = options.check()?;
    let limited = || Flow::ALL.into_iter().filter(|&flow| !limits.rate(flow).is_unlimited());
    let mut sentences: Vec<String> =
        limited().flat_map(|flow| flow_sentences(flow, limits.rate(flow))).collect();
    if sentences.is_empty() {
        sentences.push("Nothing is limited.".to_owned());
    }
    sentences.extend(size_sentence(&limits));
    sentences.extend(Direction::BOTH.into_iter().filter_map(|direction| crossing(&limits, direction)));
    sentences.dedup();
    sentences.extend(sharing(options));
    let curves = limited().map(|flow| Curve::new(flow, limits.rate(flow), CURVE_POINTS)).collect();
    Ok(Explanation { sentences, curves })
}

fn subject(flow: Flow) -> &'static str {
    match flow.direction() {
        None => "Reads and writes together",
        Some(Direction::Read) => "Reads",
        Some(Direction::Write) => "Writes",
    }
}

fn flow_sentences(flow: Flow, limit: Rate) -> Vec<String> {
    let who = subject(flow);
    let Rate { avg, max, length } = limit;
    let idle = seconds(capacity(limit) / avg as f64);
    let average = rate(flow, avg);
    if length == 1 {
        let at_once = units(flow, capacity(limit));
        return vec![format!("{who}: {average}; {at_once} may go at once after idling at least {idle}.")];
    }
    let burst = rate(flow, max);
    let at_once = units(flow, max as f64 / 10.0);
    let start = format!("The burst may start with {at_once} at once.");
    if max == avg {
        return vec![format!("{who}: {average}, with no burst above it."), start];
    }
    let lasts = burst_seconds(limit);
    let earned = seconds(lasts / (capacity(limit) / avg as f64));
    vec![
        format!("{who}: {burst} for {length} s after idling at least {idle}, then {}.", brief(flow, avg)),
        format!(
            "With what leaks away meanwhile, a full burst lasts {}; a second of idling earns {earned} of it.",
            seconds(lasts)
        ),
        start,
    ]
}

/// The second number of a sentence whose first one had the unit.
fn brief(flow: Flow, avg: u64) -> String {
    match flow.measure() {
        crate::Measure::Operations => avg.to_string(),
        crate::Measure::Bytes => rate(flow, avg),
    }
}

fn size_sentence(limits: &Limits) -> Option<String> {
    let size = limits.iops_size();
    let double = size.checked_mul(2)?;
    (size != 0).then(|| {
        format!(
            "A request larger than {} counts as its size divided by that: {} request counts as two.",
            bytes(size),
            with_article(&bytes(double))
        )
    })
}

/// Where both measures are limited: the size of request at which the byte limit takes over.
fn crossing(limits: &Limits, direction: Direction) -> Option<String> {
    let narrowest = |measure| {
        Flow::of(direction)
            .into_iter()
            .filter(|flow| flow.measure() == measure && !limits.rate(*flow).is_unlimited())
            .min_by_key(|flow| limits.rate(*flow).avg)
    };
    let by_operation = narrowest(crate::Measure::Operations)?;
    let by_byte = narrowest(crate::Measure::Bytes)?;
    let both_total = by_operation.direction().is_none() && by_byte.direction().is_none();
    let who = match direction {
        _ if both_total => "Requests",
        Direction::Read => "Reads",
        Direction::Write => "Writes",
    };
    let (iops, bps) = (limits.rate(by_operation).avg, limits.rate(by_byte).avg);
    let size = bps as f64 / iops as f64;
    if limits.iops_size() != 0 && size > limits.iops_size() as f64 {
        return Some(format!("{who} meet the operation limit first, whatever their size."));
    }
    Some(format!("{who} larger than {} meet the byte limit first.", bytes(size as u64)))
}

fn sharing(options: &Options) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(group) = &options.group {
        sentences
            .push(format!("All disks of group \"{group}\" share these limits: together they get no more."));
    }
    if let (Some(_), Some(weight)) = (&options.group, options.weight) {
        let ratio = f64::from(weight.get()) / f64::from(Weight::default().get());
        let times = if ratio >= 0.1 { decimal(ratio) } else { ratio.to_string() };
        sentences.push(format!(
            "While both wait, this disk gets {times} times as much as one of the default weight; what one leaves, the others get."
        ));
    }
    sentences
}

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
fn burst_seconds(rate: Rate) -> f64 {
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
        let label = rate(self.flow, self.top.round() as u64);
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
        let end = seconds(self.points.last().map_or(0.0, |point| point.until));
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

/// "100 IOPS" or "10 MiB/s".
pub(crate) fn rate(flow: Flow, per_second: u64) -> String {
    match flow.measure() {
        Measure::Operations => format!("{per_second} IOPS"),
        Measure::Bytes => format!("{}/s", bytes(per_second)),
    }
}

/// "2000 requests" or "10 MiB". `units` may be a fraction.
pub(crate) fn units(flow: Flow, units: f64) -> String {
    match flow.measure() {
        Measure::Operations if units == 1.0 => "1 request".to_owned(),
        Measure::Operations => format!("{} requests", decimal(units)),
        Measure::Bytes => bytes(units as u64),
    }
}

/// "4 KiB", "1.5 MiB", "1000 bytes".
pub(crate) fn bytes(count: u64) -> String {
    let unit = |factor: f64, name| format!("{} {name}", decimal(count as f64 / factor));
    match count {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{count} bytes"),
        0x400..0x10_0000 => unit(1024.0, "KiB"),
        0x10_0000..0x4000_0000 => unit(1024.0 * 1024.0, "MiB"),
        0x4000_0000..0x100_0000_0000 => unit(1024.0 * 1024.0 * 1024.0, "GiB"),
        _ => unit(1024.0 * 1024.0 * 1024.0 * 1024.0, "TiB"),
    }
}

/// "1200 s", "63.2 s", "100 ms".
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds >= 1.0 || seconds == 0.0 {
        format!("{} s", decimal(seconds))
    } else if seconds >= 0.001 {
        format!("{} ms", decimal(seconds * 1e3))
    } else {
        format!("{} µs", decimal(seconds * 1e6))
    }
}

/// At most one digit after the point, none that is zero.
fn decimal(number: f64) -> String {
    let rounded = format!("{number:.1}");
    rounded.strip_suffix(".0").map(str::to_owned).unwrap_or(rounded)
}

/// "a 4 KiB", "an 8 KiB".
fn with_article(words: &str) -> String {
    let number: String = words.chars().take_while(char::is_ascii_digit).collect();
    let vowel = number.starts_with('8') || number == "11" || number == "18";
    format!("{} {words}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parameter, Setting};

    fn options(given: &[(&str, u64)]) -> Options {
        let mut options = Options::new();
        for &(name, value) in given {
            let Some(Setting::Limit(parameter)) = Setting::from_name(name) else { panic!("{name}") };
            options.set(parameter, value);
        }
        options
    }

    fn sentences(given: &[(&str, u64)]) -> Vec<String> {
        explain(&options(given)).unwrap().sentences
    }

    #[test]
    fn a_burst_is_explained_with_its_length_its_price_and_what_follows() {
        let given = [("iops", 100), ("iops_max", 2000), ("iops_max_length", 60), ("iops_size", 4096)];
        assert_eq!(
            sentences(&given),
            [
                "Reads and writes together: 2000 IOPS for 60 s after idling at least 1200 s, then 100.",
                "With what leaks away meanwhile, a full burst lasts 63.1 s; a second of idling earns 52.5 ms of it.",
                "The burst may start with 200 requests at once.",
                "A request larger than 4 KiB counts as its size divided by that: an 8 KiB request counts as two.",
            ]
        );
    }

    #[test]
    fn limits_without_a_burst_length_are_explained_too() {
        assert_eq!(
            sentences(&[("bps-read", 10 << 20), ("iops-write", 100), ("iops-write-max", 2000)]),
            [
                "Writes: 100 IOPS; 2000 requests may go at once after idling at least 20 s.",
                "Reads: 10 MiB/s; 1 MiB may go at once after idling at least 100 ms.",
            ]
        );
        assert_eq!(
            sentences(&[("iops-read", 9), ("iops-read-max", 9), ("iops-read-max-length", 5)])[0],
            "Reads: 9 IOPS, with no burst above it."
        );
        assert_eq!(sentences(&[]), ["Nothing is limited."]);
    }

    #[test]
    fn two_measures_are_explained_by_the_size_at_which_they_cross() {
        assert_eq!(
            sentences(&[("iops", 1024), ("bps", 10 << 20)])[2..],
            ["Requests larger than 10 KiB meet the byte limit first."]
        );
        assert_eq!(
            sentences(&[("iops", 1024), ("bps", 10 << 20), ("iops-size", 4096)])[3..],
            ["Requests meet the operation limit first, whatever their size."]
        );
    }

    #[test]
    fn groups_and_weights_are_explained() {
        let mut options = options(&[("iops", 100)]);
        options.group = Some("tenants".to_owned());
        options.weight = Some(Weight::new(250).unwrap());
        let explained = explain(&options).unwrap().sentences;
        assert!(explained[1].contains("\"tenants\""));
        assert!(explained[2].contains("2.5 times"), "{explained:?}");
    }

    #[test]
    fn a_drawn_curve_shows_the_burst_and_the_average() {
        let mut options = options(&[("iops", 1000), ("iops_max", 2000), ("iops_max_length", 60)]);
        let text = explain(&options).unwrap().text();
        let lines: Vec<&str> = text.lines().collect();
        let top = lines.iter().find(|line| line.contains("IOPS |")).unwrap();
        let filled = top.chars().filter(|&block| block == '█').count();
        assert!((29..=31).contains(&filled), "half of the columns: {text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 160), "{text}");
        options.set(Parameter::IopsSize, 0);
        assert_eq!(explain(&options).unwrap().text(), text);
    }

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(
            [bytes(1), bytes(1000), bytes(1536), bytes(10 << 20)],
            ["1 byte", "1000 bytes", "1.5 KiB", "10 MiB"]
        );
        assert_eq!([seconds(1200.0), seconds(63.157), seconds(0.1)], ["1200 s", "63.2 s", "100 ms"]);
        assert_eq!(
            [with_article("8 KiB"), with_article("18 KiB"), with_article("16 KiB")],
            ["an 8 KiB", "an 18 KiB", "a 16 KiB"]
        );
    }
}
