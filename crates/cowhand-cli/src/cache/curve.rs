//! Hit rates of a trace by the size of the cache, and what follows from them.

use std::fmt;

use graph::size::human_size;
use serde::Serialize;

/// Of the requests that come back to a slice so many percent are to find it: what "suffices" means.
const SUFFICES_PERCENT: u64 = 99;

/// What a size is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Point {
    /// Bytes of the cache.
    pub bytes: u64,
    /// Requests whose map slices are all in the cache, of those that use a slice again: here ...
    pub hits: u64,
    /// ... and in QEMU.
    pub hits_in_qemu: u64,
}

/// What [`Curve`] and [`Sufficient`] print.
pub const JSON: &str = "\
Of trace:
  requests                number of requests of the disk
  duration-us             microseconds from the first to the last
  first-requests          number of those that need a part of the map for the first time
  lost                    number of requests that are missing in the trace
  complete                bool: the trace ends in order
  whole                   bool: all of it was looked at
  points                  list of objects: by bytes of cache
  hits, hits-in-qemu      of a point, number of requests whose map is in such a cache
  sufficient              object: the least sizes that suffice, null if none does
  bytes, bytes-in-qemu    of sufficient, bytes of cache";

/// What a trace says about the cache of its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Curve {
    /// Requests of the disk that were looked at: reads, writes, zeroes and discards.
    pub requests: u64,
    /// Microseconds from the first of them to the last.
    pub duration_us: u64,
    /// Those that need a part of the map for the first time: they miss whatever the size.
    pub first_requests: u64,
    /// Requests that are missing in the trace, of all disks.
    pub lost: u64,
    /// The trace ends in order.
    pub complete: bool,
    /// All of it was looked at; otherwise its beginning, which is as much as is looked at.
    pub whole: bool,
    /// By size, ascending.
    pub points: Vec<Point>,
}

/// The least sizes that suffice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sufficient {
    /// Here; `None` if none of those looked at does.
    pub bytes: Option<u64>,
    /// In QEMU.
    pub bytes_in_qemu: Option<u64>,
}

impl Curve {
    /// Requests that come back to what was needed before.
    pub fn returning(&self) -> u64 {
        self.requests - self.first_requests
    }

    /// The least sizes that suffice; `None` of both if no request came back to anything.
    pub fn sufficient(&self) -> Sufficient {
        if self.returning() == 0 {
            return Sufficient::default();
        }
        let enough =
            |hits: u64| u128::from(hits) * 100 >= u128::from(self.returning()) * u128::from(SUFFICES_PERCENT);
        let least = |hits: fn(&Point) -> u64| {
            self.points.iter().find(|point| enough(hits(point))).map(|point| point.bytes)
        };
        Sufficient { bytes: least(|point| point.hits), bytes_in_qemu: least(|point| point.hits_in_qemu) }
    }

    fn percent(&self, hits: u64) -> String {
        let hundredths = u128::from(hits) * 10_000 / u128::from(self.returning().max(1));
        format!("{}.{:02} %", hundredths / 100, hundredths % 100)
    }
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, tenths) = (self.duration_us / 1_000_000, self.duration_us / 100_000 % 10);
        write!(f, "the trace has {} requests of this disk in {seconds}.{tenths} s", self.requests)?;
        writeln!(f, "; {} of them needed a part of the map for the first time", self.first_requests)?;
        if !self.whole {
            writeln!(f, "(it continues: this is as much of it as is looked at)")?;
        } else if !self.complete {
            writeln!(f, "(it breaks off: the server that wrote it did not end in order)")?;
        }
        if self.lost > 0 {
            writeln!(
                f,
                "({} requests are missing in it: they came faster than they could be written)",
                self.lost
            )?;
        }
        if self.returning() == 0 {
            return writeln!(
                f,
                "no request came back to a part that was needed before: it says nothing about sizes"
            );
        }
        writeln!(f, "of the others, so many found theirs in memory:")?;
        writeln!(f, "  {:>10}  {:>10}  {:>10}", "cache", "cowhand", "QEMU")?;
        for point in &self.points {
            let (here, there) = (self.percent(point.hits), self.percent(point.hits_in_qemu));
            writeln!(f, "  {:>10}  {here:>10}  {there:>10}", human_size(point.bytes))?;
        }
        let Sufficient { bytes, bytes_in_qemu } = self.sufficient();
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "more than that".to_owned(), human_size);
        let (here, there) = (size(bytes), size(bytes_in_qemu));
        writeln!(
            f,
            "{here} in cowhand and {there} in QEMU suffice for {SUFFICES_PERCENT} % of the requests of this trace:"
        )?;
        let option = |bytes: Option<u64>| {
            bytes.map_or_else(|| "-".to_owned(), |bytes| format!("l2-cache-size={bytes}"))
        };
        writeln!(f, "  cowhand  {}", option(bytes))?;
        writeln!(f, "  QEMU     {}", option(bytes_in_qemu))?;
        match bytes_in_qemu {
            None => writeln!(f, "  libvirt  -"),
            Some(bytes) => {
                writeln!(
                    f,
                    "  libvirt  <metadata_cache><max_size unit='bytes'>{bytes}</max_size></metadata_cache>"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        let point = |bytes, hits, hits_in_qemu| Point { bytes, hits, hits_in_qemu };
        let points = vec![point(65536, 500, 10), point(131_072, 891, 890), point(262_144, 900, 891)];
        Curve { requests: 1000, first_requests: 100, complete: true, whole: true, points, ..Curve::default() }
    }

    #[test]
    fn what_suffices_is_the_least_size_with_99_of_100_hits() {
        let sufficient = Sufficient { bytes: Some(131_072), bytes_in_qemu: Some(262_144) };
        assert_eq!(curve().sufficient(), sufficient);
        let text = curve().to_string();
        for line in
            ["  64 KiB     55.55 %      1.11 %\n", "128 KiB in cowhand and 256 KiB in QEMU suffice for 99 %"]
        {
            assert!(text.contains(line), "{line:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_trace_that_never_comes_back_says_nothing() {
        let curve = Curve { first_requests: 1000, ..curve() };
        assert_eq!(curve.sufficient(), Sufficient::default());
        assert!(curve.to_string().contains("says nothing about sizes"));
    }
}
