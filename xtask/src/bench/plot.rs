//! Charts as SVG, drawn by plotters.
//!
//! Colours are those of the light theme; the page's style sheet replaces them by theme, and the page
//! says which series has which (`html.rs`).

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::table::{Chart, Form, number};

/// Colour of text and axes.
pub const INK: &str = "#1F2328";
/// Colour of lines that only help to read.
pub const GRID: &str = "#D8DEE4";
/// Colours of series, in order: apart in hue and in lightness, also for the colour-blind.
pub const SERIES: [&str; 6] = ["#1B66C9", "#D9730D", "#2E8540", "#8A4FBF", "#B3261E", "#59636E"];

/// Part of a place that its bars fill.
const BARS_WIDTH: f64 = 0.8;
/// Points of a character's width at the size of labels.
const CHARACTER_WIDTH: usize = 7;

/// Points above a picture's axes, for its title and the names of its series.
const TITLE_HEIGHT: u32 = 24;

/// A chart for a page of its own: on white, with its title and the names of its series.
pub fn picture(chart: &Chart) -> Result<String, String> {
    let drawn =
        drawn(chart, TITLE_HEIGHT)?.ok_or_else(|| format!("chart {}: nothing to draw", chart.title))?;
    let begins = drawn.find('>').map_or(0, |at| at + 1);
    let (head, body) = drawn.split_at(begins);
    let paper = "<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>";
    Ok(format!("{head}\n{paper}\n{}{}\n", legend(chart), body.trim()))
}

/// The title, and which colour is which series, along the upper edge.
fn legend(chart: &Chart) -> String {
    let mut text = format!(
        "<text x=\"84\" y=\"18\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">{}",
        chart.title
    );
    for ((name, _), colour) in chart.series.iter().zip(SERIES) {
        text += &format!("<tspan dx=\"14\" fill=\"{colour}\">\u{25a0} {name}</tspan>");
    }
    text + "</text>\n"
}

/// A chart; `None` if it has no value to draw.
pub fn svg(chart: &Chart) -> Result<Option<String>, String> {
    drawn(chart, 0)
}

/// A chart with `above` points of nothing above it.
fn drawn(chart: &Chart, above: u32) -> Result<Option<String>, String> {
    let values: Vec<f64> = chart
        .series
        .iter()
        .flat_map(|(_, values)| values)
        .copied()
        .filter(|value| value.is_finite() && *value > 0.0)
        .collect();
    if values.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    let highest = values.iter().copied().fold(0.0, f64::max);
    let drawn = match chart.form {
        Form::Bars | Form::Lines => {
            let (low, high) = decades(&values);
            draw(chart, above, (low..high).log_scale(), low, &mut svg)
        }
        Form::Trend => draw(chart, above, 0.0..highest * 1.1, 0.0, &mut svg),
    };
    drawn.map_err(|error| format!("chart {}: {error}", chart.title))?;
    Ok(Some(svg))
}

/// The axis: from a power of ten at or below the lowest value to one above the highest.
fn decades(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values.iter().copied().fold(0.0, f64::max).log10().ceil();
    (10f64.powf(low), 10f64.powf(high.max(low + 1.0)))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw<Y>(chart: &Chart, above: u32, axis: Y, bottom: f64, svg: &mut String) -> Drawn
where
    Y: AsRangedCoord<Value = f64, CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>>,
{
    let longest = chart.places.iter().map(|place| place.chars().count()).max().unwrap_or(0);
    let named = chart.places.iter().filter(|place| !place.is_empty()).count();
    let slanted = longest * CHARACTER_WIDTH * named > 760;
    let below = if slanted { longest * CHARACTER_WIDTH + 16 } else { 32 };
    let height = 300 + above + u32::try_from(below)?;
    let area = SVGBackend::with_string(svg, (860, height)).into_drawing_area();
    let ink = colour(INK);
    let label = ("sans-serif", 13).into_font().color(&ink);
    let turned = if slanted { label.transform(FontTransform::Rotate90) } else { label.clone() };
    let places = chart.places.len();
    let mut context = ChartBuilder::on(&area)
        .margin(8)
        .margin_top(8 + above)
        .x_label_area_size(u32::try_from(below)?)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..places.max(1) as f64, axis)?;
    let names = chart.places.clone();
    context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(colour(GRID))
        .light_line_style(TRANSPARENT)
        .axis_style(ink)
        .y_label_style(label.clone())
        .y_label_formatter(&|value| number(*value))
        .x_labels(0)
        .x_label_formatter(&|_| String::new())
        .draw()?;
    place_names(&area, &context, &names, bottom, &turned, slanted)?;
    for (index, (_, values)) in chart.series.iter().enumerate() {
        let colour = colour(SERIES[index % SERIES.len()]);
        match chart.form {
            Form::Bars => {
                let bars = bars(values, index, chart.series.len(), bottom);
                context.draw_series(bars.map(move |corners| Rectangle::new(corners, colour.filled())))?;
            }
            Form::Lines => {
                let points: Vec<(f64, f64)> = points(values).collect();
                context.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                context.draw_series(points.into_iter().map(|at| Circle::new(at, 4, colour.filled())))?;
            }
            Form::Trend => {
                let points = values.iter().enumerate().filter(|(_, value)| value.is_finite());
                let points = points.map(|(at, &value)| (at as f64 + 0.5, value));
                context.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            }
        }
    }
    area.present()?;
    Ok(())
}

type Context<'a, Y> =
    ChartContext<'a, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

/// Names under the middle of their places.
fn place_names<'a, Y: Ranged<ValueType = f64>>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    context: &Context<'a, Y>,
    names: &[String],
    bottom: f64,
    style: &TextStyle<'_>,
    slanted: bool,
) -> Drawn {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let anchor = if slanted { Pos::new(HPos::Left, VPos::Center) } else { Pos::new(HPos::Center, VPos::Top) };
    for (index, name) in names.iter().enumerate() {
        let (x, y) = context.backend_coord(&(index as f64 + 0.5, bottom));
        area.draw_text(name, &style.pos(anchor), (x, y + 8))?;
    }
    Ok(())
}

fn bars(values: &[f64], index: usize, count: usize, bottom: f64) -> impl Iterator<Item = [(f64, f64); 2]> {
    let width = BARS_WIDTH / count as f64;
    let left = (1.0 - BARS_WIDTH) / 2.0 + width * index as f64;
    points(values).map(move |(middle, value)| {
        let start = middle - 0.5 + left;
        [(start, bottom), (start + width * 0.92, value)]
    })
}

/// Values that can be drawn, in the middle of their places.
fn points(values: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let all = values.iter().copied().enumerate();
    all.filter(|(_, value)| value.is_finite() && *value > 0.0).map(|(at, value)| (at as f64 + 0.5, value))
}

fn colour(hex: &str) -> RGBColor {
    let part =
        |at: usize| hex.get(at..at + 2).and_then(|part| u8::from_str_radix(part, 16).ok()).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(form: Form, values: Vec<f64>) -> Chart {
        Chart {
            title: "t".into(),
            form,
            places: vec!["a".into(), "b".into()],
            series: vec![("s".into(), values)],
        }
    }

    #[test]
    fn a_chart_names_its_places() {
        for form in [Form::Bars, Form::Lines, Form::Trend] {
            let svg = svg(&chart(form, vec![10.0, f64::NAN])).unwrap().unwrap();
            assert!(svg.contains("<svg") && [">\na\n<", ">\nb\n<"].iter().all(|text| svg.contains(text)));
            assert!(svg.contains(SERIES[0]), "the style sheet finds colours by their code");
        }
        assert_eq!(svg(&chart(Form::Bars, vec![f64::NAN, 0.0])), Ok(None));
    }

    #[test]
    fn the_axis_goes_in_whole_decades() {
        assert_eq!(decades(&[15.0, 2500.0]), (10.0, 10_000.0));
        assert_eq!(decades(&[100.0]), (100.0, 1000.0));
    }
}
