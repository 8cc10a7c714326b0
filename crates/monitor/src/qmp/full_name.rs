//! The name of an image as QEMU has it: its file, or all options that describe it (`json:`) where its backing file is not the one that its header names.

use std::path::Path;
use std::sync::Arc;

use block::Block;
use graph::drivers::options_of_name;
use serde_json::{Map, Value, json};
use tool::info::name::{is_same_file, json_name};
use tool::info::read::named_in_header;

/// An image as it is called, and described.
#[derive(Clone, Debug)]
pub struct FullName {
    /// The name of its file, if the same is opened by that.
    plain: Option<String>,
    options: Map<String, Value>,
}

impl FullName {
    /// That of `image`, over what is called `below`.
    pub async fn over(image: &Arc<dyn Block>, below: Option<&Self>) -> Self {
        let name = image.name();
        let named = named_in_header(image, Path::new(name)).await;
        // What is not shown may be anything.
        let is_as_named = match (below, &named) {
            (Some(below), Some(named)) => below.plain.as_deref().is_some_and(|below| is_same(below, named)),
            (None, Some(_)) => image.below().is_some(),
            (Some(_), None) => false,
            (None, None) => true,
        };
        let mut options = Map::new();
        if !is_as_named {
            options.insert(
                "backing".to_owned(),
                below.map_or(Value::Null, |below| below.options.clone().into()),
            );
        }
        let file = options_of_name(name).unwrap_or_default();
        match is_driver_without_file(name) {
            true => options.extend(file),
            false => {
                options.insert("driver".to_owned(), json!(image.driver()));
                options.insert("file".to_owned(), Value::Object(file));
            }
        }
        Self { plain: is_as_named.then(|| name.to_owned()), options }
    }

    /// That of a filter over what is called `below`.
    pub fn of_filter(driver: &str, below: &Self) -> Self {
        let options =
            [("driver".to_owned(), json!(driver)), ("backing".to_owned(), below.options.clone().into())];
        Self { plain: None, options: Map::from_iter(options) }
    }

    /// As queries tell it.
    pub fn text(&self) -> String {
        match &self.plain {
            Some(plain) => plain.clone(),
            None => json_name(self.options.clone()),
        }
    }
}

/// Whether the name in a header leads to the file called `name`.
fn is_same(name: &str, named: &str) -> bool {
    let named = named.strip_prefix("file:").unwrap_or(named);
    name == named || is_same_file(Path::new(name), Path::new(named))
}

/// Whether a name is that of a disk without a file, which no format is over.
fn is_driver_without_file(name: &str) -> bool {
    name.starts_with("null-co:") || name.starts_with("null-aio:")
}
