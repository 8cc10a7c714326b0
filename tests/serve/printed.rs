//! The lines that a server prints, for a test to run.

use black_box::Server;

/// The line that was printed for a tool, of the export that is first.
pub fn line(server: &Server, tool: &str) -> String {
    lines(server, tool)
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no line for {tool}:\n{}", server.stdout()))
}

/// The lines that were printed for a tool, one for each export.
pub fn lines(server: &Server, tool: &str) -> Vec<String> {
    let printed = server.stdout();
    let lines = printed.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(char::is_whitespace));
    lines.filter(|(name, _)| *name == tool).map(|(_, line)| line.trim().to_owned()).collect()
}
