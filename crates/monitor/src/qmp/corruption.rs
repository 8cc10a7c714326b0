//! BLOCK_IMAGE_CORRUPTED: the metadata of an image contradicts itself.

use control::events;
use graph::DiskNode;
use qcow2::Qcow2;
use serde_json::json;

use crate::inventory::nodes::Nodes;

events! {
    /// What is reported. The place is that of bytes that are two things at once; other messages name theirs.
    pub CORRUPTED = "BLOCK_IMAGE_CORRUPTED" {
        "device": String, "node-name": Option<String>, "msg": String, "offset": Option<u64>,
        "size": Option<u64>, "fatal": bool,
    }
}

/// Reports it of each image of `node`, once while that is open.
pub fn report(nodes: &Nodes, node: &DiskNode) {
    // Names are looked up where there are news: there may be thousands of disks, and each is asked once a second.
    let mut layers = block::layers(node.disk.root());
    if !layers.any(|layer| layer.downcast_ref::<Qcow2>().is_some_and(Qcow2::has_news_of_corruption)) {
        return;
    }
    let name = node.name();
    let Ok(layers) = nodes.graph.layers(&name) else { return };
    for (at, layer) in layers.iter().filter(|layer| !layer.is_filter).enumerate() {
        let Some(news) = layer.block.downcast_ref::<Qcow2>().and_then(Qcow2::news_of_corruption) else {
            continue;
        };
        let own = if at == 0 { Some(&name) } else { layer.name.as_ref() };
        let mut data = json!({
            // A storage daemon of QEMU's has no devices.
            "device": if nodes.as_qemu { "" } else { &*name },
            "msg": news.message,
            // One that is only read can lose nothing more.
            "fatal": !layer.block.capabilities().read_only,
        });
        if let Some((offset, size)) = news.place {
            (data["offset"], data["size"]) = (json!(offset), json!(size));
        }
        if let Some(own) = own {
            data["node-name"] = json!(own);
        }
        nodes.events.emit(CORRUPTED.name, &data);
    }
}
