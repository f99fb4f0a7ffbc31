//! The rows of live pages: each change is rendered once for all pages of the same language and zone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::body::Bytes;

use crate::page::Page;

/// The most rows that are kept for one language and zone, about two kibibytes each. A page that is
/// further behind renders its rows itself.
const KEPT: usize = 512;

/// The rows of each language and zone, while somebody looks at them.
#[derive(Default)]
pub(crate) struct Rows(Mutex<HashMap<(&'static str, String), Weak<Rendered>>>);

/// The rendered rows by the lines of the API that they show.
#[derive(Default)]
pub(crate) struct Rendered(Mutex<HashMap<Vec<u8>, Row>>);

/// A row as an event of a stream.
#[derive(Clone)]
pub(crate) struct Row {
    /// The time of the change, in microseconds.
    pub(crate) micros: u64,
    pub(crate) event: Bytes,
}

impl Rows {
    /// The rows in the language and zone of this page. They are forgotten with their last reader.
    pub(crate) fn of(&self, page: &Page) -> Arc<Rendered> {
        let mut all = lock(&self.0);
        let name = (page.words.lang, page.zone_name().to_owned());
        if let Some(rendered) = all.get(&name).and_then(Weak::upgrade) {
            return rendered;
        }
        all.retain(|_, rendered| rendered.strong_count() > 0);
        let rendered = Arc::default();
        all.insert(name, Arc::downgrade(&rendered));
        rendered
    }
}

impl Rendered {
    /// The row of this line: the kept one, or the one that `render` makes. Others who want the same
    /// row wait meanwhile, and get it.
    pub(crate) fn row(&self, line: &[u8], render: impl FnOnce() -> Option<Row>) -> Option<Row> {
        let mut kept = lock(&self.0);
        if let Some(row) = kept.get(line) {
            return Some(row.clone());
        }
        let row = render()?;
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(line.to_vec(), row.clone());
        Some(row)
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(micros: u64) -> Option<Row> {
        let event = Bytes::from_static(b"event: row\n\n");
        Some(Row { micros, event })
    }

    #[test]
    fn a_change_is_rendered_once_for_all_pages_of_a_language_and_zone() {
        let (rows, page) = (Rows::default(), crate::tests::page());
        let (one, other) = (rows.of(&page), rows.of(&page));
        assert_eq!(one.row(b"line", || row(7)).unwrap().micros, 7);
        let again = other.row(b"line", || panic!("it is rendered")).unwrap();
        assert_eq!(again.micros, 7);
        let mut there = page;
        there.zone = Page::zone("Asia/Shanghai");
        assert!(!Arc::ptr_eq(&one, &rows.of(&there)));
    }

    #[test]
    fn rows_are_bounded_and_forgotten_with_their_last_reader() {
        let (rows, page) = (Rows::default(), crate::tests::page());
        let reader = rows.of(&page);
        for number in 0..3 * KEPT as u64 {
            reader.row(&number.to_be_bytes(), || row(number)).unwrap();
            assert!(lock(&reader.0).len() <= KEPT);
        }
        drop(reader);
        assert!(lock(&rows.of(&page).0).is_empty());
        assert_eq!(lock(&rows.0).len(), 1);
    }
}
