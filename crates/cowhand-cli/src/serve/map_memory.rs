//! `--map-memory`: the memory that the maps of all disks share.

use graph::MAP_MEMORY_MIN;
use graph::size::{human_size, parse_size};

/// A size that is large enough.
pub fn parse_map_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes < MAP_MEMORY_MIN {
        let least = human_size(MAP_MEMORY_MIN);
        return Err(format!("{bytes} bytes are too few; allowed: {least} and more"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_below_the_minimum_is_refused_with_the_range() {
        assert_eq!(parse_map_memory("1M"), Ok(1 << 20));
        assert_eq!(parse_map_memory("2G"), Ok(2 << 30));
        let error = parse_map_memory("64k").unwrap_err();
        assert!(error.contains("65536 bytes are too few") && error.contains("and more"), "{error}");
        assert!(parse_map_memory("much").is_err());
    }
}
