//! The terminal: set up, drawn on, and restored however the program ends.

use std::time::{Duration, Instant};

use graph::size::human_size;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use tool::failure::Failure;

use super::Look;
use super::rates::Rates;
use super::view::{Order, View, Visible, cut};
use crate::output::counted;
use crate::remote::Remote;

/// Shows the disks until q, Escape or Ctrl-C. The terminal is as before afterwards, also after a panic.
pub fn watch(remote: &mut Remote, interval: Duration) -> Result<(), Failure> {
    let first = Look::take(remote)?;
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::because("cannot use the terminal", &error))?;
    let result = draw_until_asked(&mut terminal, remote, first, interval);
    ratatui::restore();
    result
}

fn draw_until_asked(
    terminal: &mut DefaultTerminal,
    remote: &mut Remote,
    mut before: Look,
    interval: Duration,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("cannot use the terminal", &error);
    let mut view = View::default();
    let mut rates = before.since(&before);
    loop {
        let mut rows = 0;
        terminal.draw(|frame| rows = draw(frame, &rates, &mut view)).map_err(failed)?;
        match key(before.at + interval).map_err(failed)? {
            Some(KeyCode::Char('q') | KeyCode::Esc) => return Ok(()),
            Some(key) => _ = view.press(key, rows, rates.len()),
            None => {}
        }
        if before.at.elapsed() >= interval {
            let now = Look::take(remote)?;
            rates = now.since(&before);
            before = now;
        }
    }
}

/// Waits for a key or for `deadline`. Ctrl-C is taken for q.
fn key(deadline: Instant) -> std::io::Result<Option<KeyCode>> {
    if !event::poll(deadline.saturating_duration_since(Instant::now()))? {
        return Ok(None);
    }
    let Event::Key(key) = event::read()? else { return Ok(None) };
    if key.kind != KeyEventKind::Press {
        return Ok(None);
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(match key.code {
        KeyCode::Char('c') if control => Some(KeyCode::Esc),
        _ if control => None,
        code => Some(code),
    })
}

/// Draws the disks, between a line about all of them and one about the keys. Gives how many rows there is room for.
fn draw(frame: &mut Frame<'_>, rates: &[Rates], view: &mut View) -> usize {
    let lines = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(lines).areas(frame.area());
    // One is the headings'.
    let room = usize::from(body.height).saturating_sub(1);
    let cells: Vec<_> =
        view.sorted(rates).into_iter().map(|disk| disk.cells().map(|cell| cut(&cell))).collect();
    let visible = view.visible(&cells, usize::from(body.width), room);

    let row = |cells: &[String]| Row::new(visible.columns.iter().map(|&column| cell(column, &cells[column])));
    let heading =
        row(&Rates::COLUMNS.map(str::to_owned)).style(Style::new().add_modifier(Modifier::REVERSED));
    let rows = cells[visible.rows.clone()].iter().map(|cells| row(cells));
    let widths =
        visible.widths.iter().map(|&width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    frame.render_widget(Line::from(summary(rates)), head);
    frame.render_widget(Table::new(rows, widths).header(heading).column_spacing(1), body);
    frame.render_widget(Line::from(keys(&visible, rates.len(), view.order)), foot);
    room
}

/// Names begin on the left, numbers end on the right.
fn cell(column: usize, text: &str) -> Cell<'static> {
    let line = Line::from(text.to_owned());
    Cell::from(if column == 0 { line } else { line.right_aligned() })
}

fn summary(rates: &[Rates]) -> String {
    let (requests, bytes) = rates.iter().fold((0, 0), |(requests, bytes), disk| {
        let (more_requests, more_bytes) = disk.totals();
        (requests + more_requests, bytes + more_bytes)
    });
    let disks = counted(rates.len() as u64, "disk");
    format!("cowhand top: {disks}, {requests} requests/s, {}/s", human_size(bytes))
}

fn keys(visible: &Visible, disks: usize, order: Order) -> String {
    let shown = match visible.rows.len() {
        rows if rows == disks => "all disks".to_owned(),
        _ => format!("{} to {} of {disks}", visible.rows.start + 1, visible.rows.end),
    };
    let order = match order {
        Order::Load => "by load",
        Order::Served => "as served",
    };
    let columns = if visible.columns.len() < Rates::COLUMNS.len() { " ←→" } else { "" };
    format!("{shown}, {order}   ↑↓ PgUp PgDn{columns} scroll, s sorts, q ends")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::remote::figures::{DiskFigures, KindFigures, MapFigures, ThrottleFigures};
    use crate::top::rates::rates;

    /// The screen, line by line.
    fn screen(width: u16, height: u16, rates: &[Rates], view: &mut View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| _ = draw(frame, rates, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    /// A server's disks: of those from the 150th on, each does more than the one before.
    fn disks(count: u64) -> Vec<Rates> {
        let of = |number: u64| {
            let requests = number.saturating_sub(150) * 25_000;
            let kind = KindFigures {
                requests,
                bytes: requests << 16,
                total_ns: requests * 84_600,
                ..Default::default()
            };
            let map = MapFigures {
                hits: requests,
                used_bytes: 1 << 20,
                limit_bytes: 128 << 20,
                ..Default::default()
            };
            let limits = vec![("iops-total".to_owned(), 500_000), ("bps-total".to_owned(), 10 << 30)];
            let throttle = ThrottleFigures { limits, queue: 3, ..Default::default() };
            let name = format!("disk{number}");
            DiskFigures {
                name,
                read: kind,
                write: kind,
                in_flight: 16,
                map: Some(map),
                throttle,
                ..Default::default()
            }
        };
        let since = |now: DiskFigures| {
            let before = DiskFigures { name: now.name.clone(), ..Default::default() };
            rates(&before, &now, Duration::from_secs(1))
        };
        (1..=count).map(of).map(since).collect()
    }

    #[test]
    fn two_hundred_disks_are_readable_on_80_by_24() {
        let mut view = View::default();
        let lines = screen(80, 24, &disks(200), &mut view);
        assert_eq!(lines[0], "cowhand top: 200 disks, 63750000 requests/s, 3.8 TiB/s");
        let headings: Vec<_> =
            lines[1].split("  ").flat_map(|part| part.split(' ')).filter(|word| !word.is_empty()).collect();
        let known: Vec<_> = Rates::COLUMNS.iter().flat_map(|name| name.split(' ')).collect();
        assert_eq!(headings, known[..headings.len()], "headings are whole: {}", lines[1]);
        assert!(headings.len() >= 10, "seven columns at least: {}", lines[1]);
        assert!(
            lines[2].starts_with("disk200 1250000 1250000 76.3 GiB  76.3 GiB  84.6µs    16  100.0 %"),
            "{}",
            lines[2]
        );
        assert!(lines[22].starts_with("disk180"), "{}", lines[22]);
        assert_eq!(lines[23], "1 to 21 of 200, by load   ↑↓ PgUp PgDn ←→ scroll, s sorts, q ends");
    }

    #[test]
    fn every_row_and_column_can_be_reached() {
        let (mut view, disks) = (View::default(), disks(200));
        let mut seen = String::new();
        for _ in 0..10 {
            seen.push_str(&screen(80, 24, &disks, &mut view)[2..23].join("\n"));
            seen.push('\n');
            view.press(KeyCode::PageDown, 21, disks.len());
        }
        let first_words: std::collections::BTreeSet<_> =
            seen.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(first_words.len(), 200);
        (0..20).for_each(|_| _ = view.press(KeyCode::Right, 21, disks.len()));
        let lines = screen(80, 24, &disks, &mut view);
        assert!(lines[1].starts_with("DISK") && lines[1].ends_with(" LIMIT"), "{}", lines[1]);
        assert!(lines[2].contains("iops-total"), "{}", lines[2]);
        // By name, from the top again.
        view.press(KeyCode::Char('s'), 21, disks.len());
        assert!(screen(80, 24, &disks, &mut view)[2].starts_with("disk1 "));
    }

    #[test]
    fn every_disk_has_its_row_under_the_headings() {
        let disk = |name: &str| DiskFigures { name: name.into(), ..DiskFigures::default() };
        let all = ["one", "two"].map(|name| rates(&disk(name), &disk(name), Duration::from_secs(1)));
        let shown = screen(160, 6, &all, &mut View::default()).join("\n");
        for expected in
            ["cowhand top: 2 disks, 0 requests/s, 0 B/s", "AT LIMIT", "one", "two", "all disks", "q ends"]
        {
            assert!(shown.contains(expected), "{shown}");
        }
        // However small it is.
        for (width, height) in [(1, 1), (10, 2), (20, 3)] {
            screen(width, height, &all, &mut View::default());
        }
    }
}
