//! What `push` and `publish` share: where an image goes, as arguments.

use checkpoints::{Sent, Target};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use graph::size::human_size;
use remote::chunked::{ChunkSize, Compression};
use serde_json::{Value, json};

use crate::drive::parse_bytes;

/// Where the image goes, and how its objects are made.
#[derive(Debug, clap::Args)]
pub struct TargetArgs {
    /// The image in the store: s3://BUCKET/FOLDER/NAME
    #[arg(value_name = "NAME")]
    pub target: String,

    /// Bytes of a chunk: 512k, 1M, 2M or 4M [default: as the image that is there, or 1M]
    #[arg(long, value_name = "BYTES", value_parser = parse_chunk_size)]
    chunk_size: Option<ChunkSize>,

    /// Compress chunks [default: as the image that is there, or zstd]
    #[arg(long, value_name = "HOW", value_parser = compressions())]
    compress: Option<Compression>,

    /// Encrypt chunks: the secret (--object secret,id=ID,file=PATH) that holds the key of the image, 32 random bytes or more
    #[arg(long, value_name = "ID")]
    encrypt_key_secret: Option<String>,

    /// Write to a store that cannot detect another upload to the same name at the same time, too
    #[arg(long)]
    force: bool,
}

impl TargetArgs {
    /// What they mean.
    pub fn target(&self) -> Target {
        Target {
            image: self.target.clone(),
            chunk_size: self.chunk_size,
            compression: self.compress,
            key_secret: self.encrypt_key_secret.clone(),
            force: self.force,
        }
    }

    /// They, as a server takes them; null where they say nothing.
    pub fn arguments(&self) -> Value {
        json!({
            "target": self.target,
            "chunk-size": self.chunk_size.map(ChunkSize::bytes),
            "compress": self.compress,
            "encrypt-key-secret": self.encrypt_key_secret,
            "force": self.force,
        })
    }
}

fn parse_chunk_size(text: &str) -> Result<ChunkSize, String> {
    ChunkSize::new(parse_bytes(text)?).map_err(|error| error.to_string())
}

/// How chunks may be compressed, as values of an option that a shell can complete.
fn compressions() -> impl TypedValueParser<Value = Compression> {
    PossibleValuesParser::new(["zstd", "none"]).map(|name| match name.as_str() {
        "zstd" => Compression::Zstd,
        _ => Compression::None,
    })
}

/// What was uploaded, for people.
pub fn uploaded(sent: &Sent) -> String {
    let Sent { deltas, uploaded, uploaded_bytes, .. } = sent;
    let bytes = human_size(*uploaded_bytes);
    match deltas {
        0 => format!("uploaded {uploaded} objects, {bytes}"),
        deltas => format!("uploaded {uploaded} objects, {bytes}, of {deltas} chunks what has changed"),
    }
}

/// What `checkpoints::Sent` prints.
pub const SENT_JSON: &str = "  virtual-size            size of the disk
  chunk-size              bytes of a chunk
  compression             text: none or zstd
  chunks                  number of chunks of the image that are no zeroes
  deltas                  number of these of which only what has changed was sent
  uploaded                number of objects that were made: chunks, delta objects, and tables of
                          them
  uploaded-bytes          their bytes, as they were sent
  read-bytes              bytes of the disk that were read";
