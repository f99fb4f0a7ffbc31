//! The drawn screen, without a terminal.

use std::time::{Duration, SystemTime};

use keyfall::{Kind, Stats};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::board::{Board, Column, Failure, Key, Live, Looked, Seen};
use super::view::{Paint, draw};

const SECOND: Duration = Duration::from_secs(1);
const COLOURS: Paint = Paint { has_colour: true };

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_712_345)
}

fn kind(text: &str) -> Kind {
    Kind::parse(text).unwrap()
}

fn board() -> Board {
    Board::new("redis://127.0.0.1:6379".into(), "", SECOND)
}

fn looked(name: &str, at: SystemTime, set: impl FnOnce(&mut Stats)) -> Looked {
    let mut stats = Stats::default();
    set(&mut stats);
    Looked {
        kind: kind(name),
        stats,
        at,
    }
}

fn seen(looked: Vec<Looked>) -> Seen {
    Seen {
        kinds: looked.len(),
        looked,
        now: Some(now()),
        ..Seen::default()
    }
}

fn terminal(board: &mut Board, width: u16, height: u16, paint: Paint) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, board, paint)).unwrap();
    terminal
}

fn lines_of(board: &mut Board, width: u16, height: u16) -> Vec<String> {
    let terminal = terminal(board, width, height, COLOURS);
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| -> String {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    cells.chunks(usize::from(width)).map(line).collect()
}

/// The words of the line with this beginning.
#[track_caller]
fn line_with<'a>(lines: &'a [String], beginning: &str) -> Vec<&'a str> {
    let line = lines.iter().find(|line| line.starts_with(beginning));
    let line = line.unwrap_or_else(|| panic!("no {beginning:?} in {lines:#?}"));
    line.split_whitespace().collect()
}

#[test]
fn rates_lag_and_failures_are_shown_and_what_is_not_known_is_a_dash() {
    let mut board = board();
    let begin = now();
    board.take(seen(vec![
        looked("app1:trans:notice", begin, |it| {
            (it.accepted, it.done) = (100, 40)
        }),
        looked("app1:trans:refund", begin, |it| it.paused = true),
    ]));
    let lines = lines_of(&mut board, 120, 40);
    let row = line_with(&lines, "app1:trans:notice");
    assert_eq!(row[6..], ["-", "-", "-", "-", "-"]);
    let mut next = seen(vec![looked(
        "app1:trans:notice",
        begin + 2 * SECOND,
        |it| {
            (it.accepted, it.done, it.failed, it.leased) = (160, 80, 3, 7);
            (it.pending, it.overdue, it.dead) = (20, 4, 1);
            it.overdue_for = Duration::from_millis(61_500);
        },
    )]);
    next.kinds = 2;
    let notice = || kind("app1:trans:notice");
    next.starts = [2, 3, 900]
        .map(|ms| (notice(), Duration::from_millis(ms)))
        .into();
    next.next_due = vec![(notice(), Some(now() + 90 * SECOND))];
    next.failures = [(Some(2), false), (None, true)]
        .map(|(attempt, is_dead)| Failure {
            at: now(),
            key: "app1:trans:notice:42".into(),
            attempt,
            is_dead,
            error: "refused\n\x1b[2J".into(),
        })
        .into();
    next.instances = vec![Live {
        name: "web-1:42".into(),
        started: now() - 7265 * SECOND,
        routes: vec!["app1:trans:*:*".into()],
        full: 1,
        hears_events: false,
        has_fallback: false,
        adopts: true,
    }];
    board.take(next);
    let lines = lines_of(&mut board, 120, 40);
    assert!(
        lines[0].contains("redis://127.0.0.1:6379  08:05:45  every 1.0s"),
        "{lines:#?}"
    );
    assert_eq!(
        lines[1],
        "pending 20   due 4, for 1m01s   running 7   dead 1   next due in 1m30s"
    );
    assert_eq!(
        lines[2],
        "a second: scheduled 30   claimed 25   done 20   failed 1.5   buried 0"
    );
    assert_eq!(
        lines[3],
        "lag of the last starts: p50 3ms   p99 3ms   longest 900ms"
    );
    let row = line_with(&lines, "app1:trans:notice");
    let expected = ["20", "4", "1m01s", "7", "1", "30", "25", "20", "1.5", "3ms"];
    assert_eq!(row[1..], expected);
    assert_eq!(line_with(&lines, "app1:trans:refund")[1], "paused");
    let instance = line_with(&lines, "web-1:42").join(" ");
    assert_eq!(
        instance,
        "web-1:42 up 2h01m no room on 1 of 1 hears no events app1:trans:*:* adopts keys"
    );
    let failures: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("refused"))
        .collect();
    assert!(
        failures[0].starts_with("08:05:45  dead  app1:trans:notice:42"),
        "{failures:?}"
    );
    assert!(
        failures[1].starts_with("08:05:45  attempt 2"),
        "{failures:?}"
    );
    assert!(!lines.concat().contains('\x1b'));
    assert!(lines[39].contains("q quit"), "{lines:#?}");
}

#[test]
fn the_busiest_kinds_are_shown_and_the_others_are_reached_by_keys() {
    let mut board = board();
    let (begin, many) = (now(), 3000_u64);
    let look = |at: SystemTime| {
        let one = |n: u64| {
            looked(&format!("app1:trans:k{n:04}"), at, |it| {
                it.dead = n;
                it.done = if at > begin { n } else { 0 };
            })
        };
        seen((0..many).map(one).collect())
    };
    board.take(look(begin));
    board.take(look(begin + SECOND));
    let first = |board: &mut Board| {
        let lines = lines_of(board, 100, 24);
        let of = lines.iter().find(|line| line.starts_with("app1:"));
        of.unwrap()[..16].to_owned()
    };
    assert_eq!(first(&mut board), "app1:trans:k2999");
    let room = board.room;
    assert!((2..24).contains(&room), "{room}");
    assert_eq!(board.shown().len(), room);
    board.press(Key::PageDown);
    assert_eq!(first(&mut board), format!("app1:trans:k{:04}", 2999 - room));
    board.press(Key::Up);
    assert_eq!(first(&mut board), format!("app1:trans:k{:04}", 3000 - room));
    // Six steps to the left of `claimed` is the name.
    while board.sort != Column::Kind {
        board.press(Key::Left);
    }
    board.press(Key::Home);
    assert_eq!(first(&mut board), "app1:trans:k0000");
    for _ in 0..many {
        board.press(Key::Down);
    }
    assert_eq!(board.shown().len(), room, "the last page is full");
    let lines = lines_of(&mut board, 100, 24);
    let title = line_with(&lines, "kinds 3000").join(" ");
    assert_eq!(title, format!("kinds 3000, {} to 3000", 3001 - room as u64));
}

#[test]
fn a_paused_view_stays_as_it_was_and_trouble_hides_nothing() {
    let mut board = board();
    let at = now();
    board.take(seen(vec![looked("app1:trans:notice", at, |it| {
        it.pending = 1
    })]));
    board.press(Key::Pause);
    board.take(seen(vec![looked("app1:trans:notice", at + SECOND, |it| {
        it.pending = 2
    })]));
    let lines = lines_of(&mut board, 120, 30);
    assert!(lines[0].ends_with("PAUSED"), "{lines:#?}");
    assert_eq!(line_with(&lines, "app1:trans:notice")[1], "1");
    board.press(Key::Pause);
    board.take(Seen {
        trouble: Some("Redis does not answer".into()),
        ..Seen::default()
    });
    let lines = lines_of(&mut board, 120, 30);
    assert_eq!(lines[4], "Redis does not answer");
    assert_eq!(line_with(&lines, "app1:trans:notice")[1], "1");
    board.take(Seen {
        gone: vec![kind("app1:trans:notice")],
        ..Seen::default()
    });
    assert_eq!(board.known(), 0);
}

#[test]
fn what_is_not_followed_is_said_and_the_rest_is_shown() {
    let mut board = board();
    let looks = || {
        seen(vec![looked("app1:trans:notice", now(), |it| {
            it.pending = 1
        })])
    };
    board.take(Seen {
        closed: Some("this daemon serves 64 tails already".into()),
        ..looks()
    });
    let lines = lines_of(&mut board, 120, 30);
    assert_eq!(line_with(&lines, "app1:trans:notice")[1], "1");
    let title = line_with(&lines, "latest failures").join(" ");
    assert_eq!(
        title,
        "latest failures these and the lag are not updated: this daemon serves 64 tails already"
    );
    board.take(looks());
    let lines = lines_of(&mut board, 120, 30);
    assert_eq!(line_with(&lines, "latest failures").len(), 2);
}

#[test]
fn without_colours_there_are_none_and_any_size_is_drawn() {
    let mut board = board();
    let mut one = seen(vec![looked("app1:trans:notice", now(), |it| {
        (it.dead, it.overdue, it.paused) = (1, 1, true);
    })]);
    one.trouble = None;
    board.take(one);
    let colours = |paint: Paint, board: &mut Board| {
        let terminal = terminal(board, 120, 40, paint);
        let cells = terminal.backend().buffer().content().iter();
        cells
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert!(colours(COLOURS, &mut board) > 0);
    assert_eq!(colours(Paint { has_colour: false }, &mut board), 0);
    for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
        terminal(&mut board, width, height, COLOURS);
    }
}

#[test]
fn what_turns_a_text_or_is_not_seen_is_shown_as_such() {
    let mut board = board();
    board.take(Seen {
        instances: vec![Live {
            name: "a\u{202e}b".into(),
            started: now(),
            routes: vec!["c\u{2066}d".into()],
            full: 0,
            hears_events: true,
            has_fallback: false,
            adopts: false,
        }],
        failures: vec![Failure {
            at: now(),
            key: "app1:trans:notice:e\u{200b}f".into(),
            attempt: Some(1),
            is_dead: false,
            error: "g\u{feff}h".into(),
        }],
        ..seen(Vec::new())
    });
    let mut screen = lines_of(&mut board, 120, 40).concat();
    board.take(Seen {
        trouble: Some("i\u{ad}j".into()),
        ..seen(Vec::new())
    });
    screen += &lines_of(&mut board, 120, 40).concat();
    for shown in [
        "a\u{fffd}b",
        "c\u{fffd}d",
        "e\u{fffd}f",
        "g\u{fffd}h",
        "i\u{fffd}j",
    ] {
        assert!(screen.contains(shown), "no {shown} in {screen}");
    }
}
