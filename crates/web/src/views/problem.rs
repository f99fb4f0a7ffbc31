//! The page of an error: what went wrong, and the remedy.

use askama::Template;

use crate::fault::Fault;
use crate::page::Page;

#[derive(Template)]
#[template(path = "problem.html", blocks = ["part"])]
pub(crate) struct Problem {
    page: Page,
    title: String,
    fault: Fault,
    /// Whether the page loads itself again: the error may pass, and a repeat changes nothing.
    is_repeated: bool,
}

impl Problem {
    pub(crate) fn new(page: Page, fault: Fault, is_read: bool) -> Self {
        let name = format!("problem.{}", fault.code);
        let title = page.words.find(&name).unwrap_or(match &*fault.title {
            "" => page.words.t("problem.unexpected"),
            title => title,
        });
        Problem {
            title: title.to_owned(),
            is_repeated: is_read && fault.is_away(),
            page,
            fault,
        }
    }
}
