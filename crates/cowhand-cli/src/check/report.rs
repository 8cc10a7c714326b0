//! The verdict on an image: counts, words, JSON and exit code.

use std::io::{self, Write};

use serde::Serialize;

/// What a check found, with qemu-img's field names. Counts of zero are left out, as there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckReport {
    /// The image, as it was named.
    pub filename: String,
    /// Its format.
    pub format: String,
    /// Errors that kept the check from looking.
    pub check_errors: u64,
    /// Where the image ends in its file, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub image_end_offset: u64,
    /// Metadata that is wrong: data may be lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub corruptions: u64,
    /// Clusters that nothing uses: space is lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub leaks: u64,
    /// Repaired before the counts above were taken.
    #[serde(skip_serializing_if = "is_zero")]
    pub corruptions_fixed: u64,
    /// Repaired before the counts above were taken.
    #[serde(skip_serializing_if = "is_zero")]
    pub leaks_fixed: u64,
    /// Clusters of the disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_clusters: u64,
    /// Of these, stored.
    #[serde(skip_serializing_if = "is_zero")]
    pub allocated_clusters: u64,
    /// Of these, not behind the one before.
    #[serde(skip_serializing_if = "is_zero")]
    pub fragmented_clusters: u64,
    /// Of these, compressed.
    #[serde(skip_serializing_if = "is_zero")]
    pub compressed_clusters: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What [`CheckReport`] prints.
pub const JSON: &str = "  filename                text: the image, as it was named
  format                  text
  check-errors            number of failures that kept the check from being complete
Numbers that are absent if they are 0:
  image-end-offset?       where the last cluster in use ends in the file
  corruptions?            errors that are left
  leaks?                  leaked clusters that are left
  corruptions-fixed?, leaks-fixed?  what -r has repaired
  total-clusters?         clusters of the disk
  allocated-clusters?     of these, stored
  fragmented-clusters?    of the stored ones, those not behind the one before
  compressed-clusters?    of the stored ones, compressed";

/// Exit codes of `check`, as qemu-img's.
pub mod code {
    /// Everything is right, or has been repaired.
    pub const CLEAN: u8 = 0;
    /// The check could not be done, or not completely.
    pub const FAILED: u8 = 1;
    /// The image is corrupt.
    pub const CORRUPT: u8 = 2;
    /// Clusters are leaked; nothing else is wrong.
    pub const LEAKS: u8 = 3;
    /// The format has nothing to check.
    pub const UNSUPPORTED: u8 = 63;
}

impl CheckReport {
    /// The engine's counts for the qcow2 image called `filename`.
    pub fn of(filename: &str, counts: &qcow2::CheckReport) -> Self {
        Self {
            filename: filename.to_owned(),
            format: "qcow2".to_owned(),
            check_errors: counts.check_errors,
            image_end_offset: counts.image_end_offset,
            corruptions: counts.corruptions,
            leaks: counts.leaks,
            corruptions_fixed: counts.corruptions_fixed,
            leaks_fixed: counts.leaks_fixed,
            total_clusters: counts.total_clusters,
            allocated_clusters: counts.allocated_clusters,
            fragmented_clusters: counts.fragmented_clusters,
            compressed_clusters: counts.compressed_clusters,
        }
    }

    /// The exit code that says it.
    pub fn code(&self) -> u8 {
        match self {
            Self { check_errors: 1.., .. } => code::FAILED,
            Self { corruptions: 1.., .. } => code::CORRUPT,
            Self { leaks: 1.., .. } => code::LEAKS,
            _ => code::CLEAN,
        }
    }

    /// The verdict in words.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.corruptions_fixed + self.leaks_fixed > 0 {
            let (corruptions, leaks) = (self.corruptions_fixed, self.leaks_fixed);
            writeln!(out, "Repaired: {}, {}.", counted(corruptions, "error"), leaked(leaks))?;
        }
        match (self.corruptions, self.leaks, self.check_errors) {
            (0, 0, 0) => writeln!(out, "The image is sound: no errors, no leaked clusters.")?,
            (corruptions, leaks, errors) => {
                write_wrong(out, corruptions, leaks, errors)?;
            }
        }
        self.write_statistics(out, self.total_clusters > 0)
    }

    /// How full the image is, if that `is_shown`, and where it ends: the same lines as qemu-img's.
    pub fn write_statistics(&self, out: &mut dyn Write, is_shown: bool) -> io::Result<()> {
        let (total, allocated) = (self.total_clusters, self.allocated_clusters);
        if is_shown {
            writeln!(
                out,
                "{allocated}/{total} = {}% allocated, {}% fragmented, {}% compressed clusters",
                percent(allocated, total),
                percent(self.fragmented_clusters, allocated),
                percent(self.compressed_clusters, allocated),
            )?;
        }
        match self.image_end_offset {
            0 => Ok(()),
            end => writeln!(out, "Image end offset: {end}"),
        }
    }
}

fn write_wrong(out: &mut dyn Write, corruptions: u64, leaks: u64, errors: u64) -> io::Result<()> {
    if corruptions > 0 {
        let count = counted(corruptions, "error");
        writeln!(out, "{count} in the image: data may be damaged, and writing may damage more.")?;
    }
    if leaks > 0 {
        writeln!(out, "{} in the image: space is wasted, data is not affected.", leaked(leaks))?;
    }
    if errors > 0 {
        writeln!(out, "The check is incomplete: {} while looking.", counted(errors, "failure"))?;
    }
    Ok(())
}

/// So many of them, in words.
pub fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

fn leaked(count: u64) -> String {
    counted(count, "leaked cluster")
}

fn percent(part: u64, whole: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let value = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CheckReport {
        CheckReport {
            filename: "top.qcow2".into(),
            format: "qcow2".into(),
            image_end_offset: 720896,
            total_clusters: 160,
            allocated_clusters: 2,
            ..CheckReport::default()
        }
    }

    fn human(report: &CheckReport) -> String {
        let mut text = Vec::new();
        report.write_human(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_worst_finding_decides_the_exit_code() {
        let table = [
            (report(), 0),
            (CheckReport { leaks_fixed: 5, corruptions_fixed: 1, ..report() }, 0),
            (CheckReport { leaks: 1, ..report() }, 3),
            (CheckReport { leaks: 1, corruptions: 1, ..report() }, 2),
            (CheckReport { leaks: 1, corruptions: 1, check_errors: 1, ..report() }, 1),
        ];
        for (report, code) in table {
            assert_eq!(report.code(), code, "{report:?}");
        }
    }

    #[test]
    fn json_leaves_zero_counts_out_as_qemu_img_does() {
        let expected = serde_json::json!({
            "image-end-offset": 720896,
            "total-clusters": 160,
            "check-errors": 0,
            "allocated-clusters": 2,
            "filename": "top.qcow2",
            "format": "qcow2",
        });
        assert_eq!(serde_json::to_value(report()).unwrap(), expected);
    }

    #[test]
    fn people_read_a_verdict_and_the_statistics() {
        let expected = "\
The image is sound: no errors, no leaked clusters.
2/160 = 1.25% allocated, 0.00% fragmented, 0.00% compressed clusters
Image end offset: 720896
";
        assert_eq!(human(&report()), expected);
        let bad = CheckReport { corruptions: 2, leaks: 1, leaks_fixed: 3, total_clusters: 0, ..report() };
        let expected = "\
Repaired: 0 errors, 3 leaked clusters.
2 errors in the image: data may be damaged, and writing may damage more.
1 leaked cluster in the image: space is wasted, data is not affected.
Image end offset: 720896
";
        assert_eq!(human(&bad), expected);
    }
}
