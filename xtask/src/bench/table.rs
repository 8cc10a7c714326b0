//! A table as it is measured, before it is drawn or printed.

use serde::Serialize;

use super::sample::{Pair, Series};

/// One table of the report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// How it is called on the command line.
    pub id: &'static str,
    /// What it shows.
    pub title: String,
    /// How it was measured.
    pub about: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// Plots of the same figures.
    pub charts: Vec<Chart>,
    /// What was to be reached.
    pub verdicts: Vec<Verdict>,
}

/// A plot over named places.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// What it shows, with its unit.
    pub title: String,
    /// Bars stand for things that have no order, lines for a quantity that grows.
    pub form: Form,
    /// Names along the horizontal axis.
    pub places: Vec<String>,
    /// What is drawn: a name, and a value for each place (NaN is left out).
    pub series: Vec<(String, Vec<f64>)>,
}

/// How a chart is drawn. The vertical axis is logarithmic, but for trends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Form {
    /// Bars side by side.
    Bars,
    /// A line for each series.
    Lines,
    /// A line for each series over time, from zero.
    Trend,
}

/// A target and what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The figure.
    pub what: String,
    /// What it must be.
    pub target: String,
    /// What it is.
    pub found: String,
    /// Whether it is reached; `None` if it could not be measured.
    pub met: Option<bool>,
    /// By how much it is missed, in per cent of the target.
    pub missed_percent: f64,
}

/// What of the machine's own rate counts as all of it.
const OF_LIMIT: f64 = 0.9;

impl Verdict {
    /// A figure that must not be lower.
    pub fn at_least(what: impl Into<String>, found: f64, bound: f64, unit: &str) -> Self {
        let missed = (1.0 - found / bound) * 100.0;
        Self::new(what.into(), format!("at least {}{unit}", number(bound)), found, unit, missed)
    }

    /// As [`Verdict::at_least`], of a multiple of the rival's rate; at 0.9 of what the machine can do, `of_limit`, it is met, too.
    /// NaN where there is no limit.
    pub fn at_least_or_limit(what: impl Into<String>, found: f64, bound: f64, of_limit: f64) -> Self {
        let mut verdict = Self::at_least(what, found, bound, " x");
        if of_limit.is_nan() {
            return verdict;
        }
        verdict.found += &format!(", {} of the limit", number(of_limit));
        if of_limit >= OF_LIMIT {
            (verdict.met, verdict.missed_percent) = (Some(true), 0.0);
        }
        verdict
    }

    /// A figure that must not be higher.
    pub fn at_most(what: impl Into<String>, found: f64, bound: f64, unit: &str) -> Self {
        let missed = (found / bound - 1.0) * 100.0;
        Self::new(what.into(), format!("at most {}{unit}", number(bound)), found, unit, missed)
    }

    /// As [`Verdict::at_most`]; a figure whose `limit` is 0.9 of it or more is met, too: the machine itself takes that.
    pub fn at_most_or_limit(what: impl Into<String>, found: f64, bound: f64, unit: &str, limit: f64) -> Self {
        let mut verdict = Self::at_most(what, found, bound, unit);
        verdict.found += &format!(", the limit {}", number(limit));
        if limit / found >= OF_LIMIT {
            (verdict.met, verdict.missed_percent) = (Some(true), 0.0);
        }
        verdict
    }

    /// A figure that this run could not measure.
    pub fn unknown(what: impl Into<String>, target: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            target: target.into(),
            found: reason.into(),
            met: None,
            missed_percent: 0.0,
        }
    }

    fn new(what: String, target: String, found: f64, unit: &str, missed: f64) -> Self {
        let met = (!found.is_nan()).then_some(missed <= 0.0);
        Self { what, target, found: format!("{}{unit}", number(found)), met, missed_percent: missed.max(0.0) }
    }

    /// In words.
    pub fn outcome(&self) -> String {
        match self.met {
            Some(true) => "met".to_owned(),
            Some(false) => format!("missed by {:.0} %", self.missed_percent.max(1.0)),
            None => "not measured".to_owned(),
        }
    }
}

/// Heads of the columns that [`compared`] fills.
pub const COMPARED: [&str; 7] =
    ["ratio", "of the limit", "cowhand /s", "spread", "QEMU /s", "spread", "CPU us/request, ours : QEMU's"];

/// Cells of both programs' rates, the ratio first.
pub fn compared(pair: &Pair) -> Vec<String> {
    let cpu = |series: &Series| format!("{:.1}", series.median(|sample| sample.cpu_us()));
    let spread = |series: &Series| format!("{:.0} %", series.spread_percent());
    vec![
        format!("**{}**", number(pair.rate_ratio())),
        number(pair.of_limit()),
        number(pair.ours.rate()),
        spread(&pair.ours),
        number(pair.theirs.rate()),
        spread(&pair.theirs),
        format!("{} : {}", cpu(&pair.ours), cpu(&pair.theirs)),
    ]
}

/// Heads of columns: `names`, then those of [`compared`].
pub fn heads(names: &[&str]) -> Vec<String> {
    names.iter().chain(&COMPARED).map(|&name| name.to_owned()).collect()
}

/// Three significant digits, and thousands apart.
pub fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "-".to_owned(),
        _ if value.abs() < 1.0 => format!("{value:.3}"),
        _ if value.abs() < 10.0 => format!("{value:.2}"),
        _ if value.abs() < 100.0 => format!("{value:.1}"),
        _ if value.abs() < 1000.0 => format!("{value:.0}"),
        _ => grouped(value),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// A number of bytes as options write it.
pub fn bytes(value: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| value >= 1 << bits);
    match unit {
        Some((bits, name)) if value.is_multiple_of(1 << bits) => format!("{} {name}", value >> bits),
        Some((bits, name)) => format!("{:.1} {name}", value as f64 / (1u64 << bits) as f64),
        None => format!("{value} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.1234, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0, f64::NAN].map(number);
        assert_eq!(shown, ["0.123", "1.23", "12.3", "123", "1,234", "1,234,567", "-"]);
        assert_eq!([512, 65_536, 1_572_864, 1 << 40].map(bytes), ["512 B", "64 KiB", "1.5 MiB", "1 TiB"]);
    }

    #[test]
    fn a_target_is_met_or_missed_by_so_much() {
        assert_eq!(Verdict::at_least("x", 8.0, 8.0, " x").outcome(), "met");
        assert_eq!(Verdict::at_least("x", 6.0, 8.0, " x").outcome(), "missed by 25 %");
        assert_eq!(Verdict::at_most("x", 0.54, 0.36, "").outcome(), "missed by 50 %");
        assert_eq!(Verdict::at_most("x", f64::NAN, 0.36, "").outcome(), "not measured");
        assert_eq!(Verdict::unknown("x", "y", "z").outcome(), "not measured");
        let at_limit = Verdict::at_least_or_limit("x", 1.2, 2.5, 0.93);
        assert_eq!(
            (at_limit.outcome(), &at_limit.found[..]),
            ("met".to_owned(), "1.20 x, 0.930 of the limit")
        );
        assert_eq!(Verdict::at_least_or_limit("x", 1.25, 2.5, 0.7).outcome(), "missed by 50 %");
    }
}
