//! The layers below the images of a disk are exchanged, as `graph::Graph::replace` does it.

use std::sync::Arc;

use block::Block;
use qcow2::Qcow2;

/// `below` is put below the last of `images`, each of which is above the next. The disk is drained.
pub async fn put_below(images: &[&Qcow2], mut below: Option<Arc<dyn Block>>) -> Result<(), String> {
    let mut still = Vec::new();
    for image in images {
        still.push(image.hold_still().await.map_err(|error| error.to_string())?);
    }
    for (still, image) in still.iter().zip(images).rev() {
        still.set_backing(below).map_err(|error| error.to_string())?;
        below = Some(Arc::new((*image).clone()));
    }
    Ok(())
}
