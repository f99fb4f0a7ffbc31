//! Draws the board. The picture depends on the board and the size of the screen alone.

use std::time::{Duration, SystemTime};

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::board::{Board, Column, Lag, Row};
use crate::plain::plain;
use keyfall_daemon::shapes::Time;

/// The most lines for instances, and for failures.
const FEW: usize = 8;

/// Whether the screen has colours. Without colours, weight and inversion carry the meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    pub(super) has_colour: bool,
}

impl Paint {
    /// <https://no-color.org>
    pub(super) fn of_env() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Paint {
            has_colour: !no_color,
        }
    }

    fn colour(self, colour: Color) -> Style {
        match self.has_colour {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn dim(self) -> Style {
        match self.has_colour {
            true => Style::new().fg(Color::DarkGray),
            false => Style::new(),
        }
    }

    fn bad(self) -> Style {
        self.colour(Color::Red)
    }

    fn odd(self) -> Style {
        self.colour(Color::Yellow)
    }

    fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws the whole screen, and tells the board how many kinds fit.
pub(super) fn draw(frame: &mut Frame<'_>, board: &mut Board, paint: Paint) {
    let lines = |count: usize| u16::try_from(count.clamp(1, FEW) + 2).unwrap_or(u16::MAX);
    let [head, kinds, instances, failures, help] = Layout::vertical([
        Constraint::Length(5),
        Constraint::Min(4),
        Constraint::Length(lines(board.instances.len())),
        Constraint::Length(lines(board.failures.len())),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    board.room = usize::from(kinds.height.saturating_sub(2));
    let most = board.known().saturating_sub(board.room);
    board.above = board.above.min(most);
    draw_head(frame, head, board, paint);
    draw_kinds(frame, kinds, board, paint);
    draw_instances(frame, instances, board, paint);
    draw_failures(frame, failures, board, paint);
    let keys = " q quit   ←→ sort   ↑↓ PgUp PgDn Home move   p pause the view";
    frame.render_widget(Paragraph::new(keys).style(paint.dim()), help);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, board: &Board, paint: Paint) {
    let (all, rates) = board.total();
    let mut first = vec![
        Span::styled("keyfall top ", paint.title()),
        Span::raw(format!("{}  ", plain(&board.server))),
    ];
    if !board.prefix.is_empty() {
        first.push(Span::raw(format!("{}*  ", plain(&board.prefix))));
    }
    if let Some(now) = board.now {
        first.push(Span::raw(format!("{}  ", clock(now))));
    }
    first.push(Span::styled(
        format!("every {}", short(board.interval)),
        paint.dim(),
    ));
    if board.is_paused {
        first.push(Span::styled("  PAUSED ", paint.chosen()));
    }
    let overdue = format!(
        "due {}{}",
        all.overdue,
        match all.overdue_for {
            Duration::ZERO => String::new(),
            time => format!(", for {}", short(time)),
        }
    );
    let second = vec![
        Span::raw(format!("pending {}   ", all.pending)),
        Span::styled(overdue, style_of(all.overdue > 0, paint.odd())),
        Span::raw(format!("   running {}   ", all.leased)),
        Span::styled(
            format!("dead {}", all.dead),
            style_of(all.dead > 0, paint.bad()),
        ),
        Span::raw(format!(
            "   next due {}",
            next_due(board.next_due(), board.now)
        )),
    ];
    let third = format!(
        "a second: scheduled {}   claimed {}   done {}   failed {}   buried {}",
        rate(rates.scheduled),
        rate(rates.claimed),
        rate(rates.done),
        rate(rates.failed),
        rate(rates.buried)
    );
    let fourth = match board.lag() {
        Some(Lag { p50, p99, longest }) => format!(
            "lag of the last starts: p50 {}   p99 {}   longest {}",
            short(p50),
            short(p99),
            short(longest)
        ),
        None => "lag of the last starts: none is known yet".to_owned(),
    };
    let mut lines = vec![
        Line::from(first),
        Line::from(second),
        third.into(),
        fourth.into(),
    ];
    if let Some(trouble) = &board.trouble {
        lines.push(Line::styled(plain(trouble), paint.bad()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_kinds(frame: &mut Frame<'_>, area: Rect, board: &Board, paint: Paint) {
    let rows = board.rows();
    let shown: Vec<&Row> = rows
        .iter()
        .skip(board.above)
        .take(board.room)
        .copied()
        .collect();
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let mut text = format!("kinds {}", board.kinds);
    if board.known() < board.kinds {
        text += &format!(", {} of them looked at", board.known());
    }
    if board.known() > shown.len() && !shown.is_empty() {
        let (first, last) = (board.above + 1, board.above + shown.len());
        text += &format!(", {first} to {last}");
    }
    frame.render_widget(Paragraph::new(text).style(paint.title()), title);
    let header = Column::ALL.map(|column| {
        let text = Line::raw(name(column));
        let text = match column {
            Column::Kind => text,
            _ => text.alignment(Alignment::Right),
        };
        let style = match column == board.sort {
            true => paint.chosen(),
            false => paint.dim(),
        };
        Cell::from(text).style(style)
    });
    let widths = Column::ALL.map(|column| match column {
        Column::Kind => Constraint::Min(20),
        Column::Pending | Column::Lag | Column::Overdue => Constraint::Length(9),
        _ => Constraint::Length(8),
    });
    let lines = shown.into_iter().map(|row| line(row, paint));
    let header = TableRow::new(header);
    frame.render_widget(Table::new(lines, widths).header(header), table);
}

fn line(row: &Row, paint: Paint) -> TableRow<'static> {
    let of = |of: fn(&super::board::Rates) -> f64| {
        row.rates
            .as_ref()
            .map_or_else(|| "-".to_owned(), |it| rate(of(it)))
    };
    let number = |text: String, style: Style| {
        Cell::from(Line::raw(text).alignment(Alignment::Right)).style(style)
    };
    let figure = |text: String| number(text, Style::new());
    let stats = &row.stats;
    let mut kind = vec![Span::raw(plain(row.kind.as_str()).into_owned())];
    if stats.paused {
        kind.push(Span::styled(" paused", paint.odd()));
    }
    let overdue = match stats.overdue_for {
        Duration::ZERO => "-".to_owned(),
        time => short(time),
    };
    TableRow::new([
        Cell::from(Line::from(kind)),
        figure(stats.pending.to_string()),
        number(
            stats.overdue.to_string(),
            style_of(stats.overdue > 0, paint.odd()),
        ),
        figure(overdue),
        figure(stats.leased.to_string()),
        number(
            stats.dead.to_string(),
            style_of(stats.dead > 0, paint.bad()),
        ),
        figure(of(|it| it.scheduled)),
        figure(of(|it| it.claimed)),
        figure(of(|it| it.done)),
        figure(of(|it| it.failed)),
        figure(
            row.lag()
                .map_or_else(|| "-".to_owned(), |lag| short(lag.p99)),
        ),
    ])
}

fn name(column: Column) -> &'static str {
    match column {
        Column::Kind => "kind",
        Column::Pending => "pending",
        Column::Due => "due",
        Column::Overdue => "for",
        Column::Running => "running",
        Column::Dead => "dead",
        Column::Scheduled => "sched/s",
        Column::Claimed => "claim/s",
        Column::Done => "done/s",
        Column::Failed => "fail/s",
        Column::Lag => "p99 lag",
    }
}

fn draw_instances(frame: &mut Frame<'_>, area: Rect, board: &Board, paint: Paint) {
    if board.hides_instances {
        let lines = [
            Line::styled("instances", paint.title()),
            Line::styled("not shown: the token is not for all jobs", paint.dim()),
        ];
        return frame.render_widget(Paragraph::new(lines.to_vec()), area);
    }
    let mut lines = vec![Line::styled(
        format!("instances {}", board.instances.len()),
        paint.title(),
    )];
    let room = usize::from(area.height.saturating_sub(2)).max(1);
    for one in board.instances.iter().take(room) {
        let age = board
            .now
            .and_then(|now| now.duration_since(one.started).ok());
        let (full, routes) = (one.full, one.routes.len());
        let mut line = vec![
            Span::raw(format!("{}  ", plain(&one.name))),
            Span::styled(
                format!("up {}  ", age.map_or_else(|| "-".to_owned(), short)),
                paint.dim(),
            ),
        ];
        line.push(match full {
            0 => Span::raw("room  "),
            _ => Span::styled(format!("no room on {full} of {routes}  "), paint.odd()),
        });
        if !one.hears_events {
            line.push(Span::styled("hears no events  ", paint.odd()));
        }
        line.push(Span::raw(plain(&one.routes.join(" ")).into_owned()));
        if one.has_fallback {
            line.push(Span::raw(" and jobs without a route"));
        }
        if one.adopts {
            line.push(Span::styled("  adopts keys", paint.dim()));
        }
        lines.push(line.into());
    }
    if board.instances.is_empty() {
        lines.push(Line::styled(
            "no worker is alive: no job starts",
            paint.bad(),
        ));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_failures(frame: &mut Frame<'_>, area: Rect, board: &Board, paint: Paint) {
    let mut title = vec![Span::styled("latest failures", paint.title())];
    if let Some(why) = &board.closed {
        let why = format!("  these and the lag are not updated: {}", plain(why));
        title.push(Span::styled(why, paint.odd()));
    }
    let mut lines = vec![Line::from(title)];
    let room = usize::from(area.height.saturating_sub(2)).max(1);
    for one in board.failures.iter().take(room) {
        let what = match (one.is_dead, one.attempt) {
            (true, _) => Span::styled("dead  ", paint.bad()),
            (false, Some(attempt)) => Span::styled(format!("attempt {attempt}  "), paint.odd()),
            (false, None) => Span::styled("failed  ", paint.odd()),
        };
        lines.push(Line::from(vec![
            Span::styled(format!("{}  ", clock(one.at)), paint.dim()),
            what,
            Span::raw(format!("{}  ", plain(&one.key))),
            Span::raw(plain(&one.error)),
        ]));
    }
    if board.failures.is_empty() {
        lines.push(Line::styled("none", paint.dim()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn style_of(is: bool, style: Style) -> Style {
    if is { style } else { Style::new() }
}

/// The time of the day, UTC.
fn clock(time: SystemTime) -> String {
    let text = Time(time).to_string();
    text.split_once('T')
        .map_or_else(String::new, |(_, time)| time.chars().take(8).collect())
}

fn next_due(due: Option<SystemTime>, now: Option<SystemTime>) -> String {
    let (Some(due), Some(now)) = (due, now) else {
        return "-".into();
    };
    match due.duration_since(now) {
        Ok(ahead) => format!("in {}", short(ahead)),
        Err(_) => "now".into(),
    }
}

/// A duration in its two largest units.
fn short(time: Duration) -> String {
    let (s, ms) = (time.as_secs(), time.subsec_millis());
    match s {
        0 => format!("{ms}ms"),
        1..10 => format!("{s}.{}s", ms / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..10.0 => format!("{rate:.1}"),
        ..10_000.0 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}
