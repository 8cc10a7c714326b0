//! Medians, spreads and ratios as text.

use super::server::Kind;

/// What one server did in all rounds of a case.
#[derive(Debug)]
pub struct Series {
    pub kind: Kind,
    /// Requests per second, one a round.
    pub rates: Vec<f64>,
    /// Server CPU microseconds per request, one a round.
    pub cpu: Vec<f64>,
}

/// The middle of `values`.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// The median of the ratios round by round.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

fn range(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{:.0} to {:.0}", low, high)
}

/// The head of a table in Markdown.
pub fn head() -> String {
    "| case | server | requests/s (median) | range | server CPU us/request | cowhand is |\n|---|---|---|---|---|---|\n"
        .to_owned()
}

/// The rows of one case; the first series is ours.
pub fn rows(case: &str, all: &[Series]) -> String {
    let Some(ours) = all.first() else { return String::new() };
    let row = |series: &Series| {
        let compared = if series.kind == ours.kind {
            String::new()
        } else {
            let rate = ratio(&ours.rates, &series.rates);
            let cpu = ratio(&ours.cpu, &series.cpu);
            format!("{rate:.2} x as fast, {cpu:.2} x its CPU")
        };
        format!(
            "| {case} | {} | {:.0} | {} | {:.2} | {compared} |\n",
            series.kind.name(),
            median(&series.rates),
            range(&series.rates),
            median(&series.cpu),
        )
    };
    all.iter().map(row).collect()
}
