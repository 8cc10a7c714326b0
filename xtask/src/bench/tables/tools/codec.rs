//! What compression costs by itself: no program that packs clusters is faster.

use std::path::Path;
use std::process::Command;

use crate::bench::process;

/// Prints millions of bytes a second, packed and unpacked, of the file that it is given.
const ZLIB: &str = r"
import sys, time, zlib
data = open(sys.argv[1], 'rb').read()
pieces = [data[at:at + 65536] for at in range(0, len(data), 65536)]
def packed(piece):
    packer = zlib.compressobj(-1, zlib.DEFLATED, -12)
    return packer.compress(piece) + packer.flush()
begun = time.perf_counter()
small = [packed(piece) for piece in pieces]
middle = time.perf_counter()
for piece in small:
    zlib.decompress(piece, -12, 65536)
end = time.perf_counter()
print(len(data) / 1e6 / (middle - begun), 'MB/s', len(data) / 1e6 / (end - middle), 'MB/s')
";

/// Seconds that the codec `method` takes on all processors to pack the `data_bytes` of `raw` in clusters, and to unpack them.
pub fn seconds(method: &str, raw: &Path, data_bytes: u64) -> Result<[f64; 2], String> {
    let mut codec = match method {
        "zstd" => Command::new("zstd"),
        _ => Command::new("python3"),
    };
    match method {
        "zstd" => codec.args(["-b3", "-e3", "-i1", "-B64K"]),
        _ => codec.args(["-c", ZLIB]),
    };
    let said = process::run(codec.arg(raw))?;
    let said = format!("{}{}", said.text, said.errors);
    let speeds: Vec<f64> =
        said.split("MB/s").filter_map(|before| before.split_whitespace().last()?.parse().ok()).collect();
    let [.., packed, unpacked] = speeds[..] else { return Err(format!("{method} said: {said}")) };
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Ok([packed, unpacked].map(|speed| data_bytes as f64 / 1e6 / speed / processors))
}
