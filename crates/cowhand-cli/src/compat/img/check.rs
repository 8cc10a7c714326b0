//! The result of `qemu-img check` for people.

use std::io::{self, Write};

use crate::check::report::CheckReport;

/// The verdict in the lines that scripts look for.
pub fn write_human(report: &CheckReport, out: &mut dyn Write) -> io::Result<()> {
    if report.corruptions_fixed + report.leaks_fixed > 0 {
        let (leaks, corruptions) = (report.leaks_fixed, report.corruptions_fixed);
        writeln!(
            out,
            "The following inconsistencies were found and repaired:\n\n    {leaks} leaked clusters\n    \
             {corruptions} corruptions\n\nDouble checking the fixed image now..."
        )?;
    }
    let wrong = [
        (
            report.corruptions,
            "errors were found on the image.\nData may be corrupted, or further writes to the image may corrupt it.",
        ),
        (
            report.leaks,
            "leaked clusters were found on the image.\nThis means waste of disk space, but no harm to data.",
        ),
        (report.check_errors, "internal errors have occurred during the check."),
    ];
    for (count, what) in wrong.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "\n{count} {what}")?;
    }
    if wrong.iter().all(|(count, _)| *count == 0) {
        writeln!(out, "No errors were found on the image.")?;
    }
    report.write_statistics(out, report.allocated_clusters > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(report: &CheckReport) -> String {
        let mut out = Vec::new();
        write_human(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_wrong_has_a_paragraph_each_and_what_was_repaired_one_before() {
        let report = CheckReport {
            leaks_fixed: 2,
            image_end_offset: 1179648,
            total_clusters: 16,
            allocated_clusters: 6,
            fragmented_clusters: 1,
            ..CheckReport::default()
        };
        let expected = "\
The following inconsistencies were found and repaired:

    2 leaked clusters
    0 corruptions

Double checking the fixed image now...
No errors were found on the image.
6/16 = 37.50% allocated, 16.67% fragmented, 0.00% compressed clusters
Image end offset: 1179648
";
        assert_eq!(shown(&report), expected);
        let wrong = CheckReport { corruptions: 1, leaks: 2, check_errors: 3, ..CheckReport::default() };
        let expected = "
1 errors were found on the image.
Data may be corrupted, or further writes to the image may corrupt it.

2 leaked clusters were found on the image.
This means waste of disk space, but no harm to data.

3 internal errors have occurred during the check.
";
        assert_eq!(shown(&wrong), expected);
    }
}
