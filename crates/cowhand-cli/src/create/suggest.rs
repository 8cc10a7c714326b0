//! `cowhand create --suggest`: which clusters for a disk of some size and use, and why.
//!
//! The rules and the measurements behind them are in docs/guide/first-disk.md ("Which clusters to choose"). Nothing is
//! made or opened.

use std::fmt;

use clap::ValueEnum;
use graph::size::human_size;
use qcow2::cache_sizes::L2_BYTES_DEFAULT;
use qcow2_layout::L1_BYTES_MAX;
use serde::Serialize;

use super::costs::{Clusters, Costs, SMALL_WRITE_BYTES};

/// What a disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// The disk of a machine: of everything a little
    General,
    /// Small random writes
    Database,
    /// What differs from a backing file (assumed with -b)
    Overlay,
    /// Written in long pieces, rarely changed
    Archive,
}

/// The default of qemu-img and cowhand.
const DEFAULT: Clusters = Clusters { bytes: 64 << 10, extended: false };

/// The smallest clusters of which a subcluster holds a small write: nothing is copied around it.
const SUBCLUSTERS_FIT: Clusters = Clusters { bytes: 128 << 10, extended: true };

/// The largest of the format.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// What it is for.
    pub purpose: Use,
    /// There is a backing file.
    pub backing: bool,
}

/// What [`Suggestion`] prints.
pub const JSON: &str = "\
With --suggest:
  disk-bytes              size of the disk
  use                     text: what it is for
  backing                 bool: it has a backing file
  options                 text: what to give -o
  suggested               object: what these cost
  default                 object: what the default clusters cost
  reasons                 list of text: sentences
  command                 list of text: the words of the command
Of suggested and of default:
  cluster-bytes           bytes of a cluster
  subcluster-bytes        bytes of a subcluster, or null
  map-bytes-qemu          bytes of the map of the whole disk in QEMU
  map-bytes-packed-max    the same in cowhand, at worst
  refcount-bytes          bytes of the refcounts of a full disk
  copied-bytes            bytes that an aligned write of 4 KiB copies from the backing file
  taken-bytes             space that such a write takes";

/// The answer, with what it costs beside what the default costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Suggestion {
    disk_bytes: u64,
    #[serde(rename = "use")]
    purpose: Use,
    backing: bool,
    options: String,
    suggested: Costs,
    default: Costs,
    reasons: Vec<String>,
    command: Vec<String>,
}

impl Question {
    /// The answer. `before` and `after` are the words of the command on either side of `-o OPTIONS`.
    /// `None` where no clusters of the format map so large a disk.
    pub fn answer(self, before: &[&str], after: &[String]) -> Option<Suggestion> {
        let clusters = self.clusters();
        if clusters.l1_bytes(self.disk_bytes) > L1_BYTES_MAX || i64::try_from(self.disk_bytes).is_err() {
            return None;
        }
        let options = clusters.options();
        let words = before.iter().map(|word| (*word).to_owned());
        let option = ["-o".to_owned(), options.clone()];
        Some(Suggestion {
            disk_bytes: self.disk_bytes,
            purpose: self.purpose,
            backing: self.copies(),
            options,
            suggested: clusters.costs(self.disk_bytes, self.copies()),
            default: DEFAULT.costs(self.disk_bytes, self.copies()),
            reasons: self.reasons(clusters),
            command: words.chain(option).chain(after.iter().cloned()).collect(),
        })
    }

    /// Where a part of a cluster is written, the rest comes from somewhere.
    fn copies(self) -> bool {
        self.backing || self.purpose == Use::Overlay
    }

    fn smallest(self) -> Clusters {
        match self.purpose {
            Use::Archive => Clusters { bytes: CLUSTER_BYTES_MAX, extended: self.copies() },
            Use::Database | Use::Overlay => SUBCLUSTERS_FIT,
            Use::General if self.copies() => SUBCLUSTERS_FIT,
            Use::General => DEFAULT,
        }
    }

    /// The smallest that suit the use and whose map of the whole disk fits QEMU's default cache.
    fn clusters(self) -> Clusters {
        let mut clusters = self.smallest();
        while clusters.map_bytes(self.disk_bytes) > L2_BYTES_DEFAULT && clusters.bytes < CLUSTER_BYTES_MAX {
            clusters.bytes *= 2;
        }
        clusters
    }

    fn reasons(self, clusters: Clusters) -> Vec<String> {
        let mut reasons = vec![match (self.purpose, clusters.extended) {
            (Use::Archive, extended) => format!(
                "long writes fill large clusters, and the map, also what zeroes and discards change in it, is a {} of \
                 that of 64 KiB",
                if extended { "16th" } else { "32nd" },
            ),
            (_, true) if self.copies() => format!(
                "a small write copies the rest of its subcluster from the backing file, not the rest of its cluster: {} \
                 here, {} with the default",
                human_size(clusters.copied_bytes()),
                human_size(DEFAULT.copied_bytes()),
            ),
            (_, true) => "subclusters make small writes to new space 1.5 times as fast in QEMU, and cost cowhand nothing \
                 that could be measured"
                .to_owned(),
            (_, false) => "without a backing file nothing is copied around a small write and the rest of its cluster takes no \
                 space, so subclusters would only make the map larger"
                .to_owned(),
        }];
        let smallest = self.smallest();
        if clusters.bytes > smallest.bytes {
            reasons.push(format!(
                "clusters of {} would need {} for the map in QEMU, whose cache is {} unless set otherwise; a part of \
                 the map that is not in memory costs a read of the file",
                human_size(smallest.bytes),
                human_size(smallest.map_bytes(self.disk_bytes)),
                human_size(L2_BYTES_DEFAULT),
            ));
        } else if smallest == SUBCLUSTERS_FIT {
            reasons.push(
                "128 KiB with subclusters take as much of QEMU's memory for the map as 64 KiB without"
                    .to_owned(),
            );
        }
        let map = clusters.map_bytes(self.disk_bytes);
        if map > L2_BYTES_DEFAULT {
            reasons.push(format!(
                "the map is larger than QEMU's cache even so: give the drive l2-cache-size={map} there"
            ));
        }
        if self.purpose != Use::Archive {
            reasons.push(
                "smaller clusters make new space dear: with 4 KiB, QEMU writes to it at a seventh of the rate".to_owned(),
            );
        }
        reasons
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = self.purpose.to_possible_value();
        let purpose = purpose.as_ref().map_or("", |value| value.get_name());
        let below = if self.backing { ", over another image" } else { "" };
        writeln!(f, "{} for use as {purpose}{below}:", human_size(self.disk_bytes))?;
        writeln!(f, "  -o {}\n", self.options)?;
        writeln!(f, "{:<34}{:<16}64 KiB (default)", "", "suggested")?;
        let none = |bytes: Option<u64>| bytes.map_or("none".to_owned(), human_size);
        let (ours, default) = (&self.suggested, &self.default);
        let copied = format!("copied by a {} write", human_size(SMALL_WRITE_BYTES));
        let taken = format!("host space a {} write takes", human_size(SMALL_WRITE_BYTES));
        let rows = [
            ("clusters", human_size(ours.cluster_bytes), human_size(default.cluster_bytes)),
            ("subclusters", none(ours.subcluster_bytes), none(default.subcluster_bytes)),
            ("map in QEMU", human_size(ours.map_bytes_qemu), human_size(default.map_bytes_qemu)),
            (
                "map in cowhand, at most about",
                human_size(ours.map_bytes_packed_max),
                human_size(default.map_bytes_packed_max),
            ),
            ("refcounts", human_size(ours.refcount_bytes), human_size(default.refcount_bytes)),
            (&copied, human_size(ours.copied_bytes), human_size(default.copied_bytes)),
            (&taken, human_size(ours.taken_bytes), human_size(default.taken_bytes)),
        ];
        for (name, ours, default) in rows {
            writeln!(f, "  {name:<32}{ours:<16}{default}")?;
        }
        writeln!(f, "\nbecause")?;
        self.reasons.iter().try_for_each(|reason| writeln!(f, "  - {reason}"))?;
        let words: Vec<String> = self.command.iter().map(|word| crate::serve::paste::quote(word)).collect();
        writeln!(f, "\nto create it:\n  {}", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggested(purpose: Use, backing: bool, disk_bytes: u64) -> String {
        let question = Question { disk_bytes, purpose, backing };
        question.answer(&[], &[]).map_or("none".to_owned(), |suggestion| suggestion.options)
    }

    #[test]
    fn clusters_follow_from_use_and_size() {
        let (gib, tib) = (1 << 30, 1 << 40);
        let table = [
            (Use::General, false, 20 * gib, "cluster_size=64k,extended_l2=off"),
            (Use::General, false, 256 * gib, "cluster_size=64k,extended_l2=off"),
            (Use::General, false, 257 * gib, "cluster_size=128k,extended_l2=off"),
            (Use::General, false, tib, "cluster_size=256k,extended_l2=off"),
            (Use::General, false, 64 * tib, "cluster_size=2048k,extended_l2=off"),
            (Use::General, true, 20 * gib, "cluster_size=128k,extended_l2=on"),
            (Use::Database, false, 40 * gib, "cluster_size=128k,extended_l2=on"),
            (Use::Database, false, tib, "cluster_size=512k,extended_l2=on"),
            (Use::Overlay, true, 40 * gib, "cluster_size=128k,extended_l2=on"),
            (Use::Archive, false, gib, "cluster_size=2048k,extended_l2=off"),
            (Use::Archive, true, gib, "cluster_size=2048k,extended_l2=on"),
            (Use::General, false, 0, "cluster_size=64k,extended_l2=off"),
            (Use::General, false, 1 << 61, "cluster_size=2048k,extended_l2=off"),
            (Use::General, false, (1 << 61) + 512, "none"),
            (Use::Overlay, false, u64::MAX, "none"),
        ];
        for (purpose, backing, bytes, options) in table {
            assert_eq!(suggested(purpose, backing, bytes), options, "{purpose:?} {backing} {bytes}");
        }
    }

    #[test]
    fn what_is_suggested_can_be_created() {
        use graph::probe::Format;
        for purpose in Use::value_variants() {
            for bits in 0..=60 {
                let options = suggested(*purpose, false, 1 << bits);
                let parsed = tool::create::options::NewImage::parse(&[options], Format::Qcow2).unwrap();
                let options = parsed.options;
                assert!(options.cluster_size.is_power_of_two() && options.cluster_size <= CLUSTER_BYTES_MAX);
                assert!(!options.extended_l2 || options.cluster_size >= 16 << 10);
            }
        }
    }

    #[test]
    fn a_map_that_stays_too_large_is_said_with_the_option_for_it() {
        let question = Question { disk_bytes: 64 << 40, purpose: Use::General, backing: false };
        let answer = question.answer(&["cowhand"], &["a b".to_owned()]).unwrap();
        let text = answer.to_string();
        assert!(text.contains("l2-cache-size=268435456"), "{text}");
        assert!(text.ends_with("  cowhand -o cluster_size=2048k,extended_l2=off 'a b'\n"), "{text}");
    }
}
