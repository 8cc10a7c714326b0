//! `--log`: what is told on standard error.

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Starts telling what `filter` lets through.
///
/// # Errors
/// When the filter is malformed.
pub fn start(filter: &str) -> Result<(), Failure> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| {
        Failure::because(
            format!("--log {filter}: write error, warn, info, debug, trace, or MODULE=LEVEL,..."),
            &error,
        )
    })?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    // Somebody may be listening already, in tests.
    let _ = subscriber.try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_filter_is_an_error() {
        assert!(start("qcow2=loud").is_err());
        assert!(start("warn,qcow2=debug").is_ok());
    }
}
