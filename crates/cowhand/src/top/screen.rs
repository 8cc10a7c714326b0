//! The terminal: taken over, drawn on, given back however it ends.

use std::time::{Duration, Instant};

use image::size::human_size;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use super::Look;
use super::rates::Rates;
use crate::failure::Failure;
use crate::remote::Remote;

/// Shows the disks until q, Escape or Ctrl-C. The terminal is as before afterwards, also after a panic.
pub fn watch(remote: &mut Remote, interval: Duration) -> Result<(), Failure> {
    let first = Look::take(remote)?;
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::because("cannot use the terminal", &error))?;
    let result = draw_until_told(&mut terminal, remote, first, interval);
    ratatui::restore();
    result
}

fn draw_until_told(
    terminal: &mut DefaultTerminal,
    remote: &mut Remote,
    mut before: Look,
    interval: Duration,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("cannot use the terminal", &error);
    let mut rates = before.since(&before);
    loop {
        terminal.draw(|frame| draw(frame, &rates)).map_err(failed)?;
        if ends(before.at + interval).map_err(failed)? {
            return Ok(());
        }
        if before.at.elapsed() >= interval {
            let now = Look::take(remote)?;
            rates = now.since(&before);
            before = now;
        }
    }
}

/// Waits for a key or for `deadline`; whether it was one that ends.
fn ends(deadline: Instant) -> std::io::Result<bool> {
    if !event::poll(deadline.saturating_duration_since(Instant::now()))? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let asked = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    Ok(key.kind == KeyEventKind::Press && (asked || interrupted))
}

fn draw(frame: &mut Frame<'_>, rates: &[Rates]) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(frame.area());
    frame.render_widget(Line::from(summary(rates)), head);
    let widths = [14, 9, 9, 10, 10, 9, 6, 9, 16, 24, 8, 9].map(Constraint::Length);
    let heading = Row::new(Rates::COLUMNS).style(Style::new().add_modifier(Modifier::REVERSED));
    let rows = rates.iter().map(|disk| Row::new(disk.cells().map(Cell::from)));
    frame.render_widget(Table::new(rows, widths).header(heading), body);
}

fn summary(rates: &[Rates]) -> String {
    let (requests, bytes) = rates.iter().fold((0, 0), |(requests, bytes), disk| {
        let (more_requests, more_bytes) = disk.totals();
        (requests + more_requests, bytes + more_bytes)
    });
    format!("cowhand top: {} disks, {requests} requests/s, {}/s   q ends", rates.len(), human_size(bytes))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::remote::figures::DiskFigures;
    use crate::top::rates::rates;

    #[test]
    fn every_disk_has_its_row_under_the_headings() {
        let disk = |name: &str| DiskFigures { name: name.into(), ..DiskFigures::default() };
        let all = ["one", "two"].map(|name| rates(&disk(name), &disk(name), Duration::from_secs(1)));
        let mut terminal = Terminal::new(TestBackend::new(160, 5)).unwrap();
        terminal.draw(|frame| draw(frame, &all)).unwrap();
        let shown = terminal.backend().to_string();
        for expected in ["cowhand top: 2 disks, 0 requests/s, 0 B/s   q ends", "AT LIMIT", "one", "two"] {
            assert!(shown.contains(expected), "{shown}");
        }
    }
}
