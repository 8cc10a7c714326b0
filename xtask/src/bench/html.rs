//! The report as one page that needs nothing else, readable in light and dark.

use std::fmt::Write;

use super::plot::{self, GRID, INK, SERIES};
use super::table::{Chart, Table, Verdict};

/// Colours of the dark theme, for those of the light one that charts are drawn in.
const DARK_INK: &str = "#E6EDF3";
const DARK_GRID: &str = "#30363D";
const DARK_SERIES: [&str; 6] = ["#6CB0FF", "#FFA657", "#56D364", "#D2A8FF", "#FF7B72", "#9DA7B3"];

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1F2328; --soft: #59636E; --line: #D8DEE4; --good: #1A7F37; --bad: #B3261E; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #E6EDF3; --soft: #9DA7B3; --line: #30363D; --good: #56D364; --bad: #FF7B72; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
p.about, figcaption, nav { color: var(--soft); }
a { color: inherit; }
figure { margin: 1.5rem 0; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
.met { color: var(--good); } .missed { color: var(--bad); } .unknown { color: var(--soft); }
";

/// The page.
pub fn page(tables: &[Table]) -> Result<String, String> {
    let mut body = String::new();
    body += &summary(tables);
    for table in tables {
        body += &section(table)?;
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cowhand beside QEMU</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}{}</style></head><body>\n\
         <h1>cowhand beside QEMU</h1>\n<p class=\"about\">Both on the same bytes in one run, in turn; medians of the \
         rounds, ratios taken round by round, the spread is highest against lowest round. Vertical axes are \
         logarithmic, but over time. Images are sparse: all metadata is there, data clusters are mostly holes of the \
         file, which both programs read all the same.</p>\n{body}</body></html>\n",
        chart_colours()
    ))
}

/// Rules that give charts their colours by theme.
fn chart_colours() -> String {
    let pairs = [(INK, DARK_INK), (GRID, DARK_GRID)].into_iter().chain(SERIES.into_iter().zip(DARK_SERIES));
    let mut rules = String::new();
    series_rules(&mut rules, &SERIES);
    rules += "@media (prefers-color-scheme: dark) {\n";
    for (light, dark) in pairs {
        let _ = writeln!(
            rules,
            "svg [fill=\"{light}\"] {{ fill: {dark}; }} svg [stroke=\"{light}\"] {{ stroke: {dark}; }}"
        );
    }
    series_rules(&mut rules, &DARK_SERIES);
    rules + "}\n"
}

/// Colours of the series in captions.
fn series_rules(rules: &mut String, colours: &[&str]) {
    for (index, colour) in colours.iter().enumerate() {
        let _ = writeln!(rules, ".s{index} {{ color: {colour}; }}");
    }
}

fn summary(tables: &[Table]) -> String {
    let all = || tables.iter().flat_map(|table| &table.verdicts);
    let count = |met| all().filter(|verdict| verdict.met == met).count();
    let mut text = String::from("<nav>");
    for table in tables {
        let _ = write!(text, "<a href=\"#{0}\">{0}</a> ", escape(table.id));
    }
    let _ = writeln!(
        text,
        "</nav>\n<h2>Targets</h2>\n<p>{} met, {} missed, {} not measured.</p>",
        count(Some(true)),
        count(Some(false)),
        count(None)
    );
    text + &verdicts(&all().collect::<Vec<_>>())
}

fn verdicts(all: &[&Verdict]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = String::from("<div class=\"wide\"><table><tr><th>figure<th>target<th>found<th></tr>\n");
    for verdict in all {
        let class = match verdict.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "unknown",
        };
        let cells = [&verdict.what, &verdict.target, &verdict.found].map(|cell| escape(cell)).join("<td>");
        let _ = writeln!(text, "<tr><td>{cells}<td class=\"{class}\">{}</tr>", verdict.outcome());
    }
    text + "</table></div>\n"
}

fn section(table: &Table) -> Result<String, String> {
    let mut text = format!(
        "<h2 id=\"{0}\">{0}: {1}</h2>\n<p class=\"about\">{2}</p>\n",
        escape(table.id),
        escape(&table.title),
        escape(&table.about)
    );
    for chart in &table.charts {
        if let Some(svg) = plot::svg(chart)? {
            let _ = writeln!(text, "<figure><figcaption>{}</figcaption>{svg}</figure>", caption(chart));
        }
    }
    text += "<div class=\"wide\"><table><tr>";
    table.columns.iter().for_each(|column| text += &format!("<th>{}", escape(column)));
    for row in &table.rows {
        text += "</tr>\n<tr>";
        row.iter().for_each(|cell| text += &format!("<td>{}", cell_html(cell)));
    }
    text += "</tr></table></div>\n";
    Ok(text + &verdicts(&table.verdicts.iter().collect::<Vec<_>>()))
}

/// The title, and which colour is which series.
fn caption(chart: &Chart) -> String {
    let mut text = escape(&chart.title);
    for (index, (name, _)) in chart.series.iter().enumerate() {
        let _ = write!(text, " <span class=\"s{}\">&#9632;</span> {}", index % SERIES.len(), escape(name));
    }
    text
}

/// A cell may stress itself as Markdown does.
fn cell_html(cell: &str) -> String {
    match cell.strip_prefix("**").and_then(|cell| cell.strip_suffix("**")) {
        Some(stressed) => format!("<strong>{}</strong>", escape(stressed)),
        None => escape(cell),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::Form;

    #[test]
    fn the_page_needs_nothing_else_and_shows_every_target() {
        let chart = Chart {
            title: "IOPS <4k>".into(),
            form: Form::Bars,
            places: vec!["a".into()],
            series: vec![("s".into(), vec![5.0])],
        };
        let table = Table {
            id: "A",
            title: "t".into(),
            columns: vec!["x".into()],
            rows: vec![vec!["**1**".into()]],
            charts: vec![chart],
            verdicts: vec![Verdict::at_least("speed", 4.0, 8.0, "")],
            ..Table::default()
        };
        let page = page(&[table]).unwrap();
        assert!(page.contains("<strong>1</strong>") && page.contains("IOPS &lt;4k&gt;"));
        assert!(page.contains("0 met, 1 missed, 0 not measured") && page.contains("missed by 50 %"));
        assert!(!page.contains("src=") && !page.contains("<link"), "it would need something else");
    }
}
