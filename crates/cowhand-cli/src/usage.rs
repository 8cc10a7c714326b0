//! What is said of a command line that cannot be understood.

use std::process::ExitCode;

use tool::output::tell;
use tool::voice;

/// Shows help where it was asked for, and what is wrong where it was not, with `code`.
pub fn usage(error: &clap::Error, code: u8) -> ExitCode {
    if !error.use_stderr() {
        // Nothing to do if even that cannot be shown.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let safe = memory::secret::without_credentials(&text);
    let safe = control::text::shown_lines(&safe);
    match voice::is_qemu() {
        true => {
            let what = safe.strip_prefix("error: ").unwrap_or(&safe);
            tell(format_args!("{}: {}", voice::name(), what.trim_end()));
        }
        // With its colours, if no word of the user's has to be shown otherwise.
        false if safe == text => _ = error.print(),
        false => tell(format_args!("{}", safe.trim_end())),
    }
    ExitCode::from(code)
}
