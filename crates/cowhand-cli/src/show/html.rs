//! The picture as a page that needs nothing else, readable in light and dark.

use std::fmt::Write;

use graph::size::human_size;

use super::facts;
use super::kind::Kind;
use super::lineage::LineagePicture;
use super::picture::{Image, Layer, Picture};
use super::shapes::{Shape, WIDTH, bar, escape, map, rules};
use super::svg::{bar_of, parts_of, steps_of};

const STYLE: &str = include_str!("page.css");

/// The page.
pub fn page(picture: &Picture) -> String {
    let name = escape(&picture.filename);
    let mut body = format!("<h1>{name}</h1>\n<p class=\"about\">{}</p>\n", escape(&facts::headline(picture)));
    body += "<h2>What the guest sees</h2>\n";
    body += &parts(&facts::of_disk(picture), picture.virtual_size);
    body += &figure(&map(&picture.disk, &Kind::OF_DISK), "The disk, from its first byte to its last");
    if picture.layers.len() > 1 {
        body += "<h2>Who holds it</h2>\n";
        for (depth, layer) in picture.layers.iter().enumerate() {
            body += &layer_of(depth, layer, picture.virtual_size);
        }
    }
    if let Some(image) = &picture.image {
        body += &file(image);
    }
    document(&name, &body)
}

/// The page of a lineage.
pub fn of_lineage(picture: &LineagePicture) -> String {
    let name = escape(&picture.directory);
    let mut body = format!("<h1>{name}</h1>\n<p class=\"about\">{}</p>\n", escape(&picture.headline()));
    for row in &picture.rows {
        // Bars begin at one edge and have one scale: what one takes is seen beside the others.
        let (steps, bar) = (steps_of(row), figure(&bar_of(row, picture.largest()), "What it takes"));
        let _ = writeln!(
            body,
            "<div class=\"layer\"><div style=\"margin-left: {steps}rem\"><p>{}</p><p class=\"about\">{}</p></div>\n{bar}</div>",
            escape(&row.name),
            escape(&row.facts())
        );
    }
    for missing in &picture.missing {
        let _ = writeln!(body, "<p>{}</p>", escape(missing));
    }
    document(&name, &body)
}

/// `name` is escaped.
fn document(name: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}{}</style></head><body>\n{body}</body></html>\n",
        rules()
    )
}

fn file(image: &Image) -> String {
    let mut text = format!("<h2>The file, {}</h2>\n", human_size(image.file_length));
    text += &parts(&facts::of_file(image), image.file_length);
    text += &figure(&map(&image.file, &Kind::OF_FILE), "The file, from its first byte to its last");
    text += "<dl>\n";
    for (name, fact) in facts::of_image(image) {
        let _ = writeln!(text, "<dt>{name}</dt><dd>{}</dd>", escape(&fact));
    }
    text + "</dl>\n"
}

fn layer_of(depth: usize, layer: &Layer, whole: u64) -> String {
    let held = layer.holds();
    let holds = format!("holds {}, {} of the disk", human_size(held), facts::percent(held, whole));
    format!(
        "<div class=\"layer\"><p>{depth} &nbsp;{}</p><p class=\"about\">{} ({})</p>\n{}</div>\n",
        escape(&layer.filename),
        escape(&holds),
        escape(&facts::of_layer(layer)),
        figure(&bar(&parts_of(depth, layer), whole), &format!("What image {depth} holds"))
    )
}

/// A bar, and a legend with numbers.
fn parts(parts: &[(Kind, u64)], whole: u64) -> String {
    let mut text = figure(&bar(parts, whole), "How much there is of each kind");
    text += "<ul class=\"legend\">\n";
    for (kind, bytes) in parts {
        let look = kind.look();
        let _ = writeln!(
            text,
            "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"10\" height=\"10\" rx=\"2\"/></svg>\
             {}: {}, {}</li>",
            look.name,
            look.words,
            human_size(*bytes),
            escape(&facts::percent(*bytes, whole))
        );
    }
    text + "</ul>\n"
}

fn figure(shape: &Shape, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH:.0} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
        shape.height,
        escape(label),
        shape.elements
    )
}
