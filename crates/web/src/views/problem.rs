//! The page of an error: what went wrong, and the remedy.

use askama::Template;

use crate::fault::Fault;
use crate::page::Page;

#[derive(Template)]
#[template(path = "problem.html")]
pub(crate) struct Problem {
    page: Page,
    title: String,
    /// The rule and the remedy.
    said: String,
    /// The words of the API, if `said` is in another language.
    original: Option<String>,
    field: Option<String>,
    /// Whether the page loads itself again: the error may pass, and a repeat changes nothing.
    is_repeated: bool,
}

/// The line above a page that stays as it was: a script wanted a part of the page anew.
#[derive(Template)]
#[template(path = "fault.html")]
pub(crate) struct Line<'a> {
    page: &'a Page,
    title: String,
    said: String,
}

impl Problem {
    pub(crate) fn new(page: Page, fault: Fault, is_read: bool) -> Self {
        Problem {
            title: title(&page, &fault),
            said: fault.said(page.words),
            original: fault.original(page.words).map(ToOwned::to_owned),
            is_repeated: is_read && fault.is_away(),
            field: fault.field,
            page,
        }
    }
}

impl<'a> Line<'a> {
    pub(crate) fn new(page: &'a Page, fault: Fault) -> Self {
        Line {
            page,
            title: title(page, &fault),
            said: fault.said(page.words),
        }
    }
}

/// The title in the language of the reader, or else the title of the API.
fn title(page: &Page, fault: &Fault) -> String {
    let known = page.words.find(&format!("problem.{}", fault.code));
    let known = known.unwrap_or(match &*fault.title {
        "" => page.words.t("problem.unexpected"),
        title => title,
    });
    known.to_owned()
}
