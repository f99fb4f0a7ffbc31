//! Takes the terminal, reads its keys, and gives it back as it was, however the command ends.

use std::io;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::board::{Board, Key};
use super::view::{Paint, draw};

pub(super) struct Screen {
    terminal: DefaultTerminal,
    keys: mpsc::Receiver<Key>,
    paint: Paint,
}

impl Screen {
    /// # Errors
    /// If the terminal cannot be used.
    pub(super) fn take() -> io::Result<Self> {
        // A panic gives the terminal back, too, before it prints its message.
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let (tell, keys) = mpsc::channel(64);
        // This thread still waits for a key when the command ends, and ends with the process.
        std::thread::spawn(move || {
            while let Ok(event) = event::read() {
                if let Some(key) = meant(&event)
                    && tell.blocking_send(key).is_err()
                {
                    break;
                }
            }
        });
        Ok(Screen {
            terminal,
            keys,
            paint: Paint::of_env(),
        })
    }

    pub(super) fn draw(&mut self, board: &mut Board) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, board, self.paint))?;
        Ok(())
    }

    /// The next key that has a meaning; `None` if the terminal is gone.
    pub(super) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn meant(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        Event::Resize(..) => return Some(Key::Resize),
        _ => return None,
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::Left | KeyCode::Char('<') => Key::Left,
        KeyCode::Right | KeyCode::Char('>' | 's') => Key::Right,
        _ => return None,
    })
}
