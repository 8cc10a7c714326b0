//! What the memory for a map should be: from what it takes to the options to give.

use std::fmt;

use graph::size::human_size;
use qcow2::cache_sizes::L2_BYTES_DEFAULT;
use serde::Serialize;

use super::curve::{Curve, Sufficient};

/// Memory of packed slices in one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FormBytes {
    /// The form's name.
    pub form: &'static str,
    /// Bytes of all slices in it.
    pub bytes: u64,
}

/// What the map of a disk takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The image, as it was named.
    pub image: String,
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of a cluster of the active layer.
    pub cluster_bytes: u64,
    /// Images of the chain.
    pub layers: usize,
    /// Bytes of the whole map, packed, of all layers.
    pub map_bytes: u64,
    /// The same by form, without slots and bookkeeping.
    pub forms: Vec<FormBytes>,
    /// The whole map fitted into memory.
    pub complete: bool,
    /// Bytes that QEMU needs to cover the disk in all layers ...
    pub qemu_bytes: u64,
    /// ... and in the active one.
    pub qemu_first_bytes: u64,
    /// QEMU's default cache covers the active layer.
    pub qemu_covers_by_default: bool,
    /// Memory that was asked about.
    pub memory_bytes: Option<u64>,
}

/// What [`Settled`] prints.
pub const JSON: &str = "  image                   text: the image, as it was named
  disk-bytes              size of the disk
  cluster-bytes           bytes of a cluster
  layers                  number of images of the chain
  map-bytes               bytes of the whole map in cowhand
  map-complete            bool: false if the map takes more than map-bytes
  forms                   list of objects, each with form (text) and bytes: the map by how it is
                          packed
  qemu-bytes              bytes of the whole map in QEMU
  memory                  object: what so much memory covers (--memory), or null
  options                 object: text or null (nothing need be given)
  trace?                  object: what a trace says (--trace)
Of options:
  cowhand, qemu, libvirt  option of a drive, or XML
Of forms, memory and points:
  form                    text
  bytes                   bytes of memory
  disk-bytes-covered, disk-bytes-covered-by-qemu  bytes of the disk that memory covers";

/// An [`Advice`] with what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settled {
    image: String,
    disk_bytes: u64,
    cluster_bytes: u64,
    layers: usize,
    map_bytes: u64,
    map_complete: bool,
    forms: Vec<FormBytes>,
    qemu_bytes: u64,
    memory: Option<Covered>,
    options: Options,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<Traced>,
}

/// What a trace says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Traced {
    #[serde(flatten)]
    curve: Curve,
    sufficient: Sufficient,
}

/// How much of the disk some memory covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Covered {
    bytes: u64,
    disk_bytes_covered: u64,
    disk_bytes_covered_by_qemu: u64,
}

/// What to write where; `None` where nothing need be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Options {
    cowhand: Option<String>,
    qemu: Option<String>,
    libvirt: Option<String>,
}

/// Memory is advised in multiples of this.
const ADVISED_UNIT: u64 = 64 << 10;

impl Advice {
    /// With what follows from it. `entry_bytes`: an L2 entry of the active layer.
    pub fn settled(self, entry_bytes: u64) -> Settled {
        let memory = self.memory_bytes.map(|bytes| Covered {
            bytes,
            disk_bytes_covered: part(self.disk_bytes, bytes, self.map_bytes),
            disk_bytes_covered_by_qemu: (bytes / entry_bytes)
                .saturating_mul(self.cluster_bytes)
                .min(self.disk_bytes),
        });
        let options = self.options();
        Settled {
            image: self.image,
            disk_bytes: self.disk_bytes,
            cluster_bytes: self.cluster_bytes,
            layers: self.layers,
            map_bytes: self.map_bytes,
            map_complete: self.complete,
            forms: self.forms,
            qemu_bytes: self.qemu_bytes,
            memory,
            options,
            trace: None,
        }
    }

    fn options(&self) -> Options {
        // A quarter more: slices that are written are kept plain until they are in the file.
        let wanted = (self.map_bytes + self.map_bytes / 4).next_multiple_of(ADVISED_UNIT);
        let qemu = self.qemu_first_bytes;
        let xml = format!("<metadata_cache><max_size unit='bytes'>{qemu}</max_size></metadata_cache>");
        Options {
            cowhand: (wanted > L2_BYTES_DEFAULT).then(|| format!("l2-cache-size={wanted}")),
            qemu: (!self.qemu_covers_by_default).then(|| format!("l2-cache-size={qemu}")),
            libvirt: (!self.qemu_covers_by_default).then_some(xml),
        }
    }
}

impl Settled {
    /// With what a trace says.
    #[must_use]
    pub fn with_trace(mut self, curve: Option<Curve>) -> Self {
        self.trace = curve.map(|curve| Traced { sufficient: curve.sufficient(), curve });
        self
    }
}

/// `whole * numerator / denominator`, at most `whole`.
fn part(whole: u64, numerator: u64, denominator: u64) -> u64 {
    if numerator >= denominator {
        return whole;
    }
    let part = u128::from(whole) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(part).unwrap_or(whole)
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (disk, cluster) = (human_size(self.disk_bytes), human_size(self.cluster_bytes));
        let chain = if self.layers == 1 { String::new() } else { format!(", {} images", self.layers) };
        writeln!(f, "{}: {disk} in clusters of {cluster}{chain}", self.image)?;
        let least = if self.map_complete { "" } else { "more than " };
        write!(f, "the whole map takes   {least}{} in cowhand", human_size(self.map_bytes))?;
        let forms: Vec<String> =
            self.forms.iter().map(|form| format!("{} {}", form.form, human_size(form.bytes))).collect();
        if !forms.is_empty() {
            write!(f, " ({})", forms.join(", "))?;
        }
        writeln!(f, "\n                      {} in QEMU", human_size(self.qemu_bytes))?;
        if let Some(memory) = &self.memory {
            let (here, there) = (memory.disk_bytes_covered, memory.disk_bytes_covered_by_qemu);
            let bytes = human_size(memory.bytes);
            writeln!(f, "{bytes} covers about  {} in cowhand", human_size(here))?;
            writeln!(f, "                      {} in QEMU", human_size(there))?;
        }
        writeln!(f, "to keep all of it in memory:")?;
        let nothing = || "nothing to set, the default suffices".to_owned();
        writeln!(f, "  cowhand  {}", self.options.cowhand.clone().unwrap_or_else(nothing))?;
        writeln!(f, "  QEMU     {}", self.options.qemu.clone().unwrap_or_else(nothing))?;
        writeln!(f, "  libvirt  {}", self.options.libvirt.clone().unwrap_or_else(nothing))?;
        self.trace.as_ref().map_or(Ok(()), |trace| write!(f, "{}", trace.curve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice() -> Advice {
        Advice {
            image: "a.qcow2".into(),
            disk_bytes: 1 << 40,
            cluster_bytes: 65536,
            layers: 1,
            map_bytes: 40 << 20,
            forms: vec![FormBytes { form: "frame", bytes: 39 << 20 }],
            complete: true,
            qemu_bytes: 128 << 20,
            qemu_first_bytes: 128 << 20,
            qemu_covers_by_default: false,
            memory_bytes: Some(1 << 20),
        }
    }

    #[test]
    fn a_large_map_gets_options_for_everybody() {
        let text = advice().settled(8).to_string();
        for line in [
            "a.qcow2: 1 TiB in clusters of 64 KiB\n",
            "40 MiB in cowhand (frame 39 MiB)\n",
            "128 MiB in QEMU\n",
            "covers about  25.6 GiB in cowhand\n",
            "8 GiB in QEMU\n",
            "cowhand  l2-cache-size=52428800\n",
            "QEMU     l2-cache-size=134217728\n",
            "<max_size unit='bytes'>134217728</max_size>",
        ] {
            assert!(text.contains(line), "{line:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_map_that_fits_by_default_needs_no_options() {
        let small = Advice { map_bytes: 1 << 20, qemu_covers_by_default: true, ..advice() };
        let options = small.settled(8).options;
        assert_eq!(options, Options { cowhand: None, qemu: None, libvirt: None });
    }

    #[test]
    fn no_memory_covers_more_than_the_disk() {
        let plenty = Advice { memory_bytes: Some(u64::MAX), ..advice() }.settled(16);
        let covered = plenty.memory.unwrap();
        assert_eq!((covered.disk_bytes_covered, covered.disk_bytes_covered_by_qemu), (1 << 40, 1 << 40));
    }
}
