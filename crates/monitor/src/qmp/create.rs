//! blockdev-create: a job that makes a file or an image is begun.

use std::rc::Rc;

use control::{Argument, Kind, NUMBER, QmpError, Variant, arguments, optional, required};
use serde_json::{Map, Value};
use tool::create::encryption::IV_HASHES;

use super::live::{JobOptions, new_job};
use super::node_schema::NODE_OR_OPTIONS;
use crate::inventory::Inventory;
use crate::jobs::{Creation, Work};

/// A size that a job looks at: what no image can have is its failure, as in QEMU.
const SIZE: Kind = Kind::Whole(u64::MAX);
const PREALLOCATION: Kind = Kind::Choice(&["off", "metadata", "falloc", "full"]);
/// The backing file is named, not opened.
const BACKING_FORMAT: Kind = Kind::Choice(&["qcow2", "raw", "luks"]);
const FILE: Kind = Kind::Ref(&NODE_OR_OPTIONS);

/// Members of a LUKS header, with others.
macro_rules! luks {
    ($($more:expr),* $(,)?) => {
        &[
            optional("key-secret", Kind::Text),
            optional("cipher-alg", Kind::Choice(&["aes-128", "aes-192", "aes-256"])),
            optional("cipher-mode", Kind::Choice(&["xts", "cbc"])),
            optional("ivgen-alg", Kind::Choice(&["plain", "plain64", "essiv"])),
            optional("ivgen-hash-alg", Kind::Choice(IV_HASHES)),
            optional("hash-alg", Kind::Choice(&["sha1", "sha256", "sha512"])),
            optional("iter-time", NUMBER),
            $($more),*
        ]
    };
}

static ENCRYPT: Kind =
    Kind::Union { tag: "format", common: &[], variants: &[Variant { tag: "luks", members: luks![] }] };

const QCOW2: &[Argument] = &[
    required("file", FILE),
    optional("data-file", FILE),
    optional("data-file-raw", Kind::Switch),
    optional("extended-l2", Kind::Switch),
    required("size", SIZE),
    optional("version", Kind::Choice(&["v2", "v3"])),
    optional("backing-file", Kind::Text),
    optional("backing-fmt", BACKING_FORMAT),
    optional("encrypt", Kind::Ref(&ENCRYPT)),
    optional("cluster-size", NUMBER),
    optional("preallocation", PREALLOCATION),
    optional("lazy-refcounts", Kind::Switch),
    optional("refcount-bits", NUMBER),
    optional("compression-type", Kind::Choice(&["zlib", "zstd"])),
];

/// What is made.
static OPTIONS: Kind = Kind::Union {
    tag: "driver",
    common: &[],
    variants: &[
        Variant {
            tag: "file",
            members: &[
                required("filename", Kind::Text),
                required("size", SIZE),
                optional("preallocation", PREALLOCATION),
                optional("nocow", Kind::Switch),
                optional("extent-size-hint", NUMBER),
            ],
        },
        Variant { tag: "qcow2", members: QCOW2 },
        Variant {
            tag: "luks",
            members: luks![
                optional("file", FILE),
                optional("header", FILE),
                required("size", SIZE),
                optional("preallocation", PREALLOCATION),
            ],
        },
    ],
};

arguments! {
    /// A job that makes what options describe: the table of creation options reads them.
    pub struct Create { job_id: String, options: Map<String, Value> = Kind::Ref(&OPTIONS) }
}

/// Makes a file, or an image in one. The job waits to be dismissed, as in QEMU.
pub fn create(inventory: &Rc<Inventory>, Create { job_id, options }: &Create) -> Result<(), QmpError> {
    let mut new =
        new_job(inventory, "create", job_id, JobOptions { id: Some(job_id), ..JobOptions::default() })?;
    new.terms.waits_for_dismiss = true;
    let creation = Creation::new(job_id, options);
    creation.check_reach()?;
    inventory.jobs.start(new, Work::Create(creation), Vec::new());
    Ok(())
}
